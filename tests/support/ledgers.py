"""Messages that prove their own order, and an idempotent sink that keeps them, independent of the queue's own numbers.

The body of a key's message n holds n and the hash of the previous body, so a lost, doubled or swapped message breaks the chain.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from strictq import Message, Queue


def bodies(key: str, count: int, first: int = 1) -> list[bytes]:
    """Return the bodies of a key's chain from number `first`."""
    out: list[bytes] = []
    before = b""
    for n in range(1, first + count):
        body = json.dumps({"key": key, "n": n, "before": sha256(before).hexdigest()}).encode()
        if n >= first:
            out.append(body)
        before = body
    return out


def send_chains(q: Queue, keys: Iterable[str], count: int, first: int = 1) -> None:
    """Send this many messages to each key, the keys in turn."""
    chains = {key: bodies(key, count, first) for key in keys}
    q.send_many([Message(chain[n], key=key) for n in range(count) for key, chain in chains.items()])


class Ledger:
    """A directory with a file for each batch. Writing a batch again replaces it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir(parents=True, exist_ok=True)

    def write(self, df: Any, batch: int) -> None:
        """Write a batch, for foreachBatch. A repeated batch must be the same."""
        rows = [[row.key, row.seq, bytes(row.body).decode()] for row in df.select("key", "seq", "body").collect()]
        file = self._place / f"{batch}.json"
        if file.exists():
            assert sorted(json.loads(file.read_text())) == sorted(rows), f"batch {batch} came again with other rows"
        part = file.with_suffix(".part")
        part.write_text(json.dumps(rows))
        os.replace(part, file)

    def batches(self) -> dict[int, list[tuple[str, int, str]]]:
        found = sorted((int(file.stem), file) for file in self._place.glob("*.json"))
        return {n: [(k, s, b) for k, s, b in json.loads(file.read_text())] for n, file in found}

    def sizes(self) -> list[int]:
        """Return the number of messages in each batch."""
        return [len(rows) for rows in self.batches().values()]

    def chains(self) -> dict[str, list[str]]:
        """Return the bodies of each key, in the order of the batches and of their rows."""
        out: dict[str, list[str]] = {}
        for rows in self.batches().values():
            for key, _, body in rows:
                out.setdefault(key, []).append(body)
        return out

    def require(self, sent: Mapping[str, int]) -> None:
        """Require every message of these chains exactly once, each chain in its order."""
        found = self.chains()
        assert found.keys() == sent.keys(), f"keys {sorted(found.keys() ^ sent.keys())}"
        for key, count in sent.items():
            assert found[key] == [b.decode() for b in bodies(key, count)], f"the chain of {key} is broken"
