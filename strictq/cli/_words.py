"""Format single values for people and programs: JSON, keys, bodies, times, sizes."""

from __future__ import annotations

import codecs
import json
import re
import sys
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from strictq._values.keys import Key
from strictq.cli._command import printable

if TYPE_CHECKING:
    from strictq import ReplicationStatus

CELL_CHARS_MAX: Final = 60
"""Number of characters of a long text that a cell shows. --json prints all of it."""

_NOT_ASCII: Final = re.compile(r"[^ -~]")

# ---------------------------------------------------------------- JSON


def emit(values: Any) -> None:
    """Print a JSON value as a line to stdout."""
    if sys.stdout is None:
        return  # the caller closed it
    # Escaped if the output cannot show every character. A question mark would be another value.
    plain = codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"
    print(encoded(values, plain=plain), flush=True)


def encoded(values: Any, *, plain: bool = False) -> str:
    """Return a JSON value on one line, with escapes for unprintable characters, which may control a terminal or be invisible.

    These are control characters, direction marks, invisible characters, and lone surrogates. A parser
    gets the same value.

    Args:
        plain: escape everything that is not ASCII.
    """
    text = json.dumps(values, ensure_ascii=plain, allow_nan=False)
    return text if text.isprintable() else _NOT_ASCII.sub(lambda found: _escaped(found[0]), text)


@lru_cache(4096)
def _escaped(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


# ---------------------------------------------------------------- text


def shown_key(key: Key | None) -> str:
    """Return a key for people: 7 is a number, "7" a text, hex:07 bytes."""
    if key is None:
        return "(no key)"
    if isinstance(key, bytes):
        return f"hex:{key.hex()}"
    if isinstance(key, str) and (key.lstrip("-").isdigit() or key.startswith(("hex:", '"', "(")) or key != key.strip()):
        return f'"{printable(key)}"'
    return printable(key)


def shown_body(body: bytes) -> str:
    """Return the beginning of a body, on one line."""
    return short(body[: 4 * CELL_CHARS_MAX].decode("utf-8", "replace"), len(body) > 4 * CELL_CHARS_MAX)


def short(text: str | None, cut: bool = False) -> str:
    """Return a text cut to a cell, on one line; an empty string for None."""
    line = printable(" ".join((text or "").split()))
    return f"{line[: CELL_CHARS_MAX - 1]}…" if cut or len(line) > CELL_CHARS_MAX else line


def span(seconds: float | None) -> str:
    """Format a duration: 0.3 s, 45 s, 12 min, 3.4 h, 2.1 d."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} d"


def moment(at: float | None) -> str:
    """Format a local time, with its distance from now."""
    if at is None:
        return "-"
    apart = time.time() - at
    when = f"{span(apart)} ago" if apart >= 0 else f"in {span(-apart)}"
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S} ({when})"


def size(count: float) -> str:
    """Format a size: 12 B, 3.4 KiB, 5.6 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def utc(at: float) -> str:
    """Format a time in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_line(found: ReplicationStatus | None) -> str:
    """Return a replica's state as one line of text."""
    if found is not None and found.mode == "replica":
        heard = "never" if found.lag_seconds is None else f"{span(found.lag_seconds)} ago"
        text = f"a replica: segment {found.segment:,}, last contact with the primary: {heard}"
        if not found.shipping:
            text += ", no process is receiving"
        proof = found.proof
        if proof is not None and proof.at is not None:
            text += f", proved at {utc(proof.at)} that it can be promoted (segment {proof.segment:,})"
        if proof is not None and proof.error:
            text += f"; it could not be promoted: {printable(proof.error)}"
        return text
    if found is not None and found.mode == "fenced":
        return f"{printable(found.target)}: the replica was promoted; this queue refuses every write"
    if found is None or found.mode == "off":
        return "not replicated"
    target = printable(found.target)
    if found.segment is None or found.lag_seconds is None:
        return f"{target}: nothing has been shipped yet"
    text = f"{target}: segment {found.segment:,}, {span(found.lag_seconds)} behind"
    if found.lag_bytes:
        text += f" ({size(found.lag_bytes)})"
    if not found.shipping:
        text += ", no process is shipping"
    if found.lapsed:
        text += ", the WAL is no longer kept for it"
    if found.last_error:
        text += f"; {'stopped' if found.stopped else 'failing'}: {printable(found.last_error)}"
    return text
