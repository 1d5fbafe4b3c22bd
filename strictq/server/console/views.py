"""What the console's pages show of a queue, as JSON values. Each view is one read; none of them changes anything."""

from __future__ import annotations

import base64
import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..._platform.files import content
from ..._values.errors import ConfigError, InvalidArgument, StrictqError, UnknownMessage
from ..._values.keys import Key, decode_key, encode_key
from ..._values.types import Receipt
from ..._values.views import key_fields, plain
from ...queue import Queue

LANES_MAX: Final = 100
LANES_BY_TIMER_MAX: Final = 10_000
"""With more lanes, a page reads the longest ones, and the leases, only when asked."""
MESSAGES_MAX: Final = 20
DEAD_MAX: Final = 100_000
"""Dead letters that are grouped by reason."""
DEAD_SHOWN: Final = 25
BODY_BYTES: Final = 2_000
"""Bytes of a body that a list shows."""
BODY_BYTES_MAX: Final = 2 << 20
HISTORY_SHOWN: Final = 50
HISTORY_READS: Final = 100
"""Steps of 1,000 records that are read for the history of a key."""
LEASES_MAX: Final = 200
SQS_BYTES_MAX: Final = 8 << 20
PATTERN_MAX: Final = 300
SAFE_INTEGER: Final = 2**53 - 1
_DIGITS: Final = re.compile(r"\d+(?:[.,]\d+)*")

Arguments = Mapping[str, str]
View = Callable[[Queue, Arguments], Any]


def key_of(arguments: Mapping[str, Any]) -> Key:
    """Return the key that a page names by key and key_type.

    Raises:
        InvalidArgument: it is not a key.
    """
    text, kind = arguments.get("key"), arguments.get("key_type", "str")
    if not isinstance(text, str):
        raise InvalidArgument("a key is needed")
    try:
        key: Key = int(text) if kind == "int" else base64.b64decode(text, validate=True) if kind == "bytes" else text
    except ValueError:
        raise InvalidArgument(f"this is not a key of type {kind}") from None
    encode_key(key)
    return key


def number_of(arguments: Mapping[str, Any], name: str, default: int | None = None, most: int = 2**62) -> int:
    """Return a whole number of 0 to `most`.

    Raises:
        InvalidArgument: it is missing, or not such a number.
    """
    given = arguments.get(name, default)
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= most:
        raise InvalidArgument(f"{name} must be a whole number")
    return given


def shown_body(body: bytes | None, bytes_max: int = BODY_BYTES) -> dict[str, Any]:
    """Return the first bytes of a body in base64, and its size."""
    if body is None:
        return {"data": None, "size": None}
    return {"data": base64.b64encode(body[:bytes_max]).decode(), "size": len(body)}


def with_body(report: Any) -> dict[str, Any]:
    """Return a message or a dead letter with the first bytes of its body."""
    found: dict[str, Any] = attrs.evolve(report, body=b"").to_dict()
    return found | {"body": shown_body(report.body)}


# ---- lanes


def lanes(q: Queue, arguments: Arguments) -> dict[str, Any]:
    """Return the longest or the oldest lanes, also of those whose keys begin with a text."""
    by = arguments.get("by", "depth")
    if by not in ("depth", "age"):
        raise InvalidArgument("by must be depth or age")
    prefix = arguments.get("prefix") or None
    limit = number_of(arguments, "limit", LANES_MAX, LANES_MAX)
    total = q.stats().lanes
    if arguments.get("timer") and total > LANES_BY_TIMER_MAX:
        return {"rows": None, "lanes": total}
    return {"rows": [row.to_dict() for row in q.top_keys(max(limit, 1), by, prefix=prefix)], "lanes": total}  # type: ignore[arg-type]


def find(q: Queue, arguments: Arguments) -> dict[str, Any]:
    """Return the keys that are written like the given text and have messages or dead letters: a str, an int, or both."""
    text = arguments.get("text", "")
    keys: list[Key] = [text] if text else []
    if re.fullmatch(r"-?[0-9]{1,300}", text):
        keys.append(int(text))
    found = []
    for key in keys:
        e = q.explain(key)
        if e.depth or e.dead or e.head_seq or e.state != "empty":
            found.append({**key_fields(key), "depth": e.depth, "dead": e.dead, "state": e.state})
    return {"found": found}


# ---- one key


