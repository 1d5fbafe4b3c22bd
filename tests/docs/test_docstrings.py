"""The most used names have an example in their docstring, and the examples work."""

from __future__ import annotations

import doctest
from operator import attrgetter
from pathlib import Path

import pytest

import strictq

NAMES = [
    "open", "open_async", "Queue", "Queue.send", "Queue.send_json", "Queue.send_many", "Queue.receive", "Queue.consume",
    "Queue.transaction", "Queue.delivery", "Queue.stats", "Queue.explain", "Queue.redrive", "Queue.observe", "Queue.configure",
    "Queue.query", "Delivery", "Batch", "Message", "QueueConfig", "Worker", "App", "Retry", "Defer", "Reject", "LeaseLost",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_examples_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    described = attrgetter(name)(strictq)
    tests = doctest.DocTestFinder(recurse=False).find(described, name, globs={"strictq": strictq})
    assert sum(len(test.examples) for test in tests) > 0, f"{name} has no example"
    said: list[str] = []
    for test in tests:
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)
