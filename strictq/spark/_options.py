"""The validated options of the sources. Imported late, with pyspark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from .._client import validate
from .._store.api import Storage
from .._values import hints
from .._values.errors import InvalidArgument, QueueNotFound
from .._values.keys import encode_key
from ._option_names import is_stream, require_known
from ._paths import Paths, paths_of
from ._recorded_batches import KEEP, LOCK_SECONDS, RECORDED_BATCH_BYTES, RECORDED_BATCH_MESSAGES_MAX
from ._shown import BODY, body_of, shown
from ._table_columns import KEY_TYPES, KeyType, key_type, read_schema

MESSAGES: Final = 100_000
PARTITION_MESSAGES: Final = 50_000
TABLE_PARTITION_MESSAGES: Final = 500_000
"""Messages per task of a table read. Starting a task takes as long as many thousand messages, and a task keeps none of them."""
KEYS_MAX: Final = 10_000
OPEN: Final = 64
"""The most open queues of a stream. Each has about ten files open, or more with more shards."""
UNITS: Final = ("", "k", "m", "g", "t")
SIZE: Final = re.compile(r"([0-9]{1,19})([kmgt]?)b?")
"""A size in Spark's notation, in lower case. A unit is 1,024 times the one before it."""
STATES: Final = ("pending", "dead", "history")


def number(options: Mapping[str, str], name: str, default: int, maximum: int, minimum: int = 1) -> int:
    """Return an option that is a whole number.

    Raises:
        InvalidArgument: it is not a whole number, or out of range.
    """
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if not minimum <= value <= maximum:
        raise InvalidArgument(f"the option {name} must be a whole number from {minimum:,} to {maximum:,}, not {text!r}")
    return value


