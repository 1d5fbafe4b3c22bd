"""Sending by columns: large batches of plain messages, without an object for each message."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..shard import sending
from ..shard.messages import Item
from ..shard.shard_lanes import Tx

CHUNK_ROWS: Final = 16_384
"""The number of messages that are sent at once."""


class PlainRows(NamedTuple):
    """Messages of one shard without options, key by key.

    Attributes:
        keys: stored keys, without duplicates.
        counts: the number of messages of each key.
        places: the place of every message, from 0, in the order of arrival of all of these; ascending within a key.
        bodies: the body of every message, those of a key in the order of its sequence.
    """

    keys: Sequence[bytes]
    counts: Sequence[int]
    places: Sequence[int]
    bodies: Sequence[bytes]


BulkRows = PlainRows | Sequence[Item]
"""Messages of one shard: in columns, or one by one in the order of arrival."""


def append(tx: Tx, rows: BulkRows) -> None:
    """Append messages to their lanes. All of them are appended, or none. The caller has checked max_depth."""
    if isinstance(rows, PlainRows):
        for items in _in_order(rows):
            sending.send(tx, items)
    else:
        sending.send(tx, rows)


def _in_order(rows: PlainRows) -> Iterator[list[Item]]:
    """Yield the messages in the order of arrival, some at a time."""
    number = array("q", bytes(8 * len(rows.places)))  # by place: which of the bodies
    key_of = array("q", bytes(8 * len(rows.places)))
    for n, place in enumerate(rows.places):
        number[place] = n
    at = 0
    for key, count in enumerate(rows.counts):
        for place in rows.places[at : at + count]:
            key_of[place] = key
        at += count
    keys, bodies = rows.keys, rows.bodies
    for begin in range(0, len(number), CHUNK_ROWS):
        end = begin + CHUNK_ROWS
        yield [(keys[key], bodies[n], None, None) for key, n in zip(key_of[begin:end], number[begin:end], strict=True)]
