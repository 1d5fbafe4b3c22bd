"""The directory of a living replica, and its state files.

state        its queue, history, term and role (replica or promoted), and the last segment that live/ has on the disk
log-0, log-1 confirmed segments that live/ may not have on the disk yet
live/        the queue's files as of the last applied segments
applying     whether live/ is whole, in this boot of the machine
contact      the last contact with the primary
proof        when it last proved that it can be promoted, or why it could not
proving-*    a copy that is being promoted for that; deleted afterwards
lock         held by the process that receives or promotes
looks        held shared by readers of live/, exclusively by its writer
promoting    held by a process that wants to promote, so that the receiving process releases the replica
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import attrs

from .._platform import files
from .._platform.clock import MICROSECONDS, Clock
from .._store import api
from .._values import hints
from .._values.errors import (
    InvalidArgument,
    QueueNotFound,
    ReadOnlyQueue,
    ReplicaGap,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
)
from .._values.stats import ReplicaProof, ReplicationStatus
from .segment import SegmentHeader, header_from, header_values

STATE: Final = "state"
LIVE: Final = "live"
LOGS: Final = ("log-0", "log-1")
APPLYING: Final = "applying"
CONTACT: Final = "contact"
PROOF: Final = "proof"
LOCK: Final = "lock"
LOOKS: Final = "looks"
PROMOTING: Final = "promoting"
FORMAT: Final = 1
MAGIC: Final = "strictq replica"
STATE_BYTES_MAX: Final = 1 << 20
SMALL_BYTES_MAX: Final = 1 << 12
LOOK_SECONDS: Final = 10.0
"""Seconds that a reader waits for changes being applied."""
SYNCED: Final = "on the disk"
_FLAG: Final = struct.Struct(">?128sqqq")
"""Whether it is complete; the boot of the machine; number, queue time and wall time of the last cut."""


@attrs.frozen
class ReplicaState:
    """The state of a replica, stored durably before anything that depends on it.

    Attributes:
        queue_id, history_id: its queue and history; "": it has none yet.
        key_id: the id of the key with which its segments are hashed; "": none.
        term: the current term. Segments of an earlier one are refused.
        role: "replica"; "promoting": no segments are received; "promoted": live/ is an independent queue.
        promoted_as: the history_id of the promoted queue.
        applied: the header of the last segment that live/ has on the disk, or None.
        applied_hash: the hash of that segment.
        confirmed: whether the primary's calls wait for this replica, so that it has every change that they returned.
        generation: the generation of the primary's setting for `confirmed`.
        forwards_to: the next replica with which this one was last started; "": never with one.
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
        """Store the state durably.

        Raises:
            StoreFull, StoreError: it can't be stored; the previous state is kept.
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
        """Read the state.

        Raises:
            StoreCorrupt, SchemaMismatch: it can't be read.
        """
        raw = files.content(home / STATE, STATE_BYTES_MAX)
        try:
            values: dict[str, Any] = json.loads(raw or b"")
            if values.pop("magic") != MAGIC:
                raise ValueError
            if values.pop("format") > FORMAT:
                raise SchemaMismatch("the replica was written by a newer strictq", shard=-1)
            if values["applied"] is not None:
                values["applied"] = header_from(values["applied"], values["applied"]["n"])
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ReplicaGap) as e:
            raise StoreCorrupt(f"the state of the replica {home} can't be read", shard=-1, cause=e) from e


@attrs.frozen
class LastContact:
    """The last contact with the primary, and its queue time then. Not synced, so it may be older after a power cut.

    Attributes:
        x: queue time, microseconds.
        boot, boot_id: the boot clock of the replica's host, microseconds, and the id of its boot.
        wall: its wall clock, microseconds since 1970.
    """

    x: int
    boot: int
    boot_id: str
    wall: int

    def write(self, home: Path) -> None:
        """Store the contact. Errors are ignored."""
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
        """Return the microseconds since then. After a reboot, the wall clock is used; the result is never negative."""
        if self.boot_id == clock.boot_id():
            return max(clock.boot() - self.boot, 0)
        return max(clock.wall() - self.wall, 0)


def read_proof(home: Path) -> ReplicaProof:
    """Return what the replica last stored of its proofs."""
    raw = files.content(home / PROOF, STATE_BYTES_MAX)
    with suppress(ValueError, TypeError, RecursionError):
        return ReplicaProof(**json.loads(raw or b""))
    return ReplicaProof()


def write_proof(home: Path, proof: ReplicaProof) -> None:
    """Store this durably.

    Raises:
        StoreFull, StoreError: it can't be stored.
    """
    with files.typed("the proof of the replica can't be stored"):
        files.replace_durably(home / PROOF, json.dumps(proof.to_dict()).encode())


class AppliedCut(NamedTuple):
    """The last cut that live/ has: the number of its last segment, its queue time, and its wall time."""

    n: int
    x: int
    wall: int


class ApplyingMark:
    """Records whether live/ is complete: for the current boot only, or permanently after a sync.

    After a power cut, changes applied since the last sync may be missing on the disk, and a process may be killed in the
    middle of applying. In both cases, live/ must not be read before the log was applied again.
    """

    def __init__(self, home: Path, clock: Clock) -> None:
        self._path = home / APPLYING
        self._fd = files.open_regular(self._path, os.O_RDWR | os.O_CREAT)
        self._boot = clock.boot_id()
        self._sure = False
        """The mark on the disk does not claim that live/ is complete there."""
        self._cut = (-1, 0, 0)

    def begin(self) -> None:
        """Mark live/ as incomplete."""
        self._write(False, self._boot)
        if not self._sure:  # a power cut must not bring back the mark of the last sync
            os.fsync(self._fd)
            self._sure = True

    def end(self, last: SegmentHeader | None) -> None:
        """Mark live/ as complete in this boot, up to this segment."""
        if last is not None:
            self._cut = (last.n, last.x, last.wall)
        self._write(True, self._boot)

    def synced(self) -> None:
        """Mark live/ as complete and on the disk."""
        self._write(True, SYNCED)
        self._sure = False
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, whole: bool, boot: str) -> None:
        with files.typed("the replica can't be written"), files.naming(self._path):
            os.pwrite(self._fd, _FLAG.pack(whole, boot.encode(), *self._cut), 0)

    @staticmethod
    def read(home: Path, clock: Clock) -> AppliedCut | None:
        """Return the last cut of live/; None: it may be incomplete."""
        raw = files.content(home / APPLYING, _FLAG.size)
        if raw is None or len(raw) != _FLAG.size:
            return None
        whole, boot, n, x, wall = _FLAG.unpack(raw)
        if not whole or boot.rstrip(b"\0").decode("utf-8", "replace") not in (SYNCED, clock.boot_id()):
            return None
        return AppliedCut(n, x, wall)


def given_path(given: object, what: str, hint: hints.Coded | None = None) -> Path:
    """Return the real path that an argument names.

    Args:
        what: what the argument must be, for the error.
    Raises:
        InvalidArgument: it is not a path.
    """
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes) or not os.fspath(given):
        raise InvalidArgument(f"{what}, not {given!r}", hint=hint)
    return Path(files.real_path(os.path.expanduser(given)))


def is_replica(path: Path) -> bool:
    """Return whether this is the directory of a replica, promoted or not."""
    if not (path / LIVE).is_dir():
        return False
    raw = files.content(path / STATE, STATE_BYTES_MAX)
    return raw is not None and MAGIC.encode() in raw


def make(home: Path) -> None:
    """Create a new replica's directory, if there is none.

    Raises:
        InvalidArgument: the path has other contents; nothing was changed.
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
                f"{home} contains other files, such as {min(found)!r}; nothing was changed", hint=hints.EMPTY_TARGET
            )
        files.make_directories(home.parent)
        if not home.exists():
            home.mkdir(mode=0o700)
            files.sync_directory(home.parent)
        if not (home / LIVE).exists():
            (home / LIVE).mkdir(mode=0o700)
    ReplicaState().write(home)


