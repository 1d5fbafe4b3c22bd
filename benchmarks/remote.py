"""`python -m benchmarks remote`: workers on a queue of an SQS endpoint, and the forwarder, beside plain loops with boto3.

The endpoint is `strictq serve sqs --memory` in a process of its own. A round trip is added in the client, before each request.
Overlap is the time that the handlers of process take at least, as a share of the time that the run took. The last columns are the
processor times of this process and of the endpoint, microseconds per message. Connections are made before the time begins.

The last row is about a worker on a local queue: what a source costs, as one more layer between the worker and the queue.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import boto3
from botocore.config import Config

import strictq
from strictq._values.keys import encode_key
from strictq.remote.mapping import SourcePosition, encode
from strictq.worker.source import Source

from .sqs import SERVERS, Client, server

PREPARE: Final = 0.025
PROCESS: Final = 0.040
SHORT_PROCESS: Final = 0.020
SLOTS: Final = 8
BATCH: Final = 10
KEYS: Final = 50
REQUESTS: Final = 4
"""How many requests a forwarder has under way."""
ROUNDS: Final = 3
BODY: Final = "x" * 100
CONFIRM: Final = ("before_next", "behind")


class Sizes(NamedTuple):
    """How many messages a run has: of one group, of each of many, of a standard queue, to forward, and of a local queue."""

    one: int = 60
    each: int = 8
    standard: int = 800
    forwarded: int = 6_000
    local: int = 20_000
    rounds: int = ROUNDS


SHORT: Final = Sizes(20, 3, 200, 600, 2_000, 1)
TINY: Final = Sizes(4, 1, 20, 60, 60, 1)


class Run(NamedTuple):
    """What was measured: an overlap or a rate, and microseconds of processor time per message, here and at the endpoint."""

    value: float
    processor: float
    endpoint: float


class Meter:
    """Processor time since its start."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._began = time.process_time(), place.server.processor()

    def run(self, value: float, messages: int) -> Run:
        """Return what was measured."""
        here, there = self._began
        return Run(
            value, (time.process_time() - here) * 1e6 / messages, (self._place.server.processor() - there) * 1e6 / messages
        )


class Place:
    """An endpoint, and clients with a round trip."""

    def __init__(self, server: Client, directory: Path) -> None:
        self.server, self.port, self.directory = server, server.port, directory
        self._numbers = itertools.count()

    def client(self, round_trip: float = 0.0) -> Any:
        """Return a client whose requests take so many seconds longer."""
        config = Config(retries={"total_max_attempts": 1}, max_pool_connections=2 * SLOTS, read_timeout=30)
        made = boto3.client(
            "sqs", endpoint_url=f"http://127.0.0.1:{self.port}", region_name="us-east-1", config=config,
        )  # fmt: skip
        if round_trip:
            made.meta.events.register("before-send.sqs.*", lambda **_: time.sleep(round_trip))
        return made

    def queue(self, *, fifo: bool = True) -> str:
        """Create a queue. Return its name."""
        name = f"bench-{next(self._numbers)}{'.fifo' * fifo}"
        self.client().create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if fifo else {})
        return name

    def filled(self, groups: int, each: int, *, fifo: bool = True) -> str:
        """Create a queue with messages. Return its name."""
        name, client = self.queue(fifo=fifo), self.client()
        entries = [
            {"Id": str(n % BATCH), "MessageBody": BODY}
            | ({"MessageGroupId": f"g{n % groups}", "MessageDeduplicationId": str(n)} if fifo else {})
            for n in range(groups * each)
        ]
        for i in range(0, len(entries), BATCH):
            client.send_message_batch(QueueUrl=self.url(name), Entries=entries[i : i + BATCH])
        return name

    def url(self, name: str) -> str:
        """Return a queue's URL for boto3."""
        return f"http://127.0.0.1:{self.port}/000000000000/{name}"

    def connect(self, name: str, round_trip: float = 0.0, **options: Any) -> Any:
        """Return a queue's connection, with the client that strictq makes."""
        made = strictq.connect(f"sqs+http://127.0.0.1:{self.port}/queue/{name}", **options)
        if round_trip:
            call = made._endpoint.call

            def later(action: str, **parameters: Any) -> Any:
                time.sleep(round_trip)
                return call(action, **parameters)

            made._endpoint.call = later
        return made


class Counted:
    """A handler that counts, and says when it has returned as often as wanted."""

    def __init__(self, wanted: int, seconds: float) -> None:
        self._wanted, self._seconds = wanted, seconds
        self._lock = threading.Lock()
        self._done = 0
        self.first = 0.0
        self.last = 0.0
        self.over = threading.Event()

    def __call__(self, _job: Any) -> None:
        with self._lock:
            self.first = self.first or time.perf_counter()
        time.sleep(self._seconds)
        with self._lock:
            self._done += 1
            if self._done == self._wanted:
                self.last = time.perf_counter()
                self.over.set()


