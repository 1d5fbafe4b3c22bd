"""Every cut is a state that the queue really had: with each effect its cause, in whatever shard that lies."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import strictq
from strictq.replication.restoring import points_of
from tests.support.shipping import begin_tasks, pass_on, require_states, shipper_of

TASKS = 40
ROUNDS = 40
JUDGED = 12


def load(q: strictq.Queue, stop: threading.Event, failed: list[BaseException]) -> None:
    try:
        while not stop.is_set():
            pass_on(q)
    except BaseException as e:
        failed.append(e)


def test_every_cut_under_load_is_a_state_that_the_queue_had(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "q", shards=4, durability="process") as q:
        begin_tasks(q, range(TASKS))
        stop, failed = threading.Event(), []
        threads = [threading.Thread(target=load, args=(q, stop, failed)) for _ in range(3)]
        for thread in threads:
            thread.start()
        shipper = shipper_of(q, tmp_path / "t")
        try:
            for _ in range(ROUNDS):
                shipper.round()
                time.sleep(0.01)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            shipper.close()
    assert failed == []
    found = points_of(tmp_path / "t")
    assert len(found) > ROUNDS // 2
    require_states(tmp_path / "t", tmp_path, [n for n, _ in found], JUDGED)
