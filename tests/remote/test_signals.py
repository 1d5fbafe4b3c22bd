"""A worker's process on the URL of a queue, and signals: what its handlers did not get goes back at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strictq.testing import SqsEndpoint
from tests.support.running import PATIENCE_SECONDS, until

NAME = "signals.fifo"
GROUPS = 12
LEASE_SECONDS = 600
"""Longer than the test: what comes back earlier was given back."""

PROGRAM = f"""
import sys, strictq

def process(job):
    print("begun", flush=True)
    sys.stdin.readline()

with strictq.connect(sys.argv[1], lease_seconds={LEASE_SECONDS}, poll_seconds=20) as q:
    strictq.Worker(q, process, concurrency=1).run()
"""


@contextmanager
def worker(endpoint: SqsEndpoint) -> Iterator[subprocess.Popen[str]]:
    """Run a worker in a process until it ends. Its handlers wait for a line."""
    command = [sys.executable, "-c", PROGRAM, f"sqs+{endpoint.url}/queue/{NAME}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def begun(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"


def send(endpoint: SqsEndpoint, url: str, *groups: str) -> None:
    for group in groups:
        endpoint.client.send_message(QueueUrl=url, MessageBody="x", MessageGroupId=group, MessageDeduplicationId=group)


def counts(endpoint: SqsEndpoint, url: str) -> tuple[int, int]:
    """Return how many messages are visible, and how many are hidden."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = endpoint.client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


@pytest.mark.slow
def test_a_signal_returns_what_has_not_begun_and_a_second_one_what_runs(sqs_endpoint: SqsEndpoint) -> None:
    url = sqs_endpoint.create_queue(NAME)
    send(sqs_endpoint, url, *map(str, range(GROUPS)))
    with worker(sqs_endpoint) as process:
        begun(process)
        until(lambda: counts(sqs_endpoint, url)[1] > 1, "messages to be received ahead")
        process.send_signal(signal.SIGTERM)
        until(lambda: counts(sqs_endpoint, url) == (GROUPS - 1, 1), "the others to go back while the handler runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        until(lambda: counts(sqs_endpoint, url) == (GROUPS, 0), "the message of the handler to go back")


@pytest.mark.slow
def test_what_arrives_in_the_receive_that_a_signal_interrupts_goes_back(sqs_endpoint: SqsEndpoint) -> None:
    url = sqs_endpoint.create_queue(NAME)
    send(sqs_endpoint, url, "first")
    with worker(sqs_endpoint) as process:
        begun(process)
        assert process.stdin is not None
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        until(lambda: counts(sqs_endpoint, url) == (0, 0), "the first message to be deleted")
        send(sqs_endpoint, url, *map(str, range(GROUPS)))  # the worker's receive waits for them
        assert process.wait(PATIENCE_SECONDS) == 0
        assert counts(sqs_endpoint, url) == (GROUPS, 0)
