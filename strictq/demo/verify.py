"""The demo's verdict: compares the consumers' records with the events. It does not use the queue's own statistics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import strictq
from strictq.demo.consumer import digest
from strictq.demo.events import DemoEvent

WINDOW_ROWS: Final = 10_000
EXAMPLES_MAX: Final = 5
KINDS: Final = (
    "lost",  # sent, never processed
    "doubled",  # processed again after it was processed
    "reordered",  # processed after a later event of its key
    "altered",  # processed with another body than was sent
    "unexpected",  # processed under a key that has no such event
    "broken_links",  # the consumer saw that it did not follow the event before it
)
"""The kinds of errors."""

LAST_ID: Final = "SELECT max(id) FROM app_demo"
ROWS: Final = "SELECT key, line, digest, linked FROM app_demo WHERE id > ? AND id <= ? ORDER BY id"


class Row(NamedTuple):
    """One event as a consumer recorded it, in the transaction that resolved its message."""

    key: str
    line: int
    digest: int
    linked: bool


def processed(q: strictq.Queue) -> int:
    """Return the number of events recorded so far. It is cheap enough for polling."""
    return sum(last or 0 for (last,) in q.query(LAST_ID))


def recorded(q: strictq.Queue) -> Iterator[Row]:
    """Yield every record of the consumers, in the order of processing within each key."""
    end = max((last or 0 for (last,) in q.query(LAST_ID)), default=0)
    for start in range(0, end, WINDOW_ROWS):
        yield from (Row(*values) for values in q.query(ROWS, (start, start + WINDOW_ROWS)))


def verify(events: Sequence[DemoEvent], rows: Iterable[Row]) -> dict[str, Any]:
    """Compare the events with the records, key by key.

    Args:
        rows: the records, as `recorded` yields them.
    Returns:
        The verdict as JSON values: the number of events for each of KINDS; docs/reference/cli.md has the other fields.
    """
    sent: dict[str, dict[int, int]] = defaultdict(dict)
    for event in events:
        sent[event.key][event.line] = digest(event.body)
    seen: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        seen[row.key].append(row)
    wrong = {key: list(_wrong(sent.get(key, {}), seen.get(key, []))) for key in sent | seen}
    found = [(kind, line, key) for key, of_key in wrong.items() for kind, line in of_key]
    counts = Counter(kind for kind, _, _ in found)
    return {
        "ok": not found,
        "processed": sum(map(len, seen.values())),
        **{kind: counts[kind] for kind in KINDS},
        "problems": [f"{kind.replace('_', ' ')}: line {line} of key {key}" for kind, line, key in found[:EXAMPLES_MAX]],
    }


def _wrong(sent: dict[int, int], seen: list[Row]) -> Iterator[tuple[str, int]]:
    """Yield the errors of one key: kind and line number."""
    met: set[int] = set()
    latest = 0
    for row in seen:
        if not row.linked:
            yield "broken_links", row.line
        if row.line not in sent:
            yield "unexpected", row.line
            continue
        if row.line in met:
            yield "doubled", row.line
        elif row.line < latest:
            yield "reordered", row.line
        if row.digest != sent[row.line]:
            yield "altered", row.line
        met.add(row.line)
        latest = max(latest, row.line)
    yield from (("lost", line) for line in sent if line not in met)
