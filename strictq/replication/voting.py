"""The membership of a chain, decided by a majority of its members. Pure functions: a voter's answers, a proposer's questions.

Each change of the membership is one decision, numbered by its version, and made by the previous members: a proposer asks for
promises, then proposes a value under its ballot. A value that a majority accepted is decided. A promotion is such a change:
it names another primary, in the next term. So of two concurrent changes, including promotions, at most one is made (Paxos, one
instance for each version).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import attrs

MEMBERS_MAX: Final = 3


class Ballot(NamedTuple):
    """The number of a try, and its proposer's host. No two are equal."""

    number: int
    host: str


class LogPosition(NamedTuple):
    """The position of a member's log: the term, number and hash of the last segment of its last complete cut."""

    term: int
    n: int
    hash: str

    def beyond(self, other: LogPosition) -> bool:
        """Return whether this log has data that the other lacks.

        This includes logs whose last segments differ at the same number.
        """
        return self[:2] > other[:2] or (self[:2] == other[:2] and self.hash != other.hash)


NOTHING: Final = LogPosition(0, -1, "")


@attrs.frozen
class Membership:
    """A decided membership.

    Attributes:
        version: one more than the version of the membership that decided it; 1: the first one, which was not decided.
        term: the primary's term.
        members: id and address of each. The address of the first primary is "", because it does not listen.
        primary: the primary's id.
        history_id: the history of the primary's queue.
    """

    version: int
    term: int
    queue_id: str
    members: tuple[tuple[str, str], ...]
    primary: str
    history_id: str

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the members, which vote for the next membership."""
        return frozenset(member for member, _ in self.members)

    @property
    def majority(self) -> int:
        """The number of votes that decide."""
        return len(self.members) // 2 + 1


@attrs.frozen
class VoterState:
    """The state of a voter, stored durably before it answers.

    Attributes:
        id: created with its directory. A voter that lost its directory gets another id, and has no vote.
        decided: the newest membership that it knows; None: it is not a member of a chain.
        promised: it takes part in no lower ballot than this for the next version.
        accepted: the ballot and the value of its last vote.
    """

    id: str
    decided: Membership | None = None
    promised: Ballot | None = None
    accepted: tuple[Ballot, Membership] | None = None

    @property
    def has_vote(self) -> bool:
        """Whether it may vote for the next membership."""
        return self.decided is not None and self.id in self.decided.ids


Kind = Literal["look", "learn", "prepare", "accept"]


@attrs.frozen
class Question:
    """A question to a voter.

    Attributes:
        kind: "look": report the state; "learn": learn that `decided` was decided; "prepare": promise; "accept": vote.
        decided: the newest membership that the proposer knows. The vote is for the next one.
        ballot: the ballot of a promise or a vote.
        value: the membership to vote for.
    """

    kind: Kind
    decided: Membership | None = None
    ballot: Ballot | None = None
    value: Membership | None = None


@attrs.frozen
class Vote:
    """A voter's answer.

    Attributes:
        yes: whether it did what was asked.
        state: its state now.
        position: the position of its log, if known.
    """

    yes: bool
    state: VoterState
    position: LogPosition = NOTHING


def learned(state: VoterState, decided: Membership | None) -> VoterState:
    """Return the state after learning a decision. Promises for that version no longer matter.

    A voter without a membership learns only one that contains it, because a voter that lost its directory has a new id.
    """
    if decided is None:
        return state
    if state.decided is None:
        return attrs.evolve(state, decided=decided) if state.id in decided.ids else state
    if decided.queue_id != state.decided.queue_id or decided.version <= state.decided.version:
        return state
    return VoterState(state.id, decided)


def answer(state: VoterState, message: Question) -> Vote:
    """Return a voter's answer with its new state, which must be durable before the answer is sent."""
    if message.kind == "look":
        return Vote(True, state)
    state = learned(state, message.decided)
    if message.kind == "learn":
        return Vote(state.decided == message.decided, state)
    ballot = message.ballot
    if ballot is None or message.decided is None or state.decided != message.decided or not state.has_vote:
        return Vote(False, state)
    if state.promised is not None and ballot < state.promised:
        return Vote(False, state)
    if message.kind == "prepare":
        return Vote(True, attrs.evolve(state, promised=ballot))
    value = message.value
    if value is None or value.version != message.decided.version + 1 or value.queue_id != message.decided.queue_id:
        return Vote(False, state)
    return Vote(True, attrs.evolve(state, promised=ballot, accepted=(ballot, value)))


