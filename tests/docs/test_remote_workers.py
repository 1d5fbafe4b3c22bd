"""The worker of docs/howto/remote-workers.md, as processes, of which one is killed: each effect happens once.

So it does with the page's text for PostgreSQL, where a server is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import strictq
from strictq import Job
from strictq.testing import SqsEndpoint
from tests.support.outboxes import postgres_server
from tests.support.running import run_python, until

from .test_code_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "remote-workers.md"
GROUPS, MESSAGES = 3, 20
LEDGER = """
import json, sqlite3, sys
print(json.dumps(sqlite3.connect(sys.argv[1]).execute("SELECT name, cents FROM account ORDER BY name").fetchall()))
"""


@pytest.mark.slow
def test_each_effect_happens_once_although_a_worker_is_killed(sqs_endpoint: SqsEndpoint, tmp_path: Path) -> None:
    (program,) = (b.text for b in blocks(PAGE) if b.lines[0] == "# worker.py")
    (tmp_path / "worker.py").write_text(program)
    queue = sqs_endpoint.create_queue("orders.fifo", ContentBasedDeduplication=False, VisibilityTimeout=2)
    for n in range(MESSAGES):
        entries = [
            {"Id": str(g), "MessageBody": str(n), "MessageGroupId": f"customer-{g}", "MessageDeduplicationId": f"{g}-{n}"}
            for g in range(GROUPS)
        ]
        sqs_endpoint.client.send_message_batch(QueueUrl=queue, Entries=entries)
    path = os.pathsep.join(filter(None, [str(Path(strictq.__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    url = sqs_endpoint.url.replace("http://", "sqs+http://") + "/queue/orders.fifo"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "worker.py", url], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})

    def left() -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        got = sqs_endpoint.client.get_queue_attributes(QueueUrl=queue, AttributeNames=names)
        return sum(map(int, got["Attributes"].values()))

    workers = [start()]
    try:
        until(lambda: left() < GROUPS * MESSAGES, "a first effect")
        workers[0].kill()
        workers.append(start())
        until(lambda: not left(), "all effects")
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(60)
    found = json.loads(run_python(LEDGER, tmp_path / "ledger.db"))
    assert found == [[f"customer-{g}", sum(range(MESSAGES))] for g in range(GROUPS)]


class Ledger:
    """The page's program for PostgreSQL, with a server of its own."""

    def __init__(self) -> None:
        import psycopg

        self.connect: Callable[[], Any] = lambda: psycopg.connect("dbname=ledger")
        (program,) = (b.text for b in blocks(PAGE) if "import psycopg" in b.lines)
        self.names: dict[str, Any] = {"URL": "sqs+http://queue-host:9324/queue/orders.fifo"}
        exec(program, self.names)
        with psycopg.connect("dbname=postgres", autocommit=True) as db:
            db.execute("CREATE DATABASE ledger")
        with self.connect() as db:
            db.execute(self.names["TABLE"])
            db.execute("CREATE TABLE account (name text PRIMARY KEY, cents bigint NOT NULL)")

    def add(self, *names: str) -> None:
        with self.connect() as db:
            db.execute("TRUNCATE done, account")
            for name in names:
                db.execute("INSERT INTO account VALUES (%s, 0)", (name,))

    def cents(self) -> dict[str, int]:
        with self.connect() as db:
            return dict(db.execute("SELECT name, cents FROM account").fetchall())


@pytest.fixture(scope="module")
def server() -> Iterator[Ledger]:
    with postgres_server() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGHOST", place)
        patch.setenv("PGUSER", "program")
        yield Ledger()


def test_each_effect_happens_once_in_postgresql(sqs_endpoint: SqsEndpoint, server: Ledger) -> None:
    """Each message comes twice: the handler fails after it has booked."""
    groups = [f"customer-{g}" for g in range(GROUPS)]
    server.add(*groups)
    queue = sqs_endpoint.create_queue("orders.fifo", ContentBasedDeduplication=False)
    for n in range(5):
        entries = [
            {"Id": str(g), "MessageBody": str(n), "MessageGroupId": group, "MessageDeduplicationId": f"{g}-{n}"}
            for g, group in enumerate(groups)
        ]
        sqs_endpoint.client.send_message_batch(QueueUrl=queue, Entries=entries)
    booked: list[tuple[object, str | None]] = []

    def book(job: Job) -> None:
        server.names["book"](job)
        booked.append((job.key, job.sequence_number))
        if booked.count(booked[-1]) == 1:
            raise strictq.Retry(0.0)

    url = sqs_endpoint.url.replace("http://", "sqs+http://") + "/queue/orders.fifo"
    with strictq.connect(url, poll_seconds=0) as q:
        strictq.Worker(q, book, prepare=lambda job: int(job.body)).run(drain=True)
    assert len(booked) == 2 * len(set(booked)) == 2 * GROUPS * 5
    assert server.cents() == dict.fromkeys(groups, sum(range(5)))


def test_a_late_handler_waits_in_postgresql_and_changes_nothing(server: Ledger) -> None:
    server.add("ann")
    late = SimpleNamespace(key="ann", sequence_number="18446744073709551616", prepared=1)
    with server.connect() as newer:
        newer.execute(server.names["ONCE"], (server.names["URL"], "ann", int(late.sequence_number) + 1))
        newer.execute("UPDATE account SET cents = cents + 10")
        thread = threading.Thread(target=server.names["book"], args=(late,))
        thread.start()
        with server.connect() as looking:
            looking.autocommit = True
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            until(lambda: looking.execute(waits).fetchone()[0], "the late handler to wait")
    thread.join()
    assert server.cents() == {"ann": 10}
