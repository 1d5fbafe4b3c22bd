"""Assertions on sent, settled and dead messages, with readable failure messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final

from .._values.errors import InvalidArgument
from .._values.findings import DeadLetter, PeekedMessage
from .._values.keys import Key
from ..queue import Queue
from .machine import plain

LOOKED_AT_MAX: Final = 100_000
SHOWN_CHARACTERS: Final = 60
ROWS_SHOWN_MAX: Final = 30


def assert_sent(queue: Any, key: Key, bodies: Iterable[Any]) -> list[PeekedMessage]:
    """Assert that the key's unresolved messages are exactly these, in this order, including messages in flight.

    Args:
        queue: a Queue or AsyncQueue.
        key: the key.
        bodies: bytes, or values to compare with the body as JSON. Empty: the key has no unresolved message.
    Returns:
        The messages, for further assertions: headers, due_at, expires_at …
    """
    __tracebackhide__ = True
    q = plain(queue)
    found = q.peek(key, LOOKED_AT_MAX)
    wanted = _bodies(bodies)
    if len(found) == len(wanted) and all(map(_same, wanted, found)):
        return found
    rows = []
    for w, m in zip_longest(wanted, found, fillvalue=_NONE):
        rows.append(
            (
                "" if m is _NONE else str(m.seq),
                "" if m is _NONE else m.state,
                "nothing" if w is _NONE else _show(w),
                "nothing" if m is _NONE else _show(_as(w, m.body)),
                "" if m is not _NONE and w is not _NONE and _same(w, m) else "<--",
            )
        )
    others = sum(bool(row[-1]) for row in rows) if len(wanted) == len(found) else 0
    raise AssertionError(
        f"key {key!r}: expected {_count(wanted)} in its lane, found {_count(found)}"
        + (f", {others} with another body\n" if others else "\n")
        + _table(("seq", "state", "expected", "found", ""), rows)
        + _elsewhere(q, key)
    )


def assert_dead(
    queue: Any, key: Key, bodies: Iterable[Any], *, kind: str | None = None, reason: str | None = None
) -> list[DeadLetter]:
    """Assert that the key's dead letters are exactly these, in the order of their seqs.

    Args:
        bodies: as for assert_sent. Empty: the key has no dead letter.
        kind: the kind of all of them: "rejected", "poison" or "expired".
        reason: a text that the reason of each contains.
    Returns:
        The dead letters, for further assertions.
    """
    __tracebackhide__ = True
    q = plain(queue)
    if kind not in (None, "rejected", "poison", "expired"):
        raise InvalidArgument(f"kind must be 'rejected', 'poison' or 'expired', not {kind!r}")
    found = q.dead_letters(key, LOOKED_AT_MAX)
    wanted = _bodies(bodies)

    def fits(w: Any, d: DeadLetter) -> bool:
        return _same(w, d) and kind in (None, d.kind) and (reason is None or reason in (d.reason or ""))

    if len(found) == len(wanted) and all(map(fits, wanted, found)):
        return found
    rows = []
    for w, d in zip_longest(wanted, found, fillvalue=_NONE):
        rows.append(
            (
                "" if d is _NONE else str(d.seq),
                "nothing" if w is _NONE else _show(w),
                "nothing" if d is _NONE else _show(_as(w, d.body)),
                "" if d is _NONE else d.kind,
                "" if d is _NONE else _cut(d.reason or ""),
                "" if d is not _NONE and w is not _NONE and fits(w, d) else "<--",
            )
        )
    also = "".join(f", {what} {value!r}" for what, value in (("kind", kind), ("reason", reason)) if value is not None)
    raise AssertionError(
        f"key {key!r}: expected {_count(wanted, 'dead letter')}{also}; found {_count(found, 'dead letter')}\n"
        + _table(("seq", "expected", "found", "kind", "reason", ""), rows)
        + _lane(q, key)
    )


def assert_settled(queue: Any, key: Key | None = None, seqs: Iterable[int] | None = None) -> None:
    """Assert that every message is resolved: none is waiting, in flight, or dead.

    Args:
        key: the key; None: the whole queue.
        seqs: only these messages of the key.
    """
    __tracebackhide__ = True
    q = plain(queue)
    if key is None:
        if seqs is not None:
            raise InvalidArgument("seqs are positions in a key: pass the key as well")
        _assert_all_settled(q)
        return
    if seqs is not None:
        states = [q.status(key, seq) for seq in seqs]
        left = [s for s in states if s.state != "resolved"]
        if left:
            rows = [(str(s.seq), s.state, str(s.attempts), s.consumer or "", _cut(s.last_error or "")) for s in left]
            raise AssertionError(
                f"key {key!r}: {len(left)} of {len(states)} messages are not resolved\n"
                + _table(("seq", "state", "attempts", "consumer", "last error"), rows)
            )
        return
    why = q.explain(key)
    if why.depth or why.dead:
        raise AssertionError(
            f"key {key!r} is not settled: {why.depth} unresolved, {why.dead} dead\n" + _lane(q, key) + _dead(q, key)
        )


def _assert_all_settled(q: Queue) -> None:
    __tracebackhide__ = True
    s = q.stats()
    if not (s.depth or s.dead or s.outbox):
        return
    text = (
        f"the queue is not settled: {s.ready} ready, {s.in_flight} in flight, {s.delayed} delayed, {s.held} held, {s.dead} dead"
        f"{f', {s.outbox} on their way to another shard' if s.outbox else ''}\n"
    )
    for k in q.top_keys(10):
        text += _lane(q, k.key) if k.key is not None else f"  {k.depth} without a key: {k.state}\n"
    raise AssertionError(text + _dead(q, None))


# ---- failure messages

_NONE: Final[Any] = object()


def _bodies(bodies: Iterable[Any]) -> list[Any]:
    if isinstance(bodies, str | bytes | dict) or not isinstance(bodies, Iterable):
        raise InvalidArgument(f"bodies must be a list of bodies, not {type(bodies).__name__}")
    return list(bodies)


def _as(wanted: Any, body: bytes) -> Any:
    """Return the body in the form to compare: decoded if JSON was expected and the body is JSON."""
    if wanted is _NONE or isinstance(wanted, bytes):
        return body
    try:
        return json.loads(body)
    except ValueError:
        return body


def _same(wanted: Any, message: PeekedMessage | DeadLetter) -> bool:
    return bool(_as(wanted, message.body) == wanted)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _show(value: Any) -> str:
    return _cut(repr(value))


def _count(things: Sequence[Any], word: str = "message") -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}" if things else f"no {word}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = [head, *rows[:ROWS_SHOWN_MAX]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    text = "".join(f"  {'  '.join(map(str.ljust, row, widths))}".rstrip() + "\n" for row in shown)
    return text + (f"  … and {len(rows) - ROWS_SHOWN_MAX:,} more\n" if len(rows) > ROWS_SHOWN_MAX else "")


def _lane(q: Queue, key: Key) -> str:
    why = q.explain(key)
    return f"  key {key!r}: {why.text}" + (f" ({why.depth} unresolved)" if why.depth else "") + "\n"


def _dead(q: Queue, key: Key | None) -> str:
    dead = q.dead_letters(key, 10)
    return "".join(f"  dead: key {d.key!r}, seq {d.seq}, {d.kind}: {_cut(d.reason or '')}\n" for d in dead)


def _elsewhere(q: Queue, key: Key) -> str:
    """Return where a missing message may be."""
    text = _lane(q, key) + _dead(q, key)
    others = [repr(k.key) for k in q.top_keys(6) if k.key != key and k.key is not None]
    return text + (f"  other keys with messages: {', '.join(others[:5])}\n" if others else "")
