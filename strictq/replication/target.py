"""Where a queue ships to: what a shipper needs of it, whether it keeps the segments or makes a living copy of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from .. import _hints as hints
from .._errors import Diverged, InvalidArgument, StrictqError, TargetUnavailable
from .keys import key_id
from .segment import SegmentHeader

TARGET_FORMAT: Final = 1
"""Of what a target says of itself."""


class ChainHead(NamedTuple):
    """Where a chain ends.

    Attributes:
        n: the number of its last segment.
        hash: of that; "" if it is damaged.
        complete: the last segment of the newest cut that is all there; None: there is none, or it is damaged.
    """

    n: int
    hash: str
    complete: SegmentHeader | None


class ShipTarget:
    """One place that one queue ships to. One shipper writes to it.

    Args:
        key: what hashes of segments are keyed with; b"": they are not.
        write_once: names that are taken are refused: see `is_write_once`.
    """

    keeps_segments = True
    """Old segments stay for restores, so a new base is made now and then. False: it applies them."""

    def __init__(self, key: bytes = b"", *, write_once: bool = True) -> None:
        self.key = key
        self.write_once = write_once

    def __str__(self) -> str:
        """The name that `parse` takes."""
        raise NotImplementedError

    def holds(self, path: Path) -> bool:
        """Return whether this real path lies in the place."""
        raise NotImplementedError

    def require_apart(self, queue: Path) -> None:
        """Raise InvalidArgument if the place and this directory lie in one another."""
        raise NotImplementedError

    def translated(self, what: str, error: Exception) -> StrictqError | None:
        """Return our error for one that the I/O raised; None: it is a bug."""
        raise NotImplementedError

    # ---- whose it is

    def prepare(self, queue: Path) -> None:
        """See that it may become this queue's replica, and make the place if that is missing and can be made.

        Raises:
            InvalidArgument: it can't; nothing was changed.
            TargetUnavailable: it can't be made or looked at.
        """
        raise NotImplementedError

    def identity(self) -> dict[str, Any] | None:
        """Whose replica it is; None: nobody's.

        Raises:
            TargetUnavailable: it can't be read.
        """
        raise NotImplementedError

    def _take(self, identity: dict[str, Any]) -> None:
        """Make it the replica of a queue; it is nobody's, unless another process was faster."""
        raise NotImplementedError

    def claim(self, identity: dict[str, Any]) -> None:
        """Make it the replica of a queue, if it is nobody's.

        Raises:
            Diverged: it is another queue's, or another history's.
            InvalidArgument: its segments are made with another key.
        """
        found = self.identity()
        if found is None:
            self._take(identity | ({"key_id": key_id(self.key)} if self.key else {}))
            found = self.identity()
        self.require(identity, found)

    def require(self, identity: dict[str, Any], found: dict[str, Any] | None = None) -> None:
        """
        Raises:
            TargetUnavailable: it is nobody's: perhaps its disk is not mounted.
            Diverged: it is another queue's.
            InvalidArgument: its segments are made with another key.
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
        """
        Raises:
            InvalidArgument: the segments of what has this identity are made with another key.
        """
        theirs = found.get("key_id", "")
        if not self.key and theirs:
            raise InvalidArgument(f"the segments of {self} are made with a key", hint=hints.KEY_OF_REPLICA)
        if self.key and not theirs:
            raise InvalidArgument(f"the segments of {self} are made without a key", hint=hints.KEY_OF_REPLICA)
        if self.key and theirs != key_id(self.key):
            raise InvalidArgument(f"the segments of {self} are made with another key", hint=hints.KEY_OF_REPLICA)

    def is_write_once(self) -> bool:
        """Try whether a name that is taken is refused, as it must be where two writers meet.

        Raises:
            TargetUnavailable: it can't be written to.
        """
        raise NotImplementedError

    # ---- segments

    def reach(self) -> None:
        """
        Raises:
            TargetUnavailable: it can't be read.
        """
        raise NotImplementedError

    def head(self) -> ChainHead | None:
        """Where the chain ends; None: there is no segment.

        Raises:
            TargetUnavailable: it can't be read.
            SchemaMismatch: its last segment is of a newer strictq.
        """
        raise NotImplementedError

    def put(self, n: int, data: bytes) -> None:
        """Write a segment; durable on return. Writing the same one twice is the same as once.

        Raises:
            Diverged: another writer wrote one with this number.
            ReplicaGap: the one before is missing.
            TargetUnavailable: it can't be written, or the place was emptied.
        """
        raise NotImplementedError

    def retain(self, limit: int) -> int:
        """Delete the segments that no state since `limit` (wall time, microseconds) needs. Returns how many."""
        raise NotImplementedError

    def beat(self, queue_id: str, history_id: str, term: int, x: int, *, confirmed: bool, generation: int) -> None:
        """Let the other side know that the primary lives, what queue time it has, and whether its calls wait for the replica.

        Args:
            generation: of the setting that says the last; an older one changes nothing.

        Raises:
            TargetUnavailable, Diverged, Fenced: as `put`.
        """

    def close(self) -> None:
        """Let go of connections."""

    # ---- helpers

    def _emptied(self) -> TargetUnavailable:
        return TargetUnavailable(
            f"{self} is no replica any more: it was emptied, or its disk is not mounted", str(self), hint=hints.CONFIGURE_AGAIN
        )

    @contextmanager
    def reached(self, what: str) -> Iterator[None]:
        """Raise our errors for those of the I/O."""
        try:
            yield
        except StrictqError:
            raise
        except Exception as e:
            ours = self.translated(what, e)
            if ours is None:
                raise
            raise ours from e
