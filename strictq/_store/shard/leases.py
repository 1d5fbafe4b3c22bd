"""The limits and the results of a receive, and the arguments of a settlement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ..._values.errors import LeaseLost
from . import history

# Columns of a leased message: those of `message`, with `opts` as `messages.decode` returns them. The last two may be missing:
# then the message has no attempts, and is no suspect.
ID, KEY, SEQ, SENT_AT, DUE, EXPIRES, OPTS, BODY, ATTEMPTS, SUSPECT = range(10)

Row = tuple[Any, ...]
"""A leased message. `Fields` reads it. Most are the row of `message`: another tuple for each would cost a tenth of a receive."""


class Fields:
    """Access to a row by name: `Fields.seq(row)`. An object for each row would cost a tenth of a receive.

    Attributes:
        id: arrival number in the shard.
        headers: JSON, or None.
        sent_at: queue time, microseconds.
        expires_at: queue time, microseconds; None: never. A redriven message has none.
    """

    seq: Final[Callable[[Row], int]] = itemgetter(SEQ)
    id: Final[Callable[[Row], int]] = itemgetter(ID)
    body: Final[Callable[[Row], bytes]] = itemgetter(BODY)
    sent_at: Final[Callable[[Row], int]] = itemgetter(SENT_AT)
    expires_at: Final[Callable[[Row], int | None]] = itemgetter(EXPIRES)

    @staticmethod
    def headers(row: Row) -> str | None:
        opts = row[OPTS]
        return None if opts is None else opts[0]

    @staticmethod
    def size_hint(row: Row) -> float | None:
        opts = row[OPTS]
        return None if opts is None else opts[1]

    @staticmethod
    def prepare_seconds(row: Row) -> float | None:
        opts = row[OPTS]
        return None if opts is None else opts[2]

    @staticmethod
    def process_seconds(row: Row) -> float | None:
        opts = row[OPTS]
        return None if opts is None else opts[3]

    @staticmethod
    def dedup_id(row: Row) -> str | None:
        opts = row[OPTS]
        return None if opts is None else opts[4]

    @staticmethod
    def is_suspect(row: Row) -> bool:
        """Return whether it may have killed its process, and must run alone."""
        return len(row) > SUSPECT and bool(row[SUSPECT])

    @staticmethod
    def starts(row: Row) -> int:
        """Return how many of its handlers were started before."""
        return row[ATTEMPTS] if len(row) > ATTEMPTS else 0


class Held:
    """A lease: one lane's messages, in order. (Made for every lane of a receive, so it is kept small.)

    Its holder settles messages through it.

    Attributes:
        deadline: 0 if only the key and the token are known, from a handle. Then there are no rows.
    """

    __slots__ = ("deadline", "key", "rows", "token")

    def __init__(self, key: bytes, token: int, deadline: int = 0, rows: Sequence[Row] = ()) -> None:
        self.key = key
        self.token = token
        self.deadline = deadline
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def all(self) -> Settlement:
        """Return a settlement of all its messages, as they were leased."""
        rows = self.rows
        lo, hi = rows[0][SEQ], rows[-1][SEQ]
        if hi - lo + 1 == len(rows):
            return self.some(range(lo, hi + 1))
        return self.some([row[SEQ] for row in rows])

    def some(self, seqs: Sequence[int], *, start: int | None = None, took: Took | None = None) -> Settlement:
        """Return a settlement of some of its messages.

        Args:
            seqs: ascending.
            start: the next message of the lease, whose handler starts with this ack.
            took: a worker's measurements of the handler, and its output, stored with its record.
        """
        end = history.ACKED if took is None else history.End("acked", 1, *took)
        return Settlement(self.key, self.token, seqs, start, end)


class Request(NamedTuple):
    """The limits of a claim.

    Attributes:
        lease: microseconds; None: the queue's setting.
        charge: a single message in its lease counts as started. False: only its holder's start counts.
        charge_all: every message of a lease counts as started.
        starts: the holder calls start before each handler, so a message that was not started has not killed it.
        endless: the lease has no deadline and outlives a reboot, because a batch holds it.
        arrived_to: only messages with an arrival number up to this one.
        bytes_max: stop before bodies and headers exceed this, but not before the first message.
        packed: plain messages may be returned column by column.
        among: the numbers of the shards to claim from; None: all.
        placed: a key without a lane here is passed over. Otherwise, if its range has moved, the claim is refused.
        elsewhere: by tenant, its keys in flight in other shards, if it may have only so many; None: it has none there.
    """

    room: int
    per_key: int | None
    lease: int | None
    consumer: str
    ack_first: bool = False
    keys: tuple[bytes, ...] | None = None
    charge: bool = True
    starts: bool = False
    endless: bool = False
    arrived_to: int | None = None
    bytes_max: int | None = None
    packed: bool = False
    among: frozenset[int] | None = None
    placed: bool = False
    charge_all: bool = False
    elsewhere: Mapping[bytes, int] | None = None


Took = tuple[float | None, float | None, str | None]
"""The seconds that prepare (None: there was none) and process took (None: unknown), and the handler's output."""


