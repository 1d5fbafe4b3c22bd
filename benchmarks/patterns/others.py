"""The patterns as bare SQLite and the peers do them: `python -m benchmarks.patterns.others PROGRAM ARGUMENTS`.

Like `programs`, each prints `{"micros": CPU microseconds per message}`. Redis's server is included.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import ROOT, Durability, prebuilt
from benchmarks.peers import ALL, work
from benchmarks.peers.bare import BARE, Bare
from benchmarks.peers.peer import Opening, Peer
from benchmarks.workload import key_name

from .programs import AT_ONCE, expect, hear, tell

KINDS: Final[dict[str, type[Peer]]] = {**ALL, BARE: Bare}


def pairs(number: int, body_bytes: int = 100, keys: int = 1000) -> list[tuple[str, bytes]]:
    """Return (key, body) of messages, with bodies of text, because some peers accept only text."""
    rnd = random.Random(2)
    body = base64.b64encode(rnd.randbytes(body_bytes))[:body_bytes]
    return [(key_name(rnd.randrange(keys)), body) for _ in range(number)]


def life(path: Path, number: int, batch: int, *, peer: str, durability: Durability = "process", body_bytes: int = 100) -> float:
    """Send, receive and ack, batch by batch."""
    with KINDS[peer].hosted(path, durability) as host:
        q = KINDS[peer](Opening(path, durability))
        rehearsal, todo = (q.native(pairs(n, body_bytes)) for n in (max(batch, number // 4), number))
        work.life(q, rehearsal, batch)
        q.rest()
        with prebuilt():
            began = host.processor()
            work.life(q, todo, batch)
            q.rest()
            ended = host.processor()
        q.close()
    if began is None or ended is None:
        raise RuntimeError("the processor time of the server is unknown here")
    return (ended - began) / number * 1e6


def consume(path: Path, number: int, *, peer: str, consumers: int, batch: int, live: int = 0) -> float:
    """Let processes consume a backlog, or what this process sends meanwhile in batches of `live`."""
    with KINDS[peer].hosted(path, "process") as host:
        q = KINDS[peer](Opening(path, "process"))
        todo = q.native(pairs(number))
        step = live or AT_ONCE
        parts = [todo[start : start + step] for start in range(0, number, step)]
        if not live:
            for part in parts:
                q.send(part)
        arguments = json.dumps({"path": str(path), "peer": peer, "batch": batch})
        command = [sys.executable, "-m", "benchmarks.patterns.others", "consumer", arguments]
        children = [
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(consumers)
        ]
        try:
            for child in children:
                hear(child)
            server, own = host.beside(), time.process_time()
            for child in children:
                tell(child)
            if live:
                for part in parts:
                    q.send(part)
            own = time.process_time() - own if live else 0.0
            reports = [hear(child) for child in children]
            ended = host.beside()
        finally:
            for child in children:
                child.communicate()
        q.close()
    # Without an order per key and leases, some peers deliver a message to two consumers, so more may be acked.
    expect(max(number, sum(r["number"] for r in reports)), sum(r["number"] for r in reports), "messages were acked")
    if server is None or ended is None:
        raise RuntimeError("the processor time of the server is unknown here")
    return (own + ended - server + sum(r["cpu"] for r in reports)) / number * 1e6


def consumer(path: Path, *, peer: str, batch: int) -> None:
    """Consume from a signal until no message is left. Report the number, and the CPU seconds until the last ack."""
    q = KINDS[peer](Opening(path, "process"))
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    began = used = time.process_time()
    number = empty = 0
    while empty < work.EMPTY_MAX:
        handed = q.receive(batch)
        if not handed:
            empty += 1
            time.sleep(work.EMPTY_SECONDS)
            continue
        work.look(q, handed)
        q.ack(handed)
        number, empty, used = number + len(handed), 0, time.process_time()
    q.close()
    print(json.dumps({"number": number, "cpu": used - began}), flush=True)


PROGRAMS: Final[dict[str, Callable[..., float]]] = {"life": life, "consume": consume}


def main(name: str, text: str) -> None:
    arguments: dict[str, Any] = json.loads(text)
    path = Path(arguments.pop("path"))
    if name == "consumer":
        consumer(path, **arguments)
    else:
        print(json.dumps({"micros": PROGRAMS[name](path, **arguments)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
