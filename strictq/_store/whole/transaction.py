"""A transaction of the public interface, on one shard: acks, sends, a key's state and the program's SQL, atomically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

from ..._values import hints
from ..._values.errors import InvalidArgument, StoreFull
from ..._values.keys import shared_key
from ..._values.types import UNSET, Unset
from ..commit.app_database import AppDatabase
from ..commit.tx import OpenTransaction
from ..lane.ranges import Rerouted
from ..shard import settling
from ..shard.leases import Held, Settlement, Took
from ..shard.messages import Item
from ..shard.sending import send
from ..shard.shard_file import Shard
from ..shard.shard_lanes import Tx
from ..tables import key_states
from . import outbox
from .store import Store

T = TypeVar("T")
Statement = tuple[str, Sequence[Any] | dict[str, Any]]
"""The program's SQL, and its parameters."""


class Acks(NamedTuple):
    """The messages that a transaction acks, all of one lease.

    Attributes:
        held: the lease, as the store returned it.
        seqs: ascending, without duplicates.
        in_order: the first one must be the lowest unresolved message of the lease.
    """

    held: Held
    seqs: Sequence[int]
    in_order: bool = True


class Changes(NamedTuple):
    """The effects of a transaction besides its acks.

    Attributes:
        sends: to keys of any shard. Those to other shards go through the outbox.
        key_state: the new state of the transaction's key; None deletes it, UNSET leaves it unchanged.
        statements: the program's SQL, run in order, before anything else.
        took: a worker's measurements of the handler, stored in the history of the acked messages.
    """

    sends: Sequence[Item] = ()
    key_state: bytes | Unset | None = UNSET
    statements: Sequence[Statement] = ()
    took: Took | None = None


class Placed(NamedTuple):
    """The place of a transaction's send.

    Attributes:
        shard: of its key.
        seq: its position. None: not issued yet, because it goes to another shard.
        id: its arrival number; to another shard, its number in the outbox. None: the transaction had committed before.
        earlier: the stored key of an earlier message with the same dedup_id. Nothing was stored.
    """

    shard: int
    seq: int | None
    id: int | None
    earlier: bytes | None = None


class Committed(NamedTuple):
    """The result of a transaction.

    Attributes:
        shard: where it ran.
        sent: the place of each send, in order.
    """

    shard: int
    sent: list[Placed]

    @property
    def reaches_out(self) -> bool:
        """Whether it sent to other shards, so that the outbox must be forwarded."""
        return bool(self.sent) and any(placed.shard != self.shard for placed in self.sent)


class _HappenedBefore(Exception):
    """The transaction committed before, under the same token. Roll back what was run again."""


class _Work:
    """One transaction, which may run more than once until it commits."""

    def __init__(self, store: Store, key: bytes, acks: Acks | None, shard: Shard | None = None) -> None:
        self.store = store
        self.key = shared_key(key)
        self.shard = store.shard_of(self.key) if shard is None else shard
        self.acks = acks

    def happened(self, tx: Tx) -> bool:
        """Return whether it committed before, under this token. If not, verify that the lane is still this holder's.

        Raises:
            LeaseLost, InvalidArgument: as for `Transactions.commit`.
        """
        if self.acks is None:
            tx.lanes.loader.load((self.key,))  # its state, and the program's rows, are where its lane is
            return False
        batch = self._batch(self.acks)
        if not self.acks.in_order:
            return not settling.is_held(tx, batch)
        first = batch.seqs[0]
        lowest = settling.lowest_unresolved(tx, batch)
        if lowest == first:
            return False
        if settling.done_before(tx, batch):
            return True
        if lowest is None:
            raise settling.lost(tx.lanes, batch)
        raise InvalidArgument(
            f"seq {first} is not the lowest unresolved message of its lease: {lowest} is",
            hint=hints.SETTLE_EARLIER,
        )

    def execute(self, tx: Tx, statements: Sequence[Statement]) -> None:
        for sql, params in statements:
            self.shard.app(tx).execute(sql, params)

    def apply(self, tx: Tx, changes: Changes, *, happened: bool) -> Committed:
        """Apply everything except the COMMIT.

        Raises:
            _HappenedBefore: the transaction committed before.
        """
        self.execute(tx, changes.statements)
        if self.acks is not None and (happened or not settling.ack_lane(tx, self._batch(self.acks, changes.took))):
            raise _HappenedBefore
        if changes.key_state is not UNSET:
            key_states.set_(tx.db, self.key, changes.key_state)
        return Committed(self.shard.number, self._send(tx, changes.sends) if changes.sends else [])

    def _send(self, tx: Tx, items: Sequence[Item]) -> list[Placed]:
        number = self.shard.number
        sent: list[Placed | None] = []
        here: list[Item] = []
        # If ranges have moved, what waits may be for a key that is here now. Nothing may overtake it.
        waits = tx.lanes.memory.ranges is not None and outbox.waits(tx)
        for item in items:
            to = self.store.shard_of(item[0]).number
            if to == number:
                try:
                    tx.lanes.loader.load((item[0],))
                except Rerouted as e:
                    to = e.shard
            if to == number and not waits:
                here.append(item)
                sent.append(None)
            else:
                sent.append(Placed(to, None, outbox.put(tx, to, item)))
        stored = iter(send(tx, here) if here else ())
        return [Placed(number, *next(stored)) if at is None else at for at in sent]

    def run(self, changes: Changes) -> Committed:
        """Run one transaction from BEGIN to COMMIT; alone if it runs the program's SQL."""

        def operation(tx: Tx) -> Committed:
            return self.apply(tx, changes, happened=self.happened(tx))

        try:
            if not changes.statements:
                return self.shard.run(operation)
            return self._alone(operation)
        except _HappenedBefore:
            self.shard.confirm()
            return self.thrown_away(changes)

    def _alone(self, operation: Callable[[Tx], T]) -> T:
        alone = self.shard.alone()
        try:
            tx = alone.begin()
            try:
                done = operation(tx)
            except BaseException as e:
                raise alone.undone(e) from None
            self.shard.commit(alone)
        finally:
            try:
                alone.close()
            finally:
                alone.close()
        return done

    def thrown_away(self, changes: Changes) -> Committed:
        """Return the result of a transaction that committed before. The places of its sends are not known any more."""
        return Committed(self.shard.number, [Placed(self.store.shard_of(item[0]).number, None, None) for item in changes.sends])

    @staticmethod
    def _batch(acks: Acks, took: Took | None = None) -> Settlement:
        return acks.held.some(acks.seqs, took=took)


