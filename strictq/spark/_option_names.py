"""The options of reads and writes, and the hints for all other names.

Spark passes options in lower case, whatever the program wrote, and adds some of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final, Literal

from .._values import hints
from .._values.errors import InvalidArgument
from .._values.hints import Coded

Use = Literal["table", "stream", "write", "sink"]

OPTIONS: Final[dict[Use, tuple[str, ...]]] = {
    "table": (
        "path", "paths", "keyType", "keys", "includeHeaders", "bodyColumn", "bodyType", "state", "messagesPerPartition",
        "failOnMissing", "server",
    ),
    "stream": (
        "path", "paths", "consumer", "keyType", "includeHeaders", "bodyColumn", "bodyType", "state", "maxMessagesPerTrigger",
        "maxBytesPerTrigger", "messagesPerPartition", "keepBatches", "consumerWaitSeconds", "failOnMissing", "maxOpenQueues",
        "server",
    ),
    "write": ("path", "jobId", "orderBy", "bodyColumn", "onMismatch", "roomWaitSeconds", "server"),
    "sink": ("path", "orderBy", "bodyColumn", "onMismatch", "roomWaitSeconds", "server"),
}  # fmt: skip
"""The options of each use of a queue."""
CALLED: Final[dict[Use, str]] = {
    "table": "spark.read", "stream": "spark.readStream", "write": "df.write", "sink": "df.writeStream",
}  # fmt: skip
STREAM_ONLY: Final = frozenset(OPTIONS["stream"]) - frozenset(OPTIONS["table"])
OF_WRITES: Final = ("checkpointlocation", "queryname")
"""Options that Spark passes to the sink of a stream, in lower case."""
OF_TABLES: Final = ("provider", "owner", "location", "external", "comment")
"""Properties that Spark passes for a table being created, in addition to the statement's options."""

_END: Final = hints.OPTION_AVAILABLE_NOW
_FILL: Final = hints.OPTION_TRIGGER_INTERVAL
_BACKLOG: Final = hints.OPTION_BACKLOG
_KAFKA: Final = hints.OPTION_KAFKA_CLIENT

ELSEWHERE: Final[dict[str, str | Coded]] = {
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": _FILL,
    "maxtriggerdelay": _FILL,
    "startingoffsets": _BACKLOG,
    "startingoffsetsbytimestamp": _BACKLOG,
    "startingoffsetsbytimestampstrategy": _BACKLOG,
    "startingtimestamp": _BACKLOG,
    "endingoffsets": _END,
    "endingoffsetsbytimestamp": _END,
    "endingtimestamp": _END,
    "failondataloss": hints.OPTION_NO_LOSS,
    "minpartitions": "messagesPerPartition",
    "maxrecordsperpartition": "messagesPerPartition",
    "groupidprefix": "consumer",
    "kafka.group.id": "consumer",
    "subscribe": "path",
    "subscribepattern": "path",
    "assign": "path",
    "topic": "path",
    "fetchoffset.numretries": _KAFKA,
    "fetchoffset.retryintervalms": _KAFKA,
    "kafkaconsumer.polltimeoutms": _KAFKA,
}
"""Options of Kafka's source, in lower case, with strictq's option, or a hint why there is none."""


def require_known(options: Iterable[str], use: Use) -> None:
    """Raise for options that a use does not have.

    Raises:
        InvalidArgument: an option is unknown; the hint suggests the right one, if possible.
    """
    for name in _foreign(options, {each.lower() for each in OPTIONS[use]}, sink=use in ("write", "sink")):
        _refuse(name, OPTIONS[use], f" of {CALLED[use]}")


def require_known_somewhere(options: Iterable[str]) -> None:
    """Raise for options that no use has, before the use is known.

    Raises:
        InvalidArgument: as for `require_known`.
    """
    every = {each: None for names in OPTIONS.values() for each in names}
    for name in _foreign(options, {each.lower() for each in every}, sink=True):
        _refuse(name, tuple(every), "")


def is_stream(options: Mapping[str, str]) -> bool:
    """Return whether the options are those of a stream, because Spark requests columns in the same way for both reads."""
    return any(name in options for name in STREAM_ONLY)


def _foreign(options: Iterable[str], known: set[str], *, sink: bool) -> list[str]:
    if sink:
        known = known.union(OF_WRITES)
    return [name for name in options if name.lower() not in known and not name.lower().startswith(("spark.", "__"))]


def _refuse(name: str, names: tuple[str, ...], where: str) -> None:
    lower = {each.lower(): each for each in names}
    elsewhere = ELSEWHERE.get(name.lower(), _KAFKA if name.lower().startswith("kafka.") else None)
    uses = [CALLED[use] for use, those in OPTIONS.items() if name.lower() in map(str.lower, those)]
    if name.lower() in OF_WRITES:
        uses = [CALLED["sink"]]
    hint: str
    if isinstance(elsewhere, Coded):
        hint = elsewhere
    elif elsewhere is not None:
        hint = hints.OPTION_CALLED.of(option=elsewhere)
    elif uses:
        hint = hints.OPTION_OF.of(uses=" and ".join(uses))
    elif close := get_close_matches(name.lower(), lower, 1, 0.7):
        hint = hints.DID_YOU_MEAN.of(name=lower[close[0]])
    else:
        hint = hints.OPTIONS_ARE.of(options=", ".join(names))
    raise InvalidArgument(f"there is no option {name}{where}", hint=hint)
