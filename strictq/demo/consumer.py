"""One consumer process of the demo, started by the runner. One of them is killed with kill -9 in a transaction.

It stops at the end of its stdin, and so also when the runner dies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import strictq

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS app_demo (
    id       INTEGER PRIMARY KEY,   -- the order in which this shard's events were processed
    key      TEXT    NOT NULL,
    line     INTEGER NOT NULL,      -- its position among all events
    digest   INTEGER NOT NULL,      -- of the body as it arrived
    linked   INTEGER NOT NULL,      -- 1: it follows the event before it; 0: the chain is broken here
    consumer TEXT    NOT NULL,
    attempt  INTEGER NOT NULL
) STRICT
"""
RECORD: Final = "INSERT INTO app_demo (key, line, digest, linked, consumer, attempt) VALUES (?, ?, ?, ?, ?, ?)"
LINE_HEADER: Final = "line"
POLL_SECONDS: Final = 0.2


def digest(body: bytes) -> int:
    """Return a 64-bit digest of a body, as an SQLite integer."""
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "big", signed=True)


def consume(
    q: strictq.Queue, wanted: Callable[[], bool], *, name: str, batch: int, lease_seconds: float, kill_after: int | None,
    kill_note: str,
) -> None:  # fmt: skip
    """Receive batches and process each event in one transaction, until stdin ends.

    Args:
        batch: messages per receive.
        kill_after: die with kill -9 after this many events, unless another consumer did; None: never.
        kill_note: the file in which the dying consumer writes its name and the number of messages that it holds.
    """
    done = 0
    while wanted():
        try:
            # At the end of the block, unprocessed messages return to the queue.
            with q.receive(batch, wait=POLL_SECONDS, lease_seconds=lease_seconds, consumer=name) as messages:
                for i, d in enumerate(messages):
                    if d.lease.expires_in < lease_seconds / 2:
                        d.extend(lease_seconds)
                    with q.transaction(d) as tx:
                        handle(d, tx, name)
                        held = len(messages) - i
                        if kill_after is not None and done >= kill_after and held > 1:
                            _die_if_first(kill_note, f"{name} {held}")
                    done += 1
        except strictq.StrictqError as e:
            if not (e.transient or isinstance(e, strictq.LeaseLost)):
                raise
            time.sleep(POLL_SECONDS)


def handle(message: strictq.Delivery | strictq.Job, effects: strictq.Transaction | strictq.Job, name: str) -> None:
    """Check that an event follows the previous one, and record it, in the transaction that resolves its message."""
    entry = message.json()
    linked = (effects.key_state or b"0") == b"%d" % entry["before"]
    effects.key_state = b"%d" % entry["after"]
    line = int(message.headers[LINE_HEADER])
    effects.execute(RECORD, (message.key, line, digest(message.body), int(linked), name, message.attempt))


def _die_if_first(path: str, text: str) -> None:
    """Kill this process in the middle of a transaction. Only one consumer can create the file."""
    with suppress(FileExistsError), open(path, "x", encoding="utf-8") as note:
        note.write(text)
        note.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _is_wanted() -> bool:
    try:
        return os.read(0, 1) != b""
    except BlockingIOError:
        return True  # the runner still has its end of the pipe open


def main() -> None:
    """Run `python -m strictq.demo.consumer QUEUE OPTIONS`, with the options of `consume` as JSON."""
    options = json.loads(sys.argv[2])
    os.set_blocking(0, False)
    with strictq.open(sys.argv[1], create=False) as q:
        consume(q, _is_wanted, **options)


if __name__ == "__main__":
    main()
