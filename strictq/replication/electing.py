"""Decide on the membership of a chain, from the host of one member: rounds of questions until one has an outcome.

`voting` defines the questions and the meaning of answers. This module has the connections, and the rule for the new primary.
"""

from __future__ import annotations

import os
import random
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs

from .._values import hints
from .._values.errors import InvalidArgument, NotElected, StrictqError
from .membership import Votes
from .places import replica_at
from .received import ReceivedSegments
from .remote import ReplicaTarget
from .replica_log import PRIMARY_N
from .segment import START_BYTES, segment_bytes
from .voting import Ballot, Ballotting, LogPosition, Membership, Question, Vote

TRIES: Final = 10
PAUSE_SECONDS: Final = 0.2
"""The longest pause between two tries. A random part of it is waited, so that two proposers do not block each other."""
DECIDER_SECONDS: Final = 60.0


@attrs.frozen
class Reach:
    """The credentials to reach the other members. All have the same token and the same authority.

    Attributes:
        key: the key with which segments are hashed.
    """

    token_file: str | os.PathLike[str] | None = None
    authority: str | os.PathLike[str] | None = None
    key: bytes = b""

    def at(self, address: str) -> ReplicaTarget:
        """Return the replica at an address.

        Raises:
            InvalidArgument: the token file is missing.
        """
        if self.token_file is None:
            raise InvalidArgument("token_file is needed to contact the other members of the chain", hint=hints.TOKEN_FILE)
        authority = self.authority if address.startswith("tcps:") else None
        # The command that was given the address has required TLS, or an option that declares the network private.
        return replica_at(address, token_file=self.token_file, authority=authority, key=self.key, plaintext=True)

    def ask(self, address: str, message: Question) -> Vote:
        """Ask a member, and return its answer.

        Raises:
            TargetUnavailable: it does not answer.
        """
        with closing(self.at(address)) as target:
            return target.vote(message)


Change = Callable[[Membership, str], Membership]
"""Returns the membership to propose instead of the given one, for the proposer's id; the same one:

no change. Raises to refuse.
"""


def decide(
    votes: Votes, reach: Reach, change: Change, *, position: Callable[[], LogPosition] | None = None,
    fetch: Callable[[ReplicaTarget], object] = lambda _from: None, on_step: Callable[[str], object] = lambda _step: None,
) -> Membership:  # fmt: skip
    """Let the members decide on a change, and return the membership that they decided.

    Args:
        position: returns the position of this host's log, if this host is to be the primary; None: it is not.
        fetch: gets missing segments from another member.
    Raises:
        NotElected: no majority answered, this host is no longer a member, or another member's log is ahead.
        InvalidArgument, NotElected: raised by `change`.
    """
    why = ""
    number = 0
    for attempt in range(TRIES):
        if attempt:
            time.sleep(random.uniform(0, PAUSE_SECONDS))
        with votes.held() as state:
            decided = state.decided
            number = max(number, 0 if state.promised is None else state.promised.number) + 1
        if decided is None or not state.has_vote:
            raise NotElected("this host is no longer a member of the chain; nothing was changed", hint=hints.NO_MEMBER)
        wanted = change(decided, state.id)
        if wanted == decided:
            return decided
        ballot = Ballot(number, state.id)
        round = Ballotting(decided, ballot, wanted, None if position is None else position())
        talk = Talk(votes, reach, state.id)
        round = talk.ask_all(round)
        on_step("asked")
        if round.has_majority:
            round = _caught_up(round, reach, position, fetch)
            round = talk.ask_all(round.proposed())
            on_step("voted")
        if round.phase in ("promises", "votes"):
            why = talk.silent or "it was refused"
            if round.phase == "promises":
                raise NotElected(
                    f"{len(round.promises)} of {len(decided.members)} members answered, and {decided.majority} are needed; "
                    f"nothing was changed ({why})", hint=hints.MAJORITY, transient=True,
                )  # fmt: skip
        elif round.newest is not None:
            talk.ask_all(round)  # report the decision to all members
            on_step("reported")
        if round.highest is not None:
            number = max(number, round.highest.number)
    raise NotElected(
        f"the members of the chain did not agree in {TRIES} tries ({why or 'another host proposed a change, too'})",
        transient=True,
    )


