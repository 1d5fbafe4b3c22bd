"""Make the directories of tests/store/format_2 anew: `python -m tests.support.format_2_making PLACE [KIND ...]`.

Run it by hand, with the last version of format 2, in an empty directory PLACE outside of the repository. Each kind is made by a
process of its own, which kills itself at the end, so that the newest commits are in the WAL; a few close the queue instead. The
facts are the same every time. The files differ in random ids, and in the salts of the WAL.

The process knows what it sent and what it settled. It requires the reports of the queue, which become the facts, to say the same.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import strictq
from strictq import Delivery, Message, Queue, QueueConfig, Receipt
from strictq._keys import Key, encode_key
from strictq._store.api import PlainRows, Size, Token
from strictq._store.store import Store
from strictq._store.upkeep import Upkeep
from strictq.handle import Handle
from strictq.testing import FakeClock
from tests.support import format_1, format_2
from tests.support.format_2 import Facts, label, shown
from tests.support.handouts import holder, read
from tests.support.hot import narrow
from tests.support.queues import keys_by_shard
from tests.support.replicas import is_shipped
from tests.support.running import ROOT
from tests.support.shipping import until

LEFT_OUT: Final = ("reserve", "-shm", ".lock")
"""Files that are made anew: ends of their names."""
COLD: Final = {"hot_lanes": False}


class Making:
    """One queue that is being made, and what is known of it without asking it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.clock = FakeClock()
        self.sent: dict[Key, dict[int, tuple[int, bytes]]] = {}
        """The id and body of each message, by key and seq, unless it arrived through an outbox."""
        self.keyless: list[Receipt] = []
        self.over: set[tuple[Key | None, int]] = set()
        """Key and seq of what is settled."""
        self.over_keyless: set[tuple[int, int]] = set()
        """Shard and id of what is settled and has no key."""
        self.killed = True
        self.more: Facts = {}
        """Facts that no report has."""

    @property
    def path(self) -> Path:
        return self.place / "q"

    def open(self, shards: int = 1, **settings: Any) -> Queue:
        """Open the queue, and create it with these settings if it does not exist."""
        given: dict[str, Any] = {} if self.path.exists() else {"shards": shards, "config": QueueConfig(**settings)}
        self.q = strictq.open(self.path, durability="process", clock=self.clock, **given)
        return self.q

    def send(self, key: Key | None, body: bytes | str = b"", **options: Any) -> Receipt:
        """Send a message."""
        body = body.encode() if isinstance(body, str) else body
        receipt = self.q.send(body, key, **options)
        if not receipt.duplicate:
            self.note(receipt, body)
        if dedup_id := options.get("dedup_id"):
            name = None if key is None else label(key)
            self.more.setdefault("dedup", []).append([name, dedup_id, receipt.seq, receipt.id])
        hints = [options.get(name) for name in ("size_hint", "prepare_seconds", "process_seconds")]
        if hints != [None] * 3 and key is not None:
            self.more.setdefault("hints", {}).setdefault(label(key), {})[str(receipt.seq)] = hints
        return receipt

    def note(self, receipt: Receipt, body: bytes) -> None:
        if receipt.key is None:
            self.keyless.append(receipt)
        else:
            self.sent.setdefault(receipt.key, {})[receipt.seq] = receipt.id, body

    def fill(self, key: Key | None, count: int, **options: Any) -> None:
        """Send numbered messages, one by one."""
        for _ in range(count):
            self.send(key, str(len(self.sent.get(key, ())) + 1) if key is not None else str(len(self.keyless)), **options)

    def send_many(self, keys: Iterable[Key]) -> None:
        """Send a numbered message to each key, at once."""
        some = [Message(b"%d" % n, key=key) for n, key in enumerate(keys)]
        for receipt, message in zip(self.q.send_many(some), some, strict=True):
            self.note(receipt, bytes(message.body))

    def take(self, count: int, *keys: Key, **options: Any) -> list[Delivery]:
        """Receive messages of some keys."""
        options.setdefault("consumer", "one")
        return list(self.q.receive(count, keys=keys or None, **options))

    def done(self, some: Iterable[Delivery]) -> None:
        """Note that deliveries are settled."""
        for d in some:
            if d.key is None:
                self.over_keyless.add((d.shard, d.id))
            else:
                self.over.add((d.key, d.seq))

    def ack(self, some: Iterable[Delivery]) -> None:
        """Ack deliveries at once."""
        some = list(some)
        self.q.ack_many(some)
        self.done(some)

    def reject(self, d: Delivery, reason: str, **options: Any) -> None:
        d.reject(reason, **options)
        self.done([d])

    def drain(self) -> None:
        """Receive and ack all that is ready."""
        while some := self.take(100):
            self.ack(some)

    def holds(self, name: str, some: Iterable[Delivery]) -> None:
        """Note handles: "live", which still settle their messages, "settled", whose ack may be repeated, or "lost" ones."""
        for d in some:
            parts = Handle.parse(d.handle, self.q.queue_id)
            self.more.setdefault(name, []).append([parts.key.decode(), parts.token, parts.seq])

    def facts(self) -> Facts:
        """Return what is known of the queue.

        Entries:
            clock: as FakeClock has it.
            report: see `format_2.reported`.
            tails: the newest seq of each key.
            keyless: shard and id of what was sent without a key.
            live, settled, lost: stored key, token and seq of handles; see `holds`.
            dedup: key, dedup id, seq and id of the messages that ids stand for.
            hints: size hint and estimates, by key and seq.
            app: queries and their rows.
            batches: messages of each kept batch, by consumer and number.
            arrives: how many messages outboxes bring, by key.
            returns: seqs of dead letters that return with the end of a lease, by key.
        """
        keyless = [(r.shard, r.id) for r in self.keyless]
        report = format_2.reported(self.q, self.sent, keyless)
        self._require(report)
        return {
            "clock": [self.clock._wall, self.clock._boot, self.clock._boots],
            "tails": {label(key): max(found, default=0) for key, found in self.sent.items()},
            "keyless": keyless,
            **self.more,
            "report": report,
        }

    def _require(self, report: Facts) -> None:
        """Require a report to have the messages that were sent and not settled."""
        for key, sent in self.sent.items():
            expected = [(seq, i, shown(body)) for seq, (i, body) in sorted(sent.items()) if (key, seq) not in self.over]
            found = report["lanes"][label(key)].get("messages", [])
            assert [(m["seq"], m["id"], m["body"]) for m in found] == expected, (key, found, expected)
        expected_ids = [f"{r.shard}/{r.id}" for r in self.keyless if (r.shard, r.id) not in self.over_keyless]
        assert list(report["keyless"]) == expected_ids, (report["keyless"], expected_ids)


