"""How many modules of the package one call passes. Each is a file that a reader of the call has to open."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from types import FrameType

import strictq
from strictq import Delivery

PACKAGE = Path(strictq.__file__).parent
WAYS = {"send": 13, "receive": 20, "ack": 13}
"""The most modules that each verb passes at "process", in a queue of one shard with current memory."""


def passed(act: Callable[[], object]) -> list[str]:
    """Return the modules of the package that run during a call, in the order of their first frames."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found[str(path.relative_to(PACKAGE))] = None

    sys.setprofile(note)
    try:
        Context().run(act)  # without a transaction that an earlier test opened
    finally:
        sys.setprofile(None)
    return list(found)


def test_a_call_passes_few_modules(queue_path: str) -> None:
    with strictq.open(queue_path, durability="process", shards=1) as q:
        for _ in range(3):
            q.send(b"", key="a")
            q.receive(1)[0].ack()
        held: list[Delivery] = []
        ways = {
            "send": passed(lambda: q.send(b"", key="a")),
            "receive": passed(lambda: held.extend(q.receive(1))),
            "ack": passed(lambda: held[0].ack()),
        }
    for verb, modules in ways.items():
        print(f"{verb}: {len(modules)}: {', '.join(modules)}")
        assert len(modules) <= WAYS[verb], modules
