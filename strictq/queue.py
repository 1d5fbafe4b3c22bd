"""The queue: sending, receiving, settling. Sync; aio.py awaits the same verbs."""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from types import TracebackType
from typing import Any, Final

from . import _validate as validate
from ._config import QueueConfig
from ._errors import InvalidArgument, LeaseLost, PartialFailure, StoreError, StrictqError
from ._keys import Key, encode_key
from ._operating import Operating
from ._store import Store, engine, handed, looking
from ._store.shard import Shard
from ._types import Event, Message, Receipt
from .delivery import OPEN, SETTLED, Call, Delivery, Lease
from .transaction import Transaction

_Act = Callable[[engine.Tx, Sequence[engine.Batch]], list[dict[int, LeaseLost]]]
_STATE: Final = attrgetter("_state")
_LEASE: Final = attrgetter("lease")

LOOK_AGAIN_SECONDS: Final = 1.0
"""A waiting receive looks by itself so often, should a wake-up ever be missed."""


class Queue(Operating):
    """A durable queue with strict order per key. Get one from `strictq.open`; close it, or use it in a with block.

    One object serves any number of threads. Other objects and other processes may use the same directory at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = count(random.randrange(1 << 16))

    # ---- what it is

    @property
    def path(self) -> str:
        """The directory, or ":memory:"."""
        return ":memory:" if self._store.directory is None else str(self._store.directory)

    @property
    def queue_id(self) -> str:
        """Names this queue for ever, wherever it is moved."""
        return self._store.catalog.queue_id

    @property
    def shards(self) -> int:
        """How many files the hash space is spread over."""
        return len(self._store.shards)

    @property
    def durability(self) -> str:
        """ "full" or "process": the level of this object."""
        return self._store.catalog.durability

    @property
    def config(self) -> QueueConfig:
        """The settings, as this process last saw them."""
        return self._store.config

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """Call `hook(event)` for dead letters, poison, lost leases and quarantined shards, after they are committed."""
        if not callable(hook):
            raise InvalidArgument("an on_event hook must be callable")
        self._store.hooks.append(hook)

    def close(self) -> None:
        """Close every file. Leases stay until their deadline; closing twice does nothing."""
        self._store.close()

    def __enter__(self) -> Queue:
        self._store.require_open(writing=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<strictq.Queue {self.path!r} shards={self.shards} durability={self.durability!r}>"

    # ---- sending

    def send(
        self,
        body: bytes,
        key: Key | None = None,
        *,
        dedup_id: str | None = None,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        size_hint: float | None = None,
        prepare_seconds: float | None = None,
        process_seconds: float | None = None,
    ) -> Receipt:
        """Append a message to its key's sequence. Durable on return.

        Args:
            body: the content; may be empty.
            key: str, bytes or int. None only where the queue's `keyless` allows it.
            dedup_id: within the dedup window, a second send with this key and id stores nothing.
            delay: seconds before it may be handed out; later messages of its key wait for it.
            ttl: seconds after which it expires if nobody holds it; None: the queue's ttl_seconds.
            headers: str → str.
            size_hint, prepare_seconds, process_seconds: estimates for a worker.
        Returns:
            Its position. `duplicate` is set where the dedup_id was known; then it is the first one's.
        Raises:
            InvalidArgument, MessageTooLarge, QueueFull, StoreBusy, StoreFull: nothing changed.
            OutcomeUnknown: it may have happened; safe to repeat with a dedup_id.
        Source: docs/explanation/guarantees.md
        """
        store = self._store
        store.require_open()
        item = self._item(
            Message(
                body, key=key, dedup_id=dedup_id, delay=delay, ttl=ttl, headers=headers, size_hint=size_hint,
                prepare_seconds=prepare_seconds, process_seconds=process_seconds,
            )
        )  # fmt: skip
        ((seq, arrival, duplicate),) = store.send(store.shard_of(item[0]), [item])
        return Receipt(key, seq, arrival, duplicate)

    def send_many(self, messages: Iterable[Message]) -> list[Receipt]:
        """Append many messages, in order. Atomic per shard: one transaction for each shard that is touched.

        Returns:
            A receipt for each, in the order given.
        Raises:
            InvalidArgument, MessageTooLarge: one of them can't be sent; nothing changed.
            QueueFull, StoreError: nothing changed (where one shard is concerned).
            PartialFailure: some shards failed; results has a Receipt or an exception for each message.
        """
        store = self._store
        store.require_open()
        given, items = self._items(messages)
        if not items:
            return []
        if len(store.shards) == 1:
            sent = store.send(store.shards[0], items)
            return [Receipt(key, seq, arrival, again) for key, (seq, arrival, again) in zip(given, sent, strict=True)]
        groups: dict[int, list[int]] = {}
        for i, item in enumerate(items):
            groups.setdefault(store.shard_of(item[0]).number, []).append(i)
        results: list[Any] = [None] * len(items)
        failed: StrictqError | None = None
        for number, places in groups.items():
            try:
                receipts = store.send(store.shards[number], [items[i] for i in places])
            except StrictqError as e:
                failed = e
                for i in places:
                    results[i] = e
                continue
            for i, s in zip(places, receipts, strict=True):
                results[i] = Receipt(given[i], *s)
        if failed is not None:
            if len(groups) == 1:
                raise failed
            raise PartialFailure("some shards did not take their messages", results) from failed
        return results

    def _items(self, messages: Iterable[Message]) -> tuple[list[Key | None], list[engine.Item]]:
        config = self._store.config
        known: dict[str, bytes] = {}
        given: list[Key | None] = []
        items: list[engine.Item] = []
        for message in messages:
            if not isinstance(message, Message):
                raise InvalidArgument(f"send_many takes Message objects, not {type(message).__name__}")
            key = message.key
            if type(key) is str:
                raw = known.get(key)
                if raw is None:
                    raw = known[key] = encode_key(key)
            elif key is None:
                raw = self._keyless(message)
            else:
                raw = encode_key(key)
            given.append(key)
            items.append(validate.item(message, raw, config))
        return given, items

    def _item(self, message: Message) -> engine.Item:
        """One message as the store takes it."""
        raw = self._keyless(message) if message.key is None else encode_key(message.key)
        return validate.item(message, raw, self._store.config)

    def _keyless(self, message: Message) -> bytes:
        config = self._store.config
        if config.keyless == "refuse":
            raise InvalidArgument("a message needs a key", hint="or open the queue with QueueConfig(keyless='random')")
        if message.dedup_id is not None:
            return engine.keyless_by_hash(validate.name("dedup_id", message.dedup_id), config.keyless_lanes)
        lane = next(self._turn) if config.keyless == "round_robin" else random.randrange(config.keyless_lanes)
        return engine.keyless_lane(lane % config.keyless_lanes)

    # ---- receiving

    def receive(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = 0.0,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        ack_first: bool = False,
    ) -> list[Delivery]:
        """Lease the oldest ready messages: the oldest ready head, as many more of its lane as fit, and again from there.

        One transaction per shard touched; durable on return. Two live leases never share a lane.

        Args:
            max_messages: 1..100,000.
            per_key: at most so many of each key; 1 gives the heads of many lanes.
            wait: seconds to wait for a first message; 0 returns at once, None waits for ever.
            lease_seconds: how long the lanes are held; None: the queue's lease_seconds.
            keys: only these.
            consumer: who holds them, shown by explain; None: host and process id.
            ack_first: resolve on receive (at most once); the lanes stay leased until `d.done()` or the deadline.
        Returns:
            0..max_messages deliveries; seq ascending within a key.
        Raises:
            InvalidArgument: nothing changed.
            StoreError, PartialFailure: nothing was leased, because shards failed.
        Source: docs/explanation/leases.md
        """
        store = self._store
        store.require_open()
        request, seconds = self._request(max_messages, per_key, lease_seconds, keys, consumer, ack_first)
        until = None if wait is None else time.monotonic() + validate.microseconds("wait", wait) / 1_000_000
        while True:
            seen = store.waker.seen()
            deliveries, soonest = self._receive_once(request, seconds)
            if deliveries:
                return deliveries
            left = self._patience(until, soonest)
            if left <= 0:
                return []
            store.waker.wait(seen, left)
            store.require_open()

    def _request(
        self,
        max_messages: int,
        per_key: int | None,
        lease_seconds: float | None,
        keys: Iterable[Key] | None,
        consumer: str | None,
        ack_first: bool,
    ) -> tuple[engine.Request, int]:
        validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
        if per_key is not None:
            validate.whole("per_key", per_key, 1, validate.MESSAGES_MAX)
        seconds = self._lease_microseconds(lease_seconds)
        who = default_consumer() if consumer is None else validate.name("consumer", consumer)
        return engine.Request(max_messages, per_key, seconds, who, bool(ack_first), validate.keys(keys)), seconds

    def _lease_microseconds(self, seconds: float | None) -> int:
        if seconds is None:
            seconds = self._store.config.lease_seconds
        return validate.microseconds("lease_seconds", seconds, minimum=0.001)

    def _patience(self, until: float | None, soonest: int | None) -> float:
        """Seconds to wait before looking again: until a lease or delay ends, or the caller's time is over."""
        left = LOOK_AGAIN_SECONDS
        if soonest is not None:
            # Queue time and the waiting thread's clock need not agree to the microsecond: never a busy loop.
            left = min(left, max((soonest - self._store.now()) / 1_000_000, 0.001))
        return left if until is None else min(left, until - time.monotonic())

    def _receive_once(self, request: engine.Request, seconds: int) -> tuple[list[Delivery], int | None]:
        """Claim what is ready now. Also when, at the latest, that may change without anybody writing (queue time)."""
        store = self._store
        deliveries: list[Delivery] = []
        failures: list[StrictqError] = []
        soonest: int | None = None
        claimed: list[tuple[Shard, engine.Claimed]] = []
        room = request.room
        try:
            for shard in self._claimable(request):
                if room <= 0:
                    break
                try:
                    ready, timer = store.outlook(shard)
                    if not ready:
                        store.count_empty(shard.number)
                        soonest = timer if soonest is None or (timer is not None and timer < soonest) else soonest
                        continue
                    got = store.claim(shard, request if room == request.room else engine.smaller(request, room))
                    claimed.append((shard, got))
                except StoreError as e:
                    failures.append(e)
                    continue
                fresh = self._deliveries(shard, got, request, seconds)
                deliveries += fresh
                room -= len(fresh)
        except BaseException:
            self._give_back(claimed)
            raise
        if not deliveries and failures:
            if len(failures) == 1:
                raise failures[0]
            raise PartialFailure("shards failed, and nothing was ready in the others", failures) from failures[0]
        return deliveries, soonest

    def _claimable(self, request: engine.Request) -> Sequence[Shard]:
        """The shards to ask, in rotation. Quarantined ones are passed over, unless there are no others."""
        store = self._store
        shards = store.rotation()
        if request.keys is not None:
            wanted = {store.shard_of(k).number for k in request.keys}
            shards = [s for s in shards if s.number in wanted]
        return [s for s in shards if s.failed is None] or shards

    def _deliveries(self, shard: Shard, got: engine.Claimed, request: engine.Request, seconds: int) -> list[Delivery]:
        out: list[Delivery] = []
        late: list[Lease] = []
        worn = self._store.now() + seconds // 2
        call = Call(self, shard.number, request.consumer, request.ack_first)
        for held in got.leases:
            lease = Lease(call, held, seconds)
            if held.deadline < worn:
                late.append(lease)
            for row in held.rows:
                out.append(Delivery(row, lease))  # noqa: PERF401 - a list for each lane would be slower
        if late:
            # The commit took so long that little is left of the lease: nobody has it yet, so it starts again now.
            lost = self._renew(late, seconds)
            out = [d for d in out if d.lease not in lost]
        return out

    def _renew(self, leases: list[Lease], seconds: int) -> set[Lease]:
        """Extend leases; those that are lost."""
        lost: set[Lease] = set()
        for lease in leases:
            batch = lease._batch([lease._lo])
            (deadline,) = self._shard(lease).drain(lambda tx, b=batch: engine.extend(tx, [b], seconds))  # type: ignore[misc]
            if isinstance(deadline, LeaseLost):
                lost.add(lease)
            else:
                lease._deadline = deadline
        return lost

    def _give_back(self, claimed: list[tuple[Shard, engine.Claimed]]) -> None:
        """An interrupted receive: nothing it leased may stay leased."""
        for shard, got in claimed:
            for held in got.leases:
                batch = engine.Batch(held.lane, held.key, held.token, [held.rows[0][handed.SEQ]])
                try:
                    shard.drain(lambda tx, b=batch: engine.release(tx, b))  # type: ignore[misc]
                except StrictqError:
                    continue  # the claim itself was undone, or the shard failed: then the deadline ends it

    def consume(
        self,
        max_messages: int = 10,
        *,
        per_key: int | None = None,
        wait: float | None = None,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        ack_first: bool = False,
    ) -> Iterator[Delivery]:
        """Receive again and again, and hand out one by one: for ever, or until nothing came for `wait` seconds.

        Leaving the loop gives back what was not handed out, unused. In a with block, the ack of a message also starts the
        next one of its key, so that counting attempts costs no transaction of its own.

        Args: as for receive; max_messages is how many are leased ahead.
        """
        wanted = None if keys is None else list(keys)
        while True:
            batch = self.receive(
                max_messages, per_key=per_key, wait=wait, lease_seconds=lease_seconds, keys=wanted, consumer=consumer,
                ack_first=ack_first,
            )  # fmt: skip
            if not batch and wait is not None:
                return
            waiting = deque(batch)
            try:
                while waiting:
                    d = waiting.popleft()
                    if not self._still_fresh(d):
                        continue
                    if waiting and waiting[0].lease is d.lease:
                        d._next = waiting[0]
                    yield d
            finally:
                self._release_rest(waiting)

    def _still_fresh(self, d: Delivery) -> bool:
        """Nothing is handed out with too little of its lease left, or after it."""
        lease = d.lease
        if d._state == SETTLED or d.seq > lease._hi:
            return False  # given back with an earlier one
        if lease._deadline - self._store.now() > lease._seconds // 2:
            return True
        return lease not in self._renew([lease], lease._seconds)

    def _release_rest(self, waiting: Iterable[Delivery]) -> None:
        first: dict[Lease, Delivery] = {}
        for d in waiting:
            if d._state == OPEN:
                first.setdefault(d.lease, d)
        for lease, d in first.items():
            try:
                self._release(lease, d.seq)
            except StrictqError:
                continue  # lost already, or its deadline will end it

    # ---- settling

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Resolve many, in any order. The valid ones take effect; one transaction per shard.

        Raises:
            LeaseLost: of a single delivery.
            PartialFailure: some were lost, or shards failed: results has None or an exception for each delivery.
        """
        self._settle(list(deliveries), lambda tx, batches: engine.ack(tx, batches))

    def nack_many(self, deliveries: Iterable[Delivery], delay: float | None = None, reason: str | None = None) -> None:
        """Give many back; of each key the first one given, and everything later that its lease holds.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        self._nack(list(deliveries), delay, reason)

    def extend_many(self, deliveries: Iterable[Delivery], seconds: float) -> None:
        """Move the deadlines of their lanes' leases to `seconds` from now.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        given = list(deliveries)
        results = self._extended([d.lease for d in given], seconds)
        self._raise_lost("some leases were lost", results)

    def _ack_one(self, d: Delivery) -> None:
        start = d._next
        self._settle([d], lambda tx, batches: engine.ack(tx, batches), start=None if start is None else start.seq)
        if start is not None and start.seq > d.lease._started:
            d.lease._started = start.seq

    def _settle(
        self,
        given: list[Delivery],
        act: _Act,
        *,
        start: int | None = None,
    ) -> None:
        self._store.require_open()
        work = self._whole_leases(given)
        results: list[Any] = [None] * len(given)
        if work is None:
            work = self._leases_of(given, results, start)
        trouble = self._settle_all(work, act)
        for i, d in enumerate(given):
            if trouble and results[i] is None:
                lost = trouble.get(d.lease, {})
                results[i] = lost if isinstance(lost, StoreError) else lost.get(d.seq)
            if results[i] is None:
                d._state = SETTLED
                d.lease._open -= 1
        self._raise_lost("some deliveries were lost", results)

    def _whole_leases(self, given: list[Delivery]) -> list[tuple[Lease, engine.Batch]] | None:
        """The common case, fast: every lease that occurs is given with all its messages. None: it is not so."""
        try:
            if len(set(given)) != len(given) or any(map(_STATE, given)):
                return None
            counts = Counter(map(_LEASE, given))
        except (AttributeError, TypeError):
            return None  # something else among them
        work = []
        for lease, n in counts.items():
            lo, hi = lease._lo, lease._hi
            if n != lease._open or hi - lo + 1 != n or self._foreign(lease):
                return None
            held = lease._held
            work.append((lease, engine.Batch(held.lane, held.key, held.token, range(lo, hi + 1), True, held.apart)))
        return work

    def _leases_of(self, given: list[Delivery], results: list[Any], start: int | None) -> list[tuple[Lease, engine.Batch]]:
        """Any mixture of deliveries, grouped by lease; what is settled already goes to the results at once."""
        groups: dict[Lease, set[int]] = {}
        for i, d in enumerate(given):
            seqs = groups.setdefault(self._own(d), set())
            if d._state == SETTLED or d.seq in seqs:
                results[i] = _settled_before(d)
            else:
                seqs.add(d.seq)
        return [(lease, lease._batch(sorted(seqs), start)) for lease, seqs in groups.items() if seqs]

    def _settle_all(self, work: list[tuple[Lease, engine.Batch]], act: _Act) -> dict[Lease, dict[int, LeaseLost] | StoreError]:
        """One transaction per shard. What was refused of each lease; leases without trouble are left out."""
        by_shard: dict[int, list[tuple[Lease, engine.Batch]]] = {}
        for entry in work:
            by_shard.setdefault(entry[0].shard, []).append(entry)
        trouble: dict[Lease, dict[int, LeaseLost] | StoreError] = {}
        for number, entries in by_shard.items():
            batches = [batch for _, batch in entries]
            try:
                outcomes = self._store.shards[number].drain(lambda tx, b=batches: act(tx, b))  # type: ignore[misc]
            except StoreError as e:
                trouble.update((lease, e) for lease, _ in entries)
                continue
            if any(outcomes):
                trouble.update((lease, lost) for (lease, _), lost in zip(entries, outcomes, strict=True) if lost)
        return trouble

    def _nack(self, given: list[Delivery], delay: float | None, reason: str | None) -> None:
        wait = None if delay is None else validate.microseconds("delay", delay)
        why = validate.text("reason", reason)
        # Of each lease, the first one given stands for all: it gives back everything later.
        first: dict[Lease, int] = {}
        for d in given:
            if d._state == OPEN:
                lease = self._own(d)
                first[lease] = min(first.get(lease, d.seq), d.seq)

        def act(tx: engine.Tx, batches: Sequence[engine.Batch]) -> list[dict[int, LeaseLost]]:
            heads = [engine.head_of(b) for b in batches]
            lost = engine.nack(tx, heads, wait, why)
            return [dict.fromkeys(b.seqs, next(iter(bad.values()))) if bad else {} for b, bad in zip(batches, lost, strict=True)]

        self._settle(given, act)
        for lease, seq in first.items():
            lease._hi = min(lease._hi, seq - 1)

    def _reject(self, d: Delivery, reason: str) -> None:
        why = validate.text("reason", reason)
        if not why:
            raise InvalidArgument("reject needs a reason")

        def act(tx: engine.Tx, batches: Sequence[engine.Batch]) -> list[dict[int, LeaseLost]]:
            engine.reject(tx, batches[0], why)
            return [{}]

        self._require_unsettled(d)
        self._settle([d], act)

    def _start(self, d: Delivery) -> None:
        lease = self._own(d)
        self._require_unsettled(d)
        if d.seq <= lease._started:
            return
        self._store.require_open()
        batch = self._batch(d)
        self._shard(lease).drain(lambda tx: engine.start(tx, batch))
        lease._started = max(lease._started, d.seq)

    def _extend(self, leases: list[Lease], seconds: float) -> None:
        self._raise_lost("some leases were lost", self._extended(leases, seconds))

    def _extended(self, leases: list[Lease], seconds: float) -> list[Any]:
        self._store.require_open()
        length = validate.microseconds("seconds", seconds, minimum=0.001)
        outcome: dict[Lease, Any] = {}
        by_shard: dict[int, list[Lease]] = {}
        for lease in dict.fromkeys(leases):
            if self._foreign(lease):
                raise InvalidArgument("this delivery belongs to another queue object")
            by_shard.setdefault(lease.shard, []).append(lease)
        for number, some in by_shard.items():
            batches = [x._batch([x._lo]) for x in some]
            try:
                deadlines = self._store.shards[number].drain(lambda tx, b=batches: engine.extend(tx, b, length))  # type: ignore[misc]
            except StoreError as e:
                outcome.update(dict.fromkeys(some, e))
                continue
            for lease, deadline in zip(some, deadlines, strict=True):
                if isinstance(deadline, LeaseLost):
                    outcome[lease] = deadline
                else:
                    lease._deadline = deadline
                    lease._seconds = length
                    outcome[lease] = None
        return [outcome[lease] for lease in leases]

    def _more(self, lease: Lease, n: int) -> list[Delivery]:
        self._store.require_open()
        validate.whole("n", n, 1, validate.MESSAGES_MAX)
        if lease.ack_first:
            raise InvalidArgument("a lease of ack_first does not grow")
        batch = lease._batch([lease._lo])
        rows = self._shard(lease).drain(lambda tx: engine.more(tx, batch, n))
        if rows:
            lease._hi = rows[-1][handed.SEQ]
            lease._open += len(rows)
        return [Delivery(row, lease) for row in rows]

    def _release(self, lease: Lease, seq: int) -> None:
        self._store.require_open()
        batch = lease._batch([seq])
        self._shard(lease).drain(lambda tx: engine.release(tx, batch))
        lease._hi = min(lease._hi, seq - 1)

    def _done(self, d: Delivery) -> None:
        lease = self._own(d)
        self._require_unsettled(d)
        if lease._open == 1:
            self._release(lease, lease._lo)
        lease._open -= 1
        d._state = SETTLED

    @staticmethod
    def _raise_lost(text: str, results: list[Any]) -> None:
        bad = [r for r in results if r is not None]
        if not bad:
            return
        if len(results) == 1 or (len(bad) == len(results) and all(r is bad[0] for r in bad)):
            raise bad[0]
        raise PartialFailure(text, results) from bad[0]

    # ---- transactions

    def transaction(self, delivery: Delivery | None = None, *, key: Key | None = None) -> Transaction:
        """One transaction, as a with block: when it ends, acks the delivery and applies everything done in it, or nothing.

        Args:
            delivery: the lowest unresolved message of its lease; it is acked with the rest.
            key: instead, without a delivery: the key whose state, and whose shard's app_* tables, are used.
        Returns:
            A context manager giving a Transaction.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing happened.
            ForwardPending: committed; a send to another shard has yet to arrive there, and will.
            OutcomeUnknown: it may have happened; run it again with the same delivery: it happens once.
        Source: docs/explanation/outbox.md
        """
        self._store.require_open()
        if (delivery is None) == (key is None):
            raise InvalidArgument("transaction takes a delivery or a key")
        if delivery is not None:
            lease = self._own(delivery)
            if lease.ack_first:
                raise InvalidArgument("a delivery of ack_first is resolved already", hint="use transaction(key=...)")
            return Transaction(self, delivery, lease._held.key)
        return Transaction(self, None, encode_key(key))

    # ---- small helpers that deliveries and transactions use

    def _shard(self, lease: Lease) -> Shard:
        return self._store.shards[lease.shard]

    def _own(self, d: Delivery) -> Lease:
        """The lease of a delivery of this queue object."""
        if type(d) is not Delivery:
            raise InvalidArgument(f"expected a Delivery, not {type(d).__name__}")
        if self._foreign(d.lease):
            raise InvalidArgument("this delivery belongs to another queue object")
        return d.lease

    def _foreign(self, lease: Lease) -> bool:
        return lease._call.queue._store is not self._store

    @staticmethod
    def _require_unsettled(d: Delivery) -> None:
        if d._state == SETTLED:
            raise _settled_before(d)

    @staticmethod
    def _settled(d: Delivery) -> None:
        d._state = SETTLED

    @staticmethod
    def _batch(d: Delivery) -> engine.Batch:
        return d.lease._batch([d.seq])

    def _now(self) -> int:
        return self._store.now()

    def _to_wall(self, at: int) -> float:
        return self._store.time.to_wall(at)

    def _key_state(self, key: bytes) -> bytes | None:
        store = self._store
        store.require_open(writing=False)
        return store.shard_of(key).read(lambda db: looking.key_state(db, key))


def _settled_before(d: Delivery) -> LeaseLost:
    return LeaseLost(d.key, d.seq, d.token, "this delivery is settled already")


_consumer: tuple[int, str] | None = None


def default_consumer() -> str:
    """Host name and process id."""
    global _consumer
    pid = os.getpid()
    if _consumer is None or _consumer[0] != pid:
        _consumer = (pid, f"{socket.gethostname()}:{pid}")
    return _consumer[1]