def key(q: Queue, arguments: Arguments) -> dict[str, Any]:
    """Return why a key is or is not delivered, its next messages with their attempts, and its dead letters."""
    name = key_of(arguments)
    messages = []
    for message in q.peek(name, MESSAGES_MAX):
        status = None
        if message.attempts or message.state == "in_flight":
            try:
                status = q.status(name, message.seq).to_dict()
            except UnknownMessage:  # its lane was forgotten meanwhile
                continue
        messages.append(with_body(message) | {"status": status})
    return {
        "explain": q.explain(name).to_dict(),
        "messages": messages,
        "dead": [with_body(letter) for letter in q.dead_letters(name, DEAD_SHOWN)],
        "history": q.config.history != "off",
    }


def body(q: Queue, arguments: Arguments) -> dict[str, Any]:
    """Return a whole body, up to BODY_BYTES_MAX, of an unresolved message or a dead letter."""
    name, seq = key_of(arguments), number_of(arguments, "seq")
    if arguments.get("dead"):
        letter = q._storage.reports.dead_letter(encode_key(name), seq)
        if letter is not None:
            return shown_body(letter.body, BODY_BYTES_MAX)
    else:
        for message in q.peek(Receipt(name, max(seq, 1), 0)):
            return shown_body(message.body, BODY_BYTES_MAX)
    raise UnknownMessage(f"seq {seq} is not there any more")


def history(q: Queue, arguments: Arguments) -> dict[str, Any]:
    """Return the newest records of a key's finished messages, newest first. Reads the history of its shard."""
    name = key_of(arguments)
    newest: deque[Any] = deque(maxlen=HISTORY_SHOWN)
    shard, after = None, 0
    whole = False
    for _ in range(HISTORY_READS):
        records = q.history(key=name, shard=shard, after=after)
        if not records:
            whole = True
            break
        newest.extend(records)
        shard, after = records[-1].shard, records[-1].n
    rows = [attrs.evolve(one, body=None).to_dict() | {"body": shown_body(one.body)} for one in reversed(newest)]
    return {"records": rows, "whole": whole}


# ---- dead letters


def pattern_of(reason: str | None) -> str:
    """Return a reason with its numbers replaced, so that equal failures of different messages are equal."""
    return _DIGITS.sub("#", (reason or "")[:PATTERN_MAX])


def dead(q: Queue, arguments: Arguments) -> dict[str, Any]:
    """Return the dead letters grouped by reason, and some of one group, or of all."""
    found = q._storage.reports.dead_reasons(DEAD_MAX)
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    keys: dict[tuple[str, str], Counter[bytes]] = {}
    for one in found:
        name = one.kind, pattern_of(one.reason)
        group = groups.setdefault(
            name,
            {"kind": name[0], "pattern": name[1], "example": one.reason, "n": 0, "first": one.died_at, "last": one.died_at},
        )
        group["n"] += 1
        group["first"], group["last"] = min(group["first"], one.died_at), max(group["last"], one.died_at)
        keys.setdefault(name, Counter())[one.key] += 1
    for name, group in groups.items():
        group["keys"] = len(keys[name])
        group["some_keys"] = [key_fields(decode_key(raw)) for raw, _ in keys[name].most_common(5)]
        group["keyless"] = sum(n for raw, n in keys[name].items() if decode_key(raw) is None)
    wanted = None if arguments.get("kind") is None else (arguments["kind"], arguments.get("pattern", ""))
    some = [one for one in found if wanted is None or (one.kind, pattern_of(one.reason)) == wanted]
    some.sort(key=lambda one: -one.died_at)
    offset = number_of(arguments, "offset", 0)
    letters = [q._storage.reports.dead_letter(one.key, one.seq) for one in some[offset : offset + DEAD_SHOWN]]
    return {
        "groups": sorted(groups.values(), key=lambda group: -group["n"]),
        "letters": [with_body(letter) for letter in letters if letter is not None],
        "matching": len(some),
        "offset": offset,
        "all": len(found),
        "complete": len(found) < DEAD_MAX,
    }


# ---- the rest


def consumers(q: Queue, arguments: Arguments) -> dict[str, Any]:
    """Return workers, joined loops and streams with their queries, and the live leases."""
    found = [one.to_dict() for one in q.consumers()]
    if arguments.get("timer") and q.stats().lanes > LANES_BY_TIMER_MAX:
        return {"consumers": found, "leases": None}
    return {"consumers": found, "leases": [one.to_dict() for one in q.leases(LEASES_MAX)]}


def tenants(q: Queue, _arguments: Arguments) -> dict[str, Any]:
    """Return the tenants, and all limits that are stored. Without tenants: None."""
    try:
        found = q.tenants()
    except ConfigError:
        return {"tenants": None, "limits": []}
    limits = [limit.to_dict() for limit in q.config.limits]
    return {"tenants": [one.to_dict() for one in found[:500]], "all": len(found), "limits": limits}


