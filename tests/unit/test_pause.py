"""A paused queue delivers nothing, and a paused type is not processed, until they are resumed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import App, ConfigError, InvalidArgument, Queue, ReadOnlyQueue, Worker
from strictq._values.config import QueueConfig
from strictq.testing import clock_of, drain
from tests.support.command import in_process
from tests.support.running import PATIENCE_SECONDS, run_python


@pytest.fixture
def q(tmp_path: Path) -> Iterator[Queue]:
    with strictq.open(tmp_path / "q", durability="process", shards=2) as opened:
        yield opened


@pytest.fixture
def queue(strict_queue: Queue) -> Queue:
    """The plugin's queue, in memory and with its own clock."""
    return strict_queue


# ---- the whole queue


def test_a_paused_queue_delivers_nothing_and_takes_everything(q: Queue) -> None:
    for n in range(4):
        q.send(b"%d" % n, key="k")
    (held,) = q.receive(1)
    assert (q.pause(), q.pause(), q.config.paused) == (True, False, True)
    q.send(b"4", key="k")
    q.send(b"0", key="other")
    assert not q.receive()
    assert not q.receive(100)  # a transaction
    assert not q.receive(keys=["other"], per_key=1)
    assert not q.receive(ack_first=True)
    assert not q.receive(wait=0.05)
    assert list(q.consume(wait=0.0)) == []
    assert held.lease.more(10) == []
    held.extend(60.0)
    with q.transaction(held) as tx:
        tx.send(b"1", key="other")
    assert (q.stats().paused, q.stats().ready, q.stats().acks) == (True, 6, 1)
    assert (q.resume(), q.resume(), q.config.paused, q.stats().paused) == (True, False, False, False)
    assert sorted((str(d.key), d.body) for d in q.receive(100)) == [
        *(("k", b"%d" % n) for n in range(1, 5)), ("other", b"0"), ("other", b"1"),
    ]  # fmt: skip


