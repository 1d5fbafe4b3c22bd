"""The demo's verdict: what the consumers recorded, compared with the events. It trusts no bookkeeping of the queue."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

import strictq
from strictq.demo.consumer import digest
from strictq.demo.events import Source

WINDOW_ROWS: Final = 10_000
EXAMPLES_MAX: Final = 5
LONGEST_KEYS: Final = 5

LAST_ID: Final = "SELECT max(id) FROM app_demo"
ROWS: Final = "SELECT key, line, digest, linked, consumer, attempt FROM app_demo WHERE id > ? AND id <= ? ORDER BY id"


@attrs.frozen
class Row:
    """One event as a consumer recorded it, in the transaction that resolved its message."""

    key: str
    line: int
    digest: int
    linked: bool
    consumer: str
    attempt: int


@attrs.frozen
class KeyReport:
    """One of the longest keys."""

    key: str
    events: int
    ok: bool


@attrs.frozen(kw_only=True)
class Verdict:
    """How what was processed differs from what was sent, counted in events.

    Attributes:
        lost: sent, never processed.
        doubled: processed again after they were processed.
        reordered: processed after a later event of their key.
        altered: processed with another body than was sent.
        unexpected: processed under a key that has no such event.
        unlinked: the consumer saw that it did not follow the event before it.
        per_consumer: how many each one processed, and how many of those were not a first attempt.
        examples: some of the problems, for a person.
    """

    events: int
    keys: int
    processed: int
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    altered: int = 0
    unexpected: int = 0
    unlinked: int = 0
    per_consumer: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    longest: tuple[KeyReport, ...] = ()
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing was lost, doubled, reordered or changed."""
        wrong = self.lost + self.doubled + self.reordered + self.altered + self.unexpected + self.unlinked
        return not wrong and self.processed == self.events


class _Trail:
    """The events of one key in order: line numbers and digests, 16 bytes an event."""

    __slots__ = ("digests", "lines")

    def __init__(self) -> None:
        self.lines = array("q")
        self.digests = array("q")

    def add(self, line: int, body_digest: int) -> None:
        self.lines.append(line)
        self.digests.append(body_digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Trail) and self.lines == other.lines and self.digests == other.digests

    __hash__ = None  # type: ignore[assignment]


def processed(q: strictq.Queue) -> int:
    """How many events were recorded so far; cheap enough to be asked all the time."""
    return sum(last or 0 for (last,) in q.query(LAST_ID))


def recorded(q: strictq.Queue) -> Iterator[Row]:
    """Everything the consumers recorded; in the order of processing within each key."""
    end = max((last or 0 for (last,) in q.query(LAST_ID)), default=0)
    for start in range(0, end, WINDOW_ROWS):
        for key, line, body_digest, linked, consumer, attempt in q.query(ROWS, (start, start + WINDOW_ROWS)):
            yield Row(key, line, body_digest, bool(linked), consumer, attempt)


def verify(source: Source, rows: Iterable[Row]) -> Verdict:
    """Compare, key by key, the events with what was recorded.

    Args:
        source: the events, read again from where they came.
        rows: what was recorded, as `recorded` gives it.
    """
    sent: dict[str, _Trail] = {}
    for event in source:
        sent.setdefault(json.dumps(event.key), _Trail()).add(event.line, digest(event.body))
    seen: dict[str, _Trail] = {}
    counts: Counter[str] = Counter()
    retries: Counter[str] = Counter()
    found = _Findings()
    for row in rows:
        seen.setdefault(row.key, _Trail()).add(row.line, row.digest)
        counts[row.consumer] += 1
        retries[row.consumer] += row.attempt > 1
        if not row.linked:
            found.note("unlinked", row.key, row.line)
    bad = {key for key in sent.keys() | seen.keys() if not _compare(key, sent.get(key), seen.get(key), found)}
    longest = sorted(sent, key=lambda key: (-len(sent[key].lines), key))[:LONGEST_KEYS]
    return Verdict(
        events=source.count,
        keys=source.keys,
        processed=counts.total(),
        per_consumer={name: (counts[name], retries[name]) for name in sorted(counts)},
        longest=tuple(KeyReport(str(json.loads(key)), len(sent[key].lines), key not in bad) for key in longest),
        examples=tuple(found.examples),
        **found.counts,
    )


class _Findings:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []

    def note(self, kind: str, key: str, line: int) -> None:
        self.counts[kind] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{kind}: line {line} of key {key}")


def _compare(key: str, sent: _Trail | None, seen: _Trail | None, found: _Findings) -> bool:
    if sent == seen:
        return True
    expected = dict(zip(sent.lines, sent.digests, strict=True)) if sent else {}
    met: set[int] = set()
    latest = 0
    for line, body_digest in zip(seen.lines, seen.digests, strict=True) if seen else ():
        if line not in expected:
            found.note("unexpected", key, line)
            continue
        if line in met:
            found.note("doubled", key, line)
        elif line < latest:
            found.note("reordered", key, line)
        if body_digest != expected[line]:
            found.note("altered", key, line)
        met.add(line)
        latest = max(latest, line)
    for line in expected:
        if line not in met:
            found.note("lost", key, line)
    return False
