"""What to do about an error, said for somebody at a command line, where the library's hints speak of calls."""

from __future__ import annotations

from typing import Final

from strictq._errors import (
    ForkedProcess,
    ForwardPending,
    HandoutGone,
    LeaseLost,
    MessageTooLarge,
    OutcomeUnknown,
    PartialFailure,
    QueueClosed,
    QueueFull,
    QueueNotFound,
    ReadOnlyQueue,
    ServerRefused,
    ServerUnreachable,
    StoreCorrupt,
    StrictqError,
)

BY_CLASS: Final[dict[type[StrictqError], str]] = {
    QueueNotFound: "check the path, or make the queue: strictq create QUEUE",
    MessageTooLarge: "raise the limit: strictq config QUEUE max_body_bytes=BYTES; or send a reference to the data",
    QueueFull: "wait for consumers to catch up, or raise the limit: strictq config QUEUE max_depth=MESSAGES",
    StoreCorrupt: "restore the file from a backup, or save what can be saved: strictq check QUEUE --salvage OUT",
    OutcomeUnknown: "it happened, or it did not: look with strictq stats, and repeat the command if need be",
    PartialFailure: "what succeeded stays done: put right what is wrong, and repeat the command",
    LeaseLost: "somebody else has the message now, and will do it",
    # These say that the command itself did something wrong: whoever gave it can do nothing.
    QueueClosed: "",
    ReadOnlyQueue: "",
    ForkedProcess: "",
    ForwardPending: "",
    HandoutGone: "",
    ServerRefused: "",
    ServerUnreachable: "",
}
"""Instead of the hint that a class has."""

_KEY: Final = "give --key KEY or --key-field FIELD, or: strictq config QUEUE keyless=random"
_LOOKS: Final = "this command writes to the queue's files; strictq stats, explain and peek only look"
BY_HINT: Final[dict[str, str]] = {
    "or configure the queue with keyless='random'": _KEY,
    "or let it have none: q.configure(keyless='random')": _KEY,
    "to look only, use read_only=True": _LOOKS,
    "open the queue with read_only=True": _LOOKS,
    "open it once without read_only to migrate it": "strictq check QUEUE --fix brings its files to this version's format",
    "leave shards out to open it as it is": "leave --shards out: it stays as it is",
    "leave durability out to open it as it is": "leave --durability out: it stays as it is",
    "leave config out to open it as it is, and change it with q.configure()": (
        "it stays as it is; to change a setting: strictq config QUEUE NAME=VALUE"
    ),
    "stop it first, or give force=True to fence it": (
        "stop its query; or give --force, too: it is fenced, and fails at its next write"
    ),
}
"""Instead of a hint that an error has of its own."""


def why(text: str, by: str | None) -> str:
    """The sentence of `q.explain`, with commands in it where it has calls."""
    return text.replace("q.release(key)", "strictq release").replace(
        f"q.release_consumer({by!r})", f"strictq release --consumer {by}"
    )


def quarantined(text: str) -> str:
    """Why a shard can't be read, as `q.stats` has it, hint included."""
    return text.replace(StoreCorrupt.hint, BY_CLASS[StoreCorrupt])


def hint_of(error: StrictqError) -> str:
    """What to do about it, in the words of the command line; "" where there is nothing to do."""
    if error.hint == type(error).hint:
        return BY_CLASS.get(type(error), error.hint)
    return BY_HINT.get(error.hint, error.hint)