# ---- the kinds


def idle(m: Making) -> None:
    """All messages are resolved, and the queue was closed. Lanes have tails; some became hot, and some never were."""
    m.open(2, **COLD)
    m.send_many(key for n in range(8) for key in [f"cold-{n}"] * (1 + n % 3))
    m.drain()
    m.q.configure(hot_lanes=True)
    m.send_many(key for n in range(8) for key in [f"hot-{n}"] * (1 + n % 4))
    for key in (7, -1, b"\x00\xff", "é"):
        m.fill(key, 2)
    m.drain()
    m.killed = False


def resolved(m: Making) -> None:
    """All messages are resolved, and the logs say so."""
    m.open(2)
    for turn in range(3):
        m.send_many(key for n in range(10) for key in [f"k{n}"] * (1 + (n + turn) % 3))
        last = m.take(100)
        m.ack(last)
    m.holds("settled", last)


def _backlog(m: Making) -> None:
    for n, size in enumerate((0, 1, 799, 800, 801, 3_000, 20_000)):
        m.send("bodies", bytes([97 + n]) * size)
    m.send("headers", "h", headers={"a": "1", "é": "ü\n"}, size_hint=2.5, prepare_seconds=0.25, process_seconds=4.0)
    m.send("headers", "", headers={})
    m.send_many(f"k{n % 6}" for n in range(90))
    m.fill(-5, 3)
    m.fill(b"\x00sa", 2)
    some = m.take(9, "k1")
    m.ack(some[1:4] + some[6:7])
    some[0].lease.release()
    m.ack(m.take(3, "k2"))
    m.ack(m.take(4, "bodies"))


