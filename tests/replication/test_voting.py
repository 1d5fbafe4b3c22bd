"""Votes on who the members of a chain are: of two changes at once at most one is made, whatever becomes of messages."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import attrs
import pytest

from strictq.replication import voting
from strictq.replication.membership import answer_from, answer_values, message_from, message_values, state_from, state_values
from strictq.replication.voting import Ballot, Ballotting, LogPosition, Membership, Question, Vote, VoterState, answer, learned

FIRST = Membership(1, 1, "q", (("A", ""), ("B", "tcp://b"), ("C", "tcp://c")), "A", "h")


def promoted(host: str, before: Membership = FIRST) -> Membership:
    others = tuple(each for each in before.members if each[0] != before.primary)
    return Membership(before.version + 1, before.term + 1, "q", others, host, f"h-{host}")


def without(host: str, before: Membership = FIRST) -> Membership:
    others = tuple(each for each in before.members if each[0] != host)
    return Membership(before.version + 1, before.term, "q", others, before.primary, before.history_id)


# ---- one voter


def test_a_promise_is_kept() -> None:
    state = VoterState("B", FIRST)
    later, sooner = Ballot(2, "C"), Ballot(1, "B")
    said = answer(state, Question("prepare", FIRST, later))
    assert said.yes
    for kind in ("prepare", "accept"):
        refused = answer(said.state, Question(kind, FIRST, sooner, promoted("B")))  # type: ignore[arg-type]
        assert (refused.yes, refused.state) == (False, said.state)
    voted = answer(said.state, Question("accept", FIRST, later, promoted("C")))
    assert voted.yes
    assert answer(voted.state, Question("prepare", FIRST, Ballot(3, "B"))).state.accepted == (later, promoted("C"))


def test_who_has_no_vote() -> None:
    ballot = Ballot(1, "B")
    for state in (VoterState("lost", None), VoterState("other", FIRST), VoterState("C", without("C"))):
        said = answer(state, Question("prepare", FIRST, ballot))
        assert (said.yes, said.state) == (False, state)


def test_what_was_decided_is_learned_once() -> None:
    state = VoterState("B", FIRST, Ballot(4, "C"), (Ballot(4, "C"), promoted("C")))
    second = without("C")
    assert learned(state, second) == VoterState("B", second)
    assert learned(VoterState("B", second), FIRST) == VoterState("B", second)
    assert learned(VoterState("new"), second) == VoterState("new")
    assert learned(VoterState("B"), second) == VoterState("B", second)
    assert learned(state, attrs.evolve(second, queue_id="other")) == state
    assert not answer(VoterState("new"), Question("learn", FIRST)).yes
    assert answer(state, Question("look")).state == state


def test_a_value_is_for_the_next_version() -> None:
    state = VoterState("B", FIRST)
    for odd in (None, FIRST, attrs.evolve(promoted("B"), queue_id="other"), promoted("B", promoted("C"))):
        assert not answer(state, Question("accept", FIRST, Ballot(1, "B"), odd)).yes


def test_a_proposer_that_missed_a_decision_gets_no_vote() -> None:
    second = without("C")
    state = VoterState("B", second)
    for kind in ("prepare", "accept"):
        said = answer(state, Question(kind, FIRST, Ballot(9, "C"), promoted("C")))  # type: ignore[arg-type]
        assert (said.yes, said.state) == (False, state)
    assert answer(VoterState("B", FIRST), Question("prepare", second, Ballot(1, "A"))).yes


def test_states_and_questions_travel() -> None:
    state = VoterState("B", FIRST, Ballot(4, "C"), (Ballot(4, "C"), promoted("C")))
    assert state_from(state_values(state)) == state
    said = Vote(True, state, LogPosition(1, 5, "x"))
    assert answer_from(answer_values(said)) == said
    for message in (Question("look"), Question("accept", FIRST, Ballot(4, "C"), promoted("C"))):
        assert message_from(json.dumps(message_values(message)).encode()) == message


# ---- one try


def promise(id: str, position: LogPosition = voting.NOTHING, accepted: tuple[Ballot, Membership] | None = None) -> Vote:
    return Vote(True, VoterState(id, FIRST, Ballot(1, "B"), accepted), position)


def test_a_log_that_is_behind_does_not_win() -> None:
    mine = LogPosition(1, 5, "a")
    round = Ballotting(FIRST, Ballot(1, "B"), promoted("B"), mine)
    for ahead in (LogPosition(1, 6, "b"), LogPosition(2, 1, "c"), LogPosition(1, 5, "other")):
        behind = round.heard(round.question, promise("B")).heard(round.question, promise("C", ahead))
        assert behind.has_majority
        assert behind.ahead == (ahead, "C")
        assert behind.caught_up(ahead).ahead is None
        with pytest.raises(AssertionError):
            behind.proposed()
    level = round.heard(round.question, promise("B")).heard(round.question, promise("C", LogPosition(1, 4, "z")))
    assert level.ahead is None
    assert level.proposed().value == promoted("B")


def test_what_was_voted_for_is_proposed_again() -> None:
    round = Ballotting(FIRST, Ballot(9, "B"), promoted("B"))
    for number, host in ((3, "C"), (2, "A")):
        round = round.heard(round.question, promise(host, accepted=(Ballot(number, host), promoted(host))))
    assert round.proposed().value == promoted("C")


# ---- all interleavings of a small chain


class World(NamedTuple):
    """All voters and proposers, and every question that was ever asked.

    A question may arrive at any time, any number of times. Its answer is heard or lost.

    All by number, so that millions of them can be compared: see Explorer.

    Attributes:
        rounds: of each proposer the try that is under way; -1: none.
        tries: how many more each of them makes.
        made: what proposers have found to be decided.
    """

    voters: tuple[int, ...]
    rounds: tuple[int, ...]
    tries: tuple[int, ...]
    asked: frozenset[tuple[int, int]]
    made: frozenset[Membership] = frozenset()


T = TypeVar("T")


def replaced(all_: tuple[T, ...], at: int, new: T) -> tuple[T, ...]:
    return (*all_[:at], new, *all_[at + 1 :])


class Explorer:
    """Visits every world that can come about.

    Args:
        hosts: of the proposers. A try may be given up for the next one at any time, as by kill -9.
        teaches: those who do not know what was decided may be told.
    """

    def __init__(self, hosts: str, tries: tuple[int, ...], *, teaches: bool = False) -> None:
        self.hosts, self.teaches = hosts, teaches
        self.numbers: dict[object, int] = {}
        self.things: list[Any] = []
        self.said_to = functools.cache(self._said_to)
        self.hears = functools.cache(self._hears)
        self.begins = functools.cache(self._begins)
        self.made: set[frozenset[Membership]] = set()
        voters = tuple(self.number(VoterState(host, FIRST)) for host in "ABC")
        start = World(voters, (-1,) * len(hosts), tries, frozenset())
        seen, todo = {start}, [start]
        while todo:
            world = todo.pop()
            versions = [value.version for value in world.made]
            assert len(set(versions)) == len(versions), world.made
            self.made.add(world.made)
            for after in self.steps(world):
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        self.worlds = len(seen)

    def number(self, thing: object) -> int:
        found = self.numbers.setdefault(thing, len(self.things))
        if found == len(self.things):
            self.things.append(thing)
        return found

    def steps(self, world: World) -> Iterator[World]:
        for at, host in enumerate(self.hosts):
            own = world.voters["ABC".index(host)]
            if world.tries[at] and (round := self.begins(own)) is not None:
                yield self.goes_on(world._replace(tries=replaced(world.tries, at, world.tries[at] - 1)), at, round)
            if world.rounds[at] >= 0 and self.things[world.rounds[at]].has_majority:
                yield self.goes_on(world, at, self.number(self.things[world.rounds[at]].proposed()))
        for at, question in world.asked:
            for who, voter in enumerate(world.voters):
                after, said = self.said_to(voter, question)
                if "ABC"[who] == self.hosts[at]:
                    continue  # it was asked at once
                answered = world if after == voter else world._replace(voters=replaced(world.voters, who, after))
                yield answered  # the answer is lost
                if (round := self.hears(world.rounds[at], question, said)) != world.rounds[at]:
                    yield self.goes_on(answered, at, round)

    def _said_to(self, voter: int, question: int) -> tuple[int, int]:
        said = answer(self.things[voter], self.things[question])
        return self.number(said.state), self.number(said)

    def _hears(self, round: int, question: int, said: int) -> int:
        return self.number(self.things[round].heard(self.things[question], self.things[said]))

    def _begins(self, voter: int) -> int | None:
        """A try of this host, by what its own voter knows."""
        own: VoterState = self.things[voter]
        if not own.has_vote or own.decided is None:
            return None
        value = WANTED[own.id](own.decided)
        if value is None:
            return None
        ballot = Ballot((own.promised.number if own.promised else 0) + 1, own.id)
        return self.number(Ballotting(own.decided, ballot, value))

    def goes_on(self, world: World, at: int, number: int) -> World:
        round: Ballotting = self.things[number]
        made, asked = world.made, world.asked
        if round.phase == "decided":
            assert round.value is not None
            made |= {round.value}
        if round.phase == "lost":
            return world._replace(rounds=replaced(world.rounds, at, number))
        question = self.number(round.question)
        if self.teaches or round.phase != "decided":
            asked |= {(at, question)}
        own = "ABC".index(self.hosts[at])
        voter, said = self.said_to(world.voters[own], question)
        number = self.hears(number, question, said)
        voters = replaced(world.voters, own, voter)
        return world._replace(voters=voters, rounds=replaced(world.rounds, at, number), asked=asked, made=made)


Wish = Callable[[Membership], "Membership | None"]
"""What a host wants instead of a membership; None: nothing."""


def promotes(host: str) -> Wish:
    """Wants to be the primary, unless another one was promoted since the first."""
    return lambda known: promoted(host, known) if known.primary == "A" else None


def drops(host: str) -> Wish:
    return lambda known: without(host, known) if host in known.ids and known.primary == "A" else None


WANTED = {"A": drops("C"), "B": promotes("B"), "C": promotes("C")}


@pytest.mark.parametrize(("hosts", "tries", "teaches"), [("BC", (1, 1), True), ("AC", (1, 1), True), ("BC", (2, 1), False)])
def test_of_two_changes_at_once_one_is_made(hosts: str, tries: tuple[int, ...], teaches: bool) -> None:
    found = Explorer(hosts, tries, teaches=teaches)
    assert found.worlds > 1_000
    seconds = {value for made in found.made for value in made if value.version == 2}
    assert len(seconds) == 2  # each of them is made in some of the worlds, and never both