def promotion_wanted(home: Path) -> bool:
    """Return whether a process waits to promote the replica. A file left by a killed process does not count."""
    if not (home / PROMOTING).exists():
        return False
    probe = files.Lock(home / PROMOTING, look=True)
    try:
        return not probe.alone(0.0)
    finally:
        probe.leave()


def is_received_for(home: Path) -> bool:
    return files.is_held(home / LOCK)


class HeldLook:
    """A reader's lock on a living replica. While it is held, nothing is applied, so all reads see one state.

    Raises:
        QueueNotFound: it has no complete state yet.
        StoreBusy: changes are being applied, or applying was interrupted and the replica must be started.
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
                    f"the replica {home} has no complete state of a queue yet", hint=hints.START_REPLICA.of(path=home)
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
        """Release the lock, so that changes can be applied."""
        self._lock.leave()

    def status(self) -> ReplicationStatus:
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
            proof=read_proof(self.home),
        )


def at_replica(home: Path, clock: Clock, *, read_only: bool) -> tuple[Path, HeldLook | None] | None:
    """Return the path of a replica's queue, with the reader's lock if it is not promoted; None: this is not a replica.

    Raises:
        ReadOnlyQueue: it is to be opened for writing, and was not promoted.
        QueueNotFound, StoreBusy: it can't be read now.
    """
    if not is_replica(home):
        return None
    state = ReplicaState.read(home)
    if state.role == "promoted" and not api.is_marked_replica(home / LIVE):
        return home / LIVE, None
    if not read_only:
        raise ReadOnlyQueue(f"{home} is a replica that receives changes; nothing was changed", hint=hints.PROMOTE.of(path=home))
    if state.role != "replica":
        raise StoreBusy(
            f"a promotion of the replica {home} is running, or was interrupted", shard=-1,
            hint=hints.PROMOTE_AGAIN.of(path=home),
        )  # fmt: skip
    return home / LIVE, HeldLook(home, clock)
