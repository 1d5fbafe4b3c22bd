"""The web application and the workers of docs/howto/web-workers.md, as the processes that they are."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from tests.support.running import PATIENCE_SECONDS, until

from .test_code_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "web-workers.md"
CUSTOMERS = ["ben", "eve", "zoë"]
ORDERS = 20
CURL = re.compile(r"^(curl .+)\n# (.+)$", re.MULTILINE)
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the page's files."""
    for block in blocks(PAGE):
        name = block.lines[0].removeprefix("# ")
        if block.language == "python" and name.endswith(".py"):
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    assert {file.name for file in tmp_path.iterdir()} == {"app.py", "gunicorn.conf.py", "worker.py"}
    return tmp_path


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
    path = os.pathsep.join(filter(None, [str(Path(strictq.__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    processes: list[subprocess.Popen[str]] = []

    def run(*args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", *args]
        options: Any = {"cwd": place, "env": {**os.environ, "PYTHONPATH": path}, "text": True}
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def ask(url: str, body: str | None = None, **headers: str) -> tuple[int, Any]:
    """A request, and the answer; without one, the test waits and asks again, as a client does."""
    request = urllib.request.Request(url, None if body is None else body.encode(), headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.load(e)


def shown() -> Iterator[tuple[str, str, str, Any]]:
    """The requests that the page makes with curl: path, body, name, and the answer that it promises."""
    for block in blocks(PAGE):
        for line, answer in CURL.findall(block.text) if block.language == "bash" else ():
            _, _, body, _, header, url = shlex.split(line)
            assert header.startswith("Idempotency-Key: ")
            yield url.partition(":8000")[2], body, header.partition(": ")[2], json.loads(answer)


def server(start: Start) -> str:
    app = start("app.py", "0")
    assert app.stdout is not None
    port = re.fullmatch(r"listening on port (\d+)\n", app.stdout.readline())
    assert port, app.communicate()[1]
    return f"http://127.0.0.1:{port[1]}"


def worker(start: Start) -> subprocess.Popen[str]:
    """One that is at work: before it is, SIGTERM kills it as it kills any process."""
    process = start("worker.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n", process.communicate()[1]
    return process


def test_orders_through_the_server_and_two_workers(place: Path, start: Start) -> None:
    url = server(start)
    promised = list(shown())
    assert len(promised) == 3
    for path, body, name, answer in promised:
        assert ask(url + path, body, **{"Idempotency-Key": name}) == (200, answer)
    assert ask(f"{url}/orders/ann")[0] == ask(f"{url}/orders/ann", "no name")[0] == 400
    assert ask(url, "for nobody", **{"Idempotency-Key": "r"})[0] == 400
    assert ask(f"{url}/orders/%ff", "no UTF-8", **{"Idempotency-Key": "r"})[0] == 400
    workers = [worker(start), worker(start)]
    for n in range(1, ORDERS + 1):
        for customer in CUSTOMERS:
            to = f"{url}/orders/{urllib.parse.quote(customer)}"
            named = {"Idempotency-Key": f"{customer}-{n}"}
            for again in (False, True):
                assert ask(to, f"order {n}", **named) == (200, {"seq": n, "duplicate": again})

    with strictq.open(place / "jobs.strictq", create=False) as q:
        until(lambda: not q.stats().depth, "the orders are booked")
        assert [w.poll() for w in workers] == [None, None]
        for w in workers:
            w.send_signal(signal.SIGTERM)
        for w in workers:
            finished(w)
        rows = q.query("SELECT customer, seq, what, process FROM app_booked ORDER BY rowid")
        assert q.check() == []
    assert {row[3] for row in rows} <= {w.pid for w in workers}
    booked: dict[str, list[tuple[int, str]]] = {}
    for customer, seq, what, _ in rows:
        booked.setdefault(customer, []).append((seq, what))
    assert booked.pop("ann") == [(1, "2 chairs"), (2, "1 table")]
    assert booked == {customer: [(n, f"order {n}") for n in range(1, ORDERS + 1)] for customer in CUSTOMERS}


def test_a_worker_finishes_the_order_that_it_is_at(place: Path, start: Start) -> None:
    """And gives back at once what it had leased ahead, for which others would wait a minute otherwise."""
    program, work = place / "worker.py", '    tx.execute("INSERT'
    text = program.read_text(encoding="utf-8")
    assert work in text
    waits = '    open("at work", "w").close()\n    os.read(os.open("go on", os.O_RDONLY), 1)\n'
    program.write_text(text.replace(work, waits + work), encoding="utf-8")
    os.mkfifo(place / "go on")
    with strictq.open(place / "jobs.strictq") as q, open(place / "go on", "r+b", buffering=0) as go_on:
        for n in range(5):
            q.send(b"%d" % n, key="ann")
        busy = worker(start)
        until((place / "at work").exists, "a worker is at an order")
        busy.send_signal(signal.SIGTERM)
        assert busy.poll() is None
        go_on.write(b"!")
        finished(busy)
        assert q.query("SELECT seq FROM app_booked") == [(1,)]
        assert (q.stats().in_flight, q.stats().ready) == (0, 4)


def finished(process: subprocess.Popen[str]) -> None:
    """It ended by itself, without a word."""
    assert (process.communicate(timeout=PATIENCE_SECONDS), process.returncode) == (("", ""), 0)
