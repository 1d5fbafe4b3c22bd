"""One transaction: ack, sends, key state and the program's own tables, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from types import TracebackType
from typing import TypeVar

from ._client import validate
from ._client.client import Client
from ._client.effects import Effects, Recording
from ._platform.leaving import Exit, exit_of
from ._store.api import Acks, AppDatabase, OpenTransaction, Took, WriteTransaction
from ._values import hints
from ._values.errors import InvalidArgument, LeaseLost
from ._values.handlers import require_ran
from ._values.types import UNSET
from .delivery import Delivery

T = TypeVar("T")


class Transaction(Recording):
    """Effects that commit together, returned by `q.transaction(...)`.

    Sends, key state and `execute` are recorded, and written when the block ends. `run`, and reading `key_state`, open the write
    transaction at once. From then on no other writer can write to the shard until the block ends, so keep the rest short.
    """

    def __init__(
        self,
        client: Client,
        deliveries: Sequence[Delivery],
        key: bytes,
        *,
        in_order: bool = True,
        effects: Effects | None = None,
    ) -> None:
        """Prepare a transaction, which a `with` block opens.

        Args:
            deliveries: deliveries of one lease, seqs ascending, to ack in the transaction.
            key: the key of the lease, or the key whose state is used.
            in_order: require that the first delivery is the lowest unresolved message of the lease.
            effects: effects recorded elsewhere, to commit with this transaction; None: start with none.
        """
        self._client = client
        self._storage = client.storage
        self._deliveries = deliveries
        self._key = key
        self._acks = Acks(deliveries[0].lease._held, [d.seq for d in deliveries], in_order) if deliveries else None
        self._effects = Effects(client.sending) if effects is None else effects
        self._open: WriteTransaction | None = None
        self._block: OpenTransaction | None = None
        self._ended = False

    # ---- inside the block; see Recording for send and execute

    def _effects_for(self, verb: str) -> Effects:  # noqa: ARG002
        if self._block is None or self._ended:
            raise InvalidArgument("a transaction works inside its with block only")
        return self._effects

    @property
    def key_state(self) -> bytes | None:
        """The durable state of the key: the value set in this transaction, or the stored one."""
        state = self._effects_for("key_state").key_state
        return self._begin().key_state() if state is UNSET else state

    @key_state.setter
    def key_state(self, value: bytes | None) -> None:
        self._effects_for("key_state").set_key_state(value)

    def output(self, text: str) -> None:
        """Record output of the handler, which is kept with the ack for `q.output`. Repeated calls append lines. See Job.output.

        Raises:
            InvalidArgument: the value is not a str, or the transaction has no delivery; nothing was recorded.
        """
        effects = self._effects_for("output")
        if not self._deliveries:
            raise InvalidArgument("only a transaction that acks a delivery can keep an output")
        effects.say(text)

    def run(self, work: Callable[[AppDatabase], T]) -> T:
        """Call `work(db)` inside the write transaction; `db.execute(sql, params)` reads and writes app_* tables.

        Returns:
            The result of `work`.
        Raises:
            InvalidArgument: the SQL is invalid, not allowed, or takes too long; or `work` is async or a generator function, and
                did not run. If the exception leaves the block, nothing is changed. If it is caught, only that statement is
                rolled back. If SQLite rolled everything back (OR ROLLBACK, too many steps), later calls in the block fail.
            LeaseLost: the delivery's lane was released or taken by another consumer; nothing was changed.
        """
        effects = self._effects_for("run")
        opened = self._begin()
        opened.execute(effects.statements)
        effects.statements.clear()  # those recorded later run at the end
        return require_ran("work", opened.run(work))

    def _begin(self) -> WriteTransaction:
        if self._open is None:
            opened = self._storage.transactions.begin(self._key, self._acks)
            try:
                opened.begin()
            except LeaseLost as e:
                self._explain(e)
                raise
            self._open = opened
        return self._open

    # ---- the frame

    def __enter__(self) -> Transaction:
        if self._block is not None:
            raise InvalidArgument("a transaction can be entered once")
        self._storage.require_open()
        for d in self._deliveries:
            self._client.settling.require_unsettled(d)
            d._begun = True
        self._block = block = self._storage.transactions.enter()
        block.is_open = True
        return self

    @property
    def __exit__(self) -> Exit:
        return exit_of(self._leave, self._end)

    def _leave(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        self._ended = True
        if self._block is not None:
            self._block.is_open = False  # before the commit: it calls hooks, which may write
        if error is not None:
            self._abandon(error)
            return
        for d in self._deliveries:
            try:
                self._client.settling.require_unsettled(d)
            except LeaseLost as e:
                # Acked inside the block. The store would take the commit for a repeated one and skip its effects.
                self._abandon(e)
                raise
        changes = self._effects.changes(self._took() if self._deliveries else None)
        opened = self._open
        try:
            done = self._storage.transactions.commit(self._key, self._acks, changes) if opened is None else opened.commit(changes)
        except BaseException as e:
            self._effects.failed(e)
            self._explain(e)
            raise
        for d in self._deliveries:
            self._client.settling.settled(d)
        self._effects.committed(done)
        if done.reaches_out:
            self._storage.transactions.forward(done.shard)

    def _took(self) -> Took | None:
        """Return what a worker measured, or the output that was recorded here."""
        took: Took | None = getattr(self._deliveries[0], "_took", None)
        if took is None and self._effects.said is not None:
            took = (None, None, validate.text("output", self._effects.said, self._storage.config.max_body_bytes))
        return took

    def _end(self) -> None:
        """End what `_leave` did not end, because it was interrupted."""
        self._ended = True
        if self._block is not None:
            self._block.is_open = False
        if self._open is not None:
            self._open.close()

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, LeaseLost) and self._deliveries:
            self._client.settling.explain_loss(self._deliveries[0].lease, error)

    def _abandon(self, error: BaseException) -> None:
        self._effects.failed()
        if self._open is not None:
            self._open.abandon(error)


def transaction_of(
    client: Client, deliveries: list[Delivery], *, in_order: bool = True, effects: Effects | None = None
) -> Transaction:
    """Return a transaction that acks these deliveries. See Queue.transaction.

    Args:
        effects: effects recorded elsewhere, to commit with this transaction.
    """
    leases = {client.settling.own(d) for d in deliveries}
    if len(leases) != 1 or len(set(deliveries)) != len(deliveries):
        raise InvalidArgument("deliveries must be of one lease, each given once", hint=hints.ONE_KEY)
    (lease,) = leases
    if lease.ack_first:
        raise InvalidArgument("a delivery with ack_first=True is already resolved", hint=hints.TRANSACTION_OF_KEY)
    deliveries.sort(key=attrgetter("seq"))
    return Transaction(client, deliveries, lease._held.key, in_order=in_order, effects=effects)