def _prepare(_job: Any) -> bytes:
    time.sleep(PREPARE)
    return b""


class Load(NamedTuple):
    """What is processed.

    Attributes:
        each: messages of each group; of a standard queue, each message is a group.
        round_trip: seconds by which requests are longer.
        seconds: the duration of process.
        ahead: whether there is a prepare.
    """

    what: str
    groups: int
    each: int
    round_trip: float
    seconds: float
    fifo: bool = True
    ahead: bool = True

    @property
    def messages(self) -> int:
        return self.groups * self.each

    @property
    def threads(self) -> int:
        return min(self.groups, SLOTS)

    def run(self, handler: Counted, meter: Meter) -> Run:
        """Return the overlap."""
        took = handler.last - handler.first + (PREPARE if self.ahead else 0.0)
        return meter.run(self.messages * self.seconds / self.threads / took, self.messages)


def work(place: Place, load: Load, confirm: str) -> Run:
    """Process a queue with a worker."""
    handler, name = Counted(load.messages, load.seconds), place.filled(load.groups, load.each, fifo=load.fifo)
    with place.connect(name, load.round_trip, confirm=confirm) as q:
        meter = Meter(place)
        worker = strictq.Worker(q, handler, prepare=_prepare if load.ahead else None, concurrency=SLOTS)
        running = threading.Thread(target=worker.run)
        running.start()
        handler.over.wait()
        worker.stop()
        running.join()
        return load.run(handler, meter)


def loop(place: Place, load: Load) -> Run:
    """Process a queue with loops of boto3: receive ten, prepare and process each, delete it."""
    handler, name = Counted(load.messages, load.seconds), place.filled(load.groups, load.each, fifo=load.fifo)
    client, url, meter = place.client(load.round_trip), place.url(name), Meter(place)

    def consume(_: int) -> None:
        while not handler.over.is_set():
            for m in client.receive_message(QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=1).get("Messages", []):
                if load.ahead:
                    _prepare(m)
                handler(m)
                client.delete_message(QueueUrl=url, ReceiptHandle=m["ReceiptHandle"])

    with ThreadPoolExecutor(load.threads) as pool:
        list(pool.map(consume, range(load.threads)))
    return load.run(handler, meter)


def forward(per_key: int, target: strictq.RemoteQueue, q: strictq.Queue) -> None:
    """Empty a local queue into the endpoint with the forwarder."""
    strictq.Forwarder(q, target, per_key=per_key).run(drain=True)


def forward_plainly(client: Any, target: strictq.RemoteQueue, q: strictq.Queue) -> None:
    """Empty a local queue into the endpoint with a loop of boto3: receive ten, send them in one request, ack them."""
    url = target.queue_id
    while batch := q.receive(BATCH):
        entries = [
            {"Id": str(i), "MessageBody": d.body.decode(), "MessageGroupId": d.key, "MessageDeduplicationId": str(d.id)}
            for i, d in enumerate(batch)
        ]
        client.send_message_batch(QueueUrl=url, Entries=entries)
        q.ack_many(batch)


def bare(place: Place, messages: int, keys: int) -> Run:
    """Return the messages a second that requests alone permit: as many threads as the forwarder has send what it would send."""
    entries = []
    for n in range(messages):
        position = SourcePosition("0" * 32, n, 10**15 + n)
        made = encode(encode_key(f"k{n % keys}"), BODY.encode(), None, f"{n}", fifo=True, position=position)
        entries.append({"Id": str(n % BATCH), **made.entry(fifo=True)})
    client, url = place.client(), place.url(place.queue())

    def send(i: int) -> None:
        client.send_message_batch(QueueUrl=url, Entries=entries[i : i + BATCH])

    with ThreadPoolExecutor(REQUESTS) as pool:
        list(pool.map(send, range(0, REQUESTS * BATCH, BATCH)))  # connects; sent again, these are duplicates
        meter, began = Meter(place), time.perf_counter()
        list(pool.map(send, range(0, messages, BATCH)))
        return meter.run(messages / (time.perf_counter() - began), messages)


def rate(place: Place, messages: int, keys: int, run: Callable[[strictq.RemoteQueue, strictq.Queue], None]) -> Run:
    """Fill a local queue and empty it. Return the messages a second."""
    directory = Path(tempfile.mkdtemp(dir=place.directory))
    with strictq.open(directory / "local.strictq", durability="process") as q, place.connect(place.queue()) as target:
        q.send_many(strictq.Message(BODY.encode(), key=f"k{n % keys}") for n in range(messages))
        meter, began = Meter(place), time.perf_counter()
        run(target, q)
        return meter.run(messages / (time.perf_counter() - began), messages)


