"""Three processes on one shard of format 3, killed at any time: what they committed is acked once, each key in order.

An ack and a row of the program's own table are one transaction, so the table says what was acked, whatever the store remembers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

import apsw
import attrs

from strictq import LeaseLost
from strictq._config import QueueConfig
from strictq._errors import StoreBusy
from strictq._keys import ASIDE, is_keyless
from strictq._store.commit.tx import Tx
from strictq._store.lane.memory import StoreLimits
from strictq._store.shard import settling
from strictq._store.shard.failures import AttemptFailure
from strictq._store.shard.leases import ID, SEQ, Settlement
from strictq._store.shard.shard_lanes import ShardLanes
from tests.support.lane_file import LaneFile, item, new_file, request

KEYS = [b"sk%03d" % i for i in range(150)] + [b"n%d" % i for i in range(4)]
LIMITS = StoreLimits(window=100, slice=20, head=8, chunk=16, loaded_max=300, tails_max=50)
CONFIG = QueueConfig(max_attempts=None, retry_delay_seconds=0.0, keyless="random")
LEASE = 250_000
ADD = "INSERT INTO app VALUES (?, ?, ?, (SELECT ifnull(max(n), 0) + 1 FROM app))"


def now() -> int:
    return time.time_ns() // 1000


def open_shard(path: Path) -> LaneFile:
    return LaneFile(path, now, limits=LIMITS, config=CONFIG)


def work(path: Path, seed: int) -> None:
    """Send, claim, ack and nack until the process is killed."""
    r = random.Random(seed)
    shard, reader = open_shard(path), open_shard(path)
    live: list[tuple[int, dict[bytes, dict[int, int]]]] = []
    while True:
        step = r.random()
        shard.forget_rows()
        try:
            if r.random() < 0.1:
                look(reader if r.random() < 0.7 else shard, r.choice(KEYS))
            if step < 0.38:
                shard.send([item(r.choice(KEYS), b"b", **some_options(r)) for _ in range(r.choice((1, 1, 3, 20, 60)))])
            elif step < 0.45:
                shard.send([item(r.choice(KEYS), b"b")])
            elif step < 0.75:
                claimed = shard.claim(request(r.choice((1, 5, 50)), r.choice((None, 1, 3)), lease=LEASE, charge=r.random() < 0.5))
                if claimed.leases:
                    live.append((claimed.token, {held.key: {row[SEQ]: row[ID] for row in held.rows} for held in claimed.leases}))
            elif live and step < 0.95:
                token, groups = live.pop(r.randrange(len(live)))
                if r.random() < 0.5:  # a part: the first messages of some keys, as a consumer does
                    groups = {
                        key: dict(list(ids.items())[: r.randrange(1, len(ids) + 1)])
                        for key, ids in groups.items()
                        if r.random() < 0.8
                    }
                if groups:
                    ack(shard, token, groups)
            elif live:
                give_back(shard, r, *live.pop())
        except (LeaseLost, StoreBusy, apsw.BusyError):
            pass


def look(shard: LaneFile, key: bytes) -> None:
    """A lane's unresolved messages have their rows, in every snapshot, while others write and fold."""

    def read(lanes: ShardLanes) -> None:
        lane = shard.whole_lane(key)
        some = [(seq, i) for seq, i in enumerate(lane.ids or (), lane.first) if i]
        rows = lanes.log.keys([i for _, i in some])
        assert [(key, seq) for seq, _ in some] == [rows.get(i) for _, i in some], (key, some, rows)
        assert some == sorted(some, key=lambda one: one[1]), some

    shard.look(read)


def some_options(r: random.Random) -> dict[str, Any]:
    return {"delay": r.choice((1_000, 100_000))} if r.random() < 0.05 else {}


def give_back(shard: LaneFile, r: random.Random, token: int, groups: dict[bytes, dict[int, int]]) -> None:
    key, ids = next(iter(groups.items()))
    one = [Settlement(key, token, [next(iter(ids))])]
    if r.random() < 0.4:
        shard.transact(lambda tx: settling.nack(tx, one, r.choice((0, 50_000)), AttemptFailure("failed")))
    elif r.random() < 0.5:
        shard.transact(lambda tx: settling.defer(tx, one, 50_000, None))
    else:
        shard.transact(lambda tx: settling.release(tx, one))


