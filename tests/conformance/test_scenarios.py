"""Every situation that users of queues complain about: strictq passes, and each peer does what the record says of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conformance import judge as judging
from benchmarks.conformance.judge import Judgement, judge
from benchmarks.conformance.scenarios import SCENARIOS, Scenario, Seen, harm, harm_beside
from benchmarks.conformance.stage import Stage, send, staged
from benchmarks.conformance.tables import JSON
from benchmarks.peers import ALL, PEERS
from benchmarks.peers.huey import Huey
from benchmarks.peers.peer import NotOffered
from benchmarks.peers.strict import Strictq
from strictq import LeaseLost

RECORD: dict[str, Any] = json.loads(JSON.read_text(encoding="utf-8"))


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_strictq(scenario: Scenario, tmp_path: Path) -> None:
    assert judge(scenario, "strictq", tmp_path).outcome == "passes"


@pytest.fixture(scope="module")
def installed() -> dict[str, dict[str, str]]:
    """Versions of the peers that are here."""
    return {name: judging.versions(name) for name, kind in PEERS.items() if kind.missing() is None}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_peers(scenario: Scenario, name: str, tmp_path: Path, installed: dict[str, dict[str, str]]) -> None:
    if name not in installed:
        pytest.skip(f"{name}: {PEERS[name].missing()}")
    if installed[name] != RECORD["versions"][name]:
        pytest.skip(f"the record is of {RECORD['versions'][name]}, and {installed[name]} is installed")
    found, recorded = judge(scenario, name, tmp_path), RECORD["results"][scenario.name][name]
    assert found.outcome == recorded["outcome"]
    if not scenario.racy:
        assert (found.seen, found.harm) == (recorded["seen"], recorded["harm"])


def test_the_record_is_complete() -> None:
    assert list(RECORD["versions"]) == list(ALL)
    assert list(RECORD["scenarios"]) == list(RECORD["results"]) == list(SCENARIOS)
    for name, scenario in SCENARIOS.items():
        assert RECORD["scenarios"][name] == {"title": scenario.title, "needs": list(scenario.needs)}
        for queue, result in RECORD["results"][name].items():
            lacks = [f for f in scenario.needs if f not in ALL[queue].about.offers]
            assert (result["outcome"] == "not offered") == bool(lacks), f"{name}, {queue}"
            assert not (result["harm"] and result["outcome"] == "passes"), f"{name}, {queue}"


def scenario(run: Any, *needs: Any) -> Scenario:
    return Scenario(name="made-up", title="made up", run=run, needs=needs)


def refuse(feature: str) -> Any:
    def run(stage: Stage) -> Seen:
        raise NotOffered(feature)

    return run


def explode(stage: Stage) -> Seen:
    raise ValueError("boom")


@pytest.fixture
def huey() -> None:
    if (why := Huey.missing()) is not None:
        pytest.skip(why)


@pytest.mark.usefixtures("huey")
@pytest.mark.parametrize(
    ("made_up", "judgement"),
    [
        (scenario(lambda stage: Seen(True, "well")), Judgement("passes", "well")),
        (scenario(lambda stage: Seen(False, "badly")), Judgement("fails", "badly")),
        (scenario(lambda stage: Seen(False, "badly"), "ack"), Judgement("not offered", "badly")),
        (scenario(lambda stage: Seen(False, "badly", "lost"), "ack"), Judgement("not offered", "badly", "lost")),
        (scenario(lambda stage: Seen(True, "well"), "ack"), Judgement("not offered", "well")),
        (scenario(refuse("ack"), "ack"), Judgement("not offered", "")),
        (scenario(explode), Judgement("fails", "ValueError: boom")),
        (scenario(explode, "lease"), Judgement("not offered", "ValueError: boom")),
    ],
    ids=[
        "passes", "fails", "makes no claim", "makes no claim and loses", "passes without a claim", "has no call", "raises",
        "raises without a claim",
    ],
)  # fmt: skip
def test_judging(made_up: Scenario, judgement: Judgement, tmp_path: Path) -> None:
    assert judge(made_up, "huey", tmp_path) == judgement


@pytest.mark.usefixtures("huey")
def test_an_adapter_that_claims_what_it_can_not_do_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotOffered):
        judge(scenario(refuse("several processes")), "huey", tmp_path)


def test_an_error_of_strictq_is_not_a_judgement(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="boom"):
        judge(scenario(explode), "strictq", tmp_path)


# A scenario is worth what it notices. Each of these is strictq with one promise taken out.


class AnyoneTakesAnything(Strictq):
    """No order per key: a second consumer is given what is ready behind the first one's message."""

    def receive(self, number: int) -> list[Any]:
        handed = super().receive(number)
        for lease in {id(d.lease): d.lease for d in handed}.values():
            lease.release()
        return handed

    receive_again = receive


class ForgetsOnReceive(Strictq):
    """At most once."""

    def receive(self, number: int) -> list[Any]:
        return self.q.receive(number, ack_first=True)

    receive_again = receive


class BelievesLateAcks(Strictq):
    """No fencing: an ack of whoever it was removes the message."""

    def ack(self, handed: Any) -> None:
        try:
            super().ack(handed)
        except LeaseLost:
            for key in {d.key for d in handed}:
                self.q.purge(key)


