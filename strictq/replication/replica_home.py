"""The directory of a living replica, and what it says of itself.

state        whose replica it is, its term, what it is (a replica, or promoted), and up to where live/ is on the disk
log-0, log-1 segments that were confirmed, and that live/ may not have on the disk yet
live/        the queue: its files as of the last segments that were applied
applying     whether live/ is whole, in this boot of the machine
contact      when the primary was heard of
lock         held by the process that receives, or promotes
looks        held, shared, by those who look at live/; alone, by who writes to it
promoting    a process wants to promote: the one that receives lets go
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import attrs

from .. import _files as files
from .. import _hints as hints
from .._clock import MICROSECONDS, Clock
from .._errors import (
    InvalidArgument,
    QueueNotFound,
    ReadOnlyQueue,
    ReplicaGap,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
)
from .._stats import ReplicationStatus
from .._store import api
from .segment import SegmentHeader, header_from, header_values

STATE: Final = "state"
LIVE: Final = "live"
LOGS: Final = ("log-0", "log-1")
APPLYING: Final = "applying"
CONTACT: Final = "contact"
LOCK: Final = "lock"
LOOKS: Final = "looks"
PROMOTING: Final = "promoting"
FORMAT: Final = 1
MAGIC: Final = "strictq replica"
STATE_BYTES_MAX: Final = 1 << 20
SMALL_BYTES_MAX: Final = 1 << 12
LOOK_SECONDS: Final = 10.0
"""So long a look waits for what is being applied."""
SYNCED: Final = "on the disk"
_FLAG: Final = struct.Struct(">?128sqqq")
"""Whether it is whole; the boot of the machine; number, queue time and wall time of the last cut."""


@attrs.frozen
class ReplicaState:
    """What a replica is. Stored durably before anything that depends on it.

    Attributes:
        queue_id, history_id: of the queue and its history; "": it is nobody's yet.
        key_id: of the secret that its segments are hashed with; "": none.
        term: segments of an earlier one are refused.
        role: "replica"; "promoting": nothing is received any more; "promoted": live/ is a queue of its own.
        promoted_as: its history_id then.
        applied: the last segment that live/ has on the disk; None: none.
        applied_hash: of that.
        confirmed: the calls of the primary wait for this replica, so that it has all that they returned.
        generation: of the primary's setting that says so.
        forwards_to: the next replica of its chain, when it was last started with one; "": there was none.
    """

    queue_id: str = ""
    history_id: str = ""
    key_id: str = ""
    term: int = 1
    role: str = "replica"
    promoted_as: str = ""
    applied: SegmentHeader | None = None
    applied_hash: str = ""
    confirmed: bool = False
    generation: int = 0
    forwards_to: str = ""

    def write(self, home: Path) -> None:
        """Store it.

        Raises:
            StoreFull, StoreError: it can't be; what was stored before is.
        """
        values = attrs.asdict(self, recurse=False) | {
            "magic": MAGIC,
            "format": FORMAT,
            "applied": None if self.applied is None else header_values(self.applied),
        }
        with files.typed("the state of the replica can't be stored"):
            files.replace_durably(home / STATE, json.dumps(values).encode())

    @classmethod
    def read(cls, home: Path) -> Self:
        """
        Raises:
            StoreCorrupt, SchemaMismatch: it can't be read.
        """
        raw = files.content(home / STATE, STATE_BYTES_MAX)
        try:
            values: dict[str, Any] = json.loads(raw or b"")
            if values.pop("magic") != MAGIC:
                raise ValueError
            if values.pop("format") > FORMAT:
                raise SchemaMismatch("the replica was made by a newer strictq", shard=-1)
            if values["applied"] is not None:
                values["applied"] = header_from(values["applied"], values["applied"]["n"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ReplicaGap) as e:
            raise StoreCorrupt(f"the state of the replica {home} can't be read", shard=-1, cause=e) from e


@attrs.frozen
class LastContact:
    """When the primary was heard of last, and what queue time it had then. Not synced: after a power cut it may be older.

    Attributes:
        x: queue time, microseconds.
        boot, boot_id: by the clock of the replica's host, and its boot.
        wall: by its wall clock, microseconds since 1970.
    """

    x: int
    boot: int
    boot_id: str
    wall: int

    def write(self, home: Path) -> None:
        """Show it; no reason to fail."""
        with suppress(OSError, StoreError):
            files.replace(home / CONTACT, json.dumps(attrs.asdict(self)).encode())

    @classmethod
    def read(cls, home: Path) -> Self | None:
        raw = files.content(home / CONTACT, SMALL_BYTES_MAX)
        with suppress(ValueError, TypeError, RecursionError):
            values = json.loads(raw or b"")
            return cls(int(values["x"]), int(values["boot"]), str(values["boot_id"]), int(values["wall"]))
        return None

    def age(self, clock: Clock) -> int:
        """Microseconds since then. Another boot, or a wall clock that was put back, makes it no younger than it is."""
        if self.boot_id == clock.boot_id():
            return max(clock.boot() - self.boot, 0)
        return max(clock.wall() - self.wall, 0)


class AppliedCut(NamedTuple):
    """The last cut that live/ has: the number of its last segment; its point in queue time and by the wall clock."""

    n: int
    x: int
    wall: int


class ApplyingMark:
    """Says whether live/ is whole. In memory of this boot, or for good once it was synced.

    Nothing that was applied since the last sync is sure to be on the disk after a power cut, and a process may be killed in the
    middle of applying: then live/ is not to be looked at before the log was applied again.
    """

    def __init__(self, home: Path, clock: Clock) -> None:
        self._fd = files.open_regular(home / APPLYING, os.O_RDWR | os.O_CREAT)
        self._boot = clock.boot_id()
        self._sure = False
        """What is on the disk does not say that live/ is whole there."""
        self._cut = (-1, 0, 0)

    def begin(self) -> None:
        """From now on it is not whole."""
        self._write(False, self._boot)
        if not self._sure:  # a power cut must not bring back that it was synced
            os.fsync(self._fd)
            self._sure = True

    def end(self, last: SegmentHeader | None) -> None:
        """It is whole, in this boot, and has all up to this segment."""
        if last is not None:
            self._cut = (last.n, last.x, last.wall)
        self._write(True, self._boot)

    def synced(self) -> None:
        """It is whole and on the disk."""
        self._write(True, SYNCED)
        self._sure = False
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, whole: bool, boot: str) -> None:
        with files.typed("the replica can't be written"):
            os.pwrite(self._fd, _FLAG.pack(whole, boot.encode(), *self._cut), 0)

    @staticmethod
    def read(home: Path, clock: Clock) -> AppliedCut | None:
        """What live/ has; None: it is not known to be whole."""
        raw = files.content(home / APPLYING, _FLAG.size)
        if raw is None or len(raw) != _FLAG.size:
            return None
        whole, boot, n, x, wall = _FLAG.unpack(raw)
        if not whole or boot.rstrip(b"\0").decode("utf-8", "replace") not in (SYNCED, clock.boot_id()):
            return None
        return AppliedCut(n, x, wall)


def is_replica(path: Path) -> bool:
    """Is this the directory of a replica, promoted or not?"""
    if not (path / LIVE).is_dir():
        return False
    raw = files.content(path / STATE, STATE_BYTES_MAX)
    return raw is not None and MAGIC.encode() in raw


def make(home: Path) -> None:
    """Make a new replica's directory, if there is none.

    Raises:
        InvalidArgument: something else is there; nothing was changed.
    """
    if home.exists() and not home.is_dir():
        raise InvalidArgument(f"{home} is not a directory", hint=hints.NOT_A_DIRECTORY)
    if is_replica(home):
        return
    with files.typed("the replica can't be made"):
        if home.exists() and (found := set(os.listdir(home)) - {LIVE, f"{STATE}.part"}):
            if "queue.db" in found:
                raise InvalidArgument(f"{home} is a queue; nothing was changed", hint=hints.REJOIN.of(path=home))
            raise InvalidArgument(
                f"{home} has other files in it, as {min(found)!r}; nothing was changed", hint=hints.EMPTY_TARGET
            )
        files.make_directories(home.parent)
        if not home.exists():
            home.mkdir(mode=0o700)
            files.sync_directory(home.parent)
        if not (home / LIVE).exists():
            (home / LIVE).mkdir(mode=0o700)
    ReplicaState().write(home)


def promotion_wanted(home: Path) -> bool:
    """Does a process wait for the one that receives to let go? A file that a killed one left says nothing."""
    if not (home / PROMOTING).exists():
        return False
    probe = files.Lock(home / PROMOTING, look=True)
    try:
        return not probe.alone(0.0)
    finally:
        probe.leave()


def is_received_for(home: Path) -> bool:
    """Does a process receive for the replica?"""
    probe = files.Lock(home / LOCK, look=True)
    try:
        return not probe.alone(0.0)
    except StoreError:
        return False
    finally:
        probe.leave()


class HeldLook:
    """A look at a living replica: while it lasts, nothing is applied, so all that is read is of one state.

    Raises:
        QueueNotFound: it has no whole state yet.
        StoreBusy: it does not come to rest, or was interrupted and has to be started.
    """

    def __init__(self, home: Path, clock: Clock) -> None:
        self.home = home
        self._lock = files.Lock(home / LOOKS)
        if not self._lock.share(LOOK_SECONDS):
            self._lock.leave()
            raise StoreBusy(f"the replica {home} is being written to", shard=-1)
        try:
            if not (home / LIVE / "queue.db").exists():
                raise QueueNotFound(
                    f"the replica {home} has no whole state of a queue yet", hint=hints.START_REPLICA.of(path=home)
                )
            applied = ApplyingMark.read(home, clock)
            if applied is None:
                raise StoreBusy(
                    f"the replica {home} was interrupted while it applied changes", shard=-1,
                    hint=hints.START_REPLICA.of(path=home), transient=False,
                )  # fmt: skip
            self._applied = applied
            self._clock = clock
        except BaseException:
            self._lock.leave()
            raise

    def leave(self) -> None:
        """Let changes be applied."""
        self._lock.leave()

    def status(self) -> ReplicationStatus:
        """How far the replica is."""
        state, contact = ReplicaState.read(self.home), LastContact.read(self.home)
        return ReplicationStatus(
            mode="replica",
            target="",
            history_id=state.history_id,
            term=state.term,
            shipping=is_received_for(self.home),
            lag_seconds=None if contact is None else contact.age(self._clock) / MICROSECONDS,
            lag_bytes=0,
            confirmed_at=self._applied.wall / MICROSECONDS,
            segment=self._applied.n,
        )


def at_replica(home: Path, clock: Clock, *, read_only: bool) -> tuple[Path, HeldLook | None] | None:
    """Where the queue of a replica's directory is, and how it may be looked at. None: it is no such directory.

    Raises:
        ReadOnlyQueue: it is to be written to, and was not promoted.
        QueueNotFound, StoreBusy: it can't be looked at now.
    """
    if not is_replica(home):
        return None
    state = ReplicaState.read(home)
    if state.role == "promoted" and not api.is_marked_replica(home / LIVE):
        return home / LIVE, None
    if not read_only:
        raise ReadOnlyQueue(f"{home} is a living replica; nothing was changed", hint=hints.PROMOTE.of(path=home))
    if state.role != "replica":
        raise StoreBusy(
            f"a promotion of the replica {home} is under way, or was interrupted", shard=-1,
            hint=hints.PROMOTE_AGAIN.of(path=home),
        )  # fmt: skip
    return home / LIVE, HeldLook(home, clock)
