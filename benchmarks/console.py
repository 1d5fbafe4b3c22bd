"""`python -m benchmarks console`: how long pages of the console take, and what its sampler and `/metrics` cost.

One queue has many lanes of one message, some dead letters and a lease; the scraped queues are copies of it. Each server is a
process of its own. The data of a page is the answer with what it shows first. Its rendering is the time from opening the page in
Chromium, with an empty cache, until it shows the data; it needs the extra `test`.
"""

from __future__ import annotations

import argparse
import http.client
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import strictq
from strictq import Message

from .sqs import Client, Peer, server

BODY: Final = b"x" * 100
BATCH: Final = 10_000
DEAD: Final = 200
PAGES: Final = {
    "overview": "consumers?timer=1",
    "lanes": "lanes?by=depth&timer=1",
    "lanes/depth//1": "lanes?by=depth",
    "lanes/depth/key-77": "lanes?by=depth&prefix=key-77",
    "key/str/key-7": "key?key=key-7&key_type=str",
    "dead": "dead",
    "consumers": "consumers?timer=1",
    "consumers/1": "consumers",
    "shards": "ranges",
    "actions": "actions",
}
"""For each page, its view. Those that end in 1 read every lane."""
BARE: Final = "api/queues"
"""A document without a script, for comparison."""
DRAWN: Final = """
(function look() {
  const main = document.querySelector("main"), text = main?.textContent ?? "";
  const bare = document.contentType === "application/json";
  if (bare || (main?.querySelector(".card") && !text.includes("Reading…"))) window.drawn = performance.now();
  else requestAnimationFrame(look);
})();
"""


class Form(NamedTuple):
    """How much is measured.

    Attributes:
        lanes: of each queue. `queues`: those that are scraped.
        seconds: how long the sampler is watched. `rounds`: repetitions of a page or a scrape.
        known_seconds: how long to wait until a new server has read every queue.
    """

    lanes: int = 1_000_000
    queues: int = 20
    seconds: float = 60.0
    rounds: int = 9
    known_seconds: float = 1_800.0


SHORT: Final = Form(20_000, 4, 10.0, 5, 120.0)


def fill(path: Path, lanes: int) -> None:
    """Make the queue."""
    with strictq.open(path, durability="process") as q:
        for begin in range(0, lanes, BATCH):
            q.send_many([Message(BODY, key=f"key-{n}") for n in range(begin, min(begin + BATCH, lanes))])
        for n, d in enumerate(q.receive(DEAD + 1, per_key=1)[:DEAD]):
            d.reject(f"no address {n}")


def serving(part: str, *options: str) -> Peer:
    """Return a server of one part."""
    return Peer("strictq", lambda port, place: ("-m", "strictq", "serve", part, place, "--port", port, *options))


def get(port: int, path: str) -> tuple[float, bytes]:
    """Return how long a request took, seconds, and its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - began
    connection.close()
    assert answer.status == 200, (path, body)
    return seconds, body


def first_data(port: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return for each page the first time and the median of the next ones until its data is there."""
    found = {}
    for page, view in PAGES.items():
        sign = "&" if "?" in view else "?"
        n = 1 if page.endswith("/1") else rounds
        times = [get(port, f"/console/api/{view}{sign}queue=orders&fresh=1")[0] for _ in range(n + 1)]
        found[page] = times[0], statistics.median(times[1:])
    return found


def rendering(port: int, rounds: int) -> dict[str, float]:
    """Return for each page the median time until it is drawn. Empty: there is no Chromium, or no Playwright."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    found: dict[str, float] = {}
    if program is None:
        return found
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for page in (BARE, *PAGES):
            times = []
            for _ in range(rounds):
                context = browser.new_context(viewport={"width": 1280, "height": 900})
                tab = context.new_page()
                tab.add_init_script(DRAWN)
                tab.goto(f"http://127.0.0.1:{port}/console/{page if page == BARE else f'#orders/{page}'}")
                while (drawn := tab.evaluate("window.drawn")) is None:
                    tab.wait_for_timeout(10)
                times.append(drawn / 1e3)
                context.close()
            found[page] = statistics.median(times)
        browser.close()
    return found


@contextmanager
def watching(port: int) -> Iterator[None]:
    """Keep the overview open: follow the samples of the queue."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/console/events?queue=orders")
    answer = connection.getresponse()
    over = threading.Event()

    def read() -> None:
        while not over.is_set() and answer.readline():
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
        connection.close()


