"""Settling: ack, nack, defer, reject, start, extend and release received messages. One transaction per shard involved.

Works on the states of messages and leases, which come from a receive or from a handle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from .._client import validate
from .._store.api import AttemptFailure, Claimed, Fields, Held, Joined, Row, Settlement, Storage, Took
from .._values import hints
from .._values.errors import InvalidArgument, LeaseLost, NotConfirmed, PartialFailure, StoreError, StrictqError
from .._values.keys import shared_key
from .leased import (
    ACKED,
    DEFERRED,
    DONE,
    NACKED,
    OPEN,
    REJECTED,
    SETTLED_AS,
    LeaseState,
    MessageState,
    NamedLease,
    NamedMessage,
    Origin,
)

if TYPE_CHECKING:
    from .._values.findings import AttemptError

RELEASES_TOGETHER: Final = 100
_STATE: Final = attrgetter("_state")
_LEASE: Final = attrgetter("lease")
M = TypeVar("M", bound=MessageState)
T = TypeVar("T")

_Work = list[tuple[LeaseState, Settlement]]
_Act = Callable[[int, Sequence[Settlement]], Sequence[object]]
"""Apply settlements to a shard, and return the outcome of each: see Storage."""


class _Advancing(NamedTuple):
    """The changes of a worker in one shard. See Storage.advance."""

    acks: list[Settlement]
    starts: list[Settlement]


class Settling:
    """The operations that settle, start, extend and release, for deliveries, leases, handles, queues and workers."""

    __slots__ = ("_storage",)

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def queue_id(self) -> str:
        """The id of the queue whose messages this settles."""
        return self._storage.queue_id

    # ---- acks

    def ack(self, given: list[M]) -> None:
        """Resolve messages, in any order. The valid ones take effect.

        Raises:
            LeaseLost: a single message was given, and it is lost; nothing was changed.
            PartialFailure: some were lost, or shards failed; results has None or an exception for each.
        """
        self._ack(given, None)

    def ack_with_output(self, d: MessageState, output: str) -> None:
        """Resolve one message, and keep its handler's output.

        Raises:
            InvalidArgument: the output is not a str; nothing was changed.
            LeaseLost: the message is lost or settled; nothing was changed.
        """
        took = (None, None, validate.text("output", output, self._storage.config.max_body_bytes))
        following = d._next
        self._ack([d], None if following is None else following.seq, took)
        if following is not None:
            d.lease._started = max(d.lease._started, following.seq)

    def ack_each(self, given: list[M]) -> list[StrictqError | None]:
        """Resolve messages, in any order. Return None or the error for each."""
        return _each(len(given), lambda: self.ack(given))

    def ack_claims(self, claims: Sequence[Claimed]) -> list[Any]:
        """Resolve every message of the claims. None of them may be settled already.

        Returns:
            For each claim, the refusals of its leases (empty: none), or the error of its shard.
        """
        storage = self._storage
        storage.require_open()
        outcomes: list[Any] = []
        try:
            with storage.confirmed_together():
                for claimed in claims:
                    try:
                        outcomes.append(storage.ack_claimed(claimed))
                    except StoreError as e:
                        outcomes.append(e)
        except NotConfirmed as e:
            outcomes = [outcome if isinstance(outcome, StrictqError) else e for outcome in outcomes]
        return outcomes

    def end_ack(self, given: Sequence[MessageState], trouble: dict[LeaseState, Any]) -> None:
        """Set the states of messages from the refusals of their leases.

        Raises:
            LeaseLost, PartialFailure: as for ack.
        """
        self._settled(given, [None] * len(given), trouble, ACKED)

    def ack_and_start_next(self, d: MessageState) -> None:
        """Ack a message, and start the one that `consume` yields next, if it is of the same lease."""
        following, lease = d._next, d.lease
        if following is None:
            storage, origin = self._storage, lease._origin
            if lease._open != 1 or d._state != OPEN or origin.storage is not storage:
                self._ack([d], None)
                return
            storage.require_open()
            refused = storage.ack_one(origin.shard, lease._held, d.seq)
            if refused:
                self._settled([d], [None], {lease: refused}, ACKED)
            d._state, lease._open = ACKED, 0
            return
        self._ack([d], following.seq)
        lease._started = max(lease._started, following.seq)

    def _ack(self, given: Sequence[MessageState], start: int | None, took: Took | None = None) -> None:
        self._storage.require_open()
        work = self._whole_leases(given) if took is None else None
        results: list[Any] = [None] * len(given)
        if work is None:
            work = [(lease, lease._held.some(seqs, start=start, took=took)) for lease, seqs in self._by_lease(given, results)]
        trouble = self._act_on_all(work, self._storage.ack)
        if not trouble and not any(results):
            for d in given:
                d._state = ACKED
            for lease, batch in work:
                lease._open -= len(batch.seqs)
            return
        self._settled(given, results, trouble, ACKED)

    def _whole_leases(self, given: Sequence[MessageState]) -> _Work | None:
        """Return each lease with all its messages, the fast common case; None if a lease is given with only some of them."""
        try:
            if len(set(given)) != len(given) or any(map(_STATE, given)):
                return None
            counts = {given[0].lease: 1} if len(given) == 1 else Counter(map(_LEASE, given))
        except (AttributeError, TypeError):
            return None  # one of them is not a delivery
        work, storage = [], self._storage
        for lease, n in counts.items():
            lo, end = lease._lo, lease._hi + 1
            if n != lease._open or end - lo != n or lease._origin.storage is not storage:
                return None
            held = lease._held
            work.append((lease, Settlement(held.key, held.token, range(lo, end))))
        return work

    def _by_lease(self, given: Sequence[MessageState], results: list[Any]) -> list[tuple[LeaseState, list[int]]]:
        """Return each lease with its given seqs. The errors of settled and repeated messages are put into the results."""
        groups: dict[LeaseState, set[int]] = {}
        for i, d in enumerate(given):
            seqs = groups.setdefault(self.own(d), set())
            if d._state != OPEN or d.seq in seqs:
                results[i] = _settled_before(d)
            else:
                seqs.add(d.seq)
        return [(lease, sorted(seqs)) for lease, seqs in groups.items() if seqs]

    # ---- nacks, defers and rejects

    def nack(
        self,
        given: Sequence[MessageState],
        delay: float | None,
        reason: str | None,
        output: str | None = None,
        traceback: str | None = None,
    ) -> float | None:
        """Nack messages: per lease, the first one given and every later message of the lease.

        Args:
            delay: seconds that the lanes wait; None: the queue's retry delay and backoff.
        Returns:
            Seconds until the next attempt, the earliest of several; None: one was out of attempts, so `on_poison` took effect.
        Raises:
            LeaseLost, PartialFailure: as for ack.
        """
        wait = None if delay is None else validate.microseconds("delay", delay)
        failure = _failure(reason, output, traceback)
        waits: list[int | None] = []

        def act(shard: int, heads: Sequence[Settlement]) -> Sequence[object]:
            outcomes = self._storage.nack(shard, heads, wait, failure)
            waits.extend(outcome for outcome in outcomes if not isinstance(outcome, LeaseLost))
            return outcomes

        self._postpone(given, act, NACKED)
        known = [wait / 1e6 for wait in waits if wait is not None]
        return min(known, default=0.0) if len(known) == len(waits) else None

    def defer(self, given: Sequence[MessageState], delay_seconds: float, reason: str | None = None) -> None:
        """Postpone messages: per lease, the first one given and every later message of the lease. No attempt is charged.

        Args:
            reason: stored as the last error; None: that is kept.
        Raises:
            LeaseLost, PartialFailure: as for ack.
        """
        wait = validate.microseconds("delay_seconds", delay_seconds)
        said = validate.text("reason", reason)
        self._postpone(given, lambda shard, heads: self._storage.defer(shard, heads, wait, said), DEFERRED)

    def defer_failed(
        self, given: Sequence[MessageState], delay_seconds: float, failures: Sequence[AttemptFailure], *, began: bool = True
    ) -> list[StrictqError | None]:
        """Postpone failed messages of different leases without charging them, for a worker. One transaction per shard.

        Args:
            failures: the failure of each, to store.
            began: False: their handlers were not called. The error says why they wait, and is not that of an attempt.
        Returns:
            For each message, None or the error.
        """
        wait = validate.microseconds("delay_seconds", delay_seconds)
        said = {(self.own(d)._held.key, d.token): _failure(*failure) for d, failure in zip(given, failures, strict=True)}

        def act(shard: int, heads: Sequence[Settlement]) -> Sequence[object]:
            return self._storage.defer_failed(shard, heads, wait, [said[head.key, head.token] for head in heads], began=began)

        return _each(len(given), lambda: self._postpone(given, act, DEFERRED))

    def note(self, said: Sequence[tuple[MessageState, str]]) -> None:
        """Store the output so far of running handlers, for a worker. One transaction per shard; lost messages are skipped."""
        self._storage.require_open()
        by_shard: dict[int, tuple[list[Settlement], list[str]]] = {}
        for d, text in said:
            batches, texts = by_shard.setdefault(d.lease.shard, ([], []))
            batches.append(self.settlement(d))
            texts.append(validate.text("output", text) or "")
        for shard, (batches, texts) in by_shard.items():
            self._storage.note(shard, batches, texts)

    def reject(self, d: MessageState, reason: str, output: str | None, traceback: str | None = None) -> None:
        """Dead-letter a message now.

        Raises:
            LeaseLost: the message is lost or settled; nothing was changed.
        """
        failure = _failure(validate.reason(reason), output, traceback)
        self.require_unsettled(d)
        self._settle([d], lambda shard, batches: self._storage.reject(shard, batches, failure), REJECTED)

    def _postpone(self, given: Sequence[MessageState], act: _Act, state: int) -> None:
        first: dict[LeaseState, int] = {}
        try:
            self._settle(given, act, state, first)
        finally:
            # Also if some failed: the settled ones took the later messages of their leases with them.
            for d in given if first else ():  # nothing was settled: one of them may not even be a delivery
                if d._state == state and first.get(d.lease) == d.seq:
                    d.lease._given_back(d.seq)

    def _settle(self, given: Sequence[MessageState], act: _Act, state: int, first: dict[LeaseState, int] | None = None) -> None:
        """Apply `act` to the first given message of each lease. The others share its outcome.

        Args:
            first: gets the seq of that message of each lease.
        """
        self._storage.require_open()
        results: list[Any] = [None] * len(given)
        leases = self._by_lease(given, results)
        if first is not None:
            first.update((lease, seqs[0]) for lease, seqs in leases)
        trouble = self._act_on_all([(lease, lease._held.some(seqs[:1])) for lease, seqs in leases], act)
        self._settled(given, results, trouble, state)

    # ---- outcomes

    def _act_on_all(self, work: _Work, act: _Act) -> dict[LeaseState, Any]:
        """Apply `act` shard by shard.

        Return the refusals of each lease, or its shard's error; leases without any are left out.
        """
        by_shard: dict[int, _Work] = {}
        for entry in work:
            by_shard.setdefault(entry[0]._origin.shard, []).append(entry)
        trouble: dict[LeaseState, Any] = {}
        try:
            with self._storage.confirmed_together():
                for shard, entries in by_shard.items():
                    try:
                        outcomes = act(shard, [batch for _, batch in entries])
                    except StoreError as e:
                        trouble.update((lease, e) for lease, _ in entries)
                        continue
                    if any(outcomes):
                        trouble.update((lease, lost) for (lease, _), lost in zip(entries, outcomes, strict=True) if lost)
        except NotConfirmed as e:
            refused = {lease: error for lease, error in trouble.items() if isinstance(error, StrictqError)}
            trouble = {lease: e for lease, _ in work} | refused
        return trouble

    def _settled(self, given: Sequence[MessageState], results: list[Any], trouble: dict[LeaseState, Any], state: int) -> None:
        for i, d in enumerate(given):
            if results[i] is None:
                lost = trouble.get(d.lease)
                results[i] = lost.get(d.seq) if isinstance(lost, dict) else lost if isinstance(lost, StrictqError) else None
            if results[i] is None:
                d._state = state
                d.lease._open -= 1
            elif isinstance(lost := results[i], LeaseLost) and lost.lease_seconds is None and d._state == OPEN:
                self.explain_loss(d.lease, lost)
        _raise_lost("some deliveries were lost", results)

    # ---- attempts

    def start(self, d: MessageState) -> None:
        """Charge an attempt of a message, durably, unless it is charged already.

        Raises:
            LeaseLost: the message is lost or settled; nothing was changed.
        """
        lease = self.own(d)
        self.require_unsettled(d)
        self._storage.require_open()
        # If it is charged already, and no other consumer can have the lane, nothing needs to be written.
        if d.seq > lease._started or lease._deadline <= self._storage.now():
            self._raise_first(lease, self._storage.start(lease.shard, [self.settlement(d)]))
            lease._started = max(lease._started, d.seq)
        d._begun = True

    def advance(
        self, done: Sequence[tuple[M, M | None]], starting: Sequence[M], receive: Callable[[Joined], object] | None = None
    ) -> dict[M, Exception]:
        """Ack one message per lease and start the next one of it, and start others, for a worker. One transaction per shard.

        Args:
            receive: receives messages, and commits these acks in the same transactions where it can.
        Returns:
            The messages that failed, with their errors. A failure changed nothing, unless it is OutcomeUnknown.
        """
        self._storage.require_open()
        by_shard: dict[int, tuple[list[tuple[M, M | None]], list[M]]] = {}
        if self._storage.shards == 1:
            by_shard[0] = (list(done), list(starting))
        else:
            for pair in done:
                by_shard.setdefault(pair[0].lease.shard, ([], []))[0].append(pair)
            for d in starting:
                by_shard.setdefault(d.lease.shard, ([], []))[1].append(d)
        failed: dict[M, Exception] = {}
        steps = {shard: self._step(pairs, fresh) for shard, (pairs, fresh) in by_shard.items()}
        committed: dict[int, dict[Settlement, LeaseLost]] = {}
        if receive is not None:
            joined = Joined.of({shard: (step.acks, step.starts) for shard, step in steps.items() if step.acks})
            receive(joined)
            committed = joined.done
        for shard, (pairs, fresh) in by_shard.items():
            step = steps[shard]
            refused = committed.get(shard)
            if refused is None:
                try:
                    refused = self._storage.advance(shard, step.acks, step.starts, [d.id for d in fresh])
                except StoreError as e:
                    failed |= dict.fromkeys([*(d for d, _ in pairs), *fresh], e)
                    continue
            self._advanced(pairs, fresh, step, refused, failed)
        return failed

    def _step(self, pairs: list[tuple[M, M | None]], fresh: list[M]) -> _Advancing:
        acks: list[Settlement] = []
        recorded = self._storage.config.keeps_ends
        for d, after in pairs:
            lease = d.lease
            # `_took` is set only where ends are kept, and asking for it otherwise costs more than the rest of this line.
            took = getattr(d, "_took", None) if recorded else None
            acks.append(lease._held.some((d.seq,), start=None if after is None else after.seq, took=took))
        return _Advancing(acks, [self.settlement(d) for d in fresh])

    def _advanced(
        self,
        pairs: list[tuple[M, M | None]],
        fresh: list[M],
        step: _Advancing,
        refused: dict[Settlement, LeaseLost],
        failed: dict[M, Exception],
    ) -> None:
        """Set the states of a shard's messages from the refusals."""
        for (d, after), batch in zip(pairs, step.acks, strict=True):
            if refused and batch in refused:
                failed[d] = self.explain_loss(d.lease, refused[batch])
                continue
            d._state = ACKED
            d.lease._open -= 1
            if after is not None:
                d.lease._started = max(d.lease._started, after.seq)
        for d, batch in zip(fresh, step.starts, strict=True):
            if refused and batch in refused:
                failed[d] = self.explain_loss(d.lease, refused[batch])
            else:
                d.lease._started = max(d.lease._started, d.seq)

    # ---- leases

    def extend(self, leases: Sequence[LeaseState], seconds: float, *, late: bool = True) -> None:
        """Set the deadlines of leases to `seconds` from now.

        Args:
            late: also if the deadline has passed.
        Raises:
            LeaseLost, PartialFailure: as for ack.
        """
        _raise_lost("some leases were lost", self.extended(leases, seconds, late=late))

    def extended(self, leases: Sequence[LeaseState], seconds: float, *, late: bool = True) -> list[StrictqError | None]:
        """Set the deadlines of leases to `seconds` from now. Return None or the error for each lease."""
        # also inside a transaction: a long one needs its lease, and may still be rolled back
        self._storage.require_open(inside=True)
        length = validate.microseconds("seconds", seconds, minimum=0.001)
        for lease in leases:
            if lease._origin.storage is not self._storage:
                raise not_ours()
        outcome = self.renew(leases, length, late=bool(late))
        for lease in outcome:
            if outcome[lease] is None:
                lease._seconds = length
        return [outcome[lease] for lease in leases]

    def renew(self, leases: Iterable[LeaseState], length: int, *, late: bool = True) -> dict[LeaseState, StrictqError | None]:
        """Set the deadlines of leases to `length` microseconds from now. Return None or the error for each lease."""
        outcome: dict[LeaseState, StrictqError | None] = {}
        by_shard: dict[int, list[LeaseState]] = {}
        for lease in dict.fromkeys(leases):
            by_shard.setdefault(lease.shard, []).append(lease)
        for shard, some in by_shard.items():
            try:
                deadlines = self._storage.extend(shard, [lease._held.some([lease._lo]) for lease in some], length, late=late)
            except StoreError as e:
                outcome.update(dict.fromkeys(some, e))
                continue
            for lease, deadline in zip(some, deadlines, strict=True):
                if isinstance(deadline, LeaseLost):
                    outcome[lease] = self.explain_loss(lease, deadline)
                else:
                    lease._deadline = deadline
                    outcome[lease] = None
        return outcome

    def more(self, lease: LeaseState, n: int) -> list[Row]:
        """Grow a lease over up to `n` later messages of its lane.

        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        """
        self._storage.require_open()
        validate.whole("n", n, 1, validate.MESSAGES_MAX)
        if lease.ack_first:
            raise InvalidArgument("a lease with ack_first=True cannot grow")
        try:
            rows = self._storage.more(lease.shard, lease._held, lease._lo, n)
        except LeaseLost as e:
            self.explain_loss(lease, e)
            raise
        if rows:
            lease._hi = Fields.seq(rows[-1])
            lease._open += len(rows)
        return rows

    def release(self, lease: LeaseState, seq: int) -> None:
        """Release a message and every later one of its lease, without charging an attempt.

        Raises:
            LeaseLost: the lane was released or taken by another consumer; nothing was changed.
        """
        self._storage.require_open()
        self._raise_first(lease, self._storage.release(lease.shard, [lease._held.some([seq])]))
        lease._given_back(seq)

    def done(self, d: MessageState) -> None:
        """Count a message's handler as finished, for ack_first. After the last one of the lease, release the lane."""
        lease = self.own(d)
        self.require_unsettled(d)
        if lease._open == 1:
            self.release(lease, lease._lo)
        lease._open -= 1
        d._state = DONE

    # ---- releasing the rest

    def give_back_rest(self, received: Iterable[MessageState], reason: str) -> None:
        """Nack the messages that the program started, and release the others. Settled and lost messages are skipped."""
        waiting = [d for d in received if d._state == OPEN and d.seq <= d.lease._hi]
        begun = [d for d in waiting if getattr(d, "_begun", False) and not d.lease.ack_first]
        if begun:
            with suppress(StrictqError):
                self.nack(begun, None, reason)
        self.release_rest(waiting)

    def release_rest(self, waiting: Iterable[MessageState]) -> None:
        """Release the messages that are neither settled nor returned, without charging an attempt. Lost ones are skipped."""
        first: dict[LeaseState, int] = {}
        for d in waiting:
            if d._state == OPEN and d.seq <= d.lease._hi:
                first[d.lease] = min(first.get(d.lease, d.seq), d.seq)
        leases = list(first.items())
        for start in range(0, len(leases), RELEASES_TOGETHER):
            some = leases[start : start + RELEASES_TOGETHER]
            by_shard: dict[int, list[Settlement]] = {}
            for lease, seq in some:
                by_shard.setdefault(lease.shard, []).append(lease._held.some([seq]))
            for shard, batches in by_shard.items():
                with suppress(StrictqError):  # then the leases are lost already, or end at their deadlines
                    self._storage.release(shard, batches)
            for lease, seq in some:
                lease._given_back(seq)

    # ---- identity

    def named(self, key: bytes, token: int, seq: int) -> MessageState:
        """Return the state of the message that a handle identifies. Another process may have received it.

        Args:
            key: the lane's key, in its stored form.
        """
        origin = Origin(self._storage, self._storage.shard_of(shared_key(key)), "")
        return NamedMessage(NamedLease(origin, Held(key, token), seq), seq)

    def own(self, d: MessageState) -> LeaseState:
        """Return the lease of a message.

        Raises:
            InvalidArgument: it is not a delivery, or belongs to another queue object.
        """
        if not isinstance(d, MessageState):
            raise InvalidArgument(f"expected a Delivery, not {type(d).__name__}", hint=hints.GIVE_DELIVERY)
        lease = d.lease
        if lease._origin.storage is not self._storage:
            raise not_ours()
        return lease

    @staticmethod
    def require_unsettled(d: MessageState) -> None:
        """Raise if a message is settled.

        Raises:
            LeaseLost: it is settled already.
        """
        if d._state != OPEN:
            raise _settled_before(d)

    @staticmethod
    def settled(d: MessageState) -> None:
        """Mark a message as resolved by a transaction."""
        d._state = ACKED
        d.lease._open -= 1

    @staticmethod
    def settlement(d: MessageState, *others: MessageState) -> Settlement:
        """Return messages of one lease, seqs ascending, in the storage's form."""
        return d.lease._held.some([d.seq, *(other.seq for other in others)], took=getattr(d, "_took", None))

    # ---- lost leases

    def explain_loss(self, lease: LeaseState, error: LeaseLost) -> LeaseLost:
        """Add this process's knowledge of the lease to an error. Return the error."""
        length = lease._seconds / 1e6 if lease._seconds else None
        over = (self._storage.now() - lease._deadline) / 1e6 if lease._seconds else None
        error.explain(length, over, error.holder, given_back=error.seq > lease._hi)
        return error

    def _raise_first(self, lease: LeaseState, results: Sequence[LeaseLost | None]) -> None:
        for error in results:
            if error is not None:
                raise self.explain_loss(lease, error)

    # ---- read by deliveries

    def key_state(self, key: bytes) -> bytes | None:
        """Return the durable state of a stored key; for a keyless message, that of the lane it was sent to."""
        self._storage.require_open(writing=False)
        return self._storage.reports.key_state(shared_key(key))

    def errors(self, d: MessageState) -> tuple[AttemptError, ...]:
        """Return the stored errors of a message's attempts."""
        self._storage.require_open(writing=False)
        return self._storage.reports.errors(d.lease.shard, d.lease._held.key, d.seq)


