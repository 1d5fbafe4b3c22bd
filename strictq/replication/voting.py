"""Who the members of a chain are, decided by a majority of them. Pure functions: what a voter answers, what a proposer asks next.

Each change of the membership is one decision, numbered by its version, and made by the members before it: a proposer asks for
promises, then proposes a value under its ballot; a value that a majority accepted is decided. A promotion is such a change, too:
it names another primary, in the next term. So of two changes at once, a promotion among them, at most one is made (Paxos, one
instance for each version).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import attrs

MEMBERS_MAX: Final = 3


class Ballot(NamedTuple):
    """The number of a try, and who tries: no two are equal."""

    number: int
    host: str


class LogPosition(NamedTuple):
    """How far the log of a member is: the term and the number of the last segment of its last whole cut, and that one's hash."""

    term: int
    n: int
    hash: str

    def beyond(self, other: LogPosition) -> bool:
        """Does it have what the other one lacks? So do two that end with different segments of one number."""
        return self[:2] > other[:2] or (self[:2] == other[:2] and self.hash != other.hash)


NOTHING: Final = LogPosition(0, -1, "")


@attrs.frozen
class Membership:
    """What was decided.

    Attributes:
        version: one more than that of the membership which decided it; 1: the first one, which was not decided.
        term: of the primary.
        members: the id and the address of each; the address of the first primary is "", because it does not listen.
        primary: its id.
        history_id: of its queue.
    """

    version: int
    term: int
    queue_id: str
    members: tuple[tuple[str, str], ...]
    primary: str
    history_id: str

    @property
    def ids(self) -> frozenset[str]:
        """Who votes for the next one."""
        return frozenset(member for member, _ in self.members)

    @property
    def majority(self) -> int:
        """How many of them it takes."""
        return len(self.members) // 2 + 1


@attrs.frozen
class VoterState:
    """What a voter must not forget: stored durably before it answers.

    Attributes:
        id: made with its directory. One that lost its directory has another id, and no vote.
        decided: the newest membership that it knows of; None: it is no member of anything.
        promised: it takes part in no ballot lower than this, for the next version.
        accepted: the value that it voted for last, and in which ballot.
    """

    id: str
    decided: Membership | None = None
    promised: Ballot | None = None
    accepted: tuple[Ballot, Membership] | None = None

    @property
    def has_vote(self) -> bool:
        """May it vote for the next membership?"""
        return self.decided is not None and self.id in self.decided.ids


Kind = Literal["look", "learn", "prepare", "accept"]


@attrs.frozen
class Question:
    """What a voter is asked.

    Attributes:
        kind: "look": to say what it knows; "learn": that `decided` was decided; "prepare": to promise; "accept": to vote.
        decided: the newest membership that the proposer knows of; the vote is for the one after.
        ballot: of a promise and a vote.
        value: to vote for.
    """

    kind: Kind
    decided: Membership | None = None
    ballot: Ballot | None = None
    value: Membership | None = None


@attrs.frozen
class Vote:
    """What a voter says.

    Attributes:
        yes: it did what it was asked for.
        state: what it knows now.
        position: how far its log is, if it is known.
    """

    yes: bool
    state: VoterState
    position: LogPosition = NOTHING


def learned(state: VoterState, decided: Membership | None) -> VoterState:
    """The state behind learning what was decided. What was promised for that version does not matter any more.

    One that knows of nothing learns only of a membership that has it: one that lost its directory begins with another id.
    """
    if decided is None:
        return state
    if state.decided is None:
        return attrs.evolve(state, decided=decided) if state.id in decided.ids else state
    if decided.queue_id != state.decided.queue_id or decided.version <= state.decided.version:
        return state
    return VoterState(state.id, decided)


def answer(state: VoterState, message: Question) -> Vote:
    """What a voter says, and what it is then. The state has to be durable before the answer is sent."""
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
    """One try of a proposer, from its first question to its end.

    Attributes:
        decided: the membership that decides.
        wanted: what the proposer wants to be decided.
        mine: how far its log is, if it wants to be the primary; None: that does not matter.
        phase: "promises", "votes"; "decided": `value` is; "lost": another ballot, or a newer membership, was met.
        value: what it proposes: what it wants, unless a member had voted for something before.
        promises, votes: of these members.
        newest: the newest membership that was heard of.
        highest: the highest ballot.
        ahead: of members that promised, the one whose log is the most advanced one, if it is more so than `mine`.
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
        """What to ask each member now."""
        if self.phase == "promises":
            return Question("prepare", self.decided, self.ballot)
        if self.phase == "votes":
            return Question("accept", self.decided, self.ballot, self.value)
        return Question("learn", self.newest or self.decided)

    def heard(self, asked: Question, said: Vote) -> Ballotting:
        """What becomes of it with this answer to this question."""
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
        """Did a majority promise?"""
        return self.phase == "promises" and len(self.promises) >= self.decided.majority

    def caught_up(self, mine: LogPosition) -> Ballotting:
        """The proposer has fetched what it lacked."""
        return attrs.evolve(self, mine=mine, ahead=self.ahead if self.ahead and self.ahead[0].beyond(mine) else None)

    def proposed(self) -> Ballotting:
        """Ask for votes. What a member has voted for before may be decided already, so that is proposed again.

        A log that is behind another one must not win: call `caught_up` first.
        """
        assert self.has_majority
        value = self.wanted if self.voted_before is None else self.voted_before[1]
        assert value != self.wanted or self.ahead is None
        return attrs.evolve(self, phase="votes", value=value)