def share(client: Client, seconds: float, send: Callable[[], object] | None = None) -> tuple[float, float]:
    """Return the share of a core that the server takes for some time, and the sends per second meanwhile."""
    cpu, began, sent = client.processor(), time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        if send is not None:
            send()
            sent += 1
        time.sleep(0.005 if send is not None else 0.2)
    took = now - began
    return (client.processor() - cpu) / took, sent / took


def console(path: Path, form: Form) -> None:
    """Measure the pages and the sampler, and print them."""
    with server(serving("console"), path) as client:
        while b"orders" not in get(client.port, "/console/api/queues")[1]:
            time.sleep(0.1)
        data, drawn = first_data(client.port, form.rounds), rendering(client.port, form.rounds)
        print("| page | first data, ms | later, ms | drawn in Chromium, ms |\n|---|---|---|---|")
        for page, (first, later) in data.items():
            shown = f"{drawn[page] * 1e3:.0f}" if page in drawn else ""
            print(f"| {page} | {first * 1e3:.1f} | {later * 1e3:.1f} | {shown} |", flush=True)
        if BARE in drawn:
            print(f"\nChromium drew a document without a script in {drawn[BARE] * 1e3:.0f} ms.")
        with watching(client.port), strictq.open(path) as q:
            idle, _ = share(client, form.seconds)
            busy, rate = share(client, form.seconds, lambda: q.send(BODY, key=f"key-{random.randrange(form.lanes)}"))
        print(f"\nThe server of an open page took {idle:.2%} of a core, and {busy:.2%} during {rate:.0f} sends/s.", flush=True)


class Scrape(NamedTuple):
    """One scrape: processor time of the server, how many queues it showed, and the age of the oldest."""

    cpu: float
    queues: int
    age: float


def scrape(client: Client) -> Scrape:
    """Scrape once."""
    cpu = client.processor()
    text = get(client.port, "/metrics")[1].decode()
    cpu = client.processor() - cpu
    ages = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("strictq_read_age_seconds{")]
    return Scrape(cpu, len(ages), max(ages, default=0.0))


def metrics(path: Path, scratch: Path, form: Form) -> None:
    """Measure scrapes of several queues, and print them."""
    places = [scratch / "queues" / f"q{n}.strictq" for n in range(form.queues)]
    for place in places:
        shutil.copytree(path, place)
    with server(serving("metrics"), scratch / "queues") as client:
        began, scrapes = time.monotonic(), [scrape(client)]
        while scrapes[-1].queues < form.queues and time.monotonic() < began + form.known_seconds:
            time.sleep(1.0)
            scrapes.append(scrape(client))
        known, spent = time.monotonic() - began, client.processor()
        settle(client)
        idle = statistics.median(scrape(client).cpu for _ in range(form.rounds))
        for place in places:
            with strictq.open(place) as q:
                for _ in range(100):
                    q.send(BODY, key=f"key-{random.randrange(form.lanes)}")
        after = scrape(client)
        settled = settle(client)
        print(
            f"\n{form.queues} queues of {form.lanes:,} lanes. The first scrape took {scrapes[0].cpu * 1e3:.1f} ms of CPU.\n"
            f"{scrapes[-1].queues} queues were known after {known:.0f} s and {spent:.1f} s of CPU.\n"
            f"A scrape took {idle * 1e3:.1f} ms of CPU, and {after.cpu * 1e3:.1f} ms after 100 sends to each.\n"
            f"It then showed numbers that were up to {after.age:.1f} s old. New ones were shown {settled:.1f} s later.\n"
            f"The process had {client.resident() / 1e6:.0f} MB.",
            flush=True,
        )


def settle(client: Client) -> float:
    """Scrape once a second until every number is new, for a minute at most. Return how long it took."""
    began = time.monotonic()
    while scrape(client).age > 0 and time.monotonic() < began + 60:
        time.sleep(1.0)
    return time.monotonic() - began


def main(arguments: Sequence[str]) -> int:
    """Run a command line, and print the results. Return 0."""
    parser = argparse.ArgumentParser("python -m benchmarks console", description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT.lanes:,} lanes instead of {Form().lanes:,}, and 4 queues")
    parser.add_argument("--dir", type=Path, help="where the files lie; default: the directory for temporary files")
    options: Any = parser.parse_args(arguments)
    form = SHORT if options.short else Form()
    scratch = Path(tempfile.mkdtemp(prefix="strictq-console-", dir=options.dir))
    try:
        path = scratch / "orders.strictq"
        fill(path, form.lanes)
        console(path, form)
        metrics(path, scratch, form)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0
