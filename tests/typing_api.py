"""The public interface as a typed program uses it. Nobody runs this file: `mypy --strict` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_type

import strictq
from strictq import testing
from strictq.otel import Instrumentation, instrument


def open_it() -> None:
    config = strictq.QueueConfig(lease_seconds=5.0, max_attempts=None, keyless="random")
    with strictq.open(Path("a"), shards=4, durability="process", config=config) as q:
        assert_type(q, strictq.Queue)
        assert_type(q.shards, int)
        assert_type(q.config, strictq.QueueConfig)
        assert_type(q.configure(lease_seconds=9.0), strictq.QueueConfig)
        assert_type(q.config.given, frozenset[str])
    strictq.open(":memory:", read_only=False, create=True).close()
    strictq.open("a", config=config.evolve(max_attempts=3), on_config_mismatch="update").close()
    strictq.open_async("a", config=config, on_config_mismatch="error")


def send(q: strictq.Queue) -> None:
    receipt = q.send(b"body", key="k", dedup_id="d", delay=1.0, ttl=5.0, headers={"a": "b"}, size_hint=3)
    assert_type(receipt, strictq.Receipt)
    assert_type(receipt.seq, int)
    assert_type(receipt.duplicate, bool)
    q.send(b"", key=7)
    q.send(b"", b"key")
    q.send(b"")
    receipts = q.send_many([strictq.Message(b"x", key=1), strictq.Message.json({"a": [1, None]}, key=b"k")])
    assert_type(receipts, Sequence[strictq.Receipt])
    q.send_many(strictq.Message(b"%d" % n, key=n) for n in range(3))
    assert_type(q.send_json({"a": None}, "k", at=datetime.now(UTC), dedup_id=strictq.CONTENT_HASH), strictq.Receipt)
    assert_type(q.send(strictq.Message(bytearray(b"x"), key=1, dedup_id=strictq.CONTENT_HASH)), strictq.Receipt)
    q.send(memoryview(b"x"), "k")


def receive(q: strictq.Queue) -> None:
    batch = q.receive(100, per_key=1, wait=None, lease_seconds=2.0, keys=["a", 1, b"c"], consumer="me", charge="all")
    assert_type(batch, strictq.Batch)
    assert_type(batch[0], strictq.Delivery)
    assert_type(batch[1:], list[strictq.Delivery])
    with q.receive() as rest:
        assert_type(rest, strictq.Batch)
    for d in q.consume(wait=0.0):
        assert_type(d, strictq.Delivery)
        with d:
            assert_type(d.body, bytes)
            assert_type(d.key, str | bytes | int | None)
            assert_type(d.headers, dict[str, str])
            assert_type(d.dedup_id, str | None)
            assert_type(d.key_state, bytes | None)
            assert_type(d.json(), Any)
        d.start()
        d.ack()
        d.nack(delay=1.0, reason="again")
        d.defer(1.5)
        d.reject("never")
        d.extend(5.0)
        assert_type(d.lease.more(3), list[strictq.Delivery])
        assert_type(d.lease.expires_in, float)
        d.lease.release()
        assert_type(d.handle, str)
        assert_type(q.delivery(d.handle), strictq.DeliveryRef)
        q.delivery(d.handle).ack()
        q.delivery(d.handle).release()
        q.ack_many([d, q.delivery(d.handle)])
    q.ack_many(batch)
    q.nack_many(batch, delay=1.0, reason="later")
    q.extend_many(batch, 10.0, late=False)


def transact(q: strictq.Queue, d: strictq.Delivery) -> None:
    q.app_schema("CREATE TABLE IF NOT EXISTS app_t (a INTEGER) STRICT")
    q.app_schema("CREATE TABLE IF NOT EXISTS app_u (a INTEGER PRIMARY KEY) STRICT", key_columns={"app_u": "a"})
    with q.transaction(d) as tx:
        assert_type(tx, strictq.Transaction)
        tx.key_state = (tx.key_state or b"") + b"x"
        tx.key_state = None
        pending = tx.send(b"next", key="other", delay=2.0)
        assert_type(tx.send_json([1], key="other", at=datetime.now(UTC)), strictq.PendingReceipt)
        assert_type(pending, strictq.PendingReceipt)
        tx.execute("INSERT INTO app_t VALUES (?)", (1,))
        count: int = tx.run(lambda db: db.execute("SELECT count(*) FROM app_t").get)
        print(count)
    assert_type(pending.receipt, strictq.Receipt | None)
    assert_type(pending.id, int | None)
    with q.transaction(key="k") as tx:
        tx.key_state = b"set"
    for row in q.query("SELECT a FROM app_t WHERE a > ?", (3,), key="k"):
        print(row[0])


def operate(q: strictq.Queue) -> None:
    assert_type(q.peek("k", limit=3), list[strictq.PeekedMessage])
    assert_type(q.status("k", 1), strictq.MessageStatus)
    assert_type(q.status(q.send(b"", "k")), strictq.MessageStatus)
    assert_type(q.explain("k"), strictq.Explanation)
    assert_type(q.stats(), strictq.Stats)
    assert_type(q.stats().process, strictq.DurationEstimate)
    assert_type(q.stats().shards, tuple[strictq.ShardStats, ...])
    assert_type(q.top_keys(3, by="age"), list[strictq.KeyDepth])
    assert_type(q.dead_letters(key="k", limit=5), list[strictq.DeadLetter])
    assert_type(q.redrive("k", seqs=[1, 2]), int)
    assert_type(q.redrive(), int)
    q.hold("k", reason="looking")
    q.release("k")
    assert_type(q.reject("k", 1, "why"), bool)
    assert_type(q.consumers(), list[strictq.ConsumerStatus])
    assert_type(q.consumers()[0].query, strictq.QueryReport | None)
    assert_type(q.release_consumer("etl", force=True), int)
    assert_type(q.purge("k", dead=True, in_flight=True), int)
    assert_type(q.now(), float)
    assert_type(q.wait_ready(1.0), bool)
    assert_type(q.check(fix=True), list[strictq.Problem])


def watch(q: strictq.Queue) -> None:
    def hook(event: strictq.Event) -> None:
        print(event.kind, event.key, event.detail)

    q.on_event(hook)
    strictq.open("b", on_event=hook).close()
    assert_type(q.stats().to_dict(), dict[str, Any])
    assert_type(q.explain("k").to_dict(), dict[str, Any])
    assert_type(q.send(b"", "k").to_dict(), dict[str, Any])

    class Metrics(strictq.Observer):
        def count(self, name: str, n: int, shard: int) -> None:
            print(name, n, shard)

        @contextmanager
        def sending(self, messages: int) -> Iterator[dict[str, str]]:
            yield {"sent-with": str(messages)}

    with q.observe(Metrics()) as observation:
        assert_type(observation, strictq.Observation)
    assert_type(q.observe(Metrics()), strictq.Observation)
    assert_type(instrument(q, name="orders", traces=False), Instrumentation)
    instrument(strictq.open_async("a"))


def fail(q: strictq.Queue, d: strictq.Delivery) -> None:
    try:
        d.ack()
    except strictq.LeaseLost as e:
        assert_type(e.token, int)
    except strictq.PartialFailure as e:
        assert_type(e.results, list[Any])
    except strictq.StoreError as e:
        assert_type(e.shard, int)
        assert_type(e.cause, BaseException | None)
    except strictq.StrictqError as e:
        assert_type(e.transient, bool)
        assert_type(e.hint, str)


async def asynchronously() -> None:
    async with strictq.open_async("c", shards=2) as q:
        assert_type(q, strictq.AsyncQueue)
        assert_type(await q.send(b"x", key="k"), strictq.Receipt)
        assert_type(await q.send_json([], key="k", ttl=3.0), strictq.Receipt)
        async with await q.receive(5, wait=1.0) as batch:
            assert_type(batch, strictq.AsyncBatch)
        for d in await q.receive(5, wait=1.0):
            assert_type(d, strictq.AsyncDelivery)
            async with d:
                body: bytes = d.body
                print(body, d.json(), d.lease)
            async with q.transaction(d) as tx:
                assert_type(await tx.get_key_state(), bytes | None)
                tx.set_key_state(b"x")
                assert_type(tx.send(b"next", key=3), strictq.PendingReceipt)
                tx.execute("INSERT INTO app_t VALUES (?)", (1,))
                total: int = await tx.run(lambda db: db.execute("SELECT count(*) FROM app_t").get)
                print(total)
        async for d in q.consume(wait=0.0):
            await d.start()
            await d.ack()
        assert_type(await q.stats(), strictq.Stats)
        assert_type(await q.sideline(1.7e9), bool)


def work(q: strictq.Queue, p: strictq.Queue) -> None:
    def process_batch(jobs: list[strictq.Job]) -> None:
        jobs[0].fail(strictq.Retry(3.0))
        jobs[0].fail("why")

    assert_type(q.sideline(None), bool)
    worker = strictq.Worker([q, p], weights=[3, 1], process_batch=process_batch, batch_max=10, batch_wait_seconds=0.5)
    assert_type(worker.workers, tuple[strictq.Worker, ...])


def elsewhere(q: strictq.Queue, url: str) -> None:
    with strictq.connect(url, client=None, lease_seconds=30, poll_seconds=20, fetchers=2, settlers=4, confirm="behind") as remote:
        assert_type(remote, strictq.RemoteQueue)
        receipt = remote.send(b"x", "k", dedup_id="d", ttl=5.0, headers={"a": "b"})
        assert_type(receipt, strictq.RemoteReceipt)
        assert_type(receipt.sequence_number, str | None)
        assert_type(remote.send_many([strictq.Message(b"x", key=1)]), list[strictq.RemoteReceipt])
        assert_type(remote.stats(), strictq.RemoteStats)
        assert_type(remote.stats().requests, Mapping[str, int])
        assert_type(remote.redrive, strictq.RedrivePolicy | None)
        assert_type(remote.config, strictq.QueueConfig)

        def process(job: strictq.Job) -> None:
            assert_type(job.sequence_number, str | None)
            assert_type(job.source_seq, int | None)
            assert_type(job.message_id, str | None)

        strictq.Worker([remote, q], process).run(drain=True)
        strictq.Worker(url, process)
        forwarder = strictq.Forwarder(q, remote, concurrency=4, batch=10, per_key=None, on_refused="hold")
        forwarder.run(drain=True, grace_seconds=5.0)
        assert_type(forwarder.stats(), strictq.ForwarderStats)
        assert_type(forwarder.stats().error, str | None)


async def elsewhere_asynchronously(q: strictq.AsyncQueue, url: str) -> None:
    async with strictq.connect_async(url) as remote:
        assert_type(remote, strictq.AsyncRemoteQueue)
        assert_type(await remote.send(b"x", "k"), strictq.RemoteReceipt)
        assert_type(await remote.send_many([strictq.Message(b"x")]), list[strictq.RemoteReceipt])
        assert_type(await remote.stats(), strictq.RemoteStats)
        assert_type(remote.sync, strictq.RemoteQueue)
        await strictq.Forwarder(q, remote).serve(drain=True)


def test_with_it(machine: testing.Machine) -> None:
    q = testing.open(shards=2, max_attempts=3)
    assert_type(q, strictq.Queue)
    assert_type(testing.clock_of(q), testing.FakeClock)
    assert_type(testing.assert_sent(q, "k", [b"", {"a": 1}]), list[strictq.PeekedMessage])
    assert_type(testing.assert_dead(q, "k", [], kind="poison"), list[strictq.DeadLetter])
    testing.assert_settled(q, "k", seqs=[1])
    assert_type(testing.drain(q, lambda job: None, failures="retry", concurrency=2), testing.Drained)
    testing.run_until_idle(q, lambda: None)
    assert_type(machine.open(lease_seconds=1.0), strictq.Queue)
    machine.crash()
    awaited: strictq.AsyncQueue = testing.awaited(q)
    assert_type(awaited.sync, strictq.Queue)