class PackedColumns(NamedTuple):
    """Messages as SQLite packed them. If headers or attempts are wanted, these messages have none.

    Unwanted columns are empty.

    Attributes:
        messages: their number.
        keys: stored ones, of the lanes in their order.
        depths: the number of messages of each lane.
        seqs, ids, sent_at, sizes: a number for each message, in decimal, separated by commas.
        bodies: concatenated, with the lengths in `sizes`.
        fresh: the first of them is the first one of its lane. Otherwise the columns before these begin with its first.
    """

    shard: int
    messages: int
    keys: list[bytes]
    depths: Sequence[int]
    seqs: str
    ids: str
    sent_at: str
    sizes: str
    bodies: bytes
    fresh: bool = True


class Claimed:
    """The result of one claim, from one shard.

    Attributes:
        shard: its number.
        lease: its length, microseconds.
        messages: of all its leases.
        token, deadline: of all its leases.
        throttled: microseconds after which a throttled tenant may get messages; None: none is throttled, or none by itself.
        more: bounded work was cut short. Claim again: there may be something ready.
        rows: the messages of each of its leases. `leases` makes lease objects of them on demand.
        columns: messages column by column, leased without an object for each lane. Only a batch that is recorded has them.
    """

    __slots__ = ("_leases", "columns", "deadline", "lease", "messages", "more", "rows", "shard", "throttled", "token")

    def __init__(self, shard: int, lease: int) -> None:
        self.shard = shard
        self.lease = lease
        self.messages = 0
        self.token = 0
        self.deadline = 0
        self.more = False
        self.throttled: int | None = None
        self.rows: list[Sequence[Row]] = []
        self.columns: list[PackedColumns] = []
        self._leases: list[Held] | None = None

    @property
    def leases(self) -> list[Held]:
        """Its leases, in the order of the claim, without those of `columns`."""
        if self._leases is None:
            self._leases = [Held(rows[0][KEY], self.token, self.deadline, rows) for rows in self.rows]
        return self._leases

    def keep(self, leases: list[Held]) -> None:
        """Drop all leases except these."""
        self.rows, self._leases = [held.rows for held in leases], leases
        self.messages = sum(map(len, leases))


class Settlement:
    """Messages of one lane under one token, to be settled. Made by `Held`. (One for every lane of an ack, so it is kept small.)

    Attributes:
        seqs: ascending.
        start: the next message of the lease, whose handler starts with this ack.
        end: the content of its history record.
    """

    __slots__ = ("end", "key", "seqs", "start", "token")

    def __init__(
        self, key: bytes, token: int, seqs: Sequence[int], start: int | None = None, end: history.End = history.ACKED
    ) -> None:
        self.key = key
        self.token = token
        self.seqs = seqs
        self.start = start
        self.end = end


Lost = dict[int, LeaseLost]
"""The refused seqs of a settlement, with the errors. Empty: all of it took effect."""