def test_a_receive_of_a_single_statement_claims_nothing(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", durability="process") as q:
        for n in range(3):
            q.send(b"", key=n)
        q.receive(1)[0].ack()  # so that the next receive expects messages
        q.pause()
        assert not q.receive(1)
        assert q.stats().in_flight == 0


def test_a_pause_is_seen_by_every_object_and_lasts(q: Queue, tmp_path: Path) -> None:
    q.send(b"1", key="k")
    with strictq.open(tmp_path / "q") as other:
        other.receive(1)[0].lease.release()  # it has all of it in memory
        q.pause()
        assert not other.receive()
        assert other.config.paused
    q.close()
    with strictq.open(tmp_path / "q") as again:
        assert not again.receive()
        assert again.stats().paused
    with strictq.open(tmp_path / "q", read_only=True) as look:
        assert (look.stats().paused, look.explain("k").state) == (True, "paused")
        for change in (look.pause, look.resume):
            with pytest.raises(ReadOnlyQueue):
                change()


def test_a_look_sees_a_pause_of_another_object(q: Queue, tmp_path: Path) -> None:
    q.send(b"1", key="k")
    with strictq.open(tmp_path / "q", read_only=True) as look:
        assert not look.stats().paused
        q.pause()
        assert look.explain("k").state == "paused"
        assert look.stats().paused


def test_waits_end_when_the_queue_is_resumed(q: Queue, tmp_path: Path) -> None:
    """In the same object, in another one, and in another process."""
    q.send_many([strictq.Message(b"", key=n) for n in range(3)])
    q.pause()
    got: list[int] = []
    with strictq.open(tmp_path / "q") as other:
        waits = [
            threading.Thread(target=lambda of=of: got.append(len(of.receive(1, wait=PATIENCE_SECONDS)))) for of in (q, other)
        ]
        script = "import strictq, sys\nprint(len(strictq.open(sys.argv[1]).receive(1, wait=60)))"
        waits.append(threading.Thread(target=lambda: got.append(int(run_python(script, tmp_path / "q")))))
        for wait in waits:
            wait.start()
        waits[0].join(0.1)
        assert got == []
        q.resume()
        for wait in waits:
            wait.join(PATIENCE_SECONDS)
    assert got == [1, 1, 1]


def test_explain_says_that_the_queue_is_paused(queue: Queue) -> None:
    queue.send(b"1", key="ready")
    queue.send(b"1", key="held")
    queue.hold("held", "why")
    queue.send(b"1", key="delayed", delay=60.0)
    queue.pause()
    assert (queue.explain("ready").state, queue.explain("ready").text) == (
        "paused", "seq 1 waits because the queue is paused; q.resume() ends that",
    )  # fmt: skip
    for key in ("held", "delayed"):
        assert queue.explain(key).state == key
        assert queue.explain(key).text.endswith("; the queue is paused")
    assert queue.explain("none").text == "nothing was ever sent to this key"
    queue.resume()
    assert queue.explain("ready").state == "ready"


def test_a_worker_returns_what_it_has_not_started(q: Queue) -> None:
    for n in range(20):
        q.send(b"%d" % n, key=n % 4)
    begun, go_on, done = threading.Event(), threading.Event(), []

    def process(job: Any) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        done.append(job.seq)

    worker = Worker(q, process, concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert begun.wait(PATIENCE_SECONDS)
        q.pause()
        go_on.set()
        end = threading.Event()
        while q.stats().in_flight and not end.wait(0.01):
            pass
        assert len(done) < 20
        counted = len(done)
        assert q.stats().ready == 20 - counted
        assert q.stats().retries == 0
        q.resume()
        while q.stats().depth and not end.wait(0.01):
            pass
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    assert len(done) == 20
    assert q.stats().redeliveries <= 20


# ---- a type


def apps(queue: Queue) -> tuple[App, list[Any]]:
    app, done = App(queue), []
    app.handler("charge")(lambda n: done.append(("charge", n)))
    app.handler("mail")(lambda n: done.append(("mail", n)))
    return app, done


def test_a_paused_type_waits_with_its_keys_and_is_not_charged(queue: Queue) -> None:
    app, done = apps(queue)
    app.send("charge", key="ann", n=1)
    app.send("mail", key="ann", n=2)
    app.send("mail", key="bob", n=3)
    app.send("charge", key="bob", n=4)
    assert (queue.pause("charge"), queue.pause("charge")) == (True, False)
    worker = app.worker()
    worker.run(drain=True)
    assert done == [("mail", 3)]
    assert (worker.stats().deferred, queue.stats().retries, queue.stats().dead) == (2, 0, 0)
    assert queue.stats().paused_types == queue.config.paused_types == ("charge",)
    found = queue.explain("ann")
    assert (found.state, found.attempts) == ("delayed", 0)
    assert found.text.endswith("(it was postponed); later messages of the key wait; handlers of 'charge' are paused")
    assert (queue.resume("charge"), queue.resume("charge")) == (True, False)
    clock_of(queue).advance(10.0)
    app.worker().run(drain=True)
    assert [n for _, n in done if n in (1, 2)] == [1, 2]
    assert sorted(done) == [("charge", 1), ("charge", 4), ("mail", 2), ("mail", 3)]


def test_the_delay_of_a_paused_type_doubles_up_to_ten_seconds(queue: Queue) -> None:
    app, _ = apps(queue)
    app.send("charge", key="ann", n=1)
    queue.pause("charge")
    clock, waits = clock_of(queue), []
    for _ in range(6):
        app.worker().run(drain=True)
        waits.append(round(queue.explain("ann").until - clock.wall() / 1e6, 3))  # type: ignore[operator]
        clock.advance(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_pauses_of_the_queue_and_of_types_are_independent(queue: Queue) -> None:
    app, done = apps(queue)
    app.send("mail", key="ann", n=1)
    queue.pause("charge")
    queue.pause("mail")
    queue.pause()
    queue.resume()
    assert queue.config.paused_types == ("charge", "mail")
    with pytest.raises(AssertionError, match="handlers of 'mail' are paused"):
        drain(queue, app.process, seconds_max=60.0)
    queue.resume("mail")
    drain(queue, app.process)
    assert done == [("mail", 1)]
    assert not queue.config.paused
    assert list(queue.config.paused_types) == ["charge"]


# ---- what is refused, older versions, and the twins


def test_what_can_not_be_paused(queue: Queue) -> None:
    for bad in (1, "", b"charge", "x" * 257):
        with pytest.raises(InvalidArgument, match="type must be a str of 1 to 256 characters"):
            queue.pause(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="type must be"):
            queue.resume(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="paused must be True or False, not 1"):
        queue.configure(paused=1)
    for wrong in ("charge", [1], [""]):
        with pytest.raises(ConfigError, match="paused_types must be a list of types"):
            queue.configure(paused_types=wrong)
    with pytest.raises(ConfigError, match="at most 1000 types, not 1,001"):
        queue.configure(paused_types=[f"t{n}" for n in range(1001)])
    with queue.transaction(key="k"), pytest.raises(InvalidArgument, match="inside a transaction"):
        queue.pause()


def test_a_configuration_without_pauses_is_not_paused() -> None:
    """As an older version stored it; one that does not know a setting stores it back."""
    values = json.loads(QueueConfig(paused=True, paused_types=["b", "a", "b"]).to_json())
    assert (values["paused"], values["paused_types"]) == (True, ["a", "b"])
    assert QueueConfig.from_values(values) == QueueConfig(paused=True, paused_types=("a", "b"))
    del values["paused"], values["paused_types"]
    assert QueueConfig.from_values(values) == QueueConfig()


def test_the_async_queue(tmp_path: Path) -> None:
    async def main() -> list[object]:
        async with strictq.open_async(tmp_path / "q") as q:
            await q.send(b"1", key="k")
            found: list[object] = [await q.pause(), len(await q.receive()), await q.pause("a"), await q.resume("a")]
            return [*found, await q.resume(), len(await q.receive())]

    assert asyncio.run(main()) == [True, 0, True, True, True, 1]


def test_the_commands(q: Queue) -> None:
    q.send(b"1", key="k")
    assert in_process("pause", q.path).stdout == "the queue is paused\n"
    assert in_process("pause", q.path).stdout == "the queue was already paused\n"
    assert json.loads(in_process("pause", q.path, "--type", "charge", "--json").stdout) == {
        "paused": True, "type": "charge", "changed": True,
    }  # fmt: skip
    stats = in_process("stats", q.path).stdout
    assert "the queue is paused" in stats
    assert "paused types: charge" in stats
    assert json.loads(in_process("stats", q.path, "--json").stdout)["paused_types"] == ["charge"]
    assert "strictq resume QUEUE ends that" in in_process("explain", q.path, "k").stdout.replace("\n", " ")
    config = in_process("config", q.path).stdout
    assert "charge" in config
    assert in_process("resume", q.path).stdout == "the queue is resumed\n"
    assert in_process("resume", q.path).stdout == "the queue was not paused\n"
    assert in_process("resume", q.path, "--type", "charge", "-q").stdout == ""
    assert in_process("config", q.path, "paused=true").exit_code == 0
    assert q.stats().paused
    assert q.config.paused_types == ()