def ack(shard: LaneFile, token: int, groups: dict[bytes, dict[int, int]]) -> None:
    def together(tx: Tx) -> None:
        for key, ids in groups.items():
            if not settling.ack_lane(tx, Settlement(key, token, list(ids))):
                raise AssertionError("it was acked before")
            tx.many(ADD, [(i, key, seq) for seq, i in ids.items()])

    shard.transact(together)


@attrs.define
class KillReport:
    """What a campaign found. `wrong` must be empty."""

    kills: int = 0
    fell: int = 0
    sent: int = 0
    acked: int = 0
    rows: int = 0
    journal: int = 0
    wrong: list[str] = attrs.field(factory=list)


def campaign(directory: Path, seconds: float, seed: int) -> KillReport:
    """Kill and restart workers for a while, and verify what is left."""
    path = directory / "kills.db"
    new_file(path)
    shard = open_shard(path)
    shard.db.execute("CREATE TABLE app (id INTEGER PRIMARY KEY, key BLOB, seq INTEGER, n INTEGER)")
    shard.close()
    r = random.Random(seed)
    report = KillReport()
    workers: list[int] = []
    started = 0

    def start() -> None:
        nonlocal started
        started += 1
        pid = os.fork()  # faster than an interpreter that starts; no connection is open here
        if not pid:
            try:
                work(path, seed * 1000 + started)
            finally:
                traceback.print_exc()
                os._exit(1)
        workers.append(pid)

    def end(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        report.fell += os.WIFEXITED(status)

    for _ in range(3):
        start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(r.random() * 0.6)
        end(workers.pop(r.randrange(len(workers))))
        report.kills += 1
        start()
    for pid in workers:
        end(pid)
    verify(path, report)
    return report


def verify(path: Path, report: KillReport) -> None:
    shard = open_shard(path)
    run: Any = shard.db.execute
    acked: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for i, key, seq in run("SELECT id, key, seq FROM app ORDER BY n"):
        acked[key].append((seq, i))
    rows = {i for (i,) in run("SELECT id FROM message")}
    parked: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    at_rest = {key for (key,) in run("SELECT key FROM lane")}
    for key in at_rest | set(shard.memory.lanes) | set(acked):
        first, is_parked, _ = key.partition(ASIDE)
        if is_keyless(key) and is_parked:
            parked[first] += shard.lane(key)[1]
            acked[first] += acked.pop(key, [])
    for key in KEYS:
        tail, ids, *_, front, waiting = shard.lane(key)
        left = [*ids, *front, *waiting, *parked[key]]
        done = acked[key]
        report.sent += tail
        report.acked += len(done)
        if not is_keyless(key) and done != sorted(done):
            report.wrong.append(f"{key!r}: acked out of order")
        if sorted([seq for seq, _ in done] + [seq for seq, _ in left]) != list(range(1, tail + 1)):
            report.wrong.append(f"{key!r}: of {tail} messages, {len(done)} are acked and {len(left)} are left")
        if missing := [i for _, i in left if i not in rows]:
            report.wrong.append(f"{key!r}: rows of unresolved messages are gone: {missing[:3]}")
    if shard.totals().pending != report.sent - report.acked:
        report.wrong.append(f"pending is {shard.totals().pending}, not {report.sent - report.acked}")
    report.rows, report.journal = len(rows), run("SELECT count(*) FROM journal").get
    report.wrong += shard.check()
    if (sound := run("PRAGMA integrity_check").get) != "ok":
        report.wrong.append(sound)
    shard.close()


def main() -> None:
    """Run a campaign and print its report as JSON: `python -m tests.support.lane_kills SECONDS SEED`."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(attrs.asdict(campaign(Path(directory), float(sys.argv[1]), int(sys.argv[2])))))


if __name__ == "__main__":
    main()
