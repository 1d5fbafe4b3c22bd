"""The outcomes of a pipeline's handlers, sent from executors to the driver as Arrow, without executable content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import pyarrow as pa

from .._client import validate
from .._client.effects import Effects, Recording
from .._values import hints
from .._values.errors import InvalidArgument
from .._values.handlers import require_ran
from .._values.keys import Key, decode_key, encode_key
from .._values.types import UNSET, Message, Unset, body_as_json
from ..worker.ending import DEFERRED, FAILED, Ending

SKIPPED: Final = "skipped"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ENDS_LANE: Final = (FAILED, DEFERRED)
"""Outcomes after which the rest of the lane is not run, because the message must be retried first."""
OF_DATA: Final = (ValueError, TypeError, LookupError, ArithmeticError)
"""Errors of parsing and computing, which a body can cause, but an outage cannot."""

Param = None | bool | int | float | str | bytes


@attrs.define
class Outcome(Ending):
    """The outcome of a pipeline's handler for one message: an ending, or SKIPPED (the handler was not run).

    Attributes:
        effects: the effects that commit with the ack.
        seconds: the duration of the handler.
        of_data: whether it failed with an error that the message's content can cause, as opposed to its environment.
        behind: number of the following messages of its lane that failed in the same way, independently. They are charged, too.
    """

    effects: Effects = attrs.Factory(Effects)
    seconds: float = 0.0
    of_data: bool = False
    behind: int = 0

    @property
    def has_effects(self) -> bool:
        """Whether anything besides the ack must commit."""
        return self.effects.need_commit


def failure(error: BaseException, output: str | None = None) -> Outcome:
    """Return the outcome of a message whose handler raised."""
    outcome = Outcome.of(error, output)
    outcome.of_data = isinstance(error, OF_DATA)
    return outcome


class BatchJob(Recording):
    """A message passed to a pipeline's process handler.

    Its sends, key state and SQL commit in one transaction with the ack. If it raises, none of them takes effect.

    Attributes:
        key: the key, as sent; None for a keyless message.
        seq: position in its key's sequence.
        attempt: number of this start of a handler, from 1.
        enqueued_at: time of the send, seconds since 1970.
        prepared: the row from prepare, by column; empty without prepare.
    """

    __slots__ = (
        "_effects", "_state_before", "attempt", "body", "enqueued_at", "headers", "key", "prepared", "seq",
    )  # fmt: skip

    def __init__(
        self,
        key: Key | None,
        seq: int,
        body: bytes,
        headers: dict[str, str],
        attempt: int,
        enqueued_at: float,
        prepared: Mapping[str, Any],
        state: bytes | Unset | None,
    ) -> None:
        self.key = key
        self.seq = seq
        self.body = body
        self.headers = headers
        self.attempt = attempt
        self.enqueued_at = enqueued_at
        self.prepared = prepared
        self._state_before = state
        self._effects = Effects()

    def json(self) -> Any:
        return body_as_json(self.body, self.key, self.seq)

    @property
    def key_state(self) -> bytes | None:
        """The durable state of the key, as left by the previous message. For pipelines with `key_state=True`.

        Raises:
            InvalidArgument: the pipeline does not read key states.
        """
        state = self._state_before if self._effects.key_state is UNSET else self._effects.key_state
        if state is UNSET:
            raise InvalidArgument("this pipeline does not read the states of keys", hint=hints.WITH_KEY_STATE)
        return state

    @key_state.setter
    def key_state(self, value: bytes | None) -> None:
        self._effects.set_key_state(value)

    def _effects_for(self, verb: str) -> Effects:  # noqa: ARG002
        return self._effects

    def execute(self, sql: str, params: Sequence[Param] = ()) -> None:  # type: ignore[override]
        """Run a statement on the program's app_* tables with the ack.

        Raises:
            InvalidArgument: the SQL is not a str, or a parameter is not None, bool, int, float, str or bytes.
        """
        for value in params:
            if not isinstance(value, Param):
                raise InvalidArgument(f"a parameter must be None, bool, int, float, str or bytes, not {type(value).__name__}")
        super().execute(sql, tuple(params))

    def output(self, text: str) -> None:
        """Record output of the handler. It is stored with the message if it fails, and shown by status."""
        self._effects.say(str(text))

    def __repr__(self) -> str:
        return f"BatchJob(key={self.key!r}, seq={self.seq}, attempt={self.attempt})"


def run_lane(
    process: Callable[[BatchJob], Any], jobs: Iterator[BatchJob] | Sequence[BatchJob], clock: Callable[[], float]
) -> list[Outcome]:
    """Run the handler for one lane's messages in order. After a failed or deferred message, the rest is skipped.

    Each message sees the key state left by the previous one.
    """
    outcomes: list[Outcome] = []
    state: Any = UNSET
    broken = False
    for job in jobs:
        if broken:
            outcomes.append(Outcome(SKIPPED))
            continue
        if state is not UNSET:
            job._state_before = state
        began = clock()
        try:
            require_ran("process", process(job))
        except Exception as e:
            outcome = failure(e, job._effects.said)
            broken = outcome.kind in ENDS_LANE
        else:
            outcome = Outcome(output=job._effects.said, effects=job._effects, seconds=clock() - began)
            if job._effects.key_state is not UNSET:
                state = job._effects.key_state
        outcomes.append(outcome)
    return outcomes


# ---- Arrow form

_PARAM: Final = pa.struct(
    [("kind", pa.string()), ("whole", pa.string()), ("real", pa.float64()), ("text", pa.string()), ("blob", pa.binary())]
)
_SEND: Final = pa.struct(
    [
        ("body", pa.binary()), ("key", pa.binary()), ("dedup_id", pa.string()), ("delay", pa.float64()), ("at", pa.int64()),
        ("ttl", pa.float64()), ("headers", pa.map_(pa.string(), pa.string())), ("size_hint", pa.float64()),
        ("prepare_seconds", pa.float64()), ("process_seconds", pa.float64()),
    ]
)  # fmt: skip
RESULT: Final = pa.schema(
    [
        ("lane", pa.int64()), ("seq", pa.int64()), ("kind", pa.string()), ("reason", pa.string()), ("delay", pa.float64()),
        ("output", pa.string()), ("traceback", pa.string()),
        ("sets_state", pa.bool_()), ("state", pa.binary()), ("sends", pa.list_(_SEND)),
        ("statements", pa.list_(pa.struct([("sql", pa.string()), ("params", pa.list_(_PARAM))]))), ("seconds", pa.float64()),
    ]
)  # fmt: skip


def to_arrow(rows: Sequence[tuple[int, int, Outcome]]) -> pa.RecordBatch:
    """Return outcomes of (lane, seq) in the columns of RESULT."""
    return pa.RecordBatch.from_pylist([_row(*row) for row in rows], schema=RESULT)


def from_arrow(table: pa.Table) -> dict[tuple[int, int], Outcome]:
    """Return the outcomes by lane and seq."""
    return {(row["lane"], row["seq"]): _outcome(row) for row in table.to_pylist()}


def _row(lane: int, seq: int, o: Outcome) -> dict[str, Any]:
    state = o.effects.key_state
    return {
        "lane": lane, "seq": seq, "kind": o.kind, "reason": o.reason, "delay": o.delay, "output": o.output,
        "traceback": o.traceback, "sets_state": state is not UNSET, "state": None if state is UNSET else state,
        "sends": [_send_row(send.message) for send in o.effects.sends],
        "statements": [{"sql": sql, "params": [_param_row(p) for p in params]} for sql, params in o.effects.statements],
        "seconds": o.seconds,
    }  # fmt: skip


def _outcome(row: dict[str, Any]) -> Outcome:
    effects = Effects()
    for m in row["sends"]:
        effects.send(_message(m))
    for s in row["statements"]:
        effects.execute(s["sql"], tuple(_param(p) for p in s["params"]))
    if row["sets_state"]:
        effects.set_key_state(row["state"])
    return Outcome(row["kind"], row["reason"], row["delay"], row["output"], row["traceback"], effects, row["seconds"])


def _send_row(m: Message) -> dict[str, Any]:
    row = {name: getattr(m, name) for name in ("body", "delay", "ttl", "size_hint", "prepare_seconds", "process_seconds")}
    return row | {
        "dedup_id": None if m.dedup_id is None else validate.dedup_id(m.dedup_id, validate.body_bytes(m.body)),
        "at": None if m.at is None else validate.wall_microseconds(m.at),
        "key": None if m.key is None else encode_key(m.key),
        "headers": None if m.headers is None else list(m.headers.items()),
    }


def _message(row: dict[str, Any]) -> Message:
    row["key"] = None if row["key"] is None else decode_key(row["key"])
    row["headers"] = None if row["headers"] is None else dict(row["headers"])
    row["at"] = None if row["at"] is None else EPOCH + timedelta(microseconds=row["at"])
    return Message(**row)


def _param_row(value: Param) -> dict[str, Any]:
    match value:
        case None:
            return {"kind": "null"}
        case bool() | int():
            # as text, because an int may have more than 64 bits, and is refused later
            return {"kind": "whole", "whole": str(int(value))}
        case float():
            return {"kind": "real", "real": value}
        case str():
            return {"kind": "text", "text": value}
        case _:
            return {"kind": "blob", "blob": value}


def _param(row: dict[str, Any]) -> Param:
    value: Param = None if row["kind"] == "null" else row[row["kind"]]
    return int(value) if row["kind"] == "whole" and value is not None else value
