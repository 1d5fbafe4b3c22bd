"""The patterns: what each does, how often, and which of the others can do it, too."""

from __future__ import annotations

from typing import Any, Final

import attrs

from benchmarks.peers import PEERS
from benchmarks.peers.bare import BARE

EVERYBODY: Final = (BARE, *PEERS)
TOGETHER: Final = tuple(PEERS)
"""Who can consume in other processes than the sender. Bare SQLite is one process."""


@attrs.frozen(kw_only=True)
class Pattern:
    """One line of the table.

    Attributes:
        program, options: what `programs` runs; `number` is how many messages or calls it measures in the full form.
        others, their_program, their_options: the sides that `others` runs, and how.
        keyed: whether the number of keys is the point of the pattern, so that it is not reduced with the number.
    """

    name: str
    what: str
    number: int
    program: str
    options: dict[str, Any] = attrs.field(factory=dict)
    others: tuple[str, ...] = ()
    their_program: str = "life"
    their_options: dict[str, Any] = attrs.field(factory=dict)


def _life(
    name: str, what: str, number: int, batch: int, *others: str, their: dict[str, Any] | None = None, **options: Any
) -> Pattern:
    return Pattern(
        name=name, what=what, number=number, program="life", options={"batch": batch, **options}, others=others,
        their_options={"batch": batch, **(their or {})},
    )  # fmt: skip


def _consume(
    name: str, what: str, number: int, consumers: int, style: str, batch: int, live: int = 0, *, plain: bool = True
) -> Pattern:
    others = TOGETHER if plain else ()
    return Pattern(
        name=name, what=what, number=number, program="consume", options={"consumers": consumers, "style": style, "live": live},
        others=others, their_program="consume", their_options={"consumers": consumers, "batch": batch, "live": live},
    )  # fmt: skip


def _look(name: str, what: str, call: str, number: int = 60) -> Pattern:
    return Pattern(name=name, what=what, number=number, program="look", options={"what": call, "pending": 12_000})


_ALL: Final = (
    _life("one", "send, receive, ack one at a time", 8000, 1, *EVERYBODY),
    _life("batch-10", "the same in batches of 10", 20_000, 10, *EVERYBODY),
    _life("batch-100", "in batches of 100", 50_000, 100, *EVERYBODY),
    _life("batch-1000", "in batches of 1,000", 100_000, 1000, *EVERYBODY),
    _life("batch-10000", "in batches of 10,000", 200_000, 10_000, BARE),
    _life("keys-100000", "in batches of 1,000, 100,000 keys", 100_000, 1000, BARE, keys=100_000),
    _life("full-one", "one at a time, durability `full`", 2000, 1, *EVERYBODY, durability="full", their={"durability": "full"}),
    _life(
        "full-100",
        "in batches of 100, durability `full`",
        20_000,
        100,
        *EVERYBODY,
        durability="full",
        their={"durability": "full"},
    ),
    _life("body-1k", "in batches of 100, bodies of 1 KiB", 20_000, 100, *EVERYBODY, body_bytes=1024, their={"body_bytes": 1024}),
    _life("body-4k", "in batches of 100, bodies of 4 KiB", 10_000, 100, *EVERYBODY, body_bytes=4096, their={"body_bytes": 4096}),
    _life("behind", "in batches of 1,000 behind a backlog of 200,000", 50_000, 1000, behind=200_000),
    Pattern(name="fill", what="send a backlog in batches of 1,000", number=200_000, program="fill"),
    Pattern(name="send", what="send one message", number=5000, program="sends"),
    Pattern(name="send-dedup", what="send one with a dedup id", number=3000, program="sends", options={"option": "dedup_id"}),
    Pattern(name="send-delay", what="send one with a delay", number=3000, program="sends", options={"option": "delay"}),
    Pattern(name="send-headers", what="send one with headers", number=5000, program="sends", options={"option": "headers"}),
    _life("nack-each", "one at a time, each nacked once", 1500, 1, nack_every=1),
    _life("nack-100", "in batches of 100, one of them nacked once", 20_000, 100, nack_every=100),
    _life("observed-one", "one at a time, an observer attached", 8000, 1, observed=True),
    _life("observed-1000", "in batches of 1,000, an observer attached", 100_000, 1000, observed=True),
    Pattern(name="shards-1", what="receive, ack one at a time, 1 shard", number=5000, program="settle"),
    Pattern(name="shards-4", what="the same, 4 shards", number=5000, program="settle", options={"shards": 4}),
    Pattern(name="shards-16", what="the same, 16 shards", number=5000, program="settle", options={"shards": 16}),
    _consume("consume-1", "`consume()`, 1 process", 20_000, 1, "consume", 1),
    _consume("consume-3", "`consume()`, 3 processes", 20_000, 3, "consume", 1),
    _consume("batches-1", "receive, `ack_many` by 100, 1 process", 50_000, 1, "batch", 100),
    _consume("batches-3", "receive, `ack_many` by 100, 3 processes", 50_000, 3, "batch", 100),
    _consume("live-one", "1 producer, 3 consumers, one at a time", 6000, 3, "one", 1, 1),
    _consume("live-100", "1 producer, 3 consumers, batches of 100", 30_000, 3, "batch", 100, 100),
    _consume("transaction-1", "transaction that writes the key's state, 1 process", 5000, 1, "transaction", 1, plain=False),
    _consume("transaction-3", "the same, 3 processes", 5000, 3, "transaction", 1, plain=False),
    _consume("state-1", "transaction after reading the key's state, 1 process", 2000, 1, "state", 1, plain=False),
    _consume("state-3", "the same, 3 processes", 1000, 3, "state", 1, plain=False),
    Pattern(name="worker", what="worker, empty handlers", number=20_000, program="worker"),
    Pattern(
        name="worker-prepare",
        what="worker, empty handlers and prepare",
        number=20_000,
        program="worker",
        options={"kind": "prepare"},
    ),
    Pattern(
        name="worker-process",
        what="worker, handlers in 2 processes",
        number=20_000,
        program="worker",
        options={"kind": "process"},
    ),
    _look("look-key-state", "`d.key_state`", "key_state"),
    _look("look-peek", "`peek(key)`", "peek"),
    _look("look-explain", "`explain(key)`", "explain"),
    _look("look-status", "`status(key, seq)`", "status"),
    _look("look-lost", "an ack that raises LeaseLost", "lease_lost"),
    _look("look-top-keys", "`top_keys()`", "top_keys", 20),
    _look("look-stats", "`stats()`", "stats"),
)

PATTERNS: Final[dict[str, Pattern]] = {p.name: p for p in _ALL}


@attrs.frozen
class Bound:
    """A bound that this version must keep: `pattern`, divided by `base` if there is one, is at most `most`."""

    pattern: str
    most: float
    base: str = ""

    def said(self) -> str:
        what = f"{self.pattern} / {self.base}" if self.base else self.pattern
        return f"{what} at most {self.most:g}{'' if self.base else ' µs'}"


BOUNDS: Final = (
    Bound("consume-3", 3.0, "consume-1"),
    *(Bound(f"look-{name}", 200.0) for name in ("key-state", "peek", "explain", "status", "lost")),
)
