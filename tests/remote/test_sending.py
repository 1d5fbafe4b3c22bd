"""`connect(url).send` and `send_many`: what arrives, what is repeated, and what is refused before anything is sent."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

import strictq
from strictq import InvalidArgument, Message, OutcomeUnknown, PartialFailure, RemoteReceipt
from strictq.remote import sending
from strictq.testing import FakeClock
from tests.remote.arrived import arrived, by_key, sent, to
from tests.support import fake_sqs
from tests.support.fake_sqs import FakeSqs, Fault


@pytest.fixture(params=[None, "1.0"], ids=["sqs", "strictq"])
def sqs(request: pytest.FixtureRequest) -> FakeSqs:
    return FakeSqs(FakeClock(), strictq_version=request.param)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(sending, "SEND_SECONDS", 0.05)


@pytest.mark.parametrize("name", ["o.fifo", "standard"])
def test_a_message_arrives(sqs: FakeSqs, name: str) -> None:
    q = to(sqs, name)
    receipt = q.send(b"\xff", key=5, headers={"a": "é"}, ttl=60.0)
    assert isinstance(receipt, RemoteReceipt)
    assert (receipt.key, receipt.sequence_number is None) == (5, name == "standard")
    assert receipt.to_dict()["key_type"] == "int"
    (m,) = arrived(sqs, name)
    assert (m.key, m.body, m.headers, m.source, m.source_seq) == (5, b"\xff", {"a": "é"}, None, None)
    assert m.expires_at == pytest.approx(sqs.clock.wall() / 1e6 + 60, abs=0.01)
    q.send(Message.json({"a": 1}, key="k"))
    q.send(b"keyless")
    assert [m.key for m in arrived(sqs, name)] == [5, "k", None]


def test_many_messages_arrive_in_order(sqs: FakeSqs) -> None:
    q = to(sqs)
    receipts = q.send_many([Message(b"%d" % n, key=n % 3) for n in range(40)])
    assert [r.key for r in receipts] == [n % 3 for n in range(40)]
    assert by_key(arrived(sqs)) == {k: [b"%d" % n for n in range(k, 40, 3)] for k in range(3)}
    assert q.send_many([]) == []


def test_a_dedup_id_is_used_by_the_endpoint(sqs: FakeSqs) -> None:
    q = to(sqs)
    first, second = (q.send(b"x", key="a", dedup_id="once, ü") for _ in range(2))
    assert first.message_id == second.message_id
    q.send(b"x", key="a", dedup_id=strictq.CONTENT_HASH)
    assert len(arrived(sqs)) == 2


@pytest.mark.parametrize("fault", [
    fake_sqs.CUT, fake_sqs.CUT_EARLY, fake_sqs.THROTTLED, fake_sqs.UNAVAILABLE, fake_sqs.UNREACHABLE, fake_sqs.entries_fail(0),
    fake_sqs.entries_missing(0, happen=True),
])  # fmt: skip
def test_what_was_not_answered_is_repeated(sqs: FakeSqs, fault: Fault) -> None:
    q = to(sqs)
    sqs.inject(fault, "send_message_batch")
    q.send_many([Message(b"%d" % n, key=n % 2) for n in range(6)])
    assert by_key(arrived(sqs)) == {k: [b"%d" % n for n in range(k, 6, 2)] for k in range(2)}


def test_an_unknown_outcome_is_raised_after_the_deadline(sqs: FakeSqs) -> None:
    q = to(sqs)
    sqs.inject(fake_sqs.CUT, "send_message_batch", times=math.inf)
    with pytest.raises(OutcomeUnknown, match="may have been sent") as e:
        q.send(b"x", key="a")
    assert e.value.transient
    assert len({call.entries[0]["MessageDeduplicationId"] for call in sent(sqs)}) == 1
    assert len(arrived(sqs)) == 1


def test_what_was_surely_not_sent_is_not_unknown(sqs: FakeSqs) -> None:
    q = to(sqs)
    sqs.inject(fake_sqs.UNREACHABLE, "send_message_batch", times=math.inf)
    with pytest.raises(strictq.ServerUnreachable):
        q.send_many([Message(b"x", key="a"), Message(b"y", key="b")])
    assert arrived(sqs) == []


@pytest.mark.parametrize(("fault", "error"), [
    (fake_sqs.ACCESS_DENIED, strictq.ServerRefused), (fake_sqs.NO_QUEUE, strictq.QueueNotFound),
    (fake_sqs.entries_fail(0, code="InvalidMessageContents", sender=True), InvalidArgument),
])  # fmt: skip
def test_what_the_endpoint_refuses_is_not_repeated(sqs: FakeSqs, fault: Fault, error: type[Exception]) -> None:
    q = to(sqs)
    sqs.inject(fault, "send_message_batch", times=math.inf)
    with pytest.raises(error):
        q.send(b"x", key="a")
    assert len(sent(sqs)) == 1


def test_nothing_overtakes_a_refused_message(sqs: FakeSqs) -> None:
    q = to(sqs)
    sqs.inject(fake_sqs.entries_fail(0, code="InvalidMessageContents", sender=True), "send_message_batch")
    with pytest.raises(PartialFailure) as e:
        q.send_many([Message(b"%d" % n, key="ab"[n % 2]) for n in range(6)])
    assert [isinstance(r, RemoteReceipt) for r in e.value.results] == [False, True] * 3
    assert by_key(arrived(sqs)) == {"b": [b"1", b"3", b"5"]}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("o.fifo", {"key": ""}, "empty"),
    ("o.fifo", {"key": 1.5}, "key"),
    ("o.fifo", {"key": "a", "delay": 1.0}, "FIFO"),
    ("o.fifo", {"key": "a", "at": datetime.now(UTC) + timedelta(days=1)}, "FIFO"),
    ("o.fifo", {"key": "a", "size_hint": 1.0}, "local queue"),
    ("o.fifo", {"key": "a", "process_seconds": 1.0}, "local queue"),
    ("o.fifo", {"key": "a", "headers": {"a": 1}}, "headers"),
    ("o.fifo", {"key": "a", "ttl": -1.0}, "ttl"),
    ("o.fifo", {"key": "a", "body": "text"}, "bytes"),
    ("o.fifo", {"key": "a", "body": b"x" * 2_000_000}, "bytes as SQS counts"),
    ("standard", {"key": "a", "dedup_id": "x"}, "standard queue"),
    ("standard", {"key": "a", "delay": 901.0}, "900 s"),
]


@pytest.mark.parametrize(("name", "options", "why"), WRONG)
def test_wrong_messages_are_refused_before_anything_is_sent(sqs: FakeSqs, name: str, options: dict[str, Any], why: str) -> None:
    q = to(sqs, name)
    body = options.get("body", b"x")
    options = {option: value for option, value in options.items() if option != "body"}
    with pytest.raises(InvalidArgument, match=why):
        q.send(Message(body, **options))
    with pytest.raises(InvalidArgument, match="message 2 of 2"):
        q.send_many([Message(b"good", key="a"), Message(body, **options)])
    with pytest.raises(InvalidArgument):
        q.send_many(Message(b"x", key="a"))  # type: ignore[arg-type]
    assert arrived(sqs, name) == []


def test_a_standard_queue_delays(sqs: FakeSqs) -> None:
    q = to(sqs, "standard")
    q.send(b"x", delay=1.2)
    assert sent(sqs)[0].entries[0]["DelaySeconds"] == 2


def test_a_closed_connection_is_refused(sqs: FakeSqs) -> None:
    q = to(sqs)
    q.close()
    with pytest.raises(strictq.QueueClosed):
        q.send(b"x", key="a")


def test_the_async_twin(sqs: FakeSqs) -> None:
    url = sqs.queue("o.fifo")

    async def main() -> None:
        async with strictq.connect_async(url, client=sqs, clock=sqs.clock) as q:
            assert (await q.send(b"x", key="a", headers={"h": "1"})).key == "a"
            assert len(await q.send_many([Message(b"y", key="a"), Message(b"z", key="b")])) == 2

    anyio.run(main)
    assert by_key(arrived(sqs)) == {"a": [b"x", b"y"], "b": [b"z"]}
