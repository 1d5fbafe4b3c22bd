"""Commit the outcomes of a pipeline's handlers: acks, effects and failures, in order within each lane."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from .._values.errors import ForwardPending, InvalidArgument, LeaseLost, StrictqError
from ..delivery import Delivery, Lease
from ..queue import Queue
from ..worker.ending import DEFERRED, DONE, FAILED, REJECTED, Ending
from ._outcomes import SKIPPED, Outcome

COUNTED: Final = {FAILED: "retried", DEFERRED: "deferred", REJECTED: "rejected"}
"""The counter of each ending but an ack."""


class Counts:
    """Sums that several threads add to."""

    def __init__(self) -> None:
        self.acked = self.retried = self.deferred = self.rejected = self.lost = 0
        self._lock = threading.Lock()

    def add(self, acked: int = 0, retried: int = 0, deferred: int = 0, rejected: int = 0, lost: int = 0) -> None:
        with self._lock:
            self.acked += acked
            self.retried += retried
            self.deferred += deferred
            self.rejected += rejected
            self.lost += lost


class Settler:
    """Commits batches.

    Attributes:
        broken: leases of which messages were returned or lost, so their other messages are no longer held.
    """

    def __init__(self, queue: Queue, concurrency: int) -> None:
        self.broken: set[Lease] = set()
        self._queue = queue
        self._concurrency = concurrency

    def settle(self, lanes: dict[Lease, list[Delivery]], outcomes: dict[Lease, list[Outcome]]) -> Counts:
        """Commit a batch's outcomes in rounds: first the plain acks of all lanes, then each lane's next effect or failure."""
        counts = Counts()
        work = {lease: list(zip(lane, outcomes[lease], strict=True)) for lease, lane in lanes.items()}
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="strictq-settle") as pool:
            while work:
                plain, heads = self._next_round(work)
                for lease in self._ack_plain(plain, counts):
                    work.pop(lease, None)
                heads = [(d, o) for d, o in heads if d.lease in work]
                # The work left of a head's lane comes after it.
                charged = [work[d.lease][o.behind - 1][0] if o.behind else d for d, o in heads]
                ended = pool.map(lambda head, last: self._settle_one(head[0], head[1], counts, last), heads, charged)
                for (d, _), goes_on in zip(heads, ended, strict=True):
                    if not goes_on:
                        self.broken.add(d.lease)
                        work.pop(d.lease, None)
        for lease in lanes:
            if lease in self.broken:
                with suppress(StrictqError):  # already returned with the failed message, or lost
                    lease.release()
        return counts

    def forget(self, going_on: Iterable[Lease]) -> None:
        """Keep only those broken leases that a later batch still has."""
        self.broken.intersection_update(going_on)

    def _next_round(
        self, work: dict[Lease, list[tuple[Delivery, Outcome]]]
    ) -> tuple[list[Delivery], list[tuple[Delivery, Outcome]]]:
        """Return, for each lane, its plain acks before the next message that needs a separate transaction, and that message."""
        plain: list[Delivery] = []
        heads: list[tuple[Delivery, Outcome]] = []
        for lease, rest in list(work.items()):
            n = 0
            while n < len(rest) and rest[n][1].kind == DONE and not rest[n][1].has_effects:
                n += 1
            plain += [d for d, _ in rest[:n]]
            if n < len(rest) and rest[n][1].kind != SKIPPED:
                heads.append(rest[n])
                work[lease] = rest[n + 1 :]
                continue
            if n < len(rest):
                self.broken.add(lease)
            del work[lease]
        return plain, heads

    def _ack_plain(self, deliveries: list[Delivery], counts: Counts) -> set[Lease]:
        """Ack messages together. Return the lost leases."""
        lost: set[Lease] = set()
        if not deliveries:
            return lost
        for d, error in zip(deliveries, self._queue._client.settling.ack_each(deliveries), strict=True):
            if isinstance(error, LeaseLost):
                lost.add(d.lease)
            elif error is not None:
                raise error
        counts.add(acked=sum(d.lease not in lost for d in deliveries), lost=sum(d.lease in lost for d in deliveries))
        self.broken |= lost
        return lost

    def _settle_one(self, d: Delivery, o: Outcome, counts: Counts, last: Delivery) -> bool:
        """Settle a message with effects or a failure. Return whether its lane continues.

        Args:
            last: for a failed message, the last one that is charged together with it.
        """
        try:
            if o.kind != DONE:
                if last is not d:
                    last.start()
                o.settle(self._queue._client.settling, d)
                counts.add(**{COUNTED[o.kind]: 1})
                return o.kind == REJECTED
            try:
                with suppress(ForwardPending):  # committed; the sends to other shards will arrive
                    self._commit(d, o)
            except InvalidArgument as e:
                # An invalid effect is the handler's failure, and nothing was committed.
                Ending.of(e, o.output).settle(self._queue._client.settling, d)
                counts.add(retried=1)
                return False
        except LeaseLost:
            counts.add(lost=1)
            return False
        counts.add(acked=1)
        return True

    def _commit(self, d: Delivery, o: Outcome) -> None:
        with self._queue.transaction(d) as tx:
            tx._effects.take(o.effects)
