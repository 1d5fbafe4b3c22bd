"""A queue that records every call in a history, for the stress tests."""

from __future__ import annotations

import itertools
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from strictq import (
    Consumer,
    Delivery,
    Fenced,
    ForwardPending,
    Message,
    OutcomeUnknown,
    PartialFailure,
    Queue,
    StrictqError,
    TargetUnavailable,
    Transaction,
)
from tests.support.history import (
    OK,
    Act,
    Effect,
    Handed,
    Left,
    Operated,
    Recorder,
    Sent,
    Stored,
    Tx,
    Wanted,
    now,
)

SECOND = 10**9
REFUSED_SECONDS = 0.02
"""So long a receive that the replica's absence refuses pauses: else a history would have little else."""
SCHEMA = "CREATE TABLE IF NOT EXISTS app_effects (effect TEXT NOT NULL, lane TEXT NOT NULL, n INTEGER NOT NULL) STRICT"


EFFECTS = "SELECT effect, count(*) FROM app_effects WHERE lane != 'main' GROUP BY effect"
"""The effects of recorded transactions: their lanes are keys as `repr` writes them."""


class Raised(Exception):
    """A handler's own failure, inside a transaction."""


def body_of(mid: str) -> bytes:
    """Return the body of a message: its name, and padding that follows from the name, sometimes several pages of it."""
    mark = zlib.crc32(mid.encode())
    size = mark % 300 if mark % 50 else mark % 20_000
    return f"{mid} ".encode() + (b"%08x" % mark) * (size // 8)


def mid_of(body: bytes) -> str:
    """Return the message's name, or a name that was never sent if the body is damaged."""
    mid = body.partition(b" ")[0].decode("ascii", "replace")
    return mid if body == body_of(mid) else f"damaged:{mid}"


class Recorded:
    """The verbs of a queue and of its deliveries. Each records its call and returns the result.

    Errors of strictq are recorded and swallowed. The reader of the history checks whether they were to be expected. A call whose
    outcome is unknown is repeated where that is permitted.
    """

    def __init__(self, queue: Queue, recorder: Recorder) -> None:
        self.queue = queue
        self.recorder = recorder
        self.refusal: StrictqError | None = None
        """Why the last send that returned None failed, whichever thread's it was."""
        self._names = itertools.count()
        self._start = f"{time.time_ns():x}"

    def name(self) -> str:
        """Return a new name for a message or an effect, unique over all processes."""
        return f"{os.getpid():x}-{self._start}-{threading.get_ident() & 0xFFFF:x}-{next(self._names)}"

    def new(self, key: Any, *, dedup_id: str | None = None, delay: float = 0.0, ttl: float | None = None) -> Message:
        """Return a message to send."""
        return Message(body_of(self.name()), key=key, dedup_id=dedup_id, delay=delay, ttl=ttl)

    def send(self, message: Message) -> int | None:
        """Send a message. Return its seq, or None if that failed."""
        call = self.recorder.invoke("send", [_sent(message)])
        try:
            receipt = self.queue.send(message.body, message.key, dedup_id=message.dedup_id, delay=message.delay, ttl=message.ttl)
        except StrictqError as e:
            self.recorder.result(call, "send", type(e).__name__)
            self.refusal = e
            return None
        self.recorder.result(call, "send", OK, [Stored(receipt.seq, receipt.duplicate)])
        return receipt.seq

    def send_many(self, messages: Sequence[Message]) -> None:
        call = self.recorder.invoke("send", map(_sent, messages))
        try:
            receipts: Sequence[Any] = self.queue.send_many(messages)
        except PartialFailure as e:
            receipts = e.results
        except StrictqError as e:
            self.recorder.result(call, "send", type(e).__name__)
            return
        stored = [type(r).__name__ if isinstance(r, Exception) else Stored(r.seq, r.duplicate) for r in receipts]
        self.recorder.result(call, "send", OK, stored)

    def receive(
        self,
        max_messages: int = 10,
        *,
        lease_seconds: float,
        per_key: int | None = None,
        wait: float = 0.0,
        keys: Sequence[Any] | None = None,
        ack_first: bool = False,
        joined: Consumer | None = None,
    ) -> list[Delivery]:
        wanted = Wanted(int(lease_seconds * SECOND), ack_first, None if keys is None else [repr(k) for k in keys])
        call = self.recorder.invoke("receive", [wanted])
        try:
            if joined is not None and keys is None:
                got: Sequence[Any] = joined.receive(
                    max_messages, per_key=per_key, wait=wait, lease_seconds=lease_seconds, ack_first=ack_first
                )
            else:
                got = self.queue.receive(
                    max_messages, per_key=per_key, wait=wait, lease_seconds=lease_seconds, keys=keys, ack_first=ack_first
                )
        except PartialFailure as e:
            got = [d for d in e.results if isinstance(d, Delivery)]
        except StrictqError as e:
            self.recorder.result(call, "receive", type(e).__name__)
            if isinstance(e, TargetUnavailable | Fenced):
                time.sleep(REFUSED_SECONDS)
            return []
        self._handed(call, "receive", got)
        return list(got)

    def _handed(self, call: int, verb: str, got: Iterable[Delivery]) -> None:
        deadlines: dict[tuple[str, int], int] = {}
        rows = []
        for d in got:
            key = repr(d.key)
            deadline = deadlines.get((key, d.token))
            if deadline is None:
                read = now()  # before expires_in is read, so that the sum is never too late
                deadline = deadlines[key, d.token] = read + int(d.lease.expires_in * SECOND) - 2_000
            rows.append(Handed(key, d.seq, mid_of(d.body), d.token, deadline))
        self.recorder.result(call, verb, OK, rows)

    def more(self, d: Delivery, count: int) -> list[Delivery]:
        call = self.recorder.invoke("more", [Act(repr(d.key), None, d.token)])
        try:
            got = d.lease.more(count)
        except StrictqError as e:
            self.recorder.result(call, "more", type(e).__name__)
            return []
        self._handed(call, "more", got)
        return got

    def act(self, verb: str, d: Delivery, *, arg: float | None = None) -> str:
        """Call ack, nack, defer, reject, start, extend, done or release. Return the outcome."""
        whole = verb in ("release", "done")
        item = Act(repr(d.key), None if whole else d.seq, d.token, None if arg is None else int(arg * SECOND))
        calls: dict[str, Callable[[], Any]] = {
            "ack": lambda: self.ack(d),
            "nack": lambda: d.nack(delay=arg, reason="stress"),
            "defer": lambda: d.defer(arg or 0.0),
            "reject": lambda: d.reject("stress"),
            "start": d.start,
            "extend": lambda: d.extend(arg or 0.0),
            "done": d.done,
            "release": d.lease.release,
        }
        for _ in range(3):
            call = self.recorder.invoke(verb, [item])
            outcome = _outcome(calls[verb])
            self.recorder.result(call, verb, outcome)
            if outcome != OutcomeUnknown.__name__:
                break
        return outcome

    def ack(self, d: Delivery) -> None:
        d.ack()

    def act_many(self, verb: str, ds: Sequence[Delivery], *, arg: float | None = None) -> None:
        """Call ack_many, nack_many or extend_many."""
        length = None if arg is None else int(arg * SECOND)
        call = self.recorder.invoke(verb, [Act(repr(d.key), d.seq, d.token, length) for d in ds])
        try:
            if verb == "ack":
                self.queue.ack_many(ds)
            elif verb == "nack":
                self.queue.nack_many(ds, delay=arg)
            else:
                self.queue.extend_many(ds, arg or 0.0)
        except PartialFailure as e:
            outcomes = [type(r).__name__ if isinstance(r, Exception) else OK for r in e.results]
            self.recorder.result(call, verb, "PartialFailure", outcomes)
        except StrictqError as e:
            self.recorder.result(call, verb, type(e).__name__)
        else:
            self.recorder.result(call, verb)

    def transact(self, d: Delivery | None, key: Any, sends: Sequence[Message], *, fail: bool = False) -> str:
        """Run a transaction with every possible part. Its effect is a row, and the key's state counts the rows."""
        key = key if d is None else d.key
        effect = self.name()
        seq, token = (None, None) if d is None else (d.seq, d.token)
        tx = Tx(effect, repr(key), seq, token, [_sent(m) for m in sends])
        for _ in range(3):
            call = self.recorder.invoke("transact", [tx])
            outcome = _outcome(lambda: self._transaction(d, key, effect, sends, fail))
            self.recorder.result(call, "transact", outcome)
            if outcome != OutcomeUnknown.__name__ or d is None:
                break
        return outcome

    def _transaction(self, d: Delivery | None, key: Any, effect: str, sends: Sequence[Message], fail: bool) -> None:
        with self.queue.transaction(d) if d is not None else self.queue.transaction(key=key) as tx:
            n = int(tx.key_state or b"0")
            tx.key_state = b"%d" % (n + 1)
            for message in sends[:1]:
                tx.send(message.body, message.key)
            self.leave(tx, effect, key, n)
            for message in sends[1:]:
                tx.send(message.body, message.key)
            if fail:
                raise Raised

    def leave(self, tx: Transaction, effect: str, key: Any, n: int) -> None:
        """Leave the effect of a transaction, the n-th one of its key."""
        tx.execute("INSERT INTO app_effects (effect, lane, n) VALUES (?, ?, ?)", (effect, repr(key), n))

    def operate(self, verb: str, key: Any, *, dead: bool = False) -> str:
        """Call hold, unhold, redrive or purge."""
        calls: dict[str, Callable[[], Any]] = {
            "hold": lambda: self.queue.hold(key, "stress"),
            "unhold": lambda: self.queue.release(key),
            "redrive": lambda: self.queue.redrive(key),
            "purge": lambda: self.queue.purge(key, dead=dead),
        }
        call = self.recorder.invoke(verb, [Operated(None if key is None else repr(key), None, dead)])
        outcome = _outcome(calls[verb])
        self.recorder.result(call, verb, outcome)
        return outcome

    def final(self, keys: Iterable[Any]) -> None:
        """Record the remaining messages and effects, once all other processes have ended."""
        call = self.recorder.invoke("final")
        rows: list[Any] = []
        for effect, count in self.queue.query(EFFECTS):
            rows.append(Effect(effect, count))
        for key in keys:
            rows += [Left("dead", repr(key), d.seq, mid_of(d.body)) for d in self.queue.dead_letters(key, 100_000)]
            rows += [Left("pending", repr(key), m.seq, mid_of(m.body)) for m in self.queue.peek(key, 100_000)]
        self.recorder.result(call, "final", OK, rows)


def _sent(message: Message) -> Sent:
    ttl = None if message.ttl is None else int(message.ttl * SECOND)
    mid = message.body.partition(b" ")[0].decode()
    return Sent(repr(message.key), mid, message.dedup_id, int(message.delay * SECOND), ttl)


def _outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except Raised:
        return "Raised"
    except ForwardPending:
        return "ForwardPending"
    except StrictqError as e:
        return type(e).__name__
    return OK