class ForgetsToSend(Strictq):
    """What it says was sent is not there."""

    def send(self, todo: Any) -> None:
        super().send(todo[:-1])


class ReordersOnNack(Strictq):
    """A nack sends the message anew, at the end."""

    def nack(self, handed: Any) -> None:
        self.q.send(handed.body, handed.key)
        handed.ack()


class KeepsIds(Strictq):
    """A purge that leaves the dedup ids behind."""

    def purge(self) -> None:
        while got := self.q.receive(100):
            self.q.ack_many(got)


class ActsInTwoSteps(Strictq):
    """The ack is not part of the transaction."""

    def finish(self, handed: Any, message: Any, *, fail: bool = False) -> None:
        handed.ack()
        if fail:
            raise ZeroDivisionError
        self.q.send(message.body, message.key)


class SendsBeforeItAcks(Strictq):
    """The other order."""

    def finish(self, handed: Any, message: Any, *, fail: bool = False) -> None:
        self.q.send(message.body, message.key)
        handed.ack()


class StoresTwice(Strictq):
    """An id that nobody looks at."""

    def send_once(self, message: Any, dedup_id: str) -> None:
        self.q.send(message.body, message.key)


class ReordersOnReceive(Strictq):
    """The newest first."""

    def receive(self, number: int) -> list[Any]:
        return super().receive(100)[::-1][:number]


class RedrivesToTheEnd(Strictq):
    """A dead letter comes back as a new message."""

    def reject(self, handed: Any) -> None:
        self.failed = handed
        handed.ack()

    def redrive(self) -> None:
        self.q.send(self.failed.body, self.failed.key)


class IgnoresLateAcks(Strictq):
    """An ack that does nothing."""

    def ack(self, handed: Any) -> None:
        pass


class LosesWhatIsTakenOver(Strictq):
    """The first message that it is asked for is gone."""

    def receive(self, number: int) -> list[Any]:
        self.q.ack_many(self.q.receive(1))
        return super().receive(number)

    receive_again = receive


class SendsTwice(Strictq):
    """Everything is there twice."""

    def send(self, todo: Any) -> None:
        super().send([*todo, *todo])


class CountsDeliveries(Strictq):
    """An attempt for everything that was handed out."""

    def attempt(self, handed: Any) -> int:
        return int(handed.attempt) + 1


BROKEN: dict[str, tuple[type[Strictq], str]] = {
    "order": (ReordersOnReceive, "lost"),
    "restart": (ForgetsToSend, "lost"),
    "one-holder": (AnyoneTakesAnything, "doubled"),
    "other-keys": (ForgetsToSend, ""),
    "deep-backlog": (AnyoneTakesAnything, "doubled"),
    "nack": (ReordersOnNack, "reordered"),
    "redrive": (RedrivesToTheEnd, "reordered"),
    "lease-end": (ForgetsOnReceive, ""),
    "late-ack": (BelievesLateAcks, ""),
    "late-effects": (SendsBeforeItAcks, ""),
    "late-ack-alone": (IgnoresLateAcks, "doubled"),
    "killed-worker": (LosesWhatIsTakenOver, "lost"),
    "killed-sender": (LosesWhatIsTakenOver, "lost"),
    "processes": (SendsTwice, "doubled"),
    "acked": (IgnoresLateAcks, "doubled"),
    "batch-mates": (CountsDeliveries, ""),
    "dedup": (StoresTwice, "doubled"),
    "purge": (KeepsIds, "lost"),
    "hand-on": (ActsInTwoSteps, "lost"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_broken_queue_is_noticed(name: str, tmp_path: Path) -> None:
    kind, wrong = BROKEN[name]
    with staged("strictq", kind, tmp_path) as stage:
        seen = SCENARIOS[name].run(stage)
    assert not seen.good
    assert seen.harm == wrong


@pytest.mark.parametrize(
    ("taken", "wrong"),
    [
        (["a1", "a2"], ""),
        (["a2", "a1"], "reordered"),
        (["a1"], "lost"),
        (["a1", "a1"], "lost"),
        (["a1", "a2", "a1"], "doubled"),
        (["a1", "a2", "a3"], "doubled"),
        ([], "lost"),
    ],
)
def test_what_became_of_messages(taken: list[str], wrong: str) -> None:
    assert harm(["a1", "a2"], taken) == wrong


@pytest.mark.parametrize(
    ("others", "wrong"),
    [([], ""), (["b1"], ""), (["b1", "a2"], "reordered"), (["a2", "a1"], "doubled")],
)
def test_what_another_consumer_is_given_meanwhile(others: list[str], wrong: str) -> None:
    assert harm_beside("a1", others) == wrong


def test_a_kill_is_one(tmp_path: Path) -> None:
    with staged("strictq", Strictq, tmp_path) as stage:
        send(stage.open(), "a1")
        with stage.process("peer-receive", number=1, lease_seconds=stage.lease_seconds) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.kill()
            assert process.wait() == -signal.SIGKILL
        assert stage.open().receive(1) == [], "the lease of the dead is still there"
