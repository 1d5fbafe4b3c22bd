"""The options of the sources, checked. Imported late, with pyspark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import attrs
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from .. import _hints as hints
from .. import _validate as validate
from .._errors import InvalidArgument, QueueNotFound
from .._handouts import HANDOUT_BYTES, HANDOUT_MESSAGES_MAX, KEEP, LOCK_SECONDS
from .._keys import encode_key
from .._store.api import Storage
from ._option_names import is_stream, require_known
from ._table_columns import KEY_TYPES, KeyType, key_type, read_schema

MESSAGES: Final = 100_000
PARTITION_MESSAGES: Final = 50_000
TABLE_PARTITION_MESSAGES: Final = 500_000
"""Of a task that reads a table: it keeps none of them, and starting a task takes Spark as long as many thousand messages."""
KEYS_MAX: Final = 10_000
MEMORY: Final = ":memory:"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
STATES: Final = ("pending", "dead", "history")


def number(options: Mapping[str, str], name: str, default: int, maximum: int, minimum: int = 1) -> int:
    """An option that is a whole number.

    Raises:
        InvalidArgument: it is not, or is out of range.
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


def keys_of(options: Mapping[str, str], schema: StructType) -> tuple[bytes, ...] | None:
    """The option keys, as stored keys; None: it is not given.

    Raises:
        InvalidArgument: it is no list of keys, or does not go with another option.
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
    """An option that is true or false.

    Raises:
        InvalidArgument: it is neither.
    """
    text = options.get(name, "true" if default else "false").lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"the option {name} must be true or false, not {text!r}")
    return text == "true"


def path_of(options: Mapping[str, str]) -> str:
    """The queue's directory, absolute.

    Raises:
        InvalidArgument: there is no option path, or it names no directory of this host.
    """
    if "paths" in options:
        raise InvalidArgument("a read has one queue", hint=hints.ONE_PATH)
    text = options.get("path")
    if not text or "\0" in text:
        raise InvalidArgument("the option path is missing", hint=hints.OPTION_PATH)
    if text == MEMORY:
        raise InvalidArgument("Spark can't read a queue in memory", hint=hints.ON_DISK)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return os.path.abspath(text)
    uri = urlsplit(text)
    if scheme[1].lower() != "file" or uri.netloc not in ("", "localhost"):
        where = f"{scheme[1]}:" if scheme[1].lower() != "file" else f"the host {uri.netloc}"
        raise InvalidArgument(f"a queue is on a local disk, not at {where}", hint=hints.LOCAL_PATH)
    return os.path.abspath(unquote(uri.path))


def key_type_of(options: Mapping[str, str], schema: StructType) -> KeyType:
    """The option keyType. Where it is not given: what the schema that the program gave calls the keys; string if it does not.

    Raises:
        InvalidArgument: the option names none.
    """
    text = options.get("keyType")
    if not text and "key" in schema.names:
        for name, known in KEY_TYPES.items():
            if known.column == schema["key"].dataType:
                return name
    return key_type(text)


def require_columns(options: Mapping[str, str], schema: StructType) -> None:
    """Refuse a schema that the program gave unless it is some columns of what is read with these options, as they are.

    Bodies may be read as text.

    Raises:
        InvalidArgument: it has other columns, or none.
    """
    offered = columns(options, key_type_of(options, schema))
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
        # By their names: whether values of a map may be NULL is of no account here.
        shown, asked = ours.dataType.simpleString(), field.dataType.simpleString()
        if shown != asked and not (field.name == "body" and field.dataType == StringType()):
            raise InvalidArgument(
                f"a queue has columns of its own: {field.name} is {shown.upper()}, not {asked.upper()}", hint=hints.CAST_COLUMN
            )
        if ours.nullable and not field.nullable:
            raise InvalidArgument(f"the column {field.name} may be NULL", hint=hints.DECLARE_NULLABLE)


def state_of(options: Mapping[str, str]) -> str:
    """The option state.

    Raises:
        InvalidArgument: it is none of STATES, or does not go with the option keyType.
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
    """What reading with these options gives: all columns that there are.

    Args:
        keys: instead of the option keyType.

    Raises:
        InvalidArgument: an option names something that there is not.
    """
    state = state_of(options)
    if state == "history":
        from ..history._records import SCHEMA  # needs pyarrow

        return from_arrow_schema(SCHEMA)
    every = read_schema(keys or key_type(options.get("keyType")), dead=state == "dead")
    if truth(options, "includeHeaders", True):
        return every
    return StructType([field for field in every if field.name != "headers"])


@attrs.frozen
class BatchOptions:
    """What a batch reader was given.

    Attributes:
        keys: stored keys whose messages are read; None: all.
    """

    path: str
    key_type: KeyType
    state: str
    partition_messages: int
    keys: tuple[bytes, ...] | None

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> BatchOptions:
        """Check everything that can be checked before the queue is opened.

        Raises:
            InvalidArgument: nothing changed.
        """
        require_known(options, "table")
        path = path_of(options)
        require_columns(options, schema)
        # Keys that are not wanted may be of any type.
        anyhow = "key" not in schema.names and not options.get("keyType")
        return cls(
            path=path,
            key_type="stored" if anyhow else key_type_of(options, schema),
            state=state_of(options),
            partition_messages=number(options, "messagesPerPartition", TABLE_PARTITION_MESSAGES, 1 << 40),
            keys=keys_of(options, schema),
        )


@attrs.frozen
class StreamOptions:
    """What a stream reader was given.

    Attributes:
        messages_max, bytes_max: of one batch.
        partition_messages: of one task, about.
        keep: acknowledged batches that can be repeated.
        wait_seconds: for a query of the same name that is being stopped.
    """

    path: str
    consumer: str
    key_type: KeyType
    messages_max: int
    bytes_max: int
    partition_messages: int
    keep: int
    wait_seconds: int

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> StreamOptions:
        """Check everything that can be checked before the queue is opened.

        Raises:
            InvalidArgument: nothing changed.
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
        path = path_of(options)
        require_columns(options, schema)
        return cls(
            path=path,
            consumer=validate.name("the option consumer", consumer),
            key_type=key_type_of(options, schema),
            messages_max=number(options, "maxMessagesPerTrigger", MESSAGES, HANDOUT_MESSAGES_MAX),
            bytes_max=number(options, "maxBytesPerTrigger", HANDOUT_BYTES, 1 << 40),
            partition_messages=number(options, "messagesPerPartition", PARTITION_MESSAGES, HANDOUT_MESSAGES_MAX),
            keep=number(options, "keepBatches", KEEP, 1_000_000),
            wait_seconds=number(options, "consumerWaitSeconds", LOCK_SECONDS, 3_600, 0),
        )


def read_columns(options: Mapping[str, str]) -> StructType:
    """What reading with these options gives, after checking everything that can be checked before Spark plans the read.

    Raises:
        InvalidArgument: an option is wrong; nothing changed.
        QueueNotFound, StoreError: there is no queue at the path, or it can't be read.
    """
    found = columns(options)
    of = (StreamOptions if is_stream(options) else BatchOptions).of(options, found)
    if Storage.facts(Path(of.path), read_only=True) is None:
        raise QueueNotFound(f"there is no queue at {of.path}", hint=hints.MAKE_QUEUE_IN_DRIVER)
    return found