def _one_more(source: Source) -> Source:
    """Return a source that calls this one for everything: one more layer, as LocalSource is one over the queue."""

    def called(name: str) -> Callable[..., Any]:
        return lambda self, *given, **named: getattr(self.inner, name)(*given, **named)

    def shown(name: str) -> property:
        return property(lambda self: getattr(self.inner, name))

    names = [name for name in vars(Source) if not name.startswith("_")]
    members = {name: shown(name) if isinstance(vars(Source)[name], property) else called(name) for name in names}
    made: Any = type("OneMore", (), members)()
    made.inner = source
    return cast("Source", made)


def local_processor(place: Place, messages: int, *, one_more: bool) -> float:
    """Return the processor time in which a worker empties a local queue with a handler that does nothing."""
    with strictq.open(Path(tempfile.mkdtemp(dir=place.directory)) / "local.strictq", durability="process") as q:
        q.send_many(strictq.Message(BODY.encode(), key=f"k{n % KEYS}") for n in range(messages))
        worker = strictq.Worker(q, lambda _job: None, concurrency=SLOTS)
        if one_more:
            worker._source = _one_more(worker._source)
        began = time.process_time()
        worker.run(drain=True)
        return time.process_time() - began


def layer(place: Place, messages: int) -> Run:
    """Return the processor time of a local worker with one more source in between, as a share of that without, run in turn."""
    took: dict[bool, list[float]] = {False: [], True: []}
    for one_more in (False, True, True, False):
        took[one_more].append(local_processor(place, messages, one_more=one_more))
    return Run(sum(took[True]) / sum(took[False]), sum(took[False]) * 1e6 / messages / 2, 0.0)


def rows(place: Place, sizes: Sizes) -> Iterator[tuple[str, str, Callable[[], Run]]]:
    """Yield the runs: what, by what, and how."""
    groups = 5 * SLOTS
    for load in (
        Load("one group, round trip + 0 ms", 1, sizes.one, 0.0, PROCESS),
        Load("one group, + 15 ms", 1, sizes.one, 0.015, PROCESS),
        Load(f"{groups} groups, {SLOTS} slots, + 15 ms", groups, sizes.each, 0.015, PROCESS),
        Load(f"standard queue, {SLOTS} slots, + 30 ms", sizes.standard, 1, 0.030, SHORT_PROCESS, fifo=False, ahead=False),
    ):
        yield load.what, f"plain loops: {load.threads}", partial(loop, place, load)
        for confirm in CONFIRM if load.fifo else CONFIRM[:1]:
            yield load.what, confirm, partial(work, place, load, confirm)
    for keys in (1, KEYS):
        what = f"forwarder, {keys} key{'s' * (keys > 1)}, messages/s"
        yield what, "plain loop", partial(rate, place, sizes.forwarded, keys, partial(forward_plainly, place.client()))
        for per_key in (1, BATCH):
            yield what, f"--per-key {per_key}", partial(rate, place, sizes.forwarded, keys, partial(forward, per_key))
    yield what, f"requests alone: {REQUESTS}", partial(bare, place, sizes.forwarded, keys)
    yield "local worker, processor time", "one more source", partial(layer, place, sizes.local)


@contextmanager
def place_in(directory: Path) -> Iterator[Place]:
    """Run an endpoint until the block ends."""
    with server(SERVERS["memory"], directory) as client:
        yield Place(client, directory)


def main(arguments: Sequence[str]) -> int:
    """Run a command line, and print a table. Return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks remote", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer messages, and one round")
    parser.add_argument("--tiny", action="store_true", help="a few messages; shows that everything runs")
    parser.add_argument("--match", default="", help="only runs with this in their name")
    parser.add_argument("--dir", type=Path, help="where local queues are created (default: the directory for temporary files)")
    options = parser.parse_args(arguments)
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
    sizes = TINY if options.tiny else SHORT if options.short else Sizes()
    directory = Path(tempfile.mkdtemp(prefix="strictq-benchmarks-", dir=options.dir))
    try:
        with place_in(directory) as place:
            for what, who, run in rows(place, sizes):
                if options.match not in f"{what}: {who}":
                    continue
                found = [run() for _ in range(sizes.rounds)]
                values = [each.value for each in found]
                shown = f"{statistics.median(values):,.0f}" if "/s" in what else f"{statistics.median(values):.1%}"
                spread = f"{min(values):.3g} – {max(values):.3g}"
                here, there = (statistics.median(times) for times in zip(*(each[1:] for each in found), strict=True))
                print(f"{what:40} {who:17} {shown:>7}   {spread:15} {here:>7,.0f} {there:>7,.0f} µs", flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0