def backlog_cold(m: Making) -> None:
    """A backlog in the tables, some of it resolved in the middle, with bodies of many sizes."""
    m.open(1, **COLD)
    _backlog(m)
    m.killed = False


def backlog_hot(m: Making) -> None:
    """The same in the logs."""
    m.open(1)
    _backlog(m)


def backlog_shards(m: Making) -> None:
    """A backlog over four shards, in the tables and in the logs."""
    m.open(4)
    for turn in range(4):
        m.send_many(f"k{n}" for n in range(40) for _ in range(1 + (n + turn) % 3))
        m.ack(m.take(10))
    for n in range(0, 40, 4):
        for d in m.take(2, f"k{n}")[:1]:
            d.nack(delay=0.0, reason="later")
    m.send_many(f"k{n}" for n in range(20))


def journal(m: Making) -> None:
    """Hot lanes whose logs were cut many times while they held messages, with leases of several messages."""
    chance = random.Random(7)
    slow, fast = [f"slow-{n}" for n in range(6)], [f"fast-{n}" for n in range(5)]
    leased: list[list[Delivery]] = []
    m.open(1, max_attempts=None, lease_seconds=100_000.0)
    with narrow(60, step=5, slices=2, events=300):
        for turn in range(70):
            m.send_many(chance.choices(fast, k=4))
            m.ack(m.take(20, *fast))
            if turn % 3 == 0:
                m.send_many(chance.choices(slow, k=3))
            if turn % 4 == 1 and (some := m.take(chance.randint(1, 5), *slow)):
                by_key: dict[Any, list[Delivery]] = {}
                for d in some:
                    by_key.setdefault(d.key, []).append(d)
                leased += by_key.values()
            if turn % 5 == 2 and leased:
                held = leased.pop(0)
                m.ack(chance.sample(held, chance.randint(1, len(held))))
                if chance.random() < 0.7 and (rest := [d for d in held if (d.key, d.seq) not in m.over]):
                    rest[0].extend(200_000.0)
                    rest[0].start()
                    if chance.random() < 0.7:
                        rest[0].lease.release()
                        m.holds("lost", rest)
                    else:
                        leased.append(rest)
            m.clock.advance(0.25)
    m.holds("live", (d for held in leased for d in held if (d.key, d.seq) not in m.over))


def leases(m: Making) -> None:
    """Live leases of several messages that were partly acked, released, extended, grown; and expired ones. In tables and logs."""
    m.open(1, max_attempts=None)
    for kind in ("hot", "cold"):
        m.q.configure(hot_lanes=kind == "hot")
        for name in ("whole", "part", "holes", "back", "long", "grown", "started", "once", "first", "over", "seen", "retaken"):
            m.fill(f"{kind}-{name}", 5)
        live = m.take(3, f"{kind}-whole", lease_seconds=500.0)
        part = m.take(4, f"{kind}-part", lease_seconds=500.0)
        m.ack(part[:2])
        m.holds("settled", part[:2])
        holes = m.take(5, f"{kind}-holes", lease_seconds=500.0)
        m.ack([holes[1], holes[3]])
        back = m.take(3, f"{kind}-back", lease_seconds=500.0)
        m.ack(back[:1])
        back[1].lease.release()
        m.holds("lost", back[1:])
        long = m.take(2, f"{kind}-long", lease_seconds=5.0)
        long[0].extend(3_000.0)
        grown = m.take(1, f"{kind}-grown", lease_seconds=500.0)
        grown += grown[0].lease.more(2)
        started = m.take(3, f"{kind}-started", lease_seconds=500.0)
        started[0].start()
        started[1].start()
        once = m.take(1, f"{kind}-once", lease_seconds=500.0)
        m.holds("live", [*live, *part[2:], holes[0], holes[2], holes[4], *long, *grown, *started, *once])
        m.done(m.take(2, f"{kind}-first", lease_seconds=500.0, ack_first=True))
        over = m.take(3, f"{kind}-over", lease_seconds=9.0)
        over[0].start()
        m.take(2, f"{kind}-seen", lease_seconds=9.0)
        lost = m.take(3, f"{kind}-retaken", lease_seconds=9.0)
        m.holds("lost", lost)
        m.clock.advance(10.0)
        m.holds("live", m.take(5, f"{kind}-retaken", lease_seconds=500.0, consumer="two"))


