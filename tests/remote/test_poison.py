"""A message that kills its worker becomes a dead letter alone, however slow the handlers of the other messages are."""

from __future__ import annotations

import pytest

from strictq.remote.delivery import RemoteDelivery
from strictq.remote.source import SqsSource
from tests.remote.test_source import Rig, texts

DEATHS_MAX = 60


class SlowProcess:
    """A worker whose handlers return only when it holds nothing that kills it. It starts all that it was given."""

    def __init__(self, rig: Rig, bad: set[str]) -> None:
        self.rig, self.bad = rig, bad
        self.source: SqsSource = rig.new()

    def lives(self) -> bool:
        """Receive until nothing more comes, and run the handlers. Return False if one of them killed the process."""
        held: list[RemoteDelivery] = []
        for _ in range(40):
            held += self.rig.take(100, self.source)
        if self.bad & set(texts(held)):
            return False
        for d in held:
            self.source.began(d)
            self.source.returned(d)
            self.source.settle([(d, None)], [])
        self.rig.settle(self.source)
        return True


def die_until_empty(rig: Rig, bad: set[str], *, fresh: bool, pause: float) -> list[str]:
    """Start one process after the other until the queue is empty. Return the dead letters.

    Args:
        fresh: a message of another group arrives before each start.
        pause: seconds from a death to the next start.
    """
    deaths, process = 0, SlowProcess(rig, bad)
    while rig.left():
        if not process.lives():
            deaths += 1
            assert deaths < DEATHS_MAX
            rig.clock.advance(pause)
            if fresh:
                rig.send(f"fresh-{deaths}", group=f"fresh-{deaths}")
            process = SlowProcess(rig, bad)
    return sorted(rig.sqs.bodies(rig.url.replace("orders", "dead")))


@pytest.mark.parametrize("pause", [0.0, 31.0, 300.0])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 10])
def test_only_the_message_that_kills_becomes_a_dead_letter(limit: int, fresh: bool, pause: float) -> None:
    rig = Rig(limit=limit, options={"poll_seconds": 1})
    rig.send(*(f"a{n}" for n in range(10)), group="a")
    for group in "bcd":
        rig.send(*(f"{group}{n}" for n in range(4)), group=group)
    assert die_until_empty(rig, {"a0"}, fresh=fresh, pause=pause) == ["a0"]
