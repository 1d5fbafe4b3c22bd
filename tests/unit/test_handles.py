"""Settling by handle, from another object, another process or after a restart; and several deliveries in one transaction."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import strictq
from strictq import InvalidArgument, LeaseLost, PartialFailure, Queue
from strictq.testing import FakeClock
from tests.support.queues import Opener, fill, labels, seqs
from tests.support.running import run_python

ANOTHER = """
import sys, strictq
path, verb, handle, *arguments = sys.argv[1:]
with strictq.open(path) as q:
    try:
        getattr(q.delivery(handle), verb)(*map(float, arguments))
    except strictq.StrictqError as e:
        print(type(e).__name__)
    else:
        print("done")
"""


def test_a_handle_is_a_str_and_says_what_it_names(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    ref = q.delivery(d.handle)
    assert type(d.handle) is str
    assert d.handle.isascii()
    assert (ref.handle, ref.key, ref.seq, ref.token) == (d.handle, "k", 1, d.token)


@pytest.mark.parametrize("key", ["k", "é\u202e" * 100, b"\x00\xff", -5, 10**300, "x" * 1024])
def test_any_key_has_one(q: Queue, key: str | bytes | int) -> None:
    q.send(b"", key)
    (d,) = q.receive()
    ref = q.delivery(d.handle)
    assert ref.key == key
    ref.ack()
    assert q.status(key, 1).state == "resolved"


def test_ack_is_final_and_may_be_repeated(q: Queue) -> None:
    fill(q, "k", 2)
    one, two = q.receive()
    ref = q.delivery(one.handle)
    ref.ack()
    ref.ack()  # P8: the first call happened
    assert q.stats().depth == 1
    two.ack()
    with pytest.raises(LeaseLost):
        ref.ack()  # the lane remembers its last resolution alone
    assert q.receive() == []


def test_nack_gives_back_what_is_later_and_charges(q: Queue) -> None:
    fill(q, "k", 3)
    _, two, _ = q.receive()
    q.delivery(two.handle).nack(reason="no")
    assert q.status("k", 2).last_error == "no"
    assert q.stats().in_flight == 1


def test_reject_defer_and_extend(q: Queue, clock: FakeClock) -> None:
    fill(q, "a", 1)
    fill(q, "b", 1)
    fill(q, "c", 1)
    a, b, c = q.receive()
    q.delivery(a.handle).reject("never")
    assert [(x.key, x.reason) for x in q.dead_letters()] == [("a", "never")]
    q.delivery(b.handle).defer(10.0)
    assert q.explain("b").state == "delayed"
    q.delivery(c.handle).extend(100.0)
    clock.advance(99.0)
    assert labels(q.receive()) == [("b", 1)], "c is still held"
    assert q.receive() == []
    clock.advance(2.0)
    assert labels(q.receive(keys=["c"])) == [("c", 1)]


def test_a_dead_handle_changes_nothing(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    late = q.delivery(q.receive()[0].handle)
    clock.advance(31.0)
    assert seqs(q.receive())
    for verb in (late.ack, late.nack, lambda: late.reject("x"), lambda: late.defer(1.0), lambda: late.extend(1.0)):
        with pytest.raises(LeaseLost) as lost:
            verb()
        assert (lost.value.key, lost.value.seq, lost.value.token) == ("k", 1, late.token)
    assert q.stats().depth == 2


def test_a_late_one_counts_where_no_other_took_the_lane(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 1)
    late = q.delivery(q.receive()[0].handle)
    clock.advance(31.0)
    late.ack()
    assert q.stats().depth == 0


def test_a_handle_of_a_lane_that_is_not_there(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    other = d.handle.rpartition(".")[0] + ".c25ldmVy"  # snever
    with pytest.raises(LeaseLost):
        q.delivery(other).ack()
    assert q.stats().in_flight == 1


def test_keyless_messages_have_handles(make: Opener) -> None:
    q = make(keyless="random")
    q.send(b"1")
    (d,) = q.receive()
    q.delivery(d.handle).defer(0.0)
    (again,) = q.receive()
    assert again.attempt == 1
    assert q.delivery(again.handle).key is None
    q.delivery(again.handle).ack()
    assert q.stats().depth == 0


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_another_process_settles(tmp_path: Path, shards: int) -> None:
    path = tmp_path / "queue"
    with strictq.open(path, shards=shards, durability="process") as q:
        for key in "abcde":
            fill(q, key, 1)
        handles = {d.key: d.handle for d in q.receive()}
        for key, verb, *arguments in (("a", "ack"), ("b", "nack", 0), ("c", "defer", 60), ("d", "extend", 60), ("e", "ack")):
            assert run_python(ANOTHER, path, verb, handles[key], *arguments).split() == ["done"]
        assert [q.explain(key).state for key in "abcde"] == ["empty", "ready", "delayed", "in_flight", "empty"]
        assert run_python(ANOTHER, path, "ack", handles["b"]).split() == ["LeaseLost"]


def test_after_a_restart(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 2)
    one, two = (d.handle for d in q.receive())
    q.close()
    q = disk()
    q.delivery(one).ack()
    q.delivery(two).ack()
    assert q.stats().depth == 0


def test_another_queues_handle_is_refused(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "a") as a, strictq.open(tmp_path / "b") as b:
        for q in (a, b):
            q.send(b"", "k")
        (mine,), (other,) = a.receive(), b.receive()
        assert mine.token == other.token
        with pytest.raises(InvalidArgument, match="another queue"):
            b.delivery(mine.handle)
        assert b.stats().in_flight == 1


@pytest.mark.parametrize("handle", ["", "k", "sq1.0.0.0.", None, 5, b"sq1", "sq1." + "0" * 16 + ".1.1.???", "x" * 10_000])
def test_what_is_no_handle_is_refused(q: Queue, handle: object) -> None:
    with pytest.raises(InvalidArgument, match="handle"):
        q.delivery(handle)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [".0.1.", f".{2**63}.1.", ".1.0.", f".1.{10**18 * 9}."])
def test_numbers_out_of_range_are_refused(q: Queue, change: str) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    version, short, _, _, key = d.handle.split(".")
    with pytest.raises(InvalidArgument, match="handle"):
        q.delivery(f"{version}.{short}{change}{key}")


def test_the_verbs_are_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            for key in "abcdefg":
                await q.send(b"", key)
            refs = {d.key: q.delivery(d.handle) for d in await q.receive()}
            await refs["a"].ack()
            await refs["b"].nack(0.0)
            await refs["c"].defer(60.0)
            await refs["d"].extend(60.0, late=False)
            await refs["e"].reject("no")
            await refs["f"].release()
            await q.extend_many([refs["d"]], 60.0, late=False)
            await q.ack_many([refs["g"]])
            states = [(await q.explain(key)).state for key in "abcdefg"]
            assert states == ["empty", "ready", "delayed", "in_flight", "empty", "ready", "empty"]
            assert (refs["a"].key, refs["a"].seq, type(refs["a"].handle)) == ("a", 1, str)

    anyio.run(main)


# ---- several handles in one call


def test_many_are_acked_by_handle_mixed_with_deliveries(make: Opener) -> None:
    q = make(shards=2)
    for key in "abc":
        fill(q, key, 2)
    ds = q.receive()
    refs = [q.delivery(d.handle) for d in ds]
    q.ack_many([ds[0], refs[1], *refs[2:5]])
    assert [(m.key, m.seq) for m in q.peek()] == [(refs[5].key, refs[5].seq)]
    ds[5].ack()
    assert q.stats().depth == 0


def test_a_delivery_and_its_handle_in_one_ack_are_one_message(q: Queue) -> None:
    fill(q, "k", 2)
    one, two = q.receive()
    with pytest.raises(PartialFailure) as failed:
        q.ack_many([one, q.delivery(one.handle)])
    assert [type(r) for r in failed.value.results] == [type(None), LeaseLost]
    assert q.status("k", 2).state == "in_flight", "the second message was not given"
    two.ack()


def test_a_nack_by_handles_gives_back_from_the_first_one_given(q: Queue) -> None:
    fill(q, "k", 4)
    one, two, three, four = q.receive()
    q.nack_many([q.delivery(three.handle), two, q.delivery(four.handle)], delay=0.0, reason="no")
    assert q.stats().in_flight == 1
    assert q.status("k", 2).last_error == "no"
    assert q.status("k", 3).last_error is None
    one.ack()
    assert seqs(q.receive()) == [2, 3, 4]


def test_the_valid_handles_take_effect_and_the_lost_are_reported(q: Queue, clock: FakeClock) -> None:
    fill(q, "a", 1)
    fill(q, "b", 1)
    refs = [q.delivery(d.handle) for d in q.receive()]
    clock.advance(31.0)
    assert labels(q.receive(keys=["a"])) == [("a", 1)]
    for act in (q.extend_many, lambda given, seconds: q.ack_many(given)):
        with pytest.raises(PartialFailure) as failed:
            act(refs, 60.0)
        assert [type(r) for r in failed.value.results] == [LeaseLost, type(None)]
    assert q.status("b", 1).state == "resolved"


def test_what_another_queue_object_made_is_refused(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "a") as a, strictq.open(tmp_path / "b") as b:
        fill(a, "k", 1)
        fill(b, "k", 1)
        (mine,), (other,) = a.receive(), b.receive()
        with pytest.raises(InvalidArgument, match="another queue object"):
            a.ack_many([mine, b.delivery(other.handle)])
        assert (a.stats().depth, b.stats().depth) == (1, 1)


def test_release_by_handle_charges_nothing(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, _ = q.receive()
    q.delivery(two.handle).release()
    assert q.stats().in_flight == 1
    q.delivery(one.handle).release()
    with pytest.raises(LeaseLost):
        q.delivery(one.handle).release()
    assert [(d.seq, d.attempt) for d in q.receive()] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("way", ["delivery", "lease", "handle", "many"])
def test_an_extension_that_is_not_late(q: Queue, clock: FakeClock, way: str) -> None:
    fill(q, "k", 1)
    (d,) = q.receive(lease_seconds=10.0)

    def extend(late: bool) -> None:
        if way == "many":
            q.extend_many([q.delivery(d.handle)], 10.0, late=late)
        else:
            verbs = {"delivery": d.extend, "lease": d.lease.extend, "handle": q.delivery(d.handle).extend}
            verbs[way](10.0, late=late)

    clock.advance(9.0)
    extend(False)
    clock.advance(10.0)
    with pytest.raises(LeaseLost, match="has ended"):
        extend(False)
    assert q.explain("k").state == "ready"
    extend(True)
    assert q.explain("k").state == "in_flight"


# ---- several deliveries in one transaction


def test_deliveries_are_acked_together_with_the_effects(q: Queue) -> None:
    fill(q, "k", 4)
    one, two, three, four = q.receive()
    two.ack()
    with q.transaction(deliveries=[four, one]) as tx:
        tx.send(b"sent", "next")
        tx.key_state = b"state"
    assert q.stats().depth == 2
    assert three.key_state == b"state"
    three.ack()
    assert [d.body for d in q.receive()] == [b"sent"]


def test_nothing_happens_if_one_of_them_is_resolved(q: Queue) -> None:
    fill(q, "k", 3)
    one, two, three = q.receive()
    q.delivery(two.handle).ack()
    with pytest.raises(LeaseLost), q.transaction(deliveries=[one, two, three]) as tx:
        tx.send(b"", "next")
    assert q.stats().depth == 2
    assert q.explain("next").depth == 0


def test_nothing_happens_if_the_block_raises(q: Queue) -> None:
    fill(q, "k", 2)
    ds = q.receive()
    with pytest.raises(LookupError), q.transaction(deliveries=ds) as tx:
        tx.send(b"", "next")
        raise LookupError
    assert q.stats().depth == 2
    q.ack_many(ds)


def test_a_repeated_transaction_of_several_happens_once(q: Queue) -> None:
    fill(q, "k", 2)
    ds = q.receive()
    with q.transaction(deliveries=ds) as tx:
        tx.send(b"", "next")
    for d in ds:
        d._state = 0  # as after OutcomeUnknown
    with q.transaction(deliveries=ds) as tx:
        tx.send(b"", "next")
    assert q.explain("next").depth == 1


def test_a_read_inside_sees_that_the_lease_is_live(q: Queue, clock: FakeClock) -> None:
    fill(q, "k", 2)
    ds = q.receive()
    clock.advance(31.0)
    assert q.receive()
    with pytest.raises(LeaseLost), q.transaction(deliveries=ds) as tx:
        _ = tx.key_state
    assert q.stats().depth == 2


def test_what_is_no_set_of_deliveries_of_one_lease_is_refused(q: Queue) -> None:
    fill(q, "a", 2)
    fill(q, "b", 1)
    one, two, other = q.receive()
    for given in ([], [one, other], [one, one], 5, ["x"]):
        with pytest.raises(InvalidArgument):
            q.transaction(deliveries=given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        q.transaction(one, deliveries=[two])
    with pytest.raises(InvalidArgument):
        q.transaction()


def test_async_deliveries_in_one_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with strictq.open_async(tmp_path / "queue") as q:
            await q.send_many([strictq.Message(b"", key="k")] * 3)
            ds = await q.receive()
            async with q.transaction(deliveries=ds[:2]) as tx:
                tx.send(b"", "next")
            assert (await q.stats()).depth == 2

    anyio.run(main)