def retries(m: Making) -> None:
    """Delays of sends, retries and defers; failed attempts with errors and outputs."""
    m.open(2, retry_delay_seconds=10.0, max_attempts=4)
    m.send("late", "1", delay=60.0)
    m.send("late", "2")
    m.send("behind", "1")
    m.send("behind", "2", delay=90.0)
    m.send("soon", "1", delay=5.0)
    for key in ("once", "twice", "deferred", "several", "crashed"):
        m.fill(key, 3)
    m.take(1, "once")[0].nack(reason="no luck", output="some output")
    for n in range(2):
        m.take(1, "twice")[0].nack(delay=0.0 if n == 0 else 600.0, reason=f"no luck {n}\nat all")
    m.take(1, "deferred")[0].defer(45.0, "not yet")
    several = m.take(3, "several")
    m.ack(several[:1])
    several[1].nack(delay=30.0, reason="the second")
    m.take(1, "crashed", lease_seconds=1.0)
    m.clock.advance(6.0)
    m.take(1, "crashed", lease_seconds=1.0)
    m.clock.advance(2.0)
    for d in m.take(1, "crashed"):
        d.nack(delay=20.0, reason="at last")
    trace = 'Traceback (most recent call last):\n  File "handler.py", line 7, in handle\nValueError: with a traceback'
    m.q._client.settling.nack(m.take(1, "soon"), None, "ValueError: with a traceback", None, trace)


def dead(m: Making) -> None:
    """Dead letters of each kind, in lanes that go on; redriven ones; and ones that return with the end of a lease."""
    m.open(2, max_attempts=2, retry_delay_seconds=0.0, on_expire="dead_letter")
    for key in ("rejected", "poison", "redriven", "waiting", "operator"):
        m.fill(key, 4, headers={"of": key})
    m.send("rejected", b"x" * 2_000)
    m.send("expired", "1", ttl=5.0)
    m.send("expired", "2")
    m.reject(m.take(1, "rejected")[0], "not an order", output="printed")
    for _ in range(2):
        (d,) = m.take(1, "poison")
        d.nack(reason="it fails")
    m.done([d])
    for n in range(2):
        m.reject(m.take(1, "redriven")[0], f"no {n}")
    assert m.q.redrive("redriven", [2]) == 1
    m.over.remove(("redriven", 2))
    m.reject(m.take(1, "waiting")[0], "first")
    held = m.take(2, "waiting", lease_seconds=700.0)
    assert m.q.redrive("waiting") == 1
    m.holds("live", held)
    m.more["returns"] = {label("waiting"): [1]}
    assert m.q.reject("operator", 3, "on order")
    m.over.add(("operator", 3))
    m.clock.advance(6.0)
    m.ack(m.take(1, "expired"))
    m.over.add(("expired", 1))
    five = [d for d in m.take(5, "rejected") if d.seq == 5]
    m.reject(five[0], "large")


def holds(m: Making) -> None:
    """Holds of operators and of the poison policy, with and without messages, and of a lane that is leased."""
    m.open(1, max_attempts=1, on_poison="hold", retry_delay_seconds=0.0)
    for key in ("plain", "why", "leased", "poison", "ended"):
        m.fill(key, 3)
    m.q.hold("plain")
    m.q.hold("why", "the address is wrong")
    m.q.hold("empty", "nothing was sent")
    m.sent["empty"] = {}
    live = m.take(2, "leased", lease_seconds=900.0)
    m.q.hold("leased", "after this lease")
    m.holds("live", live)
    m.take(1, "poison")[0].nack(reason="it fails")
    m.q.hold("ended")
    m.q.release("ended")
    m.clock.advance(3.0)


