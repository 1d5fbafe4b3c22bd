"""Settling: the part of Queue that takes back what was handed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

from . import _validate as validate
from ._errors import InvalidArgument, LeaseLost, PartialFailure, StoreError
from ._store import Store, engine, handed, looking
from ._store.calls import Operation, bound
from ._store.frame import Totals
from ._store.shard import Shard
from .delivery import OPEN, SETTLED, Delivery, Lease

_Act = Callable[[Sequence[engine.Batch]], Operation[list[engine.Lost]]]
"""What is to be done with the batches of a shard, as an operation on it."""
_STATE: Final = attrgetter("_state")
_LEASE: Final = attrgetter("lease")


class Settling:
    """ack_many, nack_many, extend_many, and what deliveries and leases call."""

    _store: Store

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Resolve many, in any order. The valid ones take effect; one transaction per shard.

        Raises:
            LeaseLost: of a single delivery.
            PartialFailure: some were lost, or shards failed: results has None or an exception for each delivery.
        """
        self._settle(_listed(deliveries), engine.Ack)

    def nack_many(self, deliveries: Iterable[Delivery], delay: float | None = None, reason: str | None = None) -> None:
        """Give many back; of each key the first one given, and everything later that its lease holds.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        self._nack(_listed(deliveries), delay, reason)

    def extend_many(self, deliveries: Iterable[Delivery], seconds: float) -> None:
        """Move the deadlines of their lanes' leases to `seconds` from now.

        Raises:
            LeaseLost, PartialFailure: as for ack_many.
        """
        results = self._extended([self._own(d) for d in _listed(deliveries)], seconds)
        self._raise_lost("some leases were lost", results)

    def _ack_one(self, d: Delivery) -> None:
        start = d._next
        self._settle([d], engine.Ack, start=None if start is None else start.seq)
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
        if not trouble and not any(results):
            for d in given:
                d._state = SETTLED
            for lease, batch in work:
                lease._open -= len(batch.seqs)
            return
        for i, d in enumerate(given):
            if results[i] is None:
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
                outcomes = self._store.shards[number].drain(act(batches))
            except StoreError as e:
                trouble.update((lease, e) for lease, _ in entries)
                continue
            if any(outcomes):
                trouble.update((lease, lost) for (lease, _), lost in zip(entries, outcomes, strict=True) if lost)
        return trouble

    def _nack(self, given: list[Delivery], delay: float | None, reason: str | None, output: str | None = None) -> None:
        wait = None if delay is None else validate.microseconds("delay", delay)
        why = validate.text("reason", reason)
        said = validate.text("output", output)
        # Of each lease, the first one given stands for all: it gives back everything later.
        first: dict[Lease, int] = {}
        for d in given:
            lease = self._own(d)
            if d._state == OPEN:
                first[lease] = min(first.get(lease, d.seq), d.seq)

        def act(tx: engine.Tx, batches: Sequence[engine.Batch]) -> list[engine.Lost]:
            heads = [engine.head_of(b) for b in batches]
            lost = engine.nack(tx, heads, wait, why, said)
            return [dict.fromkeys(b.seqs, next(iter(bad.values()))) if bad else {} for b, bad in zip(batches, lost, strict=True)]

        try:
            self._settle(given, lambda batches: bound(act, batches))
        finally:
            # Also where some of them failed: those that are settled took what lies behind them along.
            for d in given:
                if d._state == SETTLED and first.get(d.lease) == d.seq:
                    d.lease._given_back(d.seq)

    def _reject(self, d: Delivery, reason: str, output: str | None) -> None:
        why = validate.text("reason", reason)
        if not why:
            raise InvalidArgument("reject needs a reason")
        said = validate.text("output", output)

        def act(tx: engine.Tx, batches: Sequence[engine.Batch]) -> list[engine.Lost]:
            engine.reject(tx, batches[0], why, said)
            return [{}]

        self._require_unsettled(d)
        self._settle([d], lambda batches: bound(act, batches))

    def _start(self, d: Delivery) -> None:
        lease = self._own(d)
        self._require_unsettled(d)
        if d.seq <= lease._started and lease._deadline > self._now():
            return  # charged already, and the lane can't be anybody else's
        self._store.require_open()
        batch = self._batch(d)
        self._shard(lease).drain(lambda tx: engine.start(tx, batch))
        lease._started = max(lease._started, d.seq)

    def _advance(
        self, done: Sequence[tuple[Delivery, Delivery | None]], starting: Sequence[Delivery]
    ) -> dict[Delivery, Exception]:
        """For a worker: ack one delivery of each lease and start the one behind it; start others. One transaction a shard.

        Returns: those that failed. What failed changed nothing, unless it is OutcomeUnknown.
        """
        self._store.require_open()
        by_shard: dict[int, tuple[list[tuple[Delivery, Delivery | None]], list[Delivery]]] = {}
        for pair in done:
            by_shard.setdefault(pair[0].lease.shard, ([], []))[0].append(pair)
        for d in starting:
            by_shard.setdefault(d.lease.shard, ([], []))[1].append(d)
        failed: dict[Delivery, Exception] = {}
        for number, (pairs, fresh) in by_shard.items():
            work = engine.Advance()
            for d, after in pairs:
                _add_ack(work, d, after)
            work.starting = [self._batch(d) for d in fresh]
            try:
                refused = self._store.shards[number].drain(work)
            except StoreError as e:
                failed |= dict.fromkeys([*(d for d, _ in pairs), *fresh], e)
                continue
            for d, after in pairs:
                lost = refused.get((d.lease._held.lane, d.token)) if refused else None
                if lost is not None:
                    failed[d] = lost
                    continue
                d._state = SETTLED
                d.lease._open -= 1
                if after is not None:
                    d.lease._started = max(d.lease._started, after.seq)
            for d in fresh:
                lost = refused.get((d.lease._held.lane, d.token)) if refused else None
                if lost is not None:
                    failed[d] = lost
                else:
                    d.lease._started = max(d.lease._started, d.seq)
        return failed

    def _arrivals(self, shard: int) -> int:
        """For a worker: another number whenever something arrived in the shard. Costs no lock."""
        return self._store.shards[shard].glance(lambda db: Totals.read(db).last_id)

    def _extend(self, leases: list[Lease], seconds: float) -> None:
        self._raise_lost("some leases were lost", self._extended(leases, seconds))

    def _extended(self, leases: list[Lease], seconds: float) -> list[Any]:
        self._store.require_open()
        length = validate.microseconds("seconds", seconds, minimum=0.001)
        outcome: dict[Lease, Any] = {}
        by_shard: dict[int, list[Lease]] = {}
        for lease in dict.fromkeys(leases):
            if self._foreign(lease):
                raise _not_ours()
            by_shard.setdefault(lease.shard, []).append(lease)
        for number, some in by_shard.items():
            batches = [x._batch([x._lo]) for x in some]
            try:
                deadlines = self._store.shards[number].drain(bound(engine.extend, batches, length))
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
            apart = [r[handed.ID] for r in rows if len(r[handed.BODY]) > engine.INLINE_BYTES_MAX]
            lease._held.apart = [*lease._held.apart, *apart]
        return [Delivery(row, lease) for row in rows]

    def _release(self, lease: Lease, seq: int) -> None:
        self._store.require_open()
        batch = lease._batch([seq])
        self._shard(lease).drain(lambda tx: engine.release(tx, batch))
        lease._given_back(seq)

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

    # ---- what deliveries, leases and transactions ask

    def _shard(self, lease: Lease) -> Shard:
        return self._store.shards[lease.shard]

    def _own(self, d: Delivery) -> Lease:
        """The lease of a delivery of this queue object."""
        if type(d) is not Delivery:
            raise InvalidArgument(f"expected a Delivery, not {type(d).__name__}")
        if self._foreign(d.lease):
            raise _not_ours()
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
        batch = d.lease._batch([d.seq])
        batch.end = _end_of(d)
        return batch

    def _now(self) -> int:
        return self._store.now()

    def _to_wall(self, at: int) -> float:
        return self._store.time.to_wall(at)

    def _key_state(self, key: bytes) -> bytes | None:
        store = self._store
        store.require_open(writing=False)
        shared = engine.shared_key(key)
        return store.shard_of(shared).read(lambda db: looking.key_state(db, shared))


def _add_ack(work: engine.Advance, d: Delivery, after: Delivery | None) -> None:
    lease, seq = d.lease, d.seq
    held = lease._held
    apart = [d.id] if len(d.body) > engine.INLINE_BYTES_MAX else []
    batch = engine.Batch(held.lane, held.key, held.token, [seq], False, apart, None if after is None else after.seq, _end_of(d))
    if lease._open == 1:
        work.last.append((batch, lease._lo, lease._hi))
    else:
        work.heads.append(batch)


def _end_of(d: Delivery) -> engine.End:
    """What a record of its ack says."""
    took = getattr(d, "_took", None)
    return engine.ACKED if took is None else engine.End("acked", 1, *took)


def _settled_before(d: Delivery) -> LeaseLost:
    hint = "nothing is left to do for it: ack, nack or reject a delivery once"
    return LeaseLost(d.key, d.seq, d.token, "this delivery is settled already", hint=hint)


def _not_ours() -> InvalidArgument:
    return InvalidArgument("this delivery belongs to another queue object", hint="settle it through the one that received it")


def _listed(deliveries: Iterable[Delivery]) -> list[Delivery]:
    try:
        return list(deliveries)
    except TypeError:
        raise InvalidArgument(f"deliveries must be a collection of deliveries, not {type(deliveries).__name__}") from None
