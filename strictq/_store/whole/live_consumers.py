"""The live consumers of a queue: each has a file, and all of them divide the shards in the same way.

A consumer holds a lock on its file, which ends with its process, and notes in it when its loop last turned. All compute the same
division from the same files. It is only a hint about where to claim: leases decide who has a key.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ..._platform.files import Lock, late
from ..disk import locks
from ..disk.layout import LIVE
from .worker_reports import is_dead

if TYPE_CHECKING:
    from ..._values.findings import ConsumerStatus

Affinity = Literal["prefer", "own", "none"]

BYTES: Final = 4096
"""The size of a file: the time of the last turn, since when the consumer is behind, and its description in JSON."""
NAME_MAX: Final = 100
"""The maximum length of a stored name, in characters. Each takes at most 6 bytes in JSON."""
LOOK_SECONDS: Final = 0.25
"""How often a consumer notes that its loop turns, and looks at the others."""
SLOW_SECONDS: Final = 1.0
"""A consumer whose loop has not turned for so long is slow. Others claim from its shards meanwhile."""
BEHIND_SECONDS: Final = 0.1
"""A consumer that has not emptied its shards for so long is behind. One that has found nothing for so long helps it."""
_BEAT: Final = struct.Struct("<QQ")
_MICROSECONDS: Final = 1_000_000


class Description(NamedTuple):
    """What a consumer says about itself.

    Attributes:
        kind: "worker", or "loop" for a joined loop.
        since: seconds since 1970.
        concurrency: most handlers that a worker runs at once; 1 for a loop.
        running: handlers running, and busy_ratio: fraction of the slots that ran handlers in the last seconds.
    """

    kind: Literal["worker", "loop"]
    name: str
    host: str
    pid: int
    version: str
    affinity: Affinity
    since: float
    concurrency: int = 1
    running: int = 0
    busy_ratio: float = 0.0


class Seen(NamedTuple):
    """A live consumer, as another one sees it.

    Attributes:
        turned: when its loop last turned, and behind: since when it has not emptied its shards, or 0. Microseconds of the
            machine's monotonic clock.
    """

    id: str
    turned: int
    behind: int
    described: Description


class LiveConsumer(Lock):
    """One consumer of this process. It is used by one loop at a time."""

    def __init__(
        self,
        directory: Path,
        shards: Iterable[int],
        described: Description,
        lease_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = os.urandom(8).hex()
        super().__init__(directory / f".{LIVE}{self.id}")
        self._directory = directory
        self._name = directory / f"{LIVE}{self.id}"
        self._shards = shards
        self._lease = int(lease_seconds * _MICROSECONDS)
        self._now = now
        self.described = described
        self._looked = -LOOK_SECONDS
        self._found = now()
        self._behind = 0.0
        """Since when it has not emptied its shards; 0: it has."""
        self._division: tuple[tuple[str, ...], tuple[int, ...], dict[int, str]] = ((), (), {})
        self._others: Sequence[Seen] = ()
        self.own: frozenset[int] = frozenset(shards)
        """The shards that are this consumer's by the last division."""

    def join(self) -> None:
        """Appear among the consumers, under the lock.

        Raises:
            OSError, StoreError: the file can't be made.
        """
        self.alone(0.0)
        try:
            self._put(self._now())
            os.rename(self._path, self._name)
        except OSError:
            self.end()
            raise
        self._path = self._name
        self._look_round(self._now())

    def describe(self, **changes: Any) -> None:
        """Change the description. Others see it at their next look."""
        described = self.described._replace(**changes)
        if described != self.described and self._fd is not None:
            self.described = described
            self._put(self._now())

    def _put(self, now: float) -> None:
        assert self._fd is not None
        values = {**self.described._asdict(), "name": self.described.name[:NAME_MAX]}
        os.pwrite(self._fd, self._beat(now) + json.dumps(values, ensure_ascii=True).encode().ljust(BYTES - _BEAT.size), 0)

    def _beat(self, now: float) -> bytes:
        late = self._behind and now - self._behind > BEHIND_SECONDS
        return _BEAT.pack(int(now * _MICROSECONDS), int(self._behind * _MICROSECONDS) if late else 0)

    @property
    def helps(self) -> bool:
        """Whether it also claims from the shards of others."""
        return self.described.affinity != "own"

    def turn(self) -> frozenset[int] | None:
        """Note that the loop turns, and return the shards to claim from now; None: all of them."""
        now = self._now()
        if now - self._looked >= LOOK_SECONDS:
            self._look_round(now)
        if self.described.affinity == "none" or self._fd is None:
            return None  # without a file, as in a forked child, it is not among those who divide the shards
        if self.described.affinity == "own":
            return self.own
        idle = now - self._found > BEHIND_SECONDS
        at = int(now * _MICROSECONDS)
        late = at - int(SLOW_SECONDS * _MICROSECONDS)
        helped = {seen.id for seen in self._others if seen.turned < late or (idle and seen.behind)}
        if not helped:
            return self.own
        return self.own | {shard for shard, owner in self._division[2].items() if owner in helped}

    def found(self, messages: int, *, behind: bool) -> None:
        """Note how many messages a claim found, and whether more than the consumer can take are probably left in its shards."""
        now = self._now()
        if messages:
            self._found = now
        if not behind:
            self._behind = 0.0
        elif not self._behind:
            self._behind = now

    def _look_round(self, now: float) -> None:
        self._looked = now
        if self._fd is None:
            return
        with suppress(OSError):  # a full disk: others take this consumer for slow
            os.pwrite(self._fd, self._beat(now), 0)
        at = int(now * _MICROSECONDS)
        self._others = [
            seen
            for seen in live(self._directory)
            if seen.id != self.id and seen.described.affinity != "none" and at - seen.turned < self._lease
        ]
        if self.described.affinity == "none":
            return
        ids = tuple(sorted([self.id, *(seen.id for seen in self._others)]))
        shards = tuple(self._shards)  # others, if ranges have moved
        if (ids, shards) != self._division[:2]:
            self._division = ids, shards, divide(shards, ids)
            self.own = frozenset(shard for shard, owner in self._division[2].items() if owner == self.id)

    def end(self) -> None:
        """Disappear. A second call, or one in a forked child, does nothing."""
        if self._fd is not None:
            with suppress(OSError):
                os.unlink(self._path)
        self.leave()


