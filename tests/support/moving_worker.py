"""One process of the tests of moving ranges: it sends, consumes, or moves ranges, and says what it did.

    python -m tests.support.moving_worker send|consume|move QUEUE LOG SEED SECONDS

Each line of LOG is JSON. A sender writes [key, seq], a consumer ["got", "acked" or "booked", key, seq, time]; what is
booked was acked together with a row and the state of its key. A mover works until it is killed.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import strictq
from strictq import InvalidArgument, LeaseLost, Message, MoveInProgress, Queue, StoreBusy

KEYS = 40
SHARDS_MAX = 6
TABLE = "CREATE TABLE app_done (key TEXT, seq INTEGER, PRIMARY KEY (key, seq))"


def send(q: Queue, log: Any, chance: random.Random, seed: int, until: float) -> None:
    n = 0
    while time.monotonic() < until:
        key = f"{seed}-{chance.randrange(KEYS)}"
        options: dict[str, Any] = {}
        if chance.random() < 0.1:
            options["dedup_id"] = f"{n}"
        elif chance.random() < 0.05:
            options["delay"] = 0.05
        print(json.dumps([key, q.send(b"", key, **options).seq]), file=log, flush=True)
        if chance.random() < 0.05:
            some = [Message(b"", key=f"{seed}-{chance.randrange(KEYS)}") for _ in range(20)]
            for message, receipt in zip(some, q.send_many(some), strict=True):
                print(json.dumps([message.key, receipt.seq]), file=log, flush=True)
        n += 1
        time.sleep(chance.choice((0.0, 0.002, 0.004)))


def consume(q: Queue, log: Any, chance: random.Random, until: float) -> None:
    def note(what: str, d: strictq.Delivery) -> None:
        print(json.dumps([what, d.key, d.seq, time.monotonic()]), file=log, flush=True)

    while time.monotonic() < until:
        got = q.receive(chance.choice((1, 5, 20)), lease_seconds=chance.choice((0.3, 5.0)), wait=0.05)
        for d in got:
            note("got", d)
        for d in got:
            try:
                act = chance.random()
                if act < 0.05:
                    d.nack(delay=0.01)
                elif act < 0.1:
                    d.defer(0.0)
                else:
                    if act < 0.2:
                        d.extend(5.0)
                    if act < 0.5:
                        with q.transaction(d) as tx:
                            tx.key_state = b"%d" % (int(tx.key_state or b"0") + 1)
                            tx.execute("INSERT INTO app_done VALUES (?, ?)", (d.key, d.seq))
                    else:
                        d.ack()
                    note("acked" if act >= 0.5 else "booked", d)
            except LeaseLost:
                continue


def move(q: Queue, chance: random.Random) -> None:
    while True:
        shards = q.topology().shards
        live = [one for one in shards if not one.retired]
        one = chance.choice(live)
        try:
            if len(shards) < SHARDS_MAX and chance.random() < 0.3:
                q.split(one.shard)
            elif len(live) > 1 and chance.random() < 0.5:
                q.merge(one.shard, into=chance.choice([other.shard for other in live if other is not one]))
            else:
                lo, hi = sorted(chance.randint(*chance.choice(one.ranges)) for _ in range(2))
                q.move(lo, hi, to=chance.choice([other.shard for other in shards]))
        except (MoveInProgress, InvalidArgument, StoreBusy):
            time.sleep(0.02)


def main(what: str, queue: str, log: str, seed: str, seconds: str) -> None:
    chance = random.Random(f"{what} {seed}")
    until = time.monotonic() + float(seconds)
    with strictq.open(queue, create=False) as q, Path(log).open("a", encoding="utf-8") as file:
        if what == "send":
            send(q, file, chance, int(seed), until)
        elif what == "consume":
            consume(q, file, chance, until)
        else:
            move(q, chance)


if __name__ == "__main__":
    main(*sys.argv[1:])
