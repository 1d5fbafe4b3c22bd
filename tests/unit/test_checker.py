"""The history checker itself: it sees every seeded fault, and never one where there is none."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.support import history
from tests.support.broken_histories import RULES, broken, loosened, true_history
from tests.support.checker import Policy, Violation, check
from tests.support.history import Act, Handed, Invoke, Operated, Recorder, Return, Sent, Stored, Tx, Wanted
from tests.support.powercut_run import CONFIG

MS = 1_000_000
SECOND = 1_000 * MS
POLICY = Policy(dedup_window=20 * MS)
RUN = Policy(dedup_window=int(CONFIG.dedup_window_seconds) * SECOND)
"""Of the program's queues."""
SEEDS = 16
PLACES = 3


@pytest.mark.in_turn
@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    tried = 0
    for seed in range(0, SEEDS, 2):
        for n, events in enumerate(broken(true_history(seed), rule, random.Random(seed), PLACES)):
            found = {violation.rule for violation in check(events, RUN)}
            assert rule in found, f"{rule} went unnoticed at place {n} of seed {seed}: {found}"
            tried += 1
    assert tried >= SEEDS // 4


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_correct_history_is_never_flagged(seed: int) -> None:
    assert check(true_history(seed), RUN) == []
    for variant in range(PLACES):
        assert check(loosened(true_history(seed), random.Random(variant)), RUN) == [], f"variant {variant}"


def test_the_order_in_which_events_are_given_does_not_matter() -> None:
    (events,) = broken(true_history(3), "F2", random.Random(3), 1)
    assert sorted(check(events, RUN)) == sorted(check(events[::-1], RUN)) != []


# One history by hand for each way in which a lost answer must be given the benefit of the doubt.


class Script:
    """A history written down call by call; times in milliseconds."""

    def __init__(self) -> None:
        self.events: list[history.Event] = []

    def call(self, start: int, end: int | None, verb: str, item: object, *results: object, outcome: str = "ok") -> None:
        number = len(self.events)
        self.events.append(Invoke(number, start * MS, 1, 1, verb, [item]))
        if end is not None:
            self.events.append(Return(number, end * MS, verb, outcome, list(results)))

    def rules(self, policy: Policy = POLICY) -> set[str]:
        return {violation.rule for violation in check(self.events, policy)}


@pytest.fixture
def script() -> Script:
    """One message sent to "k" and delivered under token 1 with a lease of 10 ms."""
    script = Script()
    script.call(0, 1, "send", Sent("k", "a"), Stored(1))
    script.call(2, 3, "receive", Wanted(10 * MS), Handed("k", 1, "a", 1))
    return script


def test_an_unanswered_ack_may_not_have_happened(script: Script) -> None:
    script.call(4, None, "ack", Act("k", 1, 1))
    script.call(20, 21, "receive", Wanted(10 * MS), Handed("k", 1, "a", 2))
    assert script.rules() == set()


def test_an_unanswered_ack_may_have_happened(script: Script) -> None:
    script.call(0, 1, "send", Sent("k", "b"), Stored(2))
    script.call(4, None, "ack", Act("k", 1, 1))
    script.call(5, 6, "receive", Wanted(10 * MS), Handed("k", 2, "b", 2))
    script.call(7, 8, "ack", Act("k", 2, 2))
    script.call(90, 91, "final", None)
    assert script.rules() == set()


def test_an_ack_that_was_never_tried_did_not_happen(script: Script) -> None:
    script.call(0, 1, "send", Sent("k", "b"), Stored(2))
    script.call(20, 21, "receive", Wanted(10 * MS), Handed("k", 2, "b", 2))
    assert script.rules() == {"F2"}


def test_a_repeated_ack_may_succeed_after_the_lane_was_taken(script: Script) -> None:
    script.call(0, 1, "send", Sent("k", "b"), Stored(2))
    script.call(4, 5, "ack", Act("k", 1, 1), outcome="OutcomeUnknown")
    script.call(6, 7, "receive", Wanted(10 * MS), Handed("k", 2, "b", 2))
    script.call(8, 9, "ack", Act("k", 1, 1))
    assert script.rules() == set()


def test_an_unanswered_extend_may_or_may_not_hold_the_lane(script: Script) -> None:
    script.call(5, None, "extend", Act("k", 1, 1, 100 * MS))
    script.call(20, 21, "receive", Wanted(10 * MS), Handed("k", 1, "a", 2))
    assert script.rules() == set()


def test_an_answered_extend_holds_the_lane(script: Script) -> None:
    script.call(5, 6, "extend", Act("k", 1, 1, 100 * MS))
    script.call(20, 21, "receive", Wanted(10 * MS), Handed("k", 1, "a", 2))
    assert script.rules() == {"M1", "F1"}


def test_a_late_ack_of_a_lane_that_nobody_took_is_honoured(script: Script) -> None:
    script.call(500, 501, "ack", Act("k", 1, 1))
    assert script.rules() == set()


def test_a_nack_gives_back_what_comes_after_it_and_keeps_what_came_before() -> None:
    script = Script()
    for n in (1, 2, 3):
        script.call(0, 1, "send", Sent("k", f"m{n}"), Stored(n))
    script.call(2, 3, "receive", Wanted(99 * MS), *(Handed("k", n, f"m{n}", 1) for n in (1, 2, 3)))
    script.call(4, 5, "nack", Act("k", 2, 1))
    assert script.rules() == set()
    taken = [*script.events]
    script.call(6, 7, "receive", Wanted(9 * MS), Handed("k", 2, "m2", 2), Handed("k", 3, "m3", 2))
    assert script.rules() == {"M1", "F2"}
    script.events = [*taken]
    script.call(6, 7, "ack", Act("k", 3, 1))
    assert script.rules() == {"T2"}
    script.events = [*taken]
    script.call(6, 7, "ack", Act("k", 1, 1))
    script.call(8, 9, "receive", Wanted(9 * MS), Handed("k", 2, "m2", 2), Handed("k", 3, "m3", 2))
    assert script.rules() == set()


