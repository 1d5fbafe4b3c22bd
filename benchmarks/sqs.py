"""`python -m benchmarks sqs`: the processor time of SQS servers for each call, with a bare ASGI echo beside them."""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from .measure import ROOT

BODY: Final = "x" * 100
ROUNDS: Final = 5
CALLS: Final = 1_000
WARM_UP: Final = 50
SLOW_CALLS: Final = 100
"""Calls in the one round of a slow server: moto takes up to 33 ms for each."""
SHORTER: Final = 5
"""In the short form, one call in so many warms up, and is made to a slow server."""
SHORT_ROUNDS, SHORT_CALLS = 3, 50
GROUPS: Final = 50
BATCH: Final = 10
STARTED_SECONDS: Final = 60.0
POLLS: Final = 1_000
POLLED_QUEUES: Final = 200
POLL_SECONDS: Final = 20
ANSWERED_POLLS: Final = 300
PARKED_SECONDS: Final = 0.02
PROCESSOR_CLOCK: Final = 2
"""With the complement of a process's id, the clock of its processor time, of ended threads, too (see clock_getcpuclockid)."""
ECHO: Final = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        body = (await receive())["body"]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
import sys, uvicorn
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_level="error", access_log=False)
"""
SERVE: Final = ("-m", "strictq", "serve", "sqs", "--port")
SIGNED: Final = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"


class Peer(NamedTuple):
    """A server to measure.

    Attributes:
        package: what must be installed.
        slow: whether it gets only SLOW_CALLS in one round.
        arguments: returns those of the interpreter, from a port and an empty directory.
    """

    package: str
    arguments: Callable[[str, str], Sequence[str]]
    slow: bool = False


SERVERS: Final = {
    "echo": Peer("uvicorn", lambda port, _: ("-c", ECHO, port)),
    "memory": Peer("strictq", lambda port, _: (*SERVE, port, "--memory")),
    "process": Peer("strictq", lambda port, place: (*SERVE, port, place, "--durability", "process")),
    "full": Peer("strictq", lambda port, place: (*SERVE, port, place, "--durability", "full")),
    "moto": Peer("moto", lambda port, _: ("-m", "moto.server", "-p", port), slow=True),
    "ministack": Peer("ministack", lambda _, __: ("-m", "ministack")),
}
PORT_VARIABLE: Final = "GATEWAY_PORT"
"""The environment variable that sets ministack's port."""


class Client:
    """One keep-alive connection to a server, and the processor time of its process."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}", "authorization": SIGNED,
        }  # fmt: skip
        self._connection.request("POST", "/", json.dumps(parameters), headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{action}: {answer.status} {body!r}")
        return dict(json.loads(body)) if body else {}

    def processor(self) -> float:
        """Return the seconds of processor time of the server so far."""
        return time.clock_gettime(~self.pid << 3 | PROCESSOR_CLOCK)

    def resident(self) -> int:
        """Return the resident memory of the server, bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def server(peer: Peer, directory: Path) -> Iterator[Client]:
    """Run a server until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *peer.arguments(str(port), str(directory))],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, PORT_VARIABLE: str(port)},
    )  # fmt: skip
    try:
        until = time.monotonic() + STARTED_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError("the server did not start")
            time.sleep(0.05)
        yield Client(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Kind:
    """A kind of queue, and what is called."""

    def __init__(self, client: Client, name: str, *, fifo: bool, batch: int) -> None:
        self._client, self._fifo, self._batch = client, fifo, batch
        attributes = {"FifoQueue": "true"} if fifo else {}
        made = client.call("CreateQueue", {"QueueName": name + ".fifo" * fifo, "Attributes": attributes})
        self._url = made.get("QueueUrl", "")
        self._sent = 0

    def _entry(self) -> dict[str, str]:
        self._sent += 1
        if not self._fifo:
            return {"MessageBody": BODY}
        return {
            "MessageBody": BODY, "MessageGroupId": f"g{self._sent % GROUPS}", "MessageDeduplicationId": f"d{self._sent}",
        }  # fmt: skip

    def send(self) -> None:
        if self._batch == 1:
            self._client.call("SendMessage", {"QueueUrl": self._url, **self._entry()})
        else:
            entries = [{"Id": str(i), **self._entry()} for i in range(self._batch)]
            self._client.call("SendMessageBatch", {"QueueUrl": self._url, "Entries": entries})

    def receive_and_delete(self) -> None:
        got = self._client.call("ReceiveMessage", {"QueueUrl": self._url, "MaxNumberOfMessages": self._batch})
        handles = [m["ReceiptHandle"] for m in got.get("Messages", ())]
        if self._batch == 1:
            for handle in handles:
                self._client.call("DeleteMessage", {"QueueUrl": self._url, "ReceiptHandle": handle})
        elif handles:
            entries = [{"Id": str(i), "ReceiptHandle": handle} for i, handle in enumerate(handles)]
            self._client.call("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries})


def processor_ms(client: Client, call: Callable[[], None], calls: int, rounds: int) -> float:
    """Return the median of the server's processor time for a call, milliseconds."""
    found = []
    for _ in range(rounds):
        began = client.processor()
        for _ in range(calls):
            call()
        found.append((client.processor() - began) * 1000 / calls)
    return statistics.median(found)


