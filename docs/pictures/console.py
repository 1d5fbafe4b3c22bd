"""Take the pictures of the console: `python docs/pictures/console.py`, with Chromium and the extra `test`.

With `--every DIRECTORY`, it takes pictures of every page, at desktop and phone
width, light and dark. A test takes those of the documentation after a few
seconds of the shop: `--into DIRECTORY --seconds 10`.

A shop's orders are sent to a queue in a temporary directory, and two worker processes handle them: some fail, and one key waits
for a service that is down.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import strictq

SHOWN: Final = ("overview-dark", "key-light", "dead-dark")
"""The pictures of the documentation."""
SECONDS: Final = 75.0
"""How long orders are sent before the pictures are taken."""
PAGES: Final = {
    "overview": "overview",
    "key": "key/str/order-3",
    "dead": "dead",
    "lanes": "lanes",
    "consumers": "consumers",
    "tenants": "tenants",
    "shards": "shards",
    "actions": "actions",
}


def prepare(_job: Any) -> None:
    """Fetch what the order needs, ahead of its turn."""
    time.sleep(random.uniform(0.05, 0.12))


def process(job: Any) -> None:
    """Handle one event of an order."""
    order = json.loads(job.body)
    if job.key == "order-3" and order["event"] == "paid":
        raise TimeoutError(
            f"payments.example did not answer request {order['n']} within 2 s"
        )
    if job.key == "order-7" and order["event"] == "shipped":
        raise strictq.Reject(f"the carrier does not know address {order['n']}")
    if order["n"] % 97 == 0:
        raise ValueError(f"event {order['n']} has no price")
    job.progress(0.4, "label printed")
    time.sleep(random.uniform(0.08, 0.22))


def work(path: str, name: str) -> None:
    """Run a worker until this process is terminated."""
    with strictq.open(path) as q:
        strictq.Worker(q, process, prepare, consumer=name, concurrency=4).run()


def event(n: int) -> strictq.Message:
    """Return one event of an order."""
    kind = ("created", "paid", "packed", "shipped")[n % 4]
    body = {"n": n, "event": kind, "cents": random.randint(300, 9900)}
    key = f"order-{random.choice((*range(9), *range(4), 3))}"
    return strictq.Message.json(body, key=key, headers={"request-id": f"r-{n}"})


@contextmanager
def shop(directory: Path) -> Iterator[Path]:
    """Send orders and work on them until the block ends."""
    random.seed(7)
    path = directory / "orders.strictq"
    config = strictq.QueueConfig(
        max_attempts=2,
        retry_delay_seconds=2.0,
        history="records",
        retry_for_seconds=8.0,
    )
    with strictq.open(path, shards=2, durability="process", config=config) as q:
        spawned = multiprocessing.get_context("spawn")
        workers = [
            spawned.Process(
                target=work, args=(str(path), f"mailer-{n}"), daemon=True
            )
            for n in (1, 2)
        ]
        for worker in workers:
            worker.start()
        for n in (20, 21, 22):
            q.hold(f"order-{n}", "waits for a decision of the support team")
            q.send_json(
                {"n": n, "event": "created", "cents": 100 * n}, f"order-{n}"
            )
        try:
            yield path
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()


def take(
    url: str, into: Path, wanted: tuple[str, ...], seconds: float, feed: Any
) -> None:
    """Take the wanted pictures; all of them if none is named."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        # Samples are taken each second while a page is open.
        browser.new_page().goto(f"{url}/console/")
        feed(seconds)
        for device, width, height in (("", 1280, 900), ("-phone", 390, 844)):
            for theme in ("dark", "light"):
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                )  # type: ignore[arg-type]
                for name, where in PAGES.items():
                    if wanted and f"{name}{device}-{theme}" not in wanted:
                        continue
                    page.goto(f"{url}/console/#orders/{where}")
                    page.wait_for_selector("#live.on")
                    page.wait_for_selector("main .card")
                    feed(6.0 if name == "overview" else 1.0)
                    page.screenshot(
                        path=into / f"console-{name}{device}-{theme}.png",
                        full_page=name == "overview" and bool(device),
                    )
                page.close()
        browser.close()


def main(into: Path, wanted: tuple[str, ...], seconds: float) -> None:
    """Run the shop and the server, and take the pictures."""
    from strictq.server.app import Application, parts_of
    from strictq.server.parts import ServerContext, ServerSettings
    from strictq.server.running import running

    into.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory() as scratch,
        shop(Path(scratch)) as path,
        strictq.open(path) as q,
    ):
        context = ServerContext(
            ServerSettings(directories=(path,), port=0, allow_actions=True)
        )
        sent = 0

        def feed(seconds: float) -> None:
            nonlocal sent
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                each = 22 if int(time.monotonic() / 9) % 2 else 12
                q.send_many([event(sent + n) for n in range(each)])
                sent += each
                time.sleep(0.5)

        with running(
            Application(parts_of(["console"], context), context)
        ) as server:
            take(server.url, into, wanted, seconds, feed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Take pictures of the console."
    )
    parser.add_argument("--into", type=Path, default=Path(__file__).parent)
    parser.add_argument("--every", type=Path, metavar="DIRECTORY")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    main(given.every or given.into, () if given.every else SHOWN, given.seconds)