class WriteTransaction:
    """A write transaction that stays open. From `begin` on, no other caller can write to its shard. See Transactions.begin.

    Its owner calls `close` twice wherever it is interrupted: an interrupt can end the first call before its first step.
    """

    def __init__(self, store: Store, key: bytes, acks: Acks | None) -> None:
        self._work = _Work(store, key, acks)
        self._alone = self._work.shard.alone()

    def begin(self) -> None:
        """Begin.

        Raises:
            As for Transactions.commit; nothing happened, and nothing is open.
        """
        work = self._work
        try:
            self._begin()
        except Rerouted as e:
            self._work = work = _Work(work.store, work.key, work.acks, work.store.follow(e))
            self._alone = work.shard.alone()
            self.begin()

    def _begin(self) -> None:
        try:
            self._tx = self._alone.begin()
            try:
                self._happened = self._work.happened(self._tx)
            except BaseException as e:
                raise self._alone.undone(e) from None
        except BaseException:
            try:
                self.close()
            finally:
                self.close()
            raise

    def key_state(self) -> bytes | None:
        """Return the stored state of the key.

        Raises:
            InvalidArgument: the program's SQL rolled the transaction back.
        """
        self._tx.require_whole()
        return key_states.of(self._tx.db, self._work.key)

    def execute(self, statements: Sequence[Statement]) -> None:
        """Run the program's SQL, in order.

        Raises:
            InvalidArgument: it is wrong, is not permitted, or rolled the transaction back. That statement has no effect.
        """
        self._tx.require_whole()
        self._work.execute(self._tx, statements)

    def run(self, work: Callable[[AppDatabase], T]) -> T:
        """Call `work` with the program's tables, and return its result.

        Raises:
            InvalidArgument: as for `execute`.
        """
        self._tx.require_whole()
        app = self._work.shard.app(self._tx)
        try:
            return work(app)
        finally:
            app.live = False

    def commit(self, changes: Changes) -> Committed:
        """Apply the remaining changes, ack, and commit. Afterwards the transaction is over, whatever is raised.

        Raises:
            StoreFull: nothing happened. The reserve is released, so that a repetition finds room.
            As for Transactions.commit.
        """
        try:
            return self._commit(changes)
        except _HappenedBefore:
            self._work.shard.confirm()
            return self._work.thrown_away(changes)
        except StoreFull:
            self._work.store.make_room()
            raise

    def _commit(self, changes: Changes) -> Committed:
        try:
            try:
                self._tx.require_whole()
                done = self._work.apply(self._tx, changes, happened=self._happened)
            except BaseException as e:
                raise self._alone.undone(e) from None
            self._work.shard.commit(self._alone)
        finally:
            try:
                self.close()
            finally:
                self.close()
        return done

    def abandon(self, error: BaseException) -> None:
        """Roll everything back, because of this error.

        Raises:
            ForkedProcess, StoreError: the rollback failed; nothing happened all the same.
        """
        try:
            ours = self._alone.undone(error)
        finally:
            try:
                self.close()
            finally:
                self.close()
        if ours is not error:
            raise ours from error

    def close(self) -> None:
        """Roll back what is still open. A second call does nothing."""
        self._alone.close()


class Transactions:
    """The transactions of a queue."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def enter(self) -> OpenTransaction:
        """Return a transaction of this context. Its other writes are refused while it is open."""
        return OpenTransaction(self._store)

    def commit(self, key: bytes, acks: Acks | None, changes: Changes) -> Committed:
        """Commit acks, sends, a key's state and the program's SQL together, in the shard of a key. Durable on return.

        If it committed before, under the same token, nothing is written, and the ids of the sends are None. Sends to other
        shards are in the outbox: see `forward`.

        Args:
            key: selects the key state, and the shard's app_* tables. With acks, it is the lease's key.
            acks: what to ack. None: nothing, and then a repetition can't be recognised.
        Raises:
            LeaseLost: the lane was given back or retaken; nothing happened.
            InvalidArgument: an earlier message of the lease is unresolved, or the SQL is wrong; nothing happened.
            StoreBusy, StoreFull, StoreError: nothing happened.
            OutcomeUnknown: it may have happened; the same acks again happen once.
        """

        def run(shard: Shard) -> Committed:
            work = _Work(self._store, key, acks, shard)
            try:
                return work.run(changes)
            except StoreFull:
                self._store.make_room()
                return work.run(changes)

        return self._store.at_owner(key, run)

    def begin(self, key: bytes, acks: Acks | None) -> WriteTransaction:
        """Return such a transaction, to read in it once it begins. No other caller can write to the shard until it ends."""
        return WriteTransaction(self._store, key, acks)

    def forward(self, origin: int) -> None:
        """Forward what this shard's transactions sent to other shards.

        Raises:
            ForwardPending: some of it could not be forwarded now. It will be forwarded later.
        """
        confirming = self._store.confirming
        with confirming.together() if confirming.active else nullcontext():
            self._store.forward([self._store.shards[origin]])
