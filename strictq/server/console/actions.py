"""What the console may change in a queue, if actions are allowed. Each returns what it changed, as a sentence."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import attrs

from ..._platform.log import Log
from ..._values.errors import InvalidArgument
from ..._values.findings import Moved
from ..._values.keys import decode_key
from ..._values.tenants import TenantLimit
from ..._values.types import UNSET
from ...opening import open as open_queue
from ...queue import Queue
from .views import DEAD_MAX, key_of, number_of, pattern_of

BEGIN_SECONDS: Final = 1.0
"""How long the page waits for the end of a move."""
log: Final = Log("strictq.console")
SEQS_AT_ONCE: Final = 500
"""Dead letters of a key that one transaction returns."""

Given = Mapping[str, Any]
Action = Callable[[Queue, Given], str]


def _text(given: Given, name: str, default: str | None = None) -> str:
    text = given.get(name, default)
    if not isinstance(text, str):
        raise InvalidArgument(f"{name} must be a text")
    return text


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _hold(q: Queue, given: Given) -> str:
    q.hold(key_of(given), _text(given, "reason", "") or None)
    return "The key is held. It is not delivered until it is released."


def _release(q: Queue, given: Given) -> str:
    return "The key is released." if q.release(key_of(given)) else "The key was not held. Nothing was changed."


def _redrive(q: Queue, given: Given) -> str:
    """Redrive one dead letter, those of a key, those of one reason, or all."""
    if "key" in given:
        seqs = [number_of(given, "seq")] if given.get("seq") is not None else None
        return _returned(q.redrive(key_of(given), seqs))
    expected = number_of(given, "expect")
    if given.get("all") is True:
        there = len(q._storage.reports.dead_reasons(DEAD_MAX))
        _require_as_shown(there, expected)
        return _returned(q.redrive())
    kind, pattern = _text(given, "kind"), _text(given, "pattern")
    matching = [one for one in q._storage.reports.dead_reasons(DEAD_MAX) if (one.kind, pattern_of(one.reason)) == (kind, pattern)]
    _require_as_shown(len(matching), expected)
    seqs_of: dict[bytes, list[int]] = defaultdict(list)
    for one in matching:
        seqs_of[one.key].append(one.seq)
    returned = kept = 0
    for raw, all_seqs in seqs_of.items():
        key = decode_key(raw)
        if key is None:
            kept += len(all_seqs)
            continue
        for at in range(0, len(all_seqs), SEQS_AT_ONCE):
            returned += q.redrive(key, all_seqs[at : at + SEQS_AT_ONCE])
    rest = f" {_many(kept, 'keyless message')} can only be redriven together with all others." if kept else ""
    return _returned(returned) + rest


def _require_as_shown(there: int, expected: int) -> None:
    if there != expected:
        raise InvalidArgument(f"{there:,} dead letters match now, not {expected:,}; nothing was changed")


def _returned(n: int) -> str:
    return f"{_many(n, 'dead letter')} returned to the front of {'its lane' if n == 1 else 'their lanes'}."


def _reject(q: Queue, given: Given) -> str:
    seq = number_of(given, "seq")
    force = given.get("force") is True
    if q.reject(key_of(given), seq, _text(given, "reason", "") or "rejected in the console", force=force):
        return f"Seq {seq:,} is a dead letter now."
    return f"Seq {seq:,} was resolved already. Nothing was changed."


def _purge(q: Queue, given: Given) -> str:
    """Purge a key; or the whole queue, if the page says so expressly."""
    dead = given.get("dead") is True
    if "key" not in given and given.get("all") is not True:
        raise InvalidArgument("a key is needed; nothing was changed")
    n = q.purge(key_of(given) if "key" in given else None, dead=dead)
    return f"{_many(n, 'message')} purged. Messages in flight stay with their consumers."


def _pause(q: Queue, given: Given) -> str:
    kind = given.get("type")
    what = "The queue" if kind is None else f"The type {kind!r}"
    return f"{what} is paused." if q.pause(kind) else f"{what} was paused already. Nothing was changed."


def _resume(q: Queue, given: Given) -> str:
    kind = given.get("type")
    what = "The queue" if kind is None else f"The type {kind!r}"
    return f"{what} is delivered again." if q.resume(kind) else f"{what} was not paused. Nothing was changed."


def _limit(q: Queue, given: Given) -> str:
    tenant = _text(given, "tenant")
    if given.get("remove") is True:
        q.limit(tenant, remove=True)
        return f"The limits of {tenant!r} are removed."
    names = [field.name for field in attrs.fields(TenantLimit) if field.name != "tenant"]
    changes = {name: given.get(name, UNSET) for name in names}
    if all(value is UNSET for value in changes.values()):
        raise InvalidArgument("no limit was given; nothing was changed")
    found = q.limit(tenant, **changes)
    assert found is not None
    shown = ", ".join(f"{name.replace('_', ' ')} {getattr(found, name)}" for name in names if getattr(found, name) is not None)
    return f"The limits of {tenant!r} are now: {shown}."


def _split(q: Queue, given: Given) -> str:
    shard, parts = number_of(given, "shard"), number_of(given, "parts", 2)
    return _move(q, lambda own: own.split(shard, parts=parts))


def _isolate(q: Queue, given: Given) -> str:
    key = key_of(given)
    return _move(q, lambda own: own.isolate(key))


def _move(q: Queue, begin: Callable[[Queue], Moved]) -> str:
    """Begin a move. Return when it has ended, or after BEGIN_SECONDS. It goes on without the page.

    If the server ends, the next process that has the queue open finishes the move.
    """
    done: Future[Moved] = Future()

    def work() -> None:
        try:
            if q.path == ":memory:":
                done.set_result(begin(q))
                return
            with open_queue(q.path, create=False) as own:
                done.set_result(begin(own))
        except Exception as e:
            done.set_exception(e)

    threading.Thread(target=work, name="strictq-console-move", daemon=True).start()
    try:
        moved = done.result(BEGIN_SECONDS)
    except TimeoutError:
        done.add_done_callback(partial(_report, q.path))
        return "The move has begun."
    return f"{_many(moved.messages, 'message')} of {_many(moved.lanes, 'key')} moved."


def _report(path: str, done: Future[Moved]) -> None:
    """Log a move that failed when no request waited for it."""
    if (error := done.exception()) is not None:
        log.warning("a move in %s ended: %s", path, error)


def _cancel_move(q: Queue, _given: Given) -> str:
    return "The move is cancelled." if q.cancel_move() else "No range is moving. Nothing was changed."


ACTIONS: Final[dict[str, Action]] = {
    "hold": _hold, "release": _release, "redrive": _redrive, "reject": _reject, "purge": _purge, "pause": _pause,
    "resume": _resume, "limit": _limit, "split": _split, "isolate": _isolate, "cancel_move": _cancel_move,
}  # fmt: skip