def test_the_effect_tells_what_an_unanswered_transaction_did(script: Script) -> None:
    script.call(4, None, "transact", Tx("e", "k", 1, 1, [Sent("k", "b")]))
    script.call(30, 31, "receive", Wanted(9 * MS), Handed("k", 1, "a", 2))
    absent = [*script.events]
    script.call(90, 91, "final", None, history.Left("pending", "k", 1, "a"))
    assert script.rules() == set()
    script.events = [*absent]
    script.call(
        90, 91, "final", None, history.Left("pending", "k", 2, "b"), history.Effect("e", 1)
    )  # the effect is there, and so must the ack be
    assert script.rules() == {"X1"}


def test_a_poisonous_message_may_leave_its_lane(script: Script) -> None:
    script.call(0, 1, "send", Sent("k", "b"), Stored(2))
    script.call(20, 21, "receive", Wanted(10 * MS), Handed("k", 1, "a", 2))
    script.call(40, 41, "receive", Wanted(10 * MS), Handed("k", 2, "b", 3))
    assert script.rules(Policy(max_attempts=2)) == set()
    assert script.rules(Policy(max_attempts=3)) == {"F2"}


def test_a_reboot_ends_every_lease(script: Script) -> None:
    script.call(4, None, "reboot", None)
    script.call(5, 6, "receive", Wanted(10 * MS), Handed("k", 1, "a", 2))
    assert script.rules() == set()


# Histories in files.


@pytest.mark.parametrize("seed", range(5))
def test_a_history_survives_its_file(seed: int, tmp_path: Path) -> None:
    histories = (true_history(n) for n in itertools.count(seed, 5))  # one without effects can't break the rule
    events = next(found for one in histories for found in broken(one, "X1", random.Random(seed), 1))
    history.write(tmp_path / "1.jsonl", events[::2])
    history.write(tmp_path / "2.jsonl", events[1::2])
    again = history.read_all(tmp_path)
    assert len(again) == len(events)
    assert sorted(check(again, RUN)) == sorted(check(events, RUN)) != []


def test_a_torn_last_line_counts_for_nothing(tmp_path: Path) -> None:
    events = true_history(1)[:40]
    path = tmp_path / "1.jsonl"
    history.write(path, events)
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        assert len(list(history.read(path))) == len(events) - 1


def test_a_damaged_line_before_the_last_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(b"[0,1,2\n" + history.encode(Return(1, 2, "send", "ok", [])))
    with pytest.raises(ValueError):
        list(history.read(path))


def test_a_recorder_writes_what_it_would_have_kept(tmp_path: Path) -> None:
    kept = Recorder()
    written = Recorder(tmp_path / "1.jsonl")
    for recorder in (kept, written):
        call = recorder.invoke("send", [Sent("k", "m")])
        recorder.result(call, "send", "ok", [Stored(1)])
    written.close()
    read = history.read_all(tmp_path)
    assert [(e.verb, e.items) for e in read] == [(e.verb, e.items) for e in kept.events]
    assert read[0].at <= read[1].at
    assert check(read) == []


def test_a_violation_says_what_and_where() -> None:
    script = Script()
    script.call(0, 1, "send", Sent("k", "a"), Stored(1))
    script.call(2, 3, "send", Sent("k", "b"), Stored(1))
    assert check(script.events) == [Violation("S1", "k", "seq 1 was given to two sends")]


@pytest.mark.parametrize(("returned", "flagged"), [(12, True), (40, False)], ids=["quick", "longer_than_its_lease"])
def test_a_receive_that_outlasts_its_lease_may_have_held_what_a_purge_left(script: Script, returned: int, flagged: bool) -> None:
    """It claimed the message, the purge left that to its holder, the lease ran out, another took it, and it returned nothing."""
    script.call(4, 5, "send", Sent("p", "b"), Stored(1))
    script.call(10, returned, "receive", Wanted(10 * MS))
    script.call(13, 14, "purge", Operated("p"))
    script.call(30, 31, "receive", Wanted(10 * MS), Handed("p", 1, "b", 2))
    assert script.rules() == ({"A1"} if flagged else set())


def test_a_redriven_message_whose_ack_had_no_answer_may_be_gone_at_the_next_redrive(script: Script) -> None:
    script.call(4, 5, "send", Sent("k", "b"), Stored(2))
    script.call(6, 7, "reject", Act("k", 1, 1))
    script.call(8, 9, "redrive", Operated("k"))
    script.call(10, 11, "receive", Wanted(10 * MS), Handed("k", 1, "a", 2))
    script.call(12, None, "ack", Act("k", 1, 2))  # it may have counted
    script.call(30, 31, "receive", Wanted(10 * MS), Handed("k", 2, "b", 3))
    script.call(32, 33, "reject", Act("k", 2, 3))
    script.call(34, 35, "redrive", Operated("k"))
    script.call(36, 37, "receive", Wanted(10 * MS), Handed("k", 2, "b", 4))
    assert script.rules() == set()
