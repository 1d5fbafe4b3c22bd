"""Entries: the rows of the journal. Each is one change of state, and names the exact messages that it concerns.

An entry needs no other entry to be understood. Its `data` has arrival numbers, 8 bytes each, lane by lane: the first message of
each lane is positive, and its others are negative. Entries about lanes that may have no message name their keys instead.

The *position* of an entry is its id plus `top`, that of a message is its own id plus the newest entry's. A position rises with
every commit, so it orders messages and entries.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

CLAIM: Final = 1
MORE: Final = 2
ACK: Final = 3
ACK_FIRST: Final = 4
NACK: Final = 5
DEFER: Final = 6
REJECT: Final = 7
DROP: Final = 8
PURGE: Final = 9
EXPIRE: Final = 10
START: Final = 11
EXTEND: Final = 12
RELEASE: Final = 13
HOLD: Final = 14
RELEASE_HOLD: Final = 15
REDRIVE: Final = 16
RANGE: Final = 17
PARK: Final = 18
MOVE_OUT: Final = 19
MOVE_IN: Final = 20
RANGES: Final = 21
FORGET: Final = 22
NOTE: Final = 23
VOID: Final = 24
FOLD: Final = 25

Entry = tuple[int, int, int, int, int, int, str | None, bytes | None]
"""id, kind, at, top, token, deadline, holder, data: the columns of a row of the journal. A plain tuple, because most calls of the
queue create one, and it is bound to the statement as it is."""
HOLDER: Final = 6

WITH_MARK: Final = frozenset((NOTE, FOLD))
"""Kinds beside which the row of `mark` may have been written."""

BY_KEY: Final = "k"
"""The `holder` of an entry whose data has keys: of a lease whose messages are all resolved, which `ack_first` leaves."""
OVER: Final = "x"
"""The `holder` of a `RELEASE` of a lease that is past its deadline: its started messages are charged."""
OVER_SUSPECT: Final = "s"
"""The same. Messages that may have killed the holder are delivered one at a time from then on."""
NEXT: Final = "n"
"""The `holder` of an `ACK` with which the handlers of the next messages of its leases start."""
UNCHARGE: Final = "u"
"""The `holder` of a `START` that takes starts back."""
SUSPECT: Final = "s"
"""The `holder` of a `START` that takes the starts of a lease back. Messages up to the one that it names are delivered alone."""
POISON: Final = "p"
"""The `holder` of a `REJECT` of messages that are out of attempts."""
PARKED: Final = "a"
"""The `holder` of a `REDRIVE` of a message that was parked before it died."""
REDRIVEN: Final = -1
"""The TTL's end in the `holder` of a `PARK` of a redriven message, which does not expire."""
DEAD: Final = "d"
"""The `holder` of an `EXPIRE` whose messages became dead letters, so that their rows stay. See `OF_DEAD`."""
OF_DEAD: Final = frozenset((PURGE, ACK))
"""Kinds of entries that resolve dead letters if their `holder` is `DEAD`."""
POISON_HOLD: Final = "poison"
"""The `holder` of a `HOLD` of a lane whose head is out of attempts: the reason that is shown."""
TOKEN_BITS: Final = 40
"""A token is epoch * 2**40 + a number that no shard issues twice."""
NEVER: Final = 1 << 62
"""A time that is never reached."""

RATE_SECONDS: Final = 60.0
_KEY_LENGTH_BYTES: Final = 4
ID_BYTES: Final = 8
_SWAP: Final = sys.byteorder == "big"


class LaneHolder(NamedTuple):
    """Who leased a lane, and what the lease's end means.

    Attributes:
        consumer: its name.
        charged: a single message in its lease counts as started.
        says_starts: it calls `start` before each handler, so a message that was not started has not killed it.
    """

    consumer: str = ""
    charged: bool = False
    says_starts: bool = False

    def encode(self) -> str:
        """Return its form in an entry."""
        return encode_holder(self.consumer, self.charged, self.says_starts)

    @classmethod
    def decode(cls, text: str | None) -> LaneHolder:
        """Return the holder of an entry.

        Raises:
            ValueError: the text has no flags.
        """
        if not text or text[0] not in "0123":
            raise ValueError(f"no holder: {text!r}")
        flags = int(text[0])
        return cls(text[1:], bool(flags & 1), bool(flags & 2))


@lru_cache(maxsize=64)
def encode_holder(consumer: str, charged: bool, says_starts: bool) -> str:
    """Return the form of a `LaneHolder` in an entry: one digit for the flags, and the name."""
    return f"{charged + 2 * says_starts}{consumer}"


@lru_cache(maxsize=64)
def is_charged(holder: str | None) -> bool:
    """Return whether a single message in the lease of this holder counts as started.

    Raises:
        ValueError: the text has no flags.
    """
    flags = holder[:1] if holder else ""
    if flags in ("1", "3"):
        return True
    if flags in ("0", "2"):
        return False
    raise ValueError(f"no holder: {holder!r}")


def pack(ids: Iterable[int]) -> bytes:
    """Return numbers as 8 bytes each, little-endian."""
    numbers = array("q", ids)
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()


def unpack(data: bytes) -> list[int]:
    """Return the numbers that `pack` wrote.

    Raises:
        ValueError: the length is no multiple of 8.
    """
    if len(data) == ID_BYTES:
        return [int.from_bytes(data, "little", signed=True)]
    numbers = array("q")
    numbers.frombytes(data)
    if _SWAP:
        numbers.byteswap()
    return numbers.tolist()


def encode_groups(groups: Sequence[tuple[object, Sequence[int]]]) -> bytes:
    """Return the messages of each lane as an entry's data."""
    if len(groups) == 1 and len(groups[0][1]) == 1:
        return groups[0][1][0].to_bytes(ID_BYTES, "little", signed=True)
    numbers: list[int] = []
    for _, ids in groups:
        numbers.append(ids[0])
        if len(ids) > 1:
            numbers += [-i for i in ids[1:]]
    return pack(numbers)


def decode_groups(data: bytes | None) -> list[list[int]]:
    """Return the messages of each lane.

    Raises:
        ValueError: no entry has such data.
    """
    groups: list[list[int]] = []
    for i in unpack(data or b""):
        if i > 0:
            groups.append([i])
        elif not i or not groups:
            raise ValueError("a message is of no lane")
        else:
            groups[-1].append(-i)
    if not groups:
        raise ValueError("it names no message")
    return groups


def encode_keys(keys: Iterable[bytes]) -> bytes:
    """Return keys as an entry's data."""
    return b"".join([len(key).to_bytes(_KEY_LENGTH_BYTES, "little") + key for key in keys])


def decode_keys(data: bytes | None) -> list[bytes]:
    """Return the keys that `encode_keys` wrote.

    Raises:
        ValueError: no entry has such data.
    """
    keys: list[bytes] = []
    data, at = data or b"", 0
    while at < len(data):
        begin = at + _KEY_LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "little")
        if at > len(data) or at == begin:
            raise ValueError("a key is cut")
        keys.append(data[begin:at])
    return keys
