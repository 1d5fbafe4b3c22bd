"""Workers, apps and `strictq work` on the URL of a queue, on an endpoint of this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import App, Worker
from strictq.testing import SqsEndpoint
from tests.support.command import in_process, json_lines


def filled(endpoint: SqsEndpoint, name: str, *messages: tuple[str, str]) -> str:
    """Make a queue, send messages by group, and return its URL for strictq."""
    url = endpoint.create_queue(name, ContentBasedDeduplication=True)
    for group, body in messages:
        endpoint.client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group)
    return f"sqs+{endpoint.url}/queue/{name}"


def left(endpoint: SqsEndpoint, name: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    url = endpoint.client.get_queue_url(QueueName=name)["QueueUrl"]
    return sum(int(n) for n in endpoint.client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"].values())


CODE = """
import os, sys
print(sys.stdin.read(), *(os.environ["STRICTQ_" + name] for name in ("KEY", "SEQ", "QUEUE")), file=open(sys.argv[1], "a"))
"""


@pytest.mark.slow
def test_a_command_for_each_message_of_a_url_and_of_a_directory(endpoint: SqsEndpoint, tmp_path: Path) -> None:
    url = filled(endpoint, "commands.fifo", ("a", "1"), ("a", "2"), ("b", "3"))
    with strictq.open(tmp_path / "local", durability="process") as q:
        q.send(b"4", key="c")
    out = tmp_path / "out"
    words = ["work", url, "--also", tmp_path / "local", "--drain", "--json", "--", sys.executable, "-c", CODE, out]
    result = in_process(*words)
    assert result.exit_code == 0, result.stderr
    (totals,) = json_lines(result.stdout)
    assert (totals["acked"], totals["retried"]) == (4, 0)
    lines = [line.split() for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted((body, key) for body, key, *_ in lines) == [("1", "a"), ("2", "a"), ("3", "b"), ("4", "c")]
    numbers = {body: number for body, _, number, _ in lines}
    assert numbers["4"] == "1"
    assert len(numbers["1"]) == 20
    assert numbers["1"] < numbers["2"]
    assert {queue for *_, queue in lines} == {url, str(tmp_path / "local")}
    assert left(endpoint, "commands.fifo") == 0


def test_a_url_that_leads_nowhere(endpoint: SqsEndpoint) -> None:
    result = in_process("work", f"sqs+{endpoint.url}/queue/never.fifo", "--drain", "--", "true")
    assert result.exit_code == 2
    assert "never.fifo" in result.stderr


def note(job: Any) -> None:
    """Write what a handler's process sees, and try an effect that the endpoint cannot commit."""
    try:
        job.send(b"", key="b")
    except strictq.InvalidArgument as e:
        refused = e.hint_code
    with open(job.body.decode(), "a", encoding="utf-8") as file:
        print(job.key, job.sequence_number, job.message_id, job.attempt, refused, file=file)


@pytest.mark.slow
def test_a_handler_in_another_process(endpoint: SqsEndpoint, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    worker = Worker(filled(endpoint, "processes.fifo", ("a", out)), note, executor="process", concurrency=1)
    worker.run(drain=True)
    key, number, message_id, attempt, refused = Path(out).read_text(encoding="utf-8").split()
    assert (key, len(number), len(message_id), attempt, refused) == ("a", 20, 36, "1", "effects_are_local")
    assert worker.stats().acked == 1
    assert left(endpoint, "processes.fifo") == 0


@pytest.mark.slow
def test_an_app_sends_to_an_endpoint_and_works_on_it(endpoint: SqsEndpoint) -> None:
    filled(endpoint, "app.fifo")
    done: list[int] = []
    with strictq.connect(f"sqs+{endpoint.url}/queue/app.fifo") as q:
        app = App(q)

        @app.handler("add")
        def add(n: int) -> None:
            done.append(n)

        for n in range(3):
            app.send("add", key="k", n=n)
        app.worker().run(drain=True)
    assert done == [0, 1, 2]
    assert left(endpoint, "app.fifo") == 0
