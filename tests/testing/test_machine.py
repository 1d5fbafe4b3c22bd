"""A pretended machine: what a crash leaves is what a dead process leaves."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import strictq
from strictq import testing
from strictq.testing import FakeClock, Machine, clock_of
from tests.support.injection import impatient


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_leases_outlive_the_process_that_held_them(machine: Machine) -> None:
    q = machine.open(lease_seconds=30.0)
    q.send(b"1", "k")
    (d,) = q.receive()
    machine.crash(q)
    with pytest.raises(strictq.QueueClosed):
        d.ack()
    q = machine.open()
    assert q.config.lease_seconds == 30.0
    assert q.receive() == []
    assert q.explain("k").state == "in_flight"
    machine.clock.advance(30.0)
    (again,) = q.receive()
    assert (again.seq, again.attempt) == (1, 2)
    assert again.token > d.token
    machine.close()


def test_a_queue_takes_the_programs_own_settings(machine: Machine) -> None:
    program = strictq.QueueConfig(max_attempts=3, retry_for_seconds=0.0)
    for q in (testing.open(config=program), machine.open("one", config=program)):
        assert (q.config.max_attempts, q.config.retry_for_seconds) == (3, 0.0)
        q.close()
    with testing.open(config=program, max_attempts=4) as q:
        assert (q.config.max_attempts, q.config.retry_for_seconds) == (4, 0.0)
    machine.open("one", config=program)
    with pytest.raises(strictq.ConfigError, match="max_attempts"):
        machine.open("one", config=program, max_attempts=4)
    for settings in ({}, {"max_attempts": 4}):
        with pytest.raises(strictq.InvalidArgument, match="config must be a QueueConfig, not dict"):
            testing.open(config={"max_attempts": 3}, **settings)  # type: ignore[arg-type]
    machine.close()


def test_other_processes_go_on(machine: Machine) -> None:
    one, two = machine.open(), machine.open()
    one.send(b"", "k")
    machine.crash(one)
    assert [d.key for d in two.receive()] == ["k"]
    with pytest.raises(strictq.InvalidArgument, match="crashed already"):
        machine.crash(one)
    machine.close()
    with pytest.raises(strictq.QueueClosed):
        two.send(b"", "k")


@pytest.mark.parametrize("begun", [False, True])
def test_a_crash_inside_a_transaction_undoes_it(machine: Machine, begun: bool) -> None:
    q = machine.open()
    q.app_schema("CREATE TABLE IF NOT EXISTS app_t (n INTEGER) STRICT")
    q.send(b"", "k")
    (d,) = q.receive()
    with pytest.raises(strictq.QueueClosed), d, q.transaction(d) as tx:
        tx.execute("INSERT INTO app_t VALUES (1)")
        tx.send(b"", "other")
        if begun:
            tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (2)"))
        machine.crash(q)
    q = machine.open()
    assert q.query("SELECT n FROM app_t") == []
    assert q.peek("other") == []
    assert q.explain("k").state == "in_flight", "nobody gave it back"
    assert q.check() == []
    machine.close()


def test_a_crash_inside_a_handler_ends_its_worker(machine: Machine) -> None:
    q = machine.open()
    q.send(b"", "k")

    def dies(_job: strictq.Job) -> None:
        machine.crash()

    with pytest.raises(strictq.StrictqError):
        testing.drain(q, dies)
    q = machine.open()
    assert q.explain("k").state == "in_flight"
    seen: list[int] = []
    testing.drain(q, lambda job: seen.append(job.attempt))
    assert seen == [2]
    machine.close()


def test_a_reboot_ends_leases_and_keeps_delays(machine: Machine) -> None:
    q = machine.open()
    q.send(b"", "leased")
    q.send(b"", "delayed", delay=100.0)
    (d,) = q.receive()
    machine.reboot(down_seconds=60.0)
    with pytest.raises(strictq.QueueClosed):
        d.ack()
    q = machine.open()
    (again,) = q.receive()
    assert again.key == "leased"
    assert again.token > d.token
    again.ack()
    machine.clock.advance(39.0)
    assert q.receive() == []
    machine.clock.advance(2.0)
    assert [d.key for d in q.receive()] == ["delayed"]
    machine.close()


def test_what_is_in_memory_cannot_be_opened_again(machine: Machine) -> None:
    with testing.open() as q, pytest.raises(strictq.InvalidArgument, match=r"machine\.open"):
        machine.crash(q)
    with pytest.raises(strictq.InvalidArgument, match="not opened by this machine"), testing.open(machine.directory / "q") as q:
        machine.crash(q)


def test_a_directory_of_a_machine_is_not_the_real_machines(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, 0.01)
    q = machine.open()
    with pytest.raises(strictq.ConfigError, match="another machine"):
        strictq.open(q.path)
    machine.close()


def test_a_machine_as_a_block(tmp_path: Path) -> None:
    clock = FakeClock()
    with Machine(tmp_path, clock) as machine:
        q = machine.open("orders.strictq", shards=2)
        assert (q.shards, clock_of(q)) == (2, clock)
        assert q.path == str(tmp_path / "orders.strictq")
    with pytest.raises(strictq.QueueClosed):
        q.send(b"", "k")


def test_open_refuses_what_is_no_setting() -> None:
    with pytest.raises(strictq.ConfigError, match="lease_secs"):
        testing.open(lease_secs=1.0)


def test_clock_of_a_queue_that_runs_on_the_machines_own() -> None:
    with strictq.open(":memory:") as q, pytest.raises(strictq.InvalidArgument, match=r"strictq\.testing\.open"):
        clock_of(q)
    with pytest.raises(strictq.InvalidArgument, match="expected a Queue"):
        clock_of(object())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_queue_that_is_open_already(backend: str) -> None:
    q = testing.open_async(max_attempts=2)

    async def main() -> None:
        await q.send(b"1", "k")
        async with q.transaction(key="k") as tx:
            tx.send(b"2", "k")
        async with q as same:
            assert same is q
            assert [d.body for d in await q.receive()] == [b"1", b"2"]
        with pytest.raises(strictq.QueueClosed):
            await q.send(b"", "k")

    anyio.run(main, backend=backend)


def test_the_awaited_queue_is_the_same_queue() -> None:
    with testing.open() as q:
        aq = testing.awaited(q)

        async def main() -> None:
            assert [d.key for d in await aq.receive()] == ["k"]

        q.send(b"", "k")
        anyio.run(main)
        assert q.stats().in_flight == 1