def keyless(m: Making) -> None:
    """Messages without keys: waiting, leased, delayed, failed, held, and with dedup ids."""
    m.open(2, keyless="round_robin", keyless_lanes=4, max_attempts=2, on_poison="hold", retry_delay_seconds=40.0)
    m.q._client.sending._turn = iter(range(1_000))  # it begins with a random lane
    m.fill(None, 14)
    m.send(None, "late", delay=50.0)
    m.send(None, "once", dedup_id="d-1")
    some = m.take(4, per_key=1)
    m.ack(some[:2])
    some[2].nack(reason="parked")
    some[3].defer(70.0, "later")
    some = m.take(2, lease_seconds=500.0)
    m.holds("live", some)
    m.q.configure(max_attempts=1)
    m.take(1)[0].nack(reason="it fails, and is held")
    m.clock.advance(1.0)
    m.reject(m.take(1)[0], "no key")


def suspects(m: Making) -> None:
    """Messages that may have killed their consumers: delivered one at a time."""
    m.open(1, lease_seconds=20.0)
    for key in ("solo", "range", "again"):
        m.fill(key, 5)
    for key, starts in (("solo", 1), ("range", 2), ("again", 0)):
        some = m.take(4, key)
        for d in some[:starts]:
            d.start()
    m.clock.advance(21.0)
    m.holds("live", m.take(4, "solo", consumer="two", lease_seconds=500.0))
    (d,) = m.take(4, "range", consumer="two", lease_seconds=500.0)
    d.nack(delay=0.0, reason="again")
    m.ack(m.take(1, "again", consumer="two", lease_seconds=500.0))


def worker(m: Making) -> None:
    """A worker was killed while it ran two messages at once, with more of both lanes in its hands."""
    m.open(1, lease_seconds=400.0)
    m.fill("run-1", 2)
    m.fill("run-2", 2)
    running = threading.Semaphore(0)

    def handle(_job: Any) -> None:
        running.release()
        threading.Event().wait()

    threading.Thread(target=strictq.Worker(m.q, handle, concurrency=2, consumer="worker").run, daemon=True).start()
    running.acquire()
    running.acquire()
    until(lambda: m.q.stats().in_flight == 4)


def outbox(m: Making) -> None:
    """Sends of transactions to other shards: some arrived, some did not."""
    keys = list(keys_by_shard(3).values())
    m.open(3)
    arrives: dict[str, list[str]] = {}
    for late in (False, True):
        m.fill("from", 2)
        m.fill("also", 1)
        for d in m.take(3, "from", "also"):
            with m.q.transaction(d) as tx:
                placed = [(key, tx.send(b"effect of %d" % d.seq, key)) for key in keys]
                placed.append((keys[0], tx.send(b"delayed", keys[0], delay=80.0, headers={"from": str(d.key)}, size_hint=3.0)))
                tx.key_state = b"state %d" % d.seq
            m.done([d])
            if late:
                for key, receipt in placed:
                    if receipt.seq is None:
                        arrives.setdefault(label(key), []).append("effect")
        for key in keys:  # it does not know in which order they arrived
            m.sent[key] = {p.seq: (p.id, p.body) for p in m.q.peek(key, 100)}
        delayed = [seq for seq, (_, body) in m.sent[keys[0]].items() if body == b"delayed"]
        m.more["hints"] = {label(keys[0]): {str(seq): [3.0, None, None] for seq in delayed}}
        Store.forward = lambda self, origins=None: None  # type: ignore[method-assign]
    m.more["arrives"] = {key: len(some) for key, some in arrives.items()}
    assert m.q.stats().outbox == sum(m.more["arrives"].values()) > 6


