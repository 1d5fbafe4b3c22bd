"""The interface of targets for a shipper. A target keeps segments, or is a living replica that applies them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from .._values import hints
from .._values.errors import Diverged, InvalidArgument, StrictqError, TargetUnavailable
from .keys import key_id
from .segment import SegmentHeader

TARGET_FORMAT: Final = 1
"""Of what a target says of itself."""


class ChainHead(NamedTuple):
    """The end of a chain.

    Attributes:
        n: the number of its last segment.
        hash: the hash of that segment; "" if it is damaged.
        complete: the last segment of the newest complete cut; None: there is none, or it is damaged.
        missing: the number of a segment that is missing or damaged, without which the newest state can't be restored; None: the
            names show none.
    """

    n: int
    hash: str
    complete: SegmentHeader | None
    missing: int | None = None


class Beat(NamedTuple):
    """A sign of life of a primary.

    Attributes:
        x: its queue time.
        confirmed: whether its calls wait for the replica.
        generation: the generation of the setting for `confirmed`; an older one changes nothing.
    """

    queue_id: str
    history_id: str
    term: int
    x: int
    confirmed: bool
    generation: int


class TargetOptions(NamedTuple):
    """What a target needs besides its name and its key; each kind uses its own.

    Attributes:
        write_once: whether the target refuses to overwrite names.
        token_file, authority: for a replica on another host.
    """

    write_once: bool = True
    token_file: str = ""
    authority: str = ""


class ShipTarget:
    """A target of one queue. One shipper writes to it.

    Args:
        key: the key with which segments are hashed; b"": none.
        write_once: whether the target refuses to overwrite names: see `is_write_once`.
    """

    keeps_segments = True
    """Whether it keeps old segments for restores, so that a new base is made from time to time. Otherwise it applies them."""

    def __init__(self, key: bytes = b"", *, write_once: bool = True) -> None:
        self.key = key
        self.write_once = write_once

    @classmethod
    def parsed(cls, scheme: str, rest: str) -> str:
        """Return the full name of a target that a user named, including the scheme. `rest` is what follows its colon.

        Raises:
            InvalidArgument: it is not a valid name of this kind.
        """
        raise NotImplementedError

    @classmethod
    def named(cls, name: str, key: bytes, options: TargetOptions) -> ShipTarget:
        """Return the target with this full name. Does no I/O."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the full name."""
        raise NotImplementedError

    def holds(self, _path: Path) -> bool:
        """Return whether this real path is inside the target, if the target is a directory."""
        return False

    def require_apart(self, queue: Path) -> None:
        """Raise InvalidArgument if one of the target and this directory contains the other."""

    def translated(self, what: str, error: Exception) -> StrictqError | None:
        """Return the strictq error for an error of the I/O; None: it is a bug."""
        raise NotImplementedError

    # ---- identity

    def prepare(self, queue: Path) -> None:
        """Check that it may become this queue's replica, and create it if it is missing and can be created.

        Raises:
            InvalidArgument: it may not; nothing was changed.
            TargetUnavailable: it can't be created or read.
        """
        raise NotImplementedError

    def identity(self) -> dict[str, Any] | None:
        """Return the identity of the replica: queue, history and key; None: it has none yet.

        Raises:
            TargetUnavailable: it can't be read.
            SchemaMismatch: it is of a newer strictq.
        """
        raise NotImplementedError

    def _take(self, identity: dict[str, Any]) -> None:
        """Make it the replica of a queue. It has no identity yet, unless another process was faster."""
        raise NotImplementedError

    def claim(self, identity: dict[str, Any]) -> None:
        """Make it the replica of a queue, if it has no identity yet.

        Raises:
            Diverged: it belongs to another queue or history.
            InvalidArgument: its segments have another key.
        """
        found = self.identity()
        if found is None:
            self._take(identity | ({"key_id": key_id(self.key)} if self.key else {}))
            found = self.identity()
        self.require(identity, found)

    def require(self, identity: dict[str, Any], found: dict[str, Any] | None = None) -> None:
        """Raise unless it is the replica of this queue and history.

        Raises:
            TargetUnavailable: it has no identity; perhaps its disk is not mounted.
            Diverged: it belongs to another queue or history.
            InvalidArgument: its segments have another key.
        """
        found = self.identity() if found is None else found
        if found is None:
            raise self._emptied()
        if found["queue_id"] != identity["queue_id"]:
            raise Diverged(f"{self} is the replica of another queue; nothing was changed", hint=hints.EMPTY_TARGET)
        if found.get("history_id") != identity["history_id"]:
            raise Diverged(
                f"{self} is the replica of another history of this queue, before a restore; nothing was changed",
                hint=hints.EMPTY_TARGET,
            )
        self.require_key(found)

    def require_key(self, found: dict[str, Any]) -> None:
        """Raise unless the segments of an identity have this target's key.

        Raises:
            InvalidArgument: they have another key.
        """
        theirs = found.get("key_id", "")
        if not self.key and theirs:
            raise InvalidArgument(f"the segments of {self} were made with a key", hint=hints.KEY_OF_REPLICA)
        if self.key and not theirs:
            raise InvalidArgument(f"the segments of {self} were made without a key", hint=hints.KEY_OF_REPLICA)
        if self.key and theirs != key_id(self.key):
            raise InvalidArgument(f"the segments of {self} were made with another key", hint=hints.KEY_OF_REPLICA)

    def is_claimed(self) -> bool:
        """Return whether it has a readable identity.

        Raises:
            TargetUnavailable: it can't be read.
        """
        return self.identity() is not None

    def is_write_once(self) -> bool:
        """Return whether the target refuses to overwrite a name, as is required to detect two writers.

        Raises:
            TargetUnavailable: it can't be written to.
        """
        raise NotImplementedError

    # ---- segments

    def reach(self) -> None:
        """Check that the target can be read.

        Raises:
            TargetUnavailable: it can't be read.
        """
        raise NotImplementedError

    def head(self) -> ChainHead | None:
        """Return the end of the chain; None: there is no segment.

        Raises:
            TargetUnavailable: it can't be read.
            SchemaMismatch: its last segment was made by a newer strictq.
        """
        raise NotImplementedError

    def put(self, n: int, data: bytes) -> None:
        """Write a segment, durably on return. Repeating the same write does nothing.

        Raises:
            Diverged: another writer wrote a segment with this number.
            ReplicaGap: the previous segment is missing.
            TargetUnavailable: it can't be written, or the target was emptied.
        """
        raise NotImplementedError

    def retain(self, _limit: int) -> int:
        """Delete the segments that no state since `_limit` (wall time, microseconds) needs. Return the number deleted."""
        return 0

    def beat(self, beat: Beat) -> None:
        """Send a sign of life.

        Raises:
            TargetUnavailable, Diverged, Fenced: as `put`.
        """

    def close(self) -> None:
        """Close connections."""

    # ---- helpers

    def _emptied(self) -> TargetUnavailable:
        return TargetUnavailable(
            f"{self} is no longer a replica: it was emptied, or its disk is not mounted", str(self), hint=hints.CONFIGURE_AGAIN
        )

    @contextmanager
    def reached(self, what: str) -> Iterator[None]:
        """Raise errors of the I/O as strictq errors."""
        try:
            yield
        except StrictqError:
            raise
        except Exception as e:
            ours = self.translated(what, e)
            if ours is None:
                raise
            raise ours from e
