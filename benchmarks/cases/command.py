"""The command line: the duration of `strictq stats`, and the rate at which `strictq send` reads a file."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measure import ROOT, Figure

LINES = {"full": 1_000_000, "short": 300_000, "tiny": 2000}


def command(bench: Bench) -> Iterator[Figure]:
    if find_spec("click") is None:
        return
    yield _stats(bench)
    yield from _send(bench)


def _program() -> list[str]:
    """Return the installed script; if there is none, the module, which takes some milliseconds more to start."""
    script = Path(sys.executable).with_name("strictq")
    return [str(script)] if script.exists() else [sys.executable, "-m", "strictq"]


def _seconds(*arguments: object) -> float:
    started = time.perf_counter()
    subprocess.run([*_program(), *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - started


def _stats(bench: Bench) -> Figure:
    path = bench.backlog()
    return Figure(
        case="command",
        what="`strictq stats`, from its start to its end",
        unit="ms",
        values=[_seconds("stats", "--json", path) * 1000 for _ in range(bench.sizes.starts + 1)][1:],
        goal=bench.goal("below", 100.0),
        durability="process",
        note=bench.smaller(bench.sizes.backlog, 10_000_000),
    )


def _send(bench: Bench) -> Iterator[Figure]:
    lines, rounds = LINES[bench.sizes.name], bench.rounds
    with bench.place("command") as place:
        file = place / "events.jsonl"
        rng = random.Random(1)
        with file.open("w") as out:
            for n in range(lines):
                out.write(json.dumps({"account": f"a-{rng.randrange(bench.sizes.keys)}", "n": n, "note": f"{n:060d}"}) + "\n")
        for durability in ("process", "full"):
            rates = []
            for _ in range(rounds + 1):
                queue = place / "queue"
                shutil.rmtree(queue, ignore_errors=True)
                options = ("--create", "--shards", 1, "--durability", durability)
                rates.append(lines / _seconds("send", queue, file, "--key-field", "account", "--quiet", *options))
            yield Figure(
                case="command",
                what=f"`strictq send` of a file of {lines:,} JSON lines of {file.stat().st_size // lines} bytes",
                unit="per second",
                values=rates[1:],
                goal=bench.goal("at least", 150_000.0),
                durability=durability,
                keys=bench.sizes.keys,
                note="lines a second, from the command's start to its end",
            )