def handouts(m: Making) -> None:
    """Recorded batches of named consumers: kept, open, released, and one without a rejected message."""
    m.open(2)
    for n in range(6):
        m.fill(f"k{n}", 7)
    h = holder(m.q, "etl", keep=2)
    batches: dict[str, list[Any]] = {}
    for n in range(1, 4):
        h.take(n - 1, messages_max=9)
        batches[str(n)] = [list(found) for found in read(m.q, h, n)]
    m.over |= {(key[1:], seq) for n in (1, 2) for key, seq, _ in batches[str(n)]}
    key, seq, _ = batches["3"].pop(1)
    assert m.q.reject(key[1:], seq, "out of a batch")
    m.over.add((key[1:], seq))
    m.more["batches"] = {"etl": batches}
    other = holder(m.q, "other")
    other.take(0, messages_max=5)
    other.close()
    m.q.release_consumer("other", force=True)
    m.q.receive(3, consumer="one", lease_seconds=600.0)


def history(m: Making) -> None:
    """Records of finished messages with every outcome, with bodies and errors."""
    m.open(2, history="bodies", max_attempts=2, retry_delay_seconds=0.0, on_poison="drop")
    for key in ("acked", "rejected", "dropped", "purged", "waiting"):
        m.fill(key, 3, size_hint=1.5)
    m.send("expired", "1", ttl=4.0)
    m.send("expired", "2")
    m.ack(m.take(2, "acked"))
    m.reject(m.take(1, "rejected")[0], "no good", output="printed")
    for _ in range(2):
        (d,) = m.take(1, "dropped")
        d.nack(reason="it fails")
    m.done([d])
    m.q.purge("purged")
    m.over |= {("purged", seq) for seq in (1, 2, 3)}
    m.clock.advance(5.0)
    m.take(1, "expired", lease_seconds=300.0)
    m.over.add(("expired", 1))
    m.take(1, "waiting")[0].nack(delay=5.0, reason="in between")


def dedup(m: Making) -> None:
    """Dedup ids of keys: in their windows, over, of resolved messages, and of hot and cold lanes."""
    m.open(2, dedup_window_seconds=100.0)
    m.fill("plain", 2)
    m.send("old", "1", dedup_id="over")
    m.clock.advance(101.0)
    m.more["dedup"] = []
    for key in ("a", "b", 5):
        for n in range(3):
            m.send(key, str(n), dedup_id=f"id-{n}")
        assert m.send(key, "again", dedup_id="id-1").duplicate
        m.send(key, "plain")
    m.ack(m.take(4, "a"))
    m.ack(m.take(1, "b"))
    m.clock.advance(1.0)


def dedup_queue(m: Making) -> None:
    """Dedup ids of the whole queue."""
    m.open(1, dedup_scope="queue", dedup_window_seconds=1_000.0, keyless="random")
    for n in range(4):
        m.send(f"k{n % 2}", str(n), dedup_id=f"id-{n}")
    assert m.send("k0", "again", dedup_id="id-1").key == "k1"
    m.ack(m.take(2, "k0"))
    m.send(None, "0", dedup_id="without a key")


def app(m: Making) -> None:
    """Tables of the program, states of keys, and batches that were written whole."""
    m.open(1)
    m.q.app_schema("CREATE TABLE app_done (key TEXT, seq INTEGER, note ANY) STRICT; CREATE INDEX app_by_key ON app_done (key)")
    m.q.app_schema("CREATE TABLE app_blob (id INTEGER PRIMARY KEY, data BLOB)")
    m.q.app_schema("CREATE VIEW app_view AS SELECT key, count(*) AS n FROM app_done GROUP BY key")
    for n in range(4):
        m.fill(f"k{n}", 3)
    for d in m.take(8):
        with m.q.transaction(d) as tx:
            tx.key_state = b"%d of %s" % (d.seq, str(d.key).encode())
            tx.execute("INSERT INTO app_done VALUES (?, ?, ?)", (d.key, d.seq, d.body))
            tx.execute("INSERT INTO app_blob VALUES (?, zeroblob(2000))", (d.id,))
        m.done([d])
    with m.q.transaction(key="only-state") as tx:
        tx.key_state = b"no message"
    m.sent["only-state"] = {}
    m.more["app"] = [
        [sql, [list(row) for row in m.q.query(sql)]]
        for sql in ("SELECT key, seq, typeof(note) FROM app_done ORDER BY key, seq", "SELECT key, n FROM app_view ORDER BY key")
    ]
    bulk = m.q._storage.bulk
    for n in range(3):
        bulk.put_whole(Token.job(f"job-{n}"), Size(4), rows([(f"bulk-{n}", b"%d" % i) for i in range(4)]))
        m.sent[f"bulk-{n}"] = {p.seq: (p.id, p.body) for p in m.q.peek(f"bulk-{n}", 10)}