class OnlyConsumer:
    """The same for a queue in memory, which is not divided."""

    own: frozenset[int] = frozenset({0})
    helps = True

    def __init__(self, among: list[OnlyConsumer], described: Description) -> None:
        self.id = os.urandom(8).hex()
        self.described = described
        self._among = among
        among.append(self)

    def describe(self, **changes: Any) -> None:
        """Change the description."""
        self.described = self.described._replace(**changes)

    def turn(self) -> None:
        """Return the shards to claim from: None, all of them."""

    def found(self, messages: int, *, behind: bool) -> None:
        """Note nothing."""

    def seen(self) -> Seen:
        """Return what others would see."""
        return Seen(self.id, int(time.monotonic() * _MICROSECONDS), 0, self.described)

    def end(self) -> None:
        """Disappear. A second call does nothing."""
        if self in self._among:
            self._among.remove(self)


def divide(shards: Iterable[int], ids: Sequence[str]) -> dict[int, str]:
    """Return the owner of each shard: rendezvous hashing with bounded load.

    Each consumer gets the same number of shards, or one more. Few shards move when one joins or leaves.
    """
    from ..._values.hashing import hash_key  # imported late: it loads OpenSSL

    shards = list(shards)
    least, more = divmod(len(shards), len(ids))
    pairs = sorted(((hash_key(f"{id_}:{shard}".encode()), id_, shard) for id_ in ids for shard in shards), reverse=True)
    owners: dict[int, str] = {}
    loads = dict.fromkeys(ids, 0)
    for _, id_, shard in pairs:
        if shard in owners or loads[id_] > least or (loads[id_] == least and not more):
            continue
        more -= loads[id_] == least
        loads[id_] += 1
        owners[shard] = id_
    return owners


def live(directory: Path) -> list[Seen]:
    """Return the consumers whose processes live, by id. The files of dead ones are removed."""
    found: list[Seen] = []
    for path, fd in locks.each(directory, locks.names(directory, LIVE)):
        with suppress(OSError):
            if is_dead(fd):
                path.unlink(missing_ok=True)
            elif (seen := _decoded(path.name.removeprefix(LIVE), os.pread(fd, BYTES, 0))) is not None:
                found.append(seen)
    return found


def _decoded(id_: str, data: bytes) -> Seen | None:
    try:
        turned, behind = _BEAT.unpack_from(data)
        values = json.loads(data[_BEAT.size :])
        described = Description(**{name: values[name] for name in Description._fields if name in values})
    except (ValueError, TypeError, KeyError, struct.error, RecursionError):
        return None
    whole = (
        described.affinity in ("prefer", "own", "none")
        and all(isinstance(text, str) for text in (described.name, described.host, described.kind, described.version))
        and all(_is_number(n) for n in (described.since, described.pid, described.concurrency, described.running))
        and _is_number(described.busy_ratio)
    )
    return Seen(id_, turned, behind, described) if whole else None


def statuses(seen: Sequence[Seen], shards: Iterable[int], held: Mapping[str, int]) -> list[ConsumerStatus]:
    """Return what operators see of the live consumers, by name.

    Args:
        held: the number of messages that each consumer holds.
    """
    if not seen:
        return []  # most looks find none, and need not import what describes one
    with late():
        from ..._values.findings import ConsumerStatus

    at = int(time.monotonic() * _MICROSECONDS)
    dividing = sorted(one.id for one in seen if one.described.affinity != "none")
    owners = divide(shards, dividing) if dividing else {}
    return [
        ConsumerStatus(
            name=one.described.name, in_flight=held.get(one.described.name, 0), since=one.described.since,
            kind=one.described.kind, host=one.described.host, pid=one.described.pid,
            slow=at - one.turned > SLOW_SECONDS * _MICROSECONDS, affinity=one.described.affinity,
            shards=tuple(shard for shard, owner in sorted(owners.items()) if owner == one.id),
            concurrency=one.described.concurrency, running=one.described.running, busy_ratio=one.described.busy_ratio,
        )
        for one in sorted(seen, key=lambda one: (one.described.name, one.id))
    ]  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**62
