"""What is recorded until a transaction commits, and the receipts of what it sent."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import strictq
from strictq import ForwardPending, InvalidArgument, LeaseLost, Message, MessageTooLarge, PendingReceipt, Queue, Receipt
from strictq._client.effects import Effects
from strictq._values.types import UNSET
from tests.support.injection import commit_fails, quarantine
from tests.support.queues import Opener, fill, keys_by_shard

HERE, THERE = keys_by_shard(2).values()


@pytest.fixture
def two(make: Opener) -> Queue:
    return make(shards=2)


def unreadable(p: PendingReceipt, why: str) -> bool:
    for name in ("receipt", "seq", "id", "shard"):
        with pytest.raises(InvalidArgument, match=why):
            getattr(p, name)
    return True


# ---- receipts


@pytest.mark.parametrize("reads", [False, True], ids=["kept", "open"])
def test_a_send_has_its_receipt_after_the_commit(two: Queue, reads: bool) -> None:
    fill(two, HERE, 2)
    with two.transaction(key=HERE) as tx:
        first, other, last = tx.send(b"a", HERE), tx.send(b"b", 7), tx.send(b"c", HERE)
        if reads:
            assert tx.key_state is None
        assert unreadable(first, "has not committed yet")
        assert first.key == HERE
    found = {d.body: d for d in two.receive()}
    a, c = found[b"a"], found[b"c"]
    assert first.receipt == Receipt(HERE, 3, a.id, False, a.shard)
    assert last.receipt == Receipt(HERE, 4, c.id, False, c.shard)
    assert (first.seq, first.id, first.shard) == (3, a.id, a.shard)
    assert (other.key, other.shard) == (7, found[b"b"].shard)


@pytest.mark.own_messages("the numbers of the outbox")
def test_a_send_to_another_shard_has_its_number_in_the_outbox(two: Queue) -> None:
    with two.transaction(key=HERE) as tx:
        one, two_ = tx.send(b"1", THERE), tx.send(b"2", THERE)
        tx.send(b"", HERE)
    with two.transaction(key=HERE) as tx:
        three = tx.send(b"3", THERE)
    assert [(p.key, p.receipt, p.seq, p.id, p.shard) for p in (one, two_, three)] == [
        (THERE, None, None, n, 1) for n in (1, 2, 3)
    ]
    assert [m.body for m in two.peek(THERE)] == [b"1", b"2", b"3"]


def test_a_send_that_has_yet_to_arrive_has_it_too(disk: Opener) -> None:
    q = disk(shards=2)
    quarantine(q, 1)
    with pytest.raises(ForwardPending), q.transaction(key=HERE) as tx:
        here, there = tx.send(b"", HERE), tx.send(b"", THERE)
    assert (here.seq, there.seq, there.id, there.shard) == (1, None, 1, 1)


def test_a_duplicate_has_the_first_ones_receipt(q: Queue) -> None:
    first = q.send(b"", "k", dedup_id="once")
    with q.transaction(key="k") as tx:
        again = tx.send(b"", "k", dedup_id="once")
    assert again.receipt == first._replace(duplicate=True)


@pytest.mark.one_shard("the number of the shard")
def test_a_keyless_send_has_no_key(make: Opener) -> None:
    q = make(keyless="random", keyless_lanes=1)
    with q.transaction(key="k") as tx:
        p = tx.send(b"")
    (d,) = q.receive()
    assert p.receipt == Receipt(None, 1, d.id, False, 0)


def raise_inside(q: Queue, d: strictq.Delivery) -> PendingReceipt:
    with pytest.raises(LookupError), q.transaction(d) as tx:
        p = tx.send(b"", "next")
        raise LookupError
    return p


def raise_in_sql(q: Queue, d: strictq.Delivery) -> PendingReceipt:
    with pytest.raises(InvalidArgument), q.transaction(d) as tx:
        p = tx.send(b"", "next")
        tx.execute("nonsense")
    return p


def lose_the_lease(q: Queue, d: strictq.Delivery) -> PendingReceipt:
    d.lease.release()
    kept: list[PendingReceipt] = []
    with pytest.raises(LeaseLost), q.transaction(d) as tx:
        kept.append(tx.send(b"", "next"))
    return kept[0]


def settle_inside(q: Queue, d: strictq.Delivery) -> PendingReceipt:
    with pytest.raises(LeaseLost), q.transaction(d) as tx:
        p = tx.send(b"", "next")
        d._state = 1  # as by another thread
    return p


@pytest.mark.parametrize("fail", [raise_inside, raise_in_sql, lose_the_lease, settle_inside])
def test_a_failed_transaction_has_no_receipts(q: Queue, fail: Callable[[Queue, strictq.Delivery], PendingReceipt]) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    p = fail(q, d)
    assert unreadable(p, "failed: it was not sent")
    assert q.peek("next") == []


@pytest.mark.parametrize("happened", [False, True])
def test_after_an_unknown_outcome_the_repetition_tells(disk: Opener, happened: bool) -> None:
    q = disk()
    q.send(b"", "k")
    (d,) = q.receive()

    def attempt() -> PendingReceipt:
        with q.transaction(d) as tx:
            attempts.append(tx.send(b"", "next"))
        return attempts[-1]

    attempts: list[PendingReceipt] = []
    with commit_fails(q, happened=happened), pytest.raises(strictq.OutcomeUnknown):
        attempt()
    assert unreadable(attempts[0], "not known")
    again = attempt()
    # Where it had happened before, the message was sent then, and its receipt is not kept.
    assert (again.key, again.seq is None, again.id is None, again.shard) == ("next", happened, happened, 0)
    assert (again.receipt is None) == happened
    assert q.explain("next").depth == 1


@pytest.mark.one_shard("receipts of sends within the shard")
def test_a_repetition_in_an_open_transaction_has_none_either(q: Queue) -> None:
    fill(q, "k", 1)
    (d,) = q.receive()
    for repeated in (False, True):
        d._state = 0  # as after OutcomeUnknown
        with q.transaction(d) as tx:
            assert tx.key_state == (b"s" if repeated else None)
            tx.key_state = b"s"
            p = tx.send(b"", "next")
        assert (p.receipt is None) == repeated
    assert q.explain("next").depth == 1


@pytest.mark.one_shard("the number of the shard")
def test_a_receipt_says_in_words_how_it_is(q: Queue) -> None:
    with q.transaction(key="k") as tx:
        p = tx.send(b"", "k")
        assert "has not committed yet" in repr(p)
    assert repr(p) == f"PendingReceipt(key='k', seq=1, id={p.id}, shard=0)"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_transaction_gives_receipts_too(backend: str) -> None:
    async def main() -> None:
        async with strictq.open_async(":memory:") as q:
            async with q.transaction(key="k") as tx:
                p = tx.send(b"", "k", dedup_id="once")
                assert await tx.get_key_state() is None
                assert unreadable(p, "has not committed yet")
            again = await q.send(b"", "k", dedup_id="once")
            assert p.receipt == again._replace(duplicate=False)
            with pytest.raises(LookupError):
                async with q.transaction(key="k") as tx:
                    p = tx.send(b"", "k")
                    raise LookupError
            assert unreadable(p, "failed")

    anyio.run(main, backend=backend)


# ---- what is recorded


def test_what_the_program_does_with_its_lists_and_headers_afterwards_is_not_meant(q: Queue) -> None:
    q.app_schema("CREATE TABLE app_t (a)")
    params, named, headers = [1], {"a": 2}, {"h": "then"}
    with q.transaction(key="k") as tx:
        tx.execute("INSERT INTO app_t VALUES (?)", params)
        tx.execute("INSERT INTO app_t VALUES (:a)", named)
        tx.send(b"", "k", headers=headers)
        params[0], named["a"], headers["h"] = 7, 7, "now"
    assert q.query("SELECT a FROM app_t ORDER BY a") == [(1,), (2,)]
    assert q.receive()[0].headers == {"h": "then"}


def test_what_was_recorded_crosses_to_another_process(q: Queue) -> None:
    headers = {"h": "then"}
    far = Effects()
    p = far.send(Message(b"body", key="next", headers=headers, delay=3600.0))
    far.set_key_state(b"s")
    far.execute("SELECT ?", [1])
    far.say("one")
    far.say("two")
    headers["h"] = "now"
    assert unreadable(p, "another process")
    came: Effects = pickle.loads(pickle.dumps(far))  # as multiprocessing's connections do
    near = Effects(q._client.sending)
    near.take(came)
    assert [(s.message.body, s.message.headers, s.item is None) for s in near.sends] == [(b"body", {"h": "then"}, False)]
    assert (near.key_state, near.statements) == (b"s", [("SELECT ?", [1])])
    assert (came.said, near.said) == ("one\ntwo", None)
    assert pickle.loads(pickle.dumps(Effects())).key_state is UNSET


@pytest.mark.parametrize("near", [True, False])
def test_output_needs_no_commit(q: Queue, near: bool) -> None:
    def fresh() -> Effects:
        return Effects(q._client.sending if near else None)

    e = fresh()
    e.say("x")
    assert not e.need_commit
    for act in (
        lambda e: e.send(Message(b"", key="k")),
        lambda e: e.set_key_state(None),
        lambda e: e.execute("SELECT 1"),
    ):
        e = fresh()
        act(e)
        assert e.need_commit


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize(
    "act",
    [
        lambda e: e.send(Message("text", key="k")),  # type: ignore[arg-type]
        lambda e: e.send(Message(b"", key="")),
        lambda e: e.send(Message(b"", key="k", delay=-1.0)),
        lambda e: e.send(Message(b"", key="k", headers={"a": 1})),  # type: ignore[dict-item]
        lambda e: e.set_key_state("text"),
        lambda e: e.execute(b"SELECT 1"),
        lambda e: e.say(b"x"),
    ],
)
def test_what_no_queue_accepts_is_refused_at_once_anywhere(q: Queue, near: bool, act: Callable[[Any], object]) -> None:
    effects = Effects(q._client.sending if near else None)
    with pytest.raises(InvalidArgument):
        act(effects)
    assert not effects.need_commit
    assert effects.said is None


def test_what_this_queue_does_not_accept_is_refused_where_the_queue_is(make: Opener) -> None:
    q = make(max_body_bytes=4)
    for record, error in (
        (lambda e: e.send(Message(b"12345", key="k")), MessageTooLarge),
        (lambda e: e.send(Message(b"")), InvalidArgument),
        (lambda e: e.set_key_state(b"12345"), InvalidArgument),
    ):
        far = Effects()
        record(far)
        with pytest.raises(error):
            Effects(q._client.sending).take(far)