def spans(q: Queue, _arguments: Arguments) -> dict[str, Any]:
    """Return the newest runs of the workers' handlers. Lets the workers report them for ten seconds."""
    reports = q._storage.watch_workers()
    return {
        "now": time.time(),
        "workers": [{"consumer": one.consumer, "spans": [list(span) for span in one.spans]} for one in reports],
    }


def settings(q: Queue, _arguments: Arguments) -> dict[str, Any]:
    """Return where the queue is, and its settings."""
    q._storage.refresh_settings()
    given = {field.name: plain(getattr(q.config, field.name)) for field in attrs.fields(type(q.config)) if field.name != "limits"}
    return {"path": q.path, "durability": q.durability, "shards": q.shards, "settings": given}


def ranges(q: Queue, _arguments: Arguments) -> dict[str, Any]:
    """Return what each shard owns, and the move that runs, with about how many of its messages have not moved yet."""
    found = q.topology()
    shown = [{**one.to_dict(), "ranges": [[f"{lo:016x}", f"{hi:016x}"] for lo, hi in one.ranges]} for one in found.shards]
    if found.moving is None:
        return {"shards": shown, "moving": None}
    move, of = found.moving, {one.shard: one for one in found.shards}
    source, target = of.get(move.source), of.get(move.target)
    left = None
    if source is not None and target is not None and target.retired:  # all that it has came with this move
        part = (move.hi - move.lo + 1) / sum(hi - lo + 1 for lo, hi in source.ranges)
        left = max(round((source.messages + target.messages) * part) - target.messages, 0)
    moving = {
        "source": move.source, "target": move.target, "lo": f"{move.lo:016x}", "hi": f"{move.hi:016x}",
        "left": left, "moved": None if left is None or target is None else target.messages,
    }  # fmt: skip
    return {"shards": shown, "moving": moving}


def advice(q: Queue, _arguments: Arguments) -> dict[str, Any]:
    """Return which shards to split and which keys to isolate."""
    return {"advice": [{**one.to_dict(), **({} if one.key is None else key_fields(one.key))} for one in q.advise()]}


def sqs_file(path: str) -> Path:
    """Return the file in which an SQS endpoint keeps the attributes of the queue in a directory."""
    return Path(f"{path.removesuffix('.strictq')}.sqs.json")


def sqs(paths: Mapping[str, Path], directories: Iterable[Path]) -> list[dict[str, Any]]:
    """Return name, attributes and tags of the queues that an SQS endpoint made. One that was never used has no directory yet."""
    names = {sqs_file(str(path)): name for name, path in paths.items()}
    found = []
    for file in sorted({*names, *(file for directory in directories for file in directory.absolute().glob("*.sqs.json"))}):
        try:
            entry = json.loads(content(file, SQS_BYTES_MAX) or b"")
            if entry.get("deleted"):
                continue  # a crash left it; the endpoint removes it at its next start
            row = {field: entry[field] for field in ("name", "attributes", "tags", "created")}
        except (OSError, StrictqError, ValueError, TypeError, KeyError, AttributeError):
            continue  # there is none, or it is being written
        found.append({"queue": names.get(file), **row})
    return found


VIEWS: Final[dict[str, View]] = {
    "lanes": lanes, "find": find, "key": key, "body": body, "history": history, "dead": dead, "consumers": consumers,
    "tenants": tenants, "spans": spans, "settings": settings, "ranges": ranges, "advice": advice,
}  # fmt: skip
READ_ALL: Final = frozenset({"lanes", "consumers", "dead", "tenants", "advice"})
"""Views that read every key, every dead letter, or what has changed of every key.

Their answers are kept for some time, in proportion to their cost.
"""


def for_page(value: Any) -> Any:
    """Return JSON values with integers as text that a script could not represent: those of keys, and large ones."""
    if isinstance(value, dict):
        found = {name: for_page(each) for name, each in value.items()}
        if found.get("key_type") == "int":
            found["key"] = str(found["key"])
        return found
    if isinstance(value, list | tuple):
        return [for_page(each) for each in value]
    if isinstance(value, int) and abs(value) > SAFE_INTEGER:
        return str(value)
    return value


def failure(error: StrictqError) -> dict[str, Any]:
    """Return an error for a page."""
    found = error.to_dict()
    return {"error": found["message"], "hint": found["hint"], "code": found["code"], "type": found["type"]}
