"""The demo's events. They are read twice: to send them, and to compare them with the consumers' records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import attrs

from strictq._keys import Key

SPREAD: Final = 0.4
"""Standard deviation of the logarithm of the sizes: some events take a few times as long as others."""


class DemoEvent(NamedTuple):
    """One event. `line` is its number in the input, from 1."""

    line: int
    key: Key
    body: bytes

    @property
    def size(self) -> float:
        """Its relative processing time; the same in every run."""
        return random.Random(self.line).lognormvariate(0.0, SPREAD)


class Chain(NamedTuple):
    """Two fields that link each event of a key to the previous one: its `old` equals the previous event's `new`."""

    old: str
    new: str

    def links(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """Return the row's `old` and `new` values as comparable strings."""
        old, new = (json.dumps(row[field], sort_keys=True) for field in self)
        return old, new


@attrs.frozen(kw_only=True)
class Source:
    """Events in order.

    Attributes:
        name: a description of the source.
        keys: the number of keys.
        chain: the fields that link events, or None.
        read: returns the same events, from the first one, at each call.
    """

    name: str
    count: int
    keys: int
    chain: Chain | None
    read: Callable[[], Iterator[DemoEvent]]


def ledgers(count: int, keys: int, seed: int = 1) -> Source:
    """Make `count` entries of `keys` bank accounts, or of `count` accounts if that is less.

    Each entry has the balance before and after it, so that a lost, duplicated or swapped entry is detected. Every account has
    at least one entry; most of the rest belong to a few accounts.
    """
    keys = min(count, keys)

    def entries() -> Iterator[DemoEvent]:
        rng = random.Random(seed)
        balances, numbers = [0] * keys, [0] * keys
        for line in range(1, count + 1):
            i = line - 1 if line <= keys else int(keys * rng.random() ** 3)
            before = balances[i]
            amount = rng.randint(1, 90_000) if before < 10_000 else rng.choice((-1, 1)) * rng.randint(1, before)
            balances[i] += amount
            numbers[i] += 1
            account = f"account-{i + 1:04d}"
            row = {"account": account, "entry": numbers[i], "before": before, "amount": amount, "after": balances[i]}
            yield DemoEvent(line, account, json.dumps(row, separators=(",", ":")).encode())

    return Source(name="account ledgers made for this demo", count=count, keys=keys, chain=Chain("before", "after"), read=entries)
