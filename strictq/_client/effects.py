"""The effects of a handler or transaction, recorded until the commit: sends, key state, the program's SQL, and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Unpack

import attrs

from .._client import validate
from .._platform.clock import SystemClock
from .._store.api import Changes, Committed, Item, Placed, Statement, Took
from .._values import hints
from .._values.config import BODY_BYTES_MAX, QueueConfig
from .._values.errors import InvalidArgument, OutcomeUnknown
from .._values.keys import KEYLESS, Key, decode_key, encode_key
from .._values.types import UNSET, Body, Message, Receipt, SendOptions, Unset, to_send
from .sending import Sending, with_headers

PENDING: Final = "the transaction that this message is sent in has not committed yet"
FAILED: Final = "the transaction that this message was to be sent in failed: it was not sent"
UNKNOWN: Final = "it is not known whether the transaction that this message is sent in committed"
ELSEWHERE: Final = "this message is sent by another process, after the handler returned: this object is never filled"

ANY_QUEUE: Final = QueueConfig(keyless="random", max_body_bytes=BODY_BYTES_MAX)
"""The most permissive settings: a message that they refuse is invalid for every queue."""


class PendingReceipt:
    """The result of `tx.send` and `job.send`: the receipt of a message that is sent when the transaction commits.

    Reading `receipt`, `seq`, `id` or `shard` before the commit, after a failed transaction or after OutcomeUnknown raises
    InvalidArgument. If a repeated transaction had been committed before, the receipts of the first run are not kept:
    `receipt`, `seq` and `id` are None.

    Attributes:
        key: the message's key, as given; None for a keyless message.
    """

    __slots__ = ("_placed", "_why_not", "key")

    def __init__(self, key: Key | None, why_not: str = PENDING) -> None:
        self.key = key
        self._placed: Placed | None = None
        self._why_not = why_not

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, as `q.send` returns it; None for a message to another shard, which has an `id` only."""
        shard, seq, arrival, earlier = self._found
        if seq is None or arrival is None:
            return None
        return Receipt(self.key if earlier is None else decode_key(earlier), seq, arrival, earlier is not None, shard)

    @property
    def seq(self) -> int | None:
        """The position in its key's sequence; None for a message to another shard, which issues it on arrival."""
        return self._found.seq

    @property
    def id(self) -> int | None:
        """The arrival number within its shard; for a message to another shard, its number in the outbox."""
        return self._found.id

    @property
    def shard(self) -> int:
        """The number of its key's shard."""
        return self._found.shard

    @property
    def _found(self) -> Placed:
        if self._placed is None:
            raise InvalidArgument(self._why_not, hint=hints.AFTER_COMMIT)
        return self._placed

    def _fill(self, placed: Placed) -> None:
        self._placed = placed

    def _fail(self, why_not: str) -> None:
        self._why_not = why_not

    def __repr__(self) -> str:
        at = self._placed
        found = self._why_not if at is None else f"seq={at.seq}, id={at.id}, shard={at.shard}"
        return f"PendingReceipt(key={self.key!r}, {found})"


class Send(NamedTuple):
    """A message to send.

    Attributes:
        item: the store's form of the message; None: the queue is in another process.
    """

    message: Message
    item: Item | None
    receipt: PendingReceipt