def size(options: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    """Return an option that is a number of bytes, with Spark's units if any: `64m`, `1gb`.

    Raises:
        InvalidArgument: it is not a size, or out of range.
    """
    text = options.get(name)
    if text is None:
        return default
    found = SIZE.fullmatch(text.strip().lower())
    value = int(found[1]) << 10 * UNITS.index(found[2]) if found else 0
    if not 1 <= value <= maximum:
        raise InvalidArgument(
            f"the option {name} must be a number of bytes from 1 to {maximum:,}, or a size such as 64m, not {text!r}"
        )
    return value


def keys_of(options: Mapping[str, str], schema: StructType) -> tuple[bytes, ...] | None:
    """Return the option keys as stored keys; None: it is not set.

    Raises:
        InvalidArgument: it is not a list of keys, or contradicts another option.
    """
    text = options.get("keys")
    if text is None:
        return None
    kind = key_type_of(options, schema)
    if state_of(options) == "history" or kind not in ("string", "int"):
        raise InvalidArgument(
            "the option keys is for tables of what is pending or dead, with string or int keys", hint=hints.FILTER_KEYS
        )
    try:
        given: Any = json.loads(text)
    except ValueError:
        given = None
    wanted = KEY_TYPES[kind].accepts
    if not isinstance(given, list) or not given or any(type(key) is not wanted for key in given):
        example = '["a", "b"]' if kind == "string" else "[1, 2]"
        raise InvalidArgument(f"the option keys must be a JSON list of keys, such as {example}, not {text!r}")
    if len(given) > KEYS_MAX:
        raise InvalidArgument(f"the option keys has {len(given):,} keys, and may have {KEYS_MAX:,}", hint=hints.FILTER_KEYS)
    return tuple(dict.fromkeys(map(encode_key, given)))


def truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false.

    Raises:
        InvalidArgument: it is neither.
    """
    text = options.get(name, "true" if default else "false").lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"the option {name} must be true or false, not {text!r}")
    return text == "true"


def key_type_of(options: Mapping[str, str], schema: StructType) -> KeyType:
    """Return the option keyType; if it is not set, the key's type in the program's schema, or else string.

    Raises:
        InvalidArgument: the option is not a key type.
    """
    text = options.get("keyType")
    if not text and "key" in schema.names:
        for name, known in KEY_TYPES.items():
            if known.column == schema["key"].dataType:
                return name
    return key_type(text)


def require_columns(options: Mapping[str, str], schema: StructType) -> None:
    """Raise unless the program's schema consists of columns that these options read, with their types.

    Bodies may be read as text.

    Raises:
        InvalidArgument: it has other columns or types, or no columns.
    """
    offered = columns(options, key_type_of(options, schema))
    body = options.get("bodyColumn") or BODY
    if not schema.names:
        raise InvalidArgument("the schema has no columns", hint=hints.ALL_COLUMNS)
    for field in schema:
        if field.name not in offered.names:
            raise InvalidArgument(
                f"a queue has columns of its own, and {field.name} is none of them: {', '.join(offered.names)}",
                hint=hints.ALL_COLUMNS,
            )
        if schema.names.count(field.name) > 1:
            raise InvalidArgument(f"the schema has the column {field.name} twice")
        ours = offered[field.name]
        # Compared by their names, because the nullability of map values does not matter here.
        has, asked = ours.dataType.simpleString(), field.dataType.simpleString()
        if has != asked and not (field.name == body and field.dataType in (StringType(), BinaryType())):
            raise InvalidArgument(
                f"a queue has columns of its own: {field.name} is {has.upper()}, not {asked.upper()}", hint=hints.CAST_COLUMN
            )
        if ours.nullable and not field.nullable:
            raise InvalidArgument(f"the column {field.name} may be NULL", hint=hints.DECLARE_NULLABLE)


def state_of(options: Mapping[str, str]) -> str:
    """Return the option state.

    Raises:
        InvalidArgument: it is not one of STATES, or contradicts the option keyType.
    """
    text = (options.get("state") or STATES[0]).lower()
    if text not in STATES:
        raise InvalidArgument(f"the option state must be {' or '.join(STATES)}, not {text!r}")
    if text == "history" and options.get("keyType"):
        raise InvalidArgument(
            "the history has keys as text, and their types in the column key_type", hint=hints.LEAVE_KEY_TYPE_OUT
        )
    return text


def columns(options: Mapping[str, str], keys: KeyType | None = None) -> StructType:
    """Return all columns of a read with these options.

    Args:
        keys: the key type to use instead of the option keyType.

    Raises:
        InvalidArgument: an option has an invalid value.
    """
    state = state_of(options)
    if state == "history":
        from ..history._records import SCHEMA  # needs pyarrow

        every = from_arrow_schema(SCHEMA)
    else:
        every = read_schema(keys or key_type(options.get("keyType")), dead=state == "dead")
    if state != "history" and not truth(options, "includeHeaders", True):
        every = StructType([field for field in every if field.name != "headers"])
    if body_is_text(options):
        every = StructType([StructField(f.name, StringType(), f.nullable) if f.name == BODY else f for f in every])
    return shown(every, body_of(options, every), many=paths_of(options).many)


def body_is_text(options: Mapping[str, str]) -> bool:
    """Return whether the option bodyType is string.

    Raises:
        InvalidArgument: it is neither binary nor string.
    """
    text = (options.get("bodyType") or "binary").lower()
    if text not in ("binary", "string"):
        raise InvalidArgument(f"the option bodyType must be binary or string, not {text!r}")
    return text == "string"


@attrs.frozen
class BatchOptions:
    """The options of a batch reader.

    Attributes:
        keys: stored keys of the messages to read; None: all.
        fail_on_missing: whether an unreadable queue fails the read. Otherwise it is left out and logged.
        body: the name of the body column.
    """

    paths: Paths
    key_type: KeyType
    state: str
    partition_messages: int
    keys: tuple[bytes, ...] | None
    fail_on_missing: bool
    body: str

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> BatchOptions:
        """Validate the options as far as possible before the queue is opened.

        Raises:
            InvalidArgument: an option is invalid; nothing was changed.
        """
        require_known(options, "table")
        paths = paths_of(options)
        require_one_server(options, paths)
        require_columns(options, schema)
        # If the key column is not read, keys may be of any type.
        anyhow = "key" not in schema.names and not options.get("keyType")
        return cls(
            paths=paths,
            key_type="stored" if anyhow else key_type_of(options, schema),
            state=state_of(options),
            partition_messages=number(options, "messagesPerPartition", TABLE_PARTITION_MESSAGES, 1 << 40),
            keys=keys_of(options, schema),
            fail_on_missing=fail_on_missing(options, paths, True),
            body=options.get("bodyColumn") or BODY,
        )


@attrs.frozen
class StreamOptions:
    """The options of a stream reader.

    Attributes:
        messages_max, bytes_max: limits of one batch.
        partition_messages: approximate messages per task.
        keep: number of acked batches that can be repeated.
        wait_seconds: seconds to wait for a stopping query of the same name.
        fail_on_missing: whether an unreadable queue stops the query. Otherwise the query continues without it.
        open_max: most queues open at a time.
        body: the name of the body column.
    """

    paths: Paths
    consumer: str
    key_type: KeyType
    messages_max: int
    bytes_max: int
    partition_messages: int
    keep: int
    wait_seconds: int
    fail_on_missing: bool
    open_max: int
    body: str

    @property
    def path(self) -> str:
        """The directory of the only queue."""
        return self.paths.one

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> StreamOptions:
        """Validate the options as far as possible before the queue is opened.

        Raises:
            InvalidArgument: an option is invalid; nothing was changed.
        """
        require_known(options, "stream")
        if state_of(options) != STATES[0]:
            raise InvalidArgument("a stream reads what is pending", hint=hints.READ_BATCH)
        consumer = options.get("consumer")
        if not consumer:
            raise InvalidArgument(
                "the option consumer is missing",
                hint=hints.NAME_QUERY,
            )
        paths = paths_of(options)
        require_one_server(options, paths)
        require_columns(options, schema)
        return cls(
            paths=paths,
            consumer=validate.name("the option consumer", consumer),
            key_type=key_type_of(options, schema),
            messages_max=number(options, "maxMessagesPerTrigger", MESSAGES, RECORDED_BATCH_MESSAGES_MAX),
            bytes_max=size(options, "maxBytesPerTrigger", RECORDED_BATCH_BYTES, 1 << 40),
            partition_messages=number(options, "messagesPerPartition", PARTITION_MESSAGES, RECORDED_BATCH_MESSAGES_MAX),
            keep=number(options, "keepBatches", KEEP, 1_000_000),
            wait_seconds=number(options, "consumerWaitSeconds", LOCK_SECONDS, 3_600, 0),
            fail_on_missing=fail_on_missing(options, paths, False),
            open_max=number(options, "maxOpenQueues", OPEN, 10_000),
            body=options.get("bodyColumn") or BODY,
        )


def require_one_server(options: Mapping[str, str], paths: Paths) -> None:
    """Raise for a block server with several queues, because it serves one.

    Raises:
        InvalidArgument: the option server is set for several queues.
    """
    if options.get("server"):
        paths.one  # noqa: B018 - raises


def fail_on_missing(options: Mapping[str, str], paths: Paths, default: bool) -> bool:
    """Return the option failOnMissing. A read of one queue always fails without the queue.

    Raises:
        InvalidArgument: it is neither true nor false, or is set for one queue.
    """
    if not paths.many and "failOnMissing" in options:
        raise InvalidArgument("the option failOnMissing is given for one queue", hint=hints.ONE_QUEUE_OPTION)
    return truth(options, "failOnMissing", default) if paths.many else True


def read_columns(options: Mapping[str, str]) -> StructType:
    """Return the columns of a read with these options, after all checks that are possible before Spark plans the read.

    Raises:
        InvalidArgument: an option is invalid; nothing was changed.
        QueueNotFound, StoreError: there is no queue at a path, or it can't be read.
    """
    found = columns(options)
    of = (StreamOptions if is_stream(options) else BatchOptions).of(options, found)
    there = list(of.paths.found()) if of.paths.many else [of.paths.one]
    if of.paths.many and not there:
        raise QueueNotFound(f"there is no queue at {' or '.join(of.paths.listed[:5])}", hint=hints.NO_MATCH)
    if of.fail_on_missing:
        for path in (*of.paths.missing(), *there):
            if Storage.facts(Path(path), read_only=True) is None:
                raise QueueNotFound(f"there is no queue at {path}", hint=hints.MAKE_QUEUE_IN_DRIVER)
    return found
