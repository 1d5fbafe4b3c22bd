"""Directories made by the last version of format 2, and the facts about each: what its public API reported.

This version can't make such directories. Most were left by a killed process, with the newest commits in the WAL. Times are
microseconds of queue time. A key is written as in the store: one letter for its type, then its content.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from strictq import DeadLetter, HistoryRecord, MessageStatus, PeekedMessage, Queue, Receipt
from strictq._values.keys import Key, decode_key, encode_key
from strictq.testing import FakeClock
from tests.support.internals import tamper
from tests.support.running import ROOT

PLACE: Final = ROOT / "tests" / "store" / "format_2"
SHOWN_BYTES_MAX: Final = 24
"""A longer body is written as its size and hash."""
ALL: Final = 100_000
COUNTS: Final = (
    "ready", "in_flight", "delayed", "held", "dead", "lanes", "outbox", "sends", "receives", "claims", "acks", "retries",
    "redeliveries", "expired", "dropped", "purged", "dead_letters", "rejected", "redriven", "recorded_batch_bytes",
)  # fmt: skip
MESSAGE_DEFAULTS: Final = {"attempts": 0, "headers": {}, "state": "ready"}
LANE_DEFAULTS: Final = {"dead": 0, "depth": 0, "messages": [], "solo": False, "state": "empty"}
Facts = dict[str, Any]


def kinds() -> list[str]:
    """Return the names of the directories."""
    return sorted(file.stem for file in PLACE.glob("*.json"))


def facts_of(kind: str) -> Facts:
    """Return what is known of a directory.

    Entries:
        clock: as FakeClock has it.
        report: see `reported`.
        tails: the newest seq of each key.
        keyless: shard and id of what was sent without a key.
        live, settled, lost: stored key, token and seq of handles: they still settle their messages, their ack may be repeated,
            or their leases are lost.
        dedup: key, dedup id, seq and id of the messages that ids stand for.
        hints: size hint and estimates, by key and seq; null: not recorded.
        app: queries and their rows.
        batches: messages of each kept batch, by consumer and number.
        arrives: how many messages outboxes bring, by key.
        returns: seqs of dead letters that return with the end of a lease, by key.
    """
    facts: Facts = json.loads((PLACE / f"{kind}.json").read_text(encoding="utf-8"))
    return facts


def unpacked(kind: str, place: Path) -> Path:
    """Unpack a directory at a place that does not exist yet. Return the path of its queue.

    A replicated queue ships to its target beside it, which is unpacked, too.
    """
    with tarfile.open(PLACE / f"{kind}.tar.xz") as tar:
        tar.extractall(place, filter="data")
    if (place / "target").exists():
        tamper(place / "q" / "queue.db", f"UPDATE replication SET target = 'file:{place / 'target'}'")
    return place / "q"


def clock_of(facts: Facts) -> FakeClock:
    """Return the clock of the process that made the directory, as it stood at the end."""
    clock = FakeClock()
    clock._wall, clock._boot, clock._boots = facts["clock"]
    return clock


def label(key: Key) -> str:
    """Return a key as facts have it. That of a bytes key is in hexadecimal."""
    return f"b{key.hex()}" if isinstance(key, bytes) else encode_key(key).decode()


def key_of(labelled: str) -> Key:
    """Return the key of a label."""
    key = bytes.fromhex(labelled[1:]) if labelled[0] == "b" else decode_key(labelled.encode())
    assert key is not None
    return key


def shown(body: bytes | None) -> str | None:
    """Return a body as facts have it."""
    if body is None:
        return None
    short = len(body) <= SHOWN_BYTES_MAX
    return body.decode() if short else f"{len(body)} bytes, {hashlib.sha256(body).hexdigest()[:16]}"


def at(seconds: float | None) -> int | None:
    """Return microseconds of queue time. With the clocks of the facts, they are those since 1970."""
    return None if seconds is None else round(seconds * 1_000_000)


def brief(full: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return what is neither None nor a default."""
    return {name: value for name, value in full.items() if value is not None and value != defaults.get(name)}