class Effects:
    """Effects that commit together with an ack or a transaction. Each is validated when it is recorded.

    If the queue is in another process (a worker's child, an executor), its settings are not known, and only effects that no
    queue would accept are refused; `take` validates the rest in the process of the queue.

    Attributes:
        key_state: the new state of the key; UNSET: unchanged.
        statements: the program's SQL that has not run yet.
        output: the handler's output. It does not need a commit.
    """

    __slots__ = ("_sending", "key_state", "output", "sends", "statements")

    def __init__(self, sending: Sending | None = None) -> None:
        self._sending = sending
        self.sends: list[Send] = []
        self.key_state: bytes | Unset | None = UNSET
        self.statements: list[Statement] = []
        self.output: list[str] = []

    @property
    def need_commit(self) -> bool:
        """Whether there are effects besides output."""
        return bool(self.sends) or self.key_state is not UNSET or bool(self.statements)

    @property
    def said(self) -> str | None:
        """The output as one string, or None."""
        return "\n".join(self.output) if self.output else None

    def send(self, message: Message) -> PendingReceipt:
        """Send a message, to any key.

        Raises:
            InvalidArgument, MessageTooLarge: the message is invalid; nothing was recorded.
        """
        if self._sending is None:
            key = KEYLESS if message.key is None else encode_key(message.key)
            item = validate.item(message.body, validate.given_of(message), key, ANY_QUEUE, SystemClock().wall)
            # A copy, because the program may change its dict later.
            headers = None if message.headers is None else dict(message.headers)
            message = attrs.evolve(message, body=item[1], headers=headers)
            send = Send(message, None, PendingReceipt(message.key, ELSEWHERE))
        else:
            send = Send(message, self._sending.item(message), PendingReceipt(message.key))
        self.sends.append(send)
        return send.receipt

    def set_key_state(self, value: bytes | None) -> None:
        """Set the state of the key; None deletes it.

        Raises:
            InvalidArgument: the state is not bytes, or too large; nothing was recorded.
        """
        if value is not None:
            if type(value) is not bytes:
                raise InvalidArgument(f"key_state must be bytes or None, not {type(value).__name__}")
            most = (ANY_QUEUE if self._sending is None else self._sending.config).max_body_bytes
            if len(value) > most:
                raise InvalidArgument(f"key_state may have {most:,} bytes, this one has {len(value):,}")
        self.key_state = value

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> None:
        """Run a statement on the program's app_* tables. The parameters are copied: the program may change its list.

        Raises:
            InvalidArgument: the value is not a str; nothing was recorded.
        """
        if not isinstance(sql, str):
            raise InvalidArgument(f"SQL must be a str, not {type(sql).__name__}")
        self.statements.append((sql, params.copy() if isinstance(params, list | dict) else params))

    def say(self, text: str) -> None:
        """Record output of the handler.

        Raises:
            InvalidArgument: the value is not a str; nothing was recorded.
        """
        if not isinstance(text, str):
            raise InvalidArgument(f"output must be a str, not {type(text).__name__}")
        self.output.append(text)

    def take(self, other: Effects) -> None:
        """Record the effects of another process, without output, and validate them against this queue.

        Raises:
            InvalidArgument, MessageTooLarge: this queue refuses an effect; some may be recorded.
        """
        for send in other.sends:
            self.send(send.message)
        for sql, params in other.statements:
            self.execute(sql, params)
        if other.key_state is not UNSET:
            self.set_key_state(other.key_state)

    # ---- for the code that commits them

    def changes(self, took: Took | None = None) -> Changes:
        """Return the effects in the store's form. See Changes for `took`."""
        items: Sequence[Item] = ()
        if self.sends and self._sending is not None:
            items = [self._sending.due_now(send.message, send.item) for send in self.sends if send.item is not None]
        return Changes(items, self.key_state, self.statements, took)

    def committed(self, done: Committed) -> None:
        for send, placed in zip(self.sends, done.sent, strict=True):
            send.receipt._fill(placed)

    def failed(self, error: BaseException | None = None) -> None:
        """Mark the receipts as failed: nothing was committed, or possibly nothing if the commit ended with this error."""
        unsure = error is not None and (isinstance(error, OutcomeUnknown) or not isinstance(error, Exception))
        for send in self.sends:
            send.receipt._fail(UNKNOWN if unsure else FAILED)


def inherited(headers: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the headers of a message that have these names."""
    return {name: headers[name] for name in names if name in headers}


class Recording:
    """The methods that record effects, for transactions and the jobs of handlers."""

    __slots__ = ()

    def _effects_for(self, verb: str) -> Effects:
        """Return the effects in which `verb` records.

        Raises:
            InvalidArgument, LeaseLost: `verb` is not allowed now; nothing was recorded.
        """
        raise NotImplementedError

    def send(self, body: Body | Message, key: Key | None = None, **options: Unpack[SendOptions]) -> PendingReceipt:
        """Send a message to any key when the transaction commits; a job commits with its ack. max_depth does not apply.

        Arguments as for `q.send`.

        Returns:
            A PendingReceipt, which has the seq and the id after the commit. A job commits after its handler has returned, so the
            handler itself cannot read it. In a separate process (`executor="process"`, Spark) it is never filled.
        Raises:
            InvalidArgument: the message is invalid; or this is outside of the with block, or in prepare. Nothing was changed.
            LeaseLost: the job was cancelled; nothing was changed.
        """
        return self._effects_for("send").send(self._with_inherited(to_send(body, key, **options)))

    def send_json(self, value: Any, key: Key | None = None, **options: Unpack[SendOptions]) -> PendingReceipt:
        """Send a value as compact UTF-8 JSON when the transaction commits. See `send`. The message's `json()` returns the value.

        Raises:
            InvalidArgument: the value cannot be written as JSON (such as NaN or infinity); or as `send`. Nothing was changed.
            LeaseLost: the job was cancelled; nothing was changed.
        """
        return self._effects_for("send_json").send(self._with_inherited(Message.json(value, key=key, **options)))

    def _inherited(self) -> dict[str, str]:
        """Return the headers to add to every message sent here, unless the message sets them."""
        return {}

    def _with_inherited(self, message: Message) -> Message:
        return with_headers(message, self._inherited())

    def execute(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> None:
        """Run a statement on the program's app_* tables when the transaction commits (or at the next `run`), in order.

        Invalid SQL fails the transaction when it runs; in a job, it fails the message, as if the handler had raised.

        Raises:
            InvalidArgument: the SQL is not a str; or this is outside of the with block, or in prepare.
            LeaseLost: the job was cancelled; nothing was changed.
        """
        self._effects_for("execute").execute(sql, params)
