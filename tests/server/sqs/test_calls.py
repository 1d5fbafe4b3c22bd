"""Calls that are joined in the thread of a queue at durability "full"."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strictq._values.errors import OutcomeUnknown, StoreFull
from strictq.server.sqs.served import ServedQueue
from tests.server.sqs.asgi import Caller, SqsRefused, bodies, calling


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Caller]:
    with calling(tmp_path, durability="full") as caller:
        yield caller


async def together(c: Caller, url: str, n: int, **others: Any) -> list[Any]:
    sends = (
        c.acall("SendMessage", QueueUrl=url, MessageBody=str(i), MessageGroupId="g", MessageDeduplicationId=str(i), **others)
        for i in range(n)
    )
    return await asyncio.gather(*sends, return_exceptions=True)


def test_sends_and_deletes_that_wait_are_joined(c: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    url = c.fifo()
    sizes: list[int] = []
    send, delete = ServedQueue.send, ServedQueue.ack

    def counted(self: ServedQueue, messages: Sequence[Any]) -> Any:
        sizes.append(len(messages))
        return send(self, messages)

    def counted_acks(self: ServedQueue, holds: Sequence[Any]) -> Any:
        sizes.append(len(holds))
        return delete(self, holds)

    monkeypatch.setattr(ServedQueue, "send", counted)
    monkeypatch.setattr(ServedQueue, "ack", counted_acks)
    answers = c.run(together(c, url, 30))
    assert len({a["SequenceNumber"] for a in answers}) == 30
    assert sum(sizes) == 30
    assert len(sizes) < 30
    got = [m for _ in range(3) for m in c.receive(url)] or []
    assert len(got) == 10  # the group is hidden
    sizes.clear()

    async def deletes() -> None:
        await asyncio.gather(*(c.acall("DeleteMessage", QueueUrl=url, ReceiptHandle=m["ReceiptHandle"]) for m in got))

    c.run(deletes())
    assert sum(sizes) == 10
    assert len(sizes) < 10
    assert len(c.receive(url)) == 10


@pytest.mark.parametrize(("error", "answered"), [(StoreFull, 1), (OutcomeUnknown, 0)])
def test_a_joined_call_that_fails_is_repeated_alone(
    c: Caller, monkeypatch: pytest.MonkeyPatch, error: Any, answered: int
) -> None:
    """But not if it may have been committed."""
    url = c.fifo()
    c.send(url, "first", "other")
    q = c.endpoint._running()[0].queues.all()[0].served.q
    monkeypatch.setattr(q, "send_many", lambda _: (_ for _ in ()).throw(error("it fails", shard=0)))
    answers = c.run(together(c, url, 30))
    good = [a for a in answers if isinstance(a, dict)]
    assert len(good) == 30 if answered else len(good) < 30
    for a in answers:
        assert isinstance(a, dict) or (a.status, a.code) == (503, "ServiceUnavailable")


def test_an_error_of_one_call_is_not_that_of_another(c: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    url = c.fifo()
    c.send(url, "x", "g")
    (m,) = c.receive(url)

    async def deletes() -> list[Any]:
        handles = [m["ReceiptHandle"], "no handle", m["ReceiptHandle"] + "9"]
        calls = (c.acall("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) for handle in handles)
        return await asyncio.gather(*calls, return_exceptions=True)

    good, wrong, old = c.run(deletes())
    assert good == {}
    assert isinstance(wrong, SqsRefused)
    assert wrong.code == "ReceiptHandleIsInvalid"
    assert isinstance(old, SqsRefused) or old == {}


def test_a_full_disk_is_unavailable_and_the_queue_goes_on(c: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    url = c.fifo()
    c.send(url, "x", "g")
    q = c.endpoint._running()[0].queues.all()[0].served.q

    def full(*_: Any, **__: Any) -> None:
        raise StoreFull("the disk is full", shard=0)

    with monkeypatch.context() as patched:
        patched.setattr(q, "send", full)
        with pytest.raises(SqsRefused) as e:
            c.send(url, "y", "g")
        assert (e.value.status, e.value.code) == (503, "ServiceUnavailable")
    c.send(url, "y", "g")
    assert bodies(c.receive(url)) == ["x", "y"]