def errors_of(report: Any) -> list[list[Any]] | None:
    """Return the errors of attempts, as they are stored."""
    return [[e.attempt, at(e.at), e.error, e.traceback] for e in report.errors] or None


def message_of(m: PeekedMessage, found: MessageStatus) -> dict[str, Any]:
    """Return what peek and status report of an unresolved message."""
    return brief(
        {
            "seq": m.seq, "id": m.id, "body": shown(m.body), "headers": m.headers, "state": m.state, "attempts": m.attempts,
            "sent": at(m.enqueued_at), "due": at(m.due_at), "expires": at(m.expires_at), "consumer": found.consumer,
            "until": at(found.until), "error": found.last_error, "output": found.last_output, "errors": errors_of(found),
        },
        MESSAGE_DEFAULTS,
    )  # fmt: skip


def lane_of(q: Queue, key: Key) -> dict[str, Any]:
    """Return what explain, peek, status and the deliveries' key_state report of a key."""
    found = q.explain(key)
    state = q._client.settling.key_state(encode_key(key))
    return brief(
        {
            "state": found.state, "head": found.head_seq, "depth": found.depth, "dead": found.dead, "since": at(found.since),
            "until": at(found.until), "by": found.by, "token": found.token, "solo": found.solo, "error": found.last_error,
            "shard": found.shard, "key_state": shown(state),
            "messages": [message_of(m, q.status(key, m.seq)) for m in q.peek(key, ALL)],
        },
        LANE_DEFAULTS,
    )  # fmt: skip


def keyless_of(q: Queue, shard: int, arrival: int) -> dict[str, Any]:
    """Return what is reported of a message without a key. Empty: it is resolved."""
    receipt = Receipt(None, 0, arrival, shard=shard)
    return dict(*(message_of(m, q.status(receipt)) for m in q.peek(receipt)))


def dead_of(d: DeadLetter) -> dict[str, Any]:
    return brief(
        {
            "key": None if d.key is None else label(d.key), "seq": d.seq, "id": d.id, "body": shown(d.body), "headers": d.headers,
            "kind": d.kind, "reason": d.reason, "attempts": d.attempts, "sent": at(d.enqueued_at), "died": at(d.died_at),
            "output": d.output, "errors": errors_of(d),
        },
        MESSAGE_DEFAULTS,
    )  # fmt: skip


def record_of(r: HistoryRecord) -> dict[str, Any]:
    return brief(
        {
            "n": r.n, "key": None if r.key is None else label(r.key), "seq": r.seq, "id": r.id, "sent": at(r.enqueued_at),
            "first": at(r.first_attempt_at), "done": at(r.done_at), "attempts": r.attempts, "prepare": r.prepare_seconds,
            "process": r.process_seconds, "size": r.size, "hint": r.size_hint, "outcome": r.outcome, "body": shown(r.body),
            "output": r.output, "errors": errors_of(r),
        },
        {"attempts": 0},
    )  # fmt: skip


def reported(q: Queue, keys: Iterable[Key], keyless: Iterable[tuple[int, int]] = ()) -> Facts:
    """Return what the public API reports of a queue. Writes nothing.

    Args:
        keys: every key that was ever used.
        keyless: shard and id of every message that was sent without a key.
    """
    return {
        "counts": [{name: n for name in COUNTS if (n := getattr(shard, name))} for shard in q.stats().shards],
        "lanes": {label(key): lane_of(q, key) for key in keys},
        "keyless": {f"{shard}/{arrival}": found for shard, arrival in keyless if (found := keyless_of(q, shard, arrival))},
        "dead": [dead_of(d) for d in q.dead_letters(limit=ALL)],
        "history": [[record_of(r) for r in q.history(shard=n, limit=ALL)] for n in range(q.shards)],
        "consumers": [
            {"name": c.name, "last": c.last, "acked": c.acked, "open": c.open, "in_flight": c.in_flight, "kept": c.kept}
            for c in q.consumers()
        ],
    }
