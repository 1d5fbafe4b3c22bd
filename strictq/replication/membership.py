"""The stored voter of a host: its knowledge of the chain's membership, and its answers to the other members.

The file `votes` is in the directory of a replica or of a queue. Every process that changes it holds
`votes.lock`, and the change is on the disk before an answer is sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast, get_args

from .._platform import files
from .._values.errors import InvalidArgument, StoreBusy, StoreCorrupt
from .voting import MEMBERS_MAX, NOTHING, Ballot, Kind, LogPosition, Membership, Question, Vote, VoterState, answer

VOTES: Final = "votes"
VOTES_LOCK: Final = "votes.lock"
BYTES_MAX: Final = 1 << 16
LOCK_SECONDS: Final = 5.0


class Votes:
    """The voter of one directory. Safe for any thread and process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / VOTES
        self._seen: tuple[tuple[int, int], VoterState] | None = None

    def look(self) -> VoterState | None:
        """Return the voter's stored state; None: there is none. If the file is unchanged, this costs one stat.

        Raises:
            StoreCorrupt: it can't be read.
        """
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        signature = (found.st_ino, found.st_mtime_ns)
        if self._seen is None or self._seen[0] != signature:
            self._seen = signature, self._read()
        return self._seen[1]

    def _read(self) -> VoterState:
        try:
            return state_from(json.loads(files.content(self._path, BYTES_MAX) or b""))
        except (ValueError, TypeError, LookupError, RecursionError) as e:
            raise StoreCorrupt(f"the votes of {self._directory} can't be read", shard=-1, cause=e) from e

    @contextmanager
    def held(self) -> Iterator[VoterState]:
        """Hold the lock of the voter's state, and yield the state. It is created if it is missing.

        Raises:
            StoreBusy: another process does not release the lock in time.
        """
        lock = files.Lock(self._directory / VOTES_LOCK)
        try:
            if not lock.alone(LOCK_SECONDS):
                raise StoreBusy(f"another process uses the votes of {self._directory}", shard=-1)
            if not self._path.exists():
                self.store(VoterState(os.urandom(8).hex()))
            yield self._read()
        finally:
            lock.leave()

    def store(self, state: VoterState) -> None:
        """Store the state, durably on return. Only inside a `held` block."""
        with files.typed("the votes can't be stored"):
            files.replace_durably(self._path, json.dumps(state_values(state)).encode())

    def answered(self, message: Question, position: Callable[[], LogPosition] = lambda: NOTHING) -> Vote:
        """Return the voter's answer. Its promises are on the disk on return.

        Args:
            position: returns the position of the log; called while no other answer is given.
        """
        with self.held() as state:
            said = answer(state, message)
            if said.state != state:
                self.store(said.state)
            return Vote(said.yes, said.state, position())

    def leave_chain(self) -> None:
        """Leave the membership, and become a new voter. Decisions of the old chain no longer concern this directory."""
        with self.held():
            self.store(VoterState(os.urandom(8).hex()))


# ---- as JSON, for files and for the network


def membership_values(m: Membership | None) -> list[Any] | None:
    return None if m is None else [m.version, m.term, m.queue_id, [list(each) for each in m.members], m.primary, m.history_id]


def membership_from(found: Any) -> Membership | None:
    """Parse a membership; None if there is none.

    Raises:
        ValueError, TypeError: it is malformed.
    """
    if found is None:
        return None
    version, term, queue_id, members, primary, history_id = found
    pairs = tuple((_text(member), _text(address)) for member, address in members)
    if not 1 <= len(pairs) <= MEMBERS_MAX or len(dict(pairs)) != len(pairs):
        raise ValueError("not a chain")
    return Membership(number(version), number(term), _text(queue_id), pairs, _text(primary), _text(history_id))


def ballot_from(found: Any) -> Ballot | None:
    if found is None:
        return None
    ballot, host = found
    return Ballot(number(ballot), _text(host))


def state_values(state: VoterState) -> dict[str, Any]:
    accepted = state.accepted and [state.accepted[0], membership_values(state.accepted[1])]
    return {"id": state.id, "decided": membership_values(state.decided), "promised": state.promised, "accepted": accepted}


def state_from(found: dict[str, Any]) -> VoterState:
    accepted = None
    if found["accepted"] is not None:
        ballot, value = ballot_from(found["accepted"][0]), membership_from(found["accepted"][1])
        if ballot is None or value is None:
            raise ValueError("a vote for nothing")
        accepted = ballot, value
    return VoterState(_text(found["id"]), membership_from(found["decided"]), ballot_from(found["promised"]), accepted)


def message_values(message: Question) -> dict[str, Any]:
    return {
        "kind": message.kind,
        "decided": membership_values(message.decided),
        "ballot": message.ballot,
        "value": membership_values(message.value),
    }


def message_from(data: bytes) -> Question:
    """Parse a question.

    Raises:
        InvalidArgument: it is malformed.
    """
    try:
        found = json.loads(data)
        if found["kind"] not in get_args(Kind):
            raise ValueError("not a question")
        return Question(
            cast("Kind", found["kind"]), membership_from(found["decided"]), ballot_from(found["ballot"]),
            membership_from(found["value"]),
        )  # fmt: skip
    except (ValueError, TypeError, LookupError, RecursionError) as e:
        raise InvalidArgument("the voter can't read this question") from e


def answer_values(said: Vote) -> dict[str, Any]:
    return {"yes": said.yes, "state": state_values(said.state), "position": said.position}


def answer_from(found: dict[str, Any]) -> Vote:
    term, n, digest = found["position"]
    return Vote(found["yes"] is True, state_from(found["state"]), LogPosition(int(term), int(n), str(digest)))


def _text(found: object) -> str:
    if not isinstance(found, str) or len(found) > 512:
        raise ValueError("not a name")
    return found


def number(found: object) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 62:
        raise ValueError("not a number")
    return found