Phase = Literal["promises", "votes", "decided", "lost"]


@attrs.frozen
class Ballotting:
    """One try of a proposer, from its first question to its outcome.

    Attributes:
        decided: the membership that decides.
        wanted: the membership that the proposer wants.
        mine: the position of its log, if it wants to be the primary; None: it does not.
        phase: "promises"; "votes"; "decided": `value` is decided; "lost": a higher ballot or a newer membership exists.
        value: the proposed membership: the wanted one, unless a member has voted for another one before.
        promises, votes: the members that promised, and that voted.
        newest: the newest membership reported.
        highest: the highest ballot reported.
        ahead: the most advanced log of the members that promised, if it is beyond `mine`, with the member's id.
    """

    decided: Membership
    ballot: Ballot
    wanted: Membership
    mine: LogPosition | None = None
    phase: Phase = "promises"
    value: Membership | None = None
    promises: frozenset[str] = frozenset()
    votes: frozenset[str] = frozenset()
    voted_before: tuple[Ballot, Membership] | None = None
    newest: Membership | None = None
    highest: Ballot | None = None
    ahead: tuple[LogPosition, str] | None = None

    @property
    def question(self) -> Question:
        """The next question to each member."""
        if self.phase == "promises":
            return Question("prepare", self.decided, self.ballot)
        if self.phase == "votes":
            return Question("accept", self.decided, self.ballot, self.value)
        return Question("learn", self.newest or self.decided)

    def heard(self, asked: Question, said: Vote) -> Ballotting:
        """Return the round after this answer to this question."""
        if asked.ballot != self.ballot or self.phase not in ("promises", "votes"):
            return self
        known = said.state.decided
        if known is not None and known.queue_id == self.decided.queue_id and known.version > self.decided.version:
            return attrs.evolve(self, phase="lost", newest=known)
        if not said.yes:
            met = said.state.promised
            if met is None or met <= self.ballot:
                return self
            return attrs.evolve(self, phase="lost", highest=max(met, self.highest or met))
        if said.state.id not in self.decided.ids:
            return self
        if asked.kind == "prepare" and self.phase == "promises":
            return self._promised(said)
        if asked.kind == "accept" and self.phase == "votes":
            votes = self.votes | {said.state.id}
            if len(votes) >= self.decided.majority:
                return attrs.evolve(self, phase="decided", votes=votes, newest=self.value)
            return attrs.evolve(self, votes=votes)
        return self

    def _promised(self, said: Vote) -> Ballotting:
        before = self.voted_before
        if said.state.accepted is not None and (before is None or said.state.accepted[0] > before[0]):
            before = said.state.accepted
        ahead = self.ahead
        if self.mine is not None and said.position.beyond(self.mine) and (ahead is None or said.position > ahead[0]):
            ahead = (said.position, said.state.id)
        promises = self.promises | {said.state.id}
        return attrs.evolve(self, promises=promises, voted_before=before, ahead=ahead)

    @property
    def has_majority(self) -> bool:
        return self.phase == "promises" and len(self.promises) >= self.decided.majority

    def caught_up(self, mine: LogPosition) -> Ballotting:
        """Return the round after the proposer has fetched missing segments."""
        return attrs.evolve(self, mine=mine, ahead=self.ahead if self.ahead and self.ahead[0].beyond(mine) else None)

    def proposed(self) -> Ballotting:
        """Return the round in the voting phase, with the value that a member voted for before, which may be decided already.

        A log that is behind another one must not win, so call `caught_up` first.
        """
        assert self.has_majority
        value = self.wanted if self.voted_before is None else self.voted_before[1]
        assert value != self.wanted or self.ahead is None
        return attrs.evolve(self, phase="votes", value=value)
