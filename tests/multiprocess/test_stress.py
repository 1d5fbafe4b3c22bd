"""Threads × processes do everything at once; nobody is killed, and every answer goes through the checker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import strictq
from tests.support.campaign import Campaign, tally
from tests.support.history import Recorder
from tests.support.recorded import Recorded
from tests.support.stress_worker import Stress


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    campaign = Campaign(tmp_path, threads=3, witnessed=True)
    yield campaign
    campaign.abandon()


@pytest.mark.in_turn
@pytest.mark.parametrize(("shards", "durability"), [(1, "process"), (4, "process"), (1, "full")])
def test_threads_in_processes(campaign: Campaign, shards: int, durability: Literal["full", "process"]) -> None:
    campaign.shards, campaign.durability, campaign.seed = shards, durability, shards
    campaign.create()
    for _ in range(3):
        campaign.start(steps=60)
    campaign.finish()
    counts = tally(campaign.settle())
    assert counts["lost"] == 0
    for verb in ("send", "receive", "ack", "transact"):
        assert counts[verb] > 10, counts


@pytest.mark.in_turn
@pytest.mark.parametrize("shards", [1, 3])
def test_threads_of_one_queue_object(campaign: Campaign, shards: int) -> None:
    campaign.shards = shards
    campaign.create()
    recorder = Recorder(campaign.histories / "threads.jsonl")
    failures: list[BaseException] = []
    with strictq.open(campaign.queue, create=False) as queue:
        recorded = Recorded(queue, recorder)

        def run(seed: int) -> None:
            stress = Stress(recorded, seed, campaign.lease)
            try:
                for _ in range(60):
                    stress.step()
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorder.close()
    assert failures == []
    assert tally(campaign.settle())["lost"] == 0


def test_two_queue_objects_of_one_process(campaign: Campaign) -> None:
    """Two objects on one directory in one process are as separate as two processes."""
    campaign.create()
    recorder = Recorder(campaign.histories / "objects.jsonl")
    with strictq.open(campaign.queue) as one, strictq.open(campaign.queue) as two:
        stresses = [Stress(Recorded(queue, recorder), seed, campaign.lease) for seed, queue in enumerate((one, two))]
        for step in range(150):
            stresses[step % 2].step()
    recorder.close()
    assert tally(campaign.settle())["lost"] == 0