def ttl(m: Making) -> None:
    """Messages that expire: some are past their end already, and no call has noticed."""
    m.open(1, ttl_seconds=1_000.0)
    for kind in ("hot", "cold"):
        m.q.configure(hot_lanes=kind == "hot")
        m.fill(f"{kind}-default", 3)
        m.send(f"{kind}-mixed", "1", ttl=5.0)
        m.send(f"{kind}-mixed", "2")
        m.send(f"{kind}-mixed", "3", ttl=50.0)
        m.send(f"{kind}-leased", "1", ttl=5.0)
        m.send(f"{kind}-leased", "2", ttl=5.0)
        m.holds("live", m.take(1, f"{kind}-leased", lease_seconds=400.0))
        m.send(f"{kind}-gone", "1", ttl=5.0)
    m.clock.advance(6.0)


def replicated(m: Making) -> None:
    """A queue that ships to a directory, with a backlog, leases and dead letters."""
    m.open(2)
    for n in range(5):
        m.fill(f"k{n}", 4)
    m.q.configure_replication(m.place / "target", interval_seconds=0.02)
    m.ack(m.take(6))
    m.reject(m.take(1, "k3")[0], "no good")
    m.holds("live", m.take(2, "k4", lease_seconds=800.0))
    until(lambda: is_shipped(m.q))


def detached(m: Making) -> None:
    """A queue that was replicated once: queue.db keeps the stamp."""
    m.open(1)
    m.fill("k", 3)
    m.q.configure_replication(m.place / "target", interval_seconds=0.02)
    until(lambda: is_shipped(m.q))
    m.q.detach()
    shutil.rmtree(m.place / "target")
    m.ack(m.take(1))


def migrated(m: Making) -> None:
    """A queue of format 1 that was migrated, and used since."""
    format_1.unpacked("busy", m.path)
    strictq.migrate(m.path, clock=m.clock)
    m.q = strictq.open(m.path, clock=m.clock)
    old = [f"backlog{n}" for n in range(3)] + [f"effect{n}" for n in range(4)]
    for key in [*old, "large", "once", "held", "dead", "nacked", "late", "leased", "acked"]:
        found = m.q.peek(key, 100)
        m.sent[key] = {p.seq: (p.id, p.body) for p in found}
    for key in ("acked", "backlog0", "new"):
        known = m.sent.setdefault(key, {})
        for n in range(2):
            receipt = m.q.send(b"%d" % n, key)
            known[receipt.seq] = receipt.id, b"%d" % n
    (etl,) = m.q.consumers()
    m.sent["handed"] = {p.seq: (p.id, p.body) for p in m.q.peek("handed")}
    m.more["batches"] = {"etl": {str(etl.last): [["shanded", n + 1, str(n)] for n in range(4)]}}
    m.ack(m.take(2, "backlog1"))
    m.holds("live", m.take(3, "new", lease_seconds=300.0))


def forgotten(m: Making) -> None:
    """Idle lanes were forgotten, so that new ones begin above a floor."""
    m.open(1, idle_lane_seconds=60.0, **COLD)
    for n in range(6):
        m.fill(f"k{n}", 2 + n)
    m.drain()
    m.clock.advance(100.0)
    m.q._storage._store.tidy()
    m.sent = {}
    m.q.configure(hot_lanes=True)
    for key in ("k1", "new"):
        for n in range(2):
            m.note(m.q.send(b"%d" % n, key), b"%d" % n)
    assert m.sent["new"][8]


