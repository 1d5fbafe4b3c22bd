"""Draws schedule.svg: two keys of a worker with one prepare and one process handler that sleep. Run it in this directory."""

import time
from pathlib import Path

import strictq
from strictq.demo.timeline import Timeline

PREPARE_SECONDS = {1: 0.03, 2: 0.03, 3: 0.06, 4: 0.03, 5: 0.03}
PROCESS_SECONDS = {1: 0.10, 2: 0.20, 3: 0.10, 4: 0.05, 5: 0.15}


def draw(path: Path) -> Timeline:
    """Run a worker, and write what it did."""
    timeline = Timeline()
    with strictq.open(":memory:") as q:
        for seq in PROCESS_SECONDS:
            for key in ("A", "B"):
                seconds = {
                    "prepare_seconds": PREPARE_SECONDS[seq],
                    "process_seconds": PROCESS_SECONDS[seq],
                }
                q.send(b"", key=key, **seconds)
        worker = strictq.Worker(
            q,
            lambda job: time.sleep(
                PROCESS_SECONDS[job.seq] * (1.0 if job.key == "A" else 0.7)
            ),
            lambda job: time.sleep(PREPARE_SECONDS[job.seq]),
            on_event=timeline,
        )
        worker.run(drain=True)
    path.write_text(timeline.to_svg(), encoding="utf-8")
    return timeline


if __name__ == "__main__":
    print(draw(Path("schedule.svg")).to_text())