class Talk:
    """The questions of one try to all members, this host first."""

    def __init__(self, votes: Votes, reach: Reach, own: str) -> None:
        self._votes = votes
        self._reach = reach
        self._own = own
        self._silent: dict[str, str] = {}

    @property
    def silent(self) -> str:
        """The members that did not answer, with their errors."""
        return "; ".join(self._silent.values())

    def ask_all(self, round: Ballotting) -> Ballotting:
        """Ask all members the round's question, until its phase changes. Return the round."""
        phase, question = round.phase, round.question
        telling = question.decided if question.kind == "learn" else None
        members = {**dict(round.decided.members), **dict(() if telling is None else telling.members)}
        for member, address in sorted(members.items(), key=lambda each: each[0] != self._own):
            if member == self._own:
                said = self._votes.answered(question)
            elif not address:
                self._silent[member] = "the first primary takes no questions"
                continue
            else:
                try:
                    said = self._reach.ask(address, question)
                except InvalidArgument:
                    raise
                except StrictqError as e:
                    self._silent[member] = Exception.__str__(e)
                    continue
            if said.state.id != member and question.kind != "learn":
                self._silent[member] = f"{address} is another replica, which has no vote"
                continue
            round = round.heard(question, said)
            if round.phase != phase:
                break
        return round


def _caught_up(
    round: Ballotting, reach: Reach, position: Callable[[], LogPosition] | None, fetch: Callable[[ReplicaTarget], object]
) -> Ballotting:
    """Fetch the segments that this host's log lacks compared with the promising members. Return the round.

    Raises:
        NotElected: the segments can't be fetched.
    """
    if round.ahead is None or position is None or round.voted_before is not None:
        return round
    address = dict(round.decided.members)[round.ahead[1]]
    if round.ahead[0].n == PRIMARY_N:
        raise NotElected(f"{address} was promoted and is running; nothing was changed", hint=hints.ELECTED_OTHER)
    with closing(reach.at(address)) as source:
        try:
            fetch(source)
        except StrictqError as e:
            raise _behind(address, Exception.__str__(e)) from e
    round = round.caught_up(position())
    if round.ahead is not None:
        raise _behind(address, "its log no longer has that segment")
    return round


def _behind(address: str, why: str) -> NotElected:
    return NotElected(
        f"the log of {address} is ahead of this one, and its segments could not be fetched: {why}; nothing was changed",
        hint=hints.PROMOTE_OTHER,
    )


def fetch_into(replica: ReceivedSegments, source: ReplicaTarget) -> None:
    """Fetch and append the segments that another member has and this one lacks.

    Raises:
        TargetUnavailable, ReplicaGap, Diverged: they can't be fetched, or do not follow the last one.
    """
    while True:
        data = source.fetch(replica.last_number)
        if not data:
            return
        at = 0
        while at < len(data):
            size = segment_bytes(data[at : at + START_BYTES], replica.last_number + 1)
            replica.put(replica.last_number + 1, data[at : at + size])
            at += size


def elect(votes: Votes, replica: ReceivedSegments, reach: Reach, on_step: Callable[[str], object]) -> Membership:
    """Let the members elect this host as the primary. It receives no segments meanwhile.

    Raises:
        NotElected: they did not elect it; nothing was changed.
    """
    first = votes.look()
    assert first is not None

    def change(decided: Membership, own: str) -> Membership:
        if decided.primary == own:
            return decided
        if first.decided is not None and decided.primary != first.decided.primary:
            other = dict(decided.members)[decided.primary]
            raise NotElected(
                f"the members have elected {other or 'another member'}; nothing was changed", hint=hints.ELECTED_OTHER
            )
        return Membership(
            decided.version + 1, max(decided.term, replica.state.term) + 1, decided.queue_id,
            tuple(each for each in decided.members if each[0] != decided.primary), own, os.urandom(16).hex(),
        )  # fmt: skip

    return decide(
        votes, reach, change, position=lambda: replica.position, fetch=lambda source: fetch_into(replica, source), on_step=on_step
    )


def ask_decider(command: Sequence[str] | str, queue_id: str, term: int, home: Path) -> None:
    """Run a command that decides whether this host may be the primary in this term. No shell is involved.

    Its last arguments are the queue's id, the term, and the name of this host with the replica's directory. With exit code 0, it
    permits this host, and must permit no other in this term.

    Raises:
        InvalidArgument: the command is malformed.
        NotElected: it refuses, can't be run, or does not end in time.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else [*command]
    except ValueError as e:
        raise InvalidArgument(f"the decider {command!r} is not a command: {e}") from e
    if not words or not all(isinstance(word, str) and word for word in words):
        raise InvalidArgument(f"the decider must be a command and its arguments, not {command!r}")
    try:
        code = subprocess.run(  # noqa: S603
            [*words, queue_id, str(term), f"{socket.gethostname()}:{home}"], stdin=subprocess.DEVNULL, timeout=DECIDER_SECONDS
        ).returncode  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as e:
        raise NotElected(f"the decider {words[0]} can't be run: {e}; nothing was changed", hint=hints.DECIDER) from e
    if code:
        raise NotElected(f"the decider {words[0]} refused: it exited with {code}; nothing was changed", hint=hints.DECIDER)