def rebooted(m: Making) -> None:
    """The machine booted again, and a process has opened the queue since: the old leases are over. Their lanes are free."""
    _before_reboot(m)
    m.open()
    m.fill("later", 1)


def rebooted_unseen(m: Making) -> None:
    """The machine booted again, and no process has written to the queue since."""
    _before_reboot(m)
    m.q = strictq.open(m.path, read_only=True, clock=m.clock)


def _before_reboot(m: Making) -> None:
    m.open(2, max_attempts=None)
    keys = keys_by_shard(2).values()
    for key in keys:
        m.fill(key, 3)
        m.fill(f"{key}-other", 1)
    m.holds("live", m.take(2, *keys, lease_seconds=5_000.0, per_key=1))
    m.q.close()
    m.clock.advance(9.0)
    m.clock.reboot()


def rows(pairs: list[tuple[str, bytes]]) -> PlainRows:
    """Return messages of one key in columns."""
    return PlainRows([encode_key(pairs[0][0])], [len(pairs)], list(range(len(pairs))), [body for _, body in pairs])


KINDS: Final[dict[str, Callable[[Making], None]]] = {
    f.__name__: f
    for f in (
        idle, resolved, backlog_cold, backlog_hot, backlog_shards, journal, leases, retries, dead, holds, keyless, suspects,
        worker, outbox, handouts, history, dedup, dedup_queue, app, ttl, replicated, detached, migrated, forgotten, rebooted,
        rebooted_unseen,
    )
}  # fmt: skip


# ---- processes and archives


def make(kind: str, place: Path) -> None:
    """Make a queue here, write down the facts, and end as a killed process does."""
    Upkeep._start = lambda _self: None  # type: ignore[method-assign]  # nothing else runs
    random.seed(kind)
    m = Making(place)
    KINDS[kind](m)
    facts = {"kind": KINDS[kind].__doc__, **m.facts()}
    if not m.killed:
        m.q.close()
    with (place / "facts.json").open("w", encoding="utf-8") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    os.kill(os.getpid(), signal.SIGKILL)


def pack(place: Path) -> bytes:
    """Return the archive of a place with a queue, and with a target if there is one."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for file in sorted(place.rglob("*")):
            if not file.is_file() or file.name.endswith((*LEFT_OUT, "facts.json")):
                continue
            info = tarfile.TarInfo(str(file.relative_to(place)))
            info.size = file.stat().st_size
            info.mode = 0o600
            with file.open("rb") as content:
                tar.addfile(info, content)
    return lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def written(facts: Facts) -> str:
    """Return facts as JSON, with a line for each lane and list of the report."""
    report = facts.pop("report")
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]
    parts = []
    for name, value in report.items():
        if name == "lanes":
            lanes = (
                f"      {json.dumps(key, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for key, v in value.items()
            )
            parts.append('    "lanes": {\n' + ",\n".join(lanes) + "\n    }")
        else:
            parts.append(f"    {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join([*lines, '  "report": {\n' + ",\n".join(parts) + "\n  }"]) + "\n}\n"


def main(place: Path, kinds: list[str]) -> None:
    """Make these kinds, or all."""
    for kind in kinds or KINDS:
        here = place / kind
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.support.format_2_making", "--make", kind, str(here)]
        ended = subprocess.run(command, cwd=ROOT)
        if ended.returncode != -signal.SIGKILL:
            raise SystemExit(f"{kind} was not made")
        facts = json.loads((here / "facts.json").read_text(encoding="utf-8"))
        archive = pack(here)
        (format_2.PLACE / f"{kind}.tar.xz").write_bytes(archive)
        text = written(facts)
        (format_2.PLACE / f"{kind}.json").write_text(text, encoding="utf-8")
        print(f"{kind}: {len(archive):,} + {len(text):,} bytes")


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(sys.argv[2], Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