def _each(count: int, settle: Callable[[], object]) -> list[Any]:
    """Run a call that settles `count` messages. Return None or the error for each."""
    try:
        settle()
    except PartialFailure as e:
        return list(e.results)
    except (LeaseLost, StoreError) as e:
        return [e] * count
    return [None] * count


def _failure(error: str | None, output: str | None, traceback: str | None) -> AttemptFailure:
    """Return a failed attempt in the store's form."""
    text = validate.text
    trace = None if traceback is None else text("traceback", traceback[-validate.TEXT_CHARS_MAX :])
    return AttemptFailure(text("reason", error), text("output", output), trace)


def _raise_lost(text: str, results: Sequence[Any]) -> None:
    bad = [r for r in results if r is not None]
    if not bad:
        return
    if len(results) == 1 or (len(bad) == len(results) and all(r is bad[0] for r in bad)):
        raise bad[0]
    raise PartialFailure(text, list(results)) from bad[0]


def _settled_before(d: MessageState) -> LeaseLost:
    how = f"is already {SETTLED_AS[d._state]}" if d._state != OPEN else "was given twice"
    return LeaseLost(d.key, d.seq, d.token, f"this delivery {how}", hint=hints.SETTLED_ALREADY)


def not_ours() -> InvalidArgument:
    return InvalidArgument("this delivery belongs to another queue object", hint=hints.OTHER_QUEUE_OBJECT)


def listed(deliveries: Iterable[T]) -> list[T]:
    """Return deliveries as a list.

    Raises:
        InvalidArgument: the argument is not iterable.
    """
    try:
        return list(deliveries)
    except TypeError:
        raise InvalidArgument(f"deliveries must be a collection of deliveries, not {type(deliveries).__name__}") from None