def rows(client: Client, calls: int, rounds: int, warm_up: int) -> dict[str, float]:
    """Measure all calls of a server."""
    found: dict[str, float] = {}
    for kind, fifo in (("FIFO", True), ("standard", False)):
        for batch in (1, BATCH):
            queue = Kind(client, f"bench-{kind}-{batch}", fifo=fifo, batch=batch)
            for _ in range(warm_up):
                queue.send()
                queue.receive_and_delete()
            of = f"{kind}{'' if batch == 1 else f', batch of {batch}'}"
            found[f"{of}: send"] = processor_ms(client, queue.send, calls, rounds)
            found[f"{of}: receive + delete"] = processor_ms(client, queue.receive_and_delete, calls, rounds)
    return found


def polls(client: Client, queues: int, each: int) -> tuple[float, float]:
    """Hold idle polls. Return the share of a processor that they take, and the memory that they need, MiB."""
    port = client.port
    made = [client.call("CreateQueue", {"QueueName": f"idle-{i}"})["QueueUrl"] for i in range(queues)]
    for url in made:
        client.call("ReceiveMessage", {"QueueUrl": url})  # it opens the queue, which is not part of an idle poll
    before = client.resident()
    waiting = []
    for url in made:
        for _ in range(each):
            body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": POLL_SECONDS})
            s = socket.create_connection(("127.0.0.1", port))
            s.sendall(
                f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
                f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            waiting.append(s)
    time.sleep(3.0)
    began, at = client.processor(), time.monotonic()
    time.sleep(10.0)
    share = (client.processor() - began) / (time.monotonic() - at)
    memory = (client.resident() - before) / (1 << 20)
    for s in waiting:
        s.close()
    return share, memory


def polled(client: Client) -> list[float]:
    """Return the milliseconds from a send to the answer of the poll that waits for it, sorted."""
    url = client.call("CreateQueue", {"QueueName": "polled"})["QueueUrl"]
    waiting = Client(client.port, client.pid)
    found = []

    def poll() -> None:
        got = waiting.call("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": POLL_SECONDS})
        at = time.perf_counter()
        waiting.call("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": got["Messages"][0]["ReceiptHandle"]})
        found.append((at - sent) * 1000)

    for _ in range(ANSWERED_POLLS):
        thread = threading.Thread(target=poll)
        thread.start()
        time.sleep(PARKED_SECONDS)
        sent = time.perf_counter()
        client.call("SendMessage", {"QueueUrl": url, "MessageBody": BODY})
        thread.join()
    return sorted(found)


def main(arguments: Sequence[str]) -> int:
    """Run a command line, and print a table. Return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sqs", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer calls and rounds, no polls")
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=list(SERVERS), help="the servers to measure")
    parser.add_argument("--dir", type=Path, help="where queues are created (default: the directory for temporary files)")
    options = parser.parse_args(arguments)
    calls, rounds = (SHORT_CALLS, SHORT_ROUNDS) if options.short else (CALLS, ROUNDS)
    slow_calls, warm_up = (n // SHORTER if options.short else n for n in (SLOW_CALLS, WARM_UP))
    table: dict[str, dict[str, float]] = {}
    for name in options.only:
        peer = SERVERS[name]
        if importlib.util.find_spec(peer.package) is None:
            print(f"{name}: not installed")
            continue
        directory = Path(tempfile.mkdtemp(prefix="strictq-benchmarks-", dir=options.dir))
        try:
            with server(peer, directory) as client:
                if name == "echo":
                    table[name] = {"a call": processor_ms(client, lambda c=client: c.call("Echo", {}), calls, rounds)}
                    continue
                table[name] = rows(client, *((slow_calls, 1) if peer.slow else (calls, rounds)), warm_up)
                if name == "process" and not options.short:
                    milliseconds = polled(client)
                    p50, p95 = (milliseconds[len(milliseconds) * share // 100] for share in (50, 95))
                    print(f"a poll is answered {p50:.2f} ms (p50), {p95:.2f} ms (p95) after the send began")
                    for queues, each in ((1, POLLS), (POLLED_QUEUES, 1)):
                        share, memory = polls(client, queues, each)
                        print(f"{queues} queues, {each} idle polls each: {share:.2%} of a processor, {memory:.1f} MiB")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print_table(table)
    return 0


def print_table(table: dict[str, dict[str, float]]) -> None:
    """Print the milliseconds of processor time, a line for each call and a column for each server."""
    labels = list(dict.fromkeys(label for of in table.values() for label in of))
    width = max(map(len, labels), default=0)
    print(f"{'milliseconds of processor time for each':{width}}  " + "".join(f"{name:>10}" for name in table))
    for label in labels:
        values = (of.get(label) for of in table.values())
        print(f"{label:{width}}  " + "".join(f"{'' if value is None else f'{value:.3f}':>10}" for value in values))
