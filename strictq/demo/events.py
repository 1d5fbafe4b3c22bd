"""The demo's events: entries of account ledgers."""

from __future__ import annotations

import json
import random
from typing import Final, NamedTuple

SPREAD: Final = 0.4
"""Standard deviation of the logarithm of the sizes: some events take a few times as long as others."""


class DemoEvent(NamedTuple):
    """One event. `line` is its position among all events, from 1."""

    line: int
    key: str
    body: bytes

    @property
    def size(self) -> float:
        """Its relative processing time; the same in every run."""
        return random.Random(self.line).lognormvariate(0.0, SPREAD)


def ledgers(count: int, keys: int) -> list[DemoEvent]:
    """Make `count` entries of `keys` bank accounts, or of `count` accounts if that is less.

    Each entry has the balance before and after it, so that a lost, duplicated or swapped entry is detected. Every account has
    at least one entry; most of the rest belong to a few accounts.
    """
    keys = min(count, keys)
    rng = random.Random(1)
    balances, numbers = [0] * keys, [0] * keys
    events = []
    for line in range(1, count + 1):
        i = line - 1 if line <= keys else int(keys * rng.random() ** 3)
        before = balances[i]
        amount = rng.randint(1, 90_000) if before < 10_000 else rng.choice((-1, 1)) * rng.randint(1, before)
        balances[i] += amount
        numbers[i] += 1
        account = f"account-{i + 1:04d}"
        row = {"account": account, "entry": numbers[i], "before": before, "amount": amount, "after": balances[i]}
        events.append(DemoEvent(line, account, json.dumps(row, separators=(",", ":")).encode()))
    return events
