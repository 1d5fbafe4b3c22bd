"""Run queues through the scenarios and judge each: passes, fails, or not offered."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from benchmarks.peers import ALL
from benchmarks.peers.peer import NotOffered, Opening
from benchmarks.peers.strict import Strictq

from .scenarios import SCENARIOS, Harm, Scenario
from .stage import staged

Outcome = Literal["passes", "fails", "not offered"]


@attrs.frozen
class Judgement:
    """The result of a queue in a scenario.

    Attributes:
        seen: the observation; empty if the queue has no call for the scenario.
        harm: the harm to a message, if any, even if the queue makes no claim.
    """

    outcome: Outcome
    seen: str
    harm: Harm = ""


def judge(scenario: Scenario, name: str, directory: Path) -> Judgement:
    """Run one queue through one scenario, in an empty directory.

    A queue cannot fail at a feature that it does not claim. The outcome is then "not offered", with the observation.
    """
    kind = ALL[name]
    lacks = [f for f in scenario.needs if f not in kind.about.offers]
    try:
        with staged(name, kind, directory) as stage:
            seen = scenario.run(stage)
    except NotOffered as error:
        # An adapter that claims a feature without a call for it is wrong.
        if error.args[0] in kind.about.offers:
            raise
        return Judgement("not offered", "")
    except Exception as error:
        if kind is Strictq:
            raise
        return Judgement("not offered" if lacks else "fails", f"{type(error).__name__}: {error}")
    if lacks:
        return Judgement("not offered", seen.text, seen.harm)
    return Judgement("passes" if seen.good else "fails", seen.text, seen.harm)


def judge_all(names: Sequence[str], place: Path | None) -> Iterator[tuple[str, str, Judgement]]:
    """Yield (scenario, queue, judgement) for every scenario and queue."""
    for scenario in SCENARIOS.values():
        for name in names:
            directory = Path(tempfile.mkdtemp(prefix="strictq-conformance-", dir=place))
            try:
                yield scenario.name, name, judge(scenario, name, directory)
            finally:
                shutil.rmtree(directory, ignore_errors=True)


def versions(name: str) -> dict[str, str]:
    """Return the versions of everything that a judgement depends on."""
    found = ALL[name].about.versions()
    if name == "redis":
        directory = Path(tempfile.mkdtemp(prefix="strictq-conformance-"))
        try:
            with ALL[name].hosted(directory, "process"):
                peer = ALL[name](Opening(directory, "process"))
                found["redis-server"] = peer.settings()["redis-server"]
                peer.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return found


def as_json(judgements: Sequence[tuple[str, str, Judgement]], names: Sequence[str]) -> dict[str, Any]:
    """Return the record, as stored in docs/reference/conformance.json."""
    results: dict[str, dict[str, Any]] = {}
    for scenario, name, judgement in judgements:
        results.setdefault(scenario, {})[name] = attrs.asdict(judgement)
    return {
        "versions": {name: versions(name) for name in names},
        "scenarios": {s.name: {"title": s.title, "needs": list(s.needs)} for s in SCENARIOS.values()},
        "results": results,
    }
