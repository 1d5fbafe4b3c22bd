"""The console in Chromium: every page in both widths and themes, what people do there, and what must not happen."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

import strictq
from strictq import Message, QueueConfig, TenantLimit, Worker
from strictq.server.app import Application, parts_of
from strictq.server.console import sampler as _sampler
from strictq.server.console import views as _views
from strictq.server.parts import ServerContext, ServerSettings
from strictq.server.running import HttpServer, running
from tests.support.running import fast_directory, until

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE: Final = os.environ.get("STRICTQ_AXE", "")
playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]
HOSTILE: Final = "<script>window.hacked=1</script>\x1b[31m\u202eabc\u2066"
ESCAPED: Final = "<script>window.hacked=1</script>\\u001b[31m\\u202eabc\\u2066"
MEGABYTE: Final = b'"<img src=x onerror=window.hacked=1>' + b"x" * (1 << 20)
DESKTOP: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
PAGES: Final = (
    "overview", "lanes", "lanes/age/order-", "key/str/order-3", "dead", "consumers", "tenants", "shards", "replication", "spark",
    "sqs", "actions",
)  # fmt: skip
REFUSED: Final = "the server responded with a status of 400"
"""Chromium logs the answer to an action that could not be done."""
WATCH: Final = (
    "window.csp = []; addEventListener('securitypolicyviolation', (e) => csp.push(`${e.violatedDirective} ${e.blockedURI}`));"
)


@contextmanager
def serving(directory: Path, **settings: Any) -> Iterator[HttpServer]:
    context = ServerContext(ServerSettings(directories=(directory,), port=0, **settings))
    with running(Application(parts_of(["console"], context), context)) as server:
        yield server


def die(q: strictq.Queue, key: Any, reason: str, body: bytes = b'{"n": 1}') -> None:
    q.send(body, key=key)
    q.receive(1, keys=[key])[0].reject(reason)


class Site:
    """A queue with something on every page, a server that allows actions, and a browser."""

    def __init__(self, q: strictq.Queue, server: HttpServer, browser: Any) -> None:
        self.q = q
        self.url = server.url
        self.browser = browser

    @contextmanager
    def page(self, where: str, viewport: dict[str, int] = DESKTOP, theme: str = "light", url: str = "") -> Iterator[Any]:
        """Open a page. At the end, nothing was refused by the policy, and no script failed."""
        context = self.browser.new_context(viewport=viewport, color_scheme=theme)
        context.set_default_timeout(30_000)
        page = context.new_page()
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", lambda said: failures.append(said.text) if said.type == "error" and REFUSED not in said.text else None)
        page.add_init_script(WATCH)
        page.goto(f"{url or self.url}/console/#orders/{where}")
        page.wait_for_selector("#live.on")
        try:
            yield page
            assert page.evaluate("csp") == []
            assert page.evaluate("window.hacked") is None
            assert failures == []
        finally:
            context.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(_sampler, "WATCHED_SECONDS", 0.1)
    config = QueueConfig(max_attempts=1, history="bodies", tenant_separator="/", keyless="random")
    with fast_directory(tmp_path_factory.mktemp("site")) as directory:
        path = directory / "orders.strictq"
        with strictq.open(path, shards=2, durability="process", config=config) as q:
            fill(q, directory)
            with serving(directory, allow_actions=True) as server, playwright_api.sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
                )
                yield Site(q, server, browser)
                browser.close()
    monkeypatch.undo()


def fill(q: strictq.Queue, directory: Path) -> None:
    for n in range(14):
        q.send_many([Message(b'{"n": %d, "cents": 12345678901234567890}' % n, key=f"order-{n}")] * (n + 1))
    for n in range(30):
        q.send(b'{"n": 1}', key=f"bad-{n % 4}")
    for n, d in enumerate(q.receive(30, keys=[f"bad-{n}" for n in range(4)])):
        d.reject(f"no address {n}")
    die(q, "one", "the only one")
    die(q, HOSTILE, f"reason {HOSTILE}", MEGABYTE)
    q.send(MEGABYTE, key=HOSTILE)
    q.send(b"\x00\xff" * 40, key=b"\xff\x00")
    q.send(b"", key="acme/1")
    q.send(b"keyless")
    q.hold("order-13", "waits for a decision")
    q.limit("acme", send_rate=5.0)
    q.receive(3, keys=["order-5"], consumer=f"plain {HOSTILE}", lease_seconds=3600.0)
    q.configure_replication(directory / "target")
    entry = {"name": "orders", "attributes": {"VisibilityTimeout": "5"}, "tags": {}, "created": 1_700_000_000}
    (directory / "orders.sqs.json").write_text(json.dumps(entry))


CURRENT_IN_SIGHT = """() => {
  const link = document.querySelector("#nav [aria-current]").getBoundingClientRect(), nav = document.querySelector("#nav");
  const box = nav.getBoundingClientRect();
  return link.left >= box.left - 1 && link.right <= box.right + 1;
}"""


CUT_OFF: Final = """[...document.querySelectorAll("main .scroll, main td")]
  .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.outerHTML.slice(0, 200))"""


def wait(page: Any, condition: str, arg: Any = None) -> None:
    """Wait until an expression is true. The policy forbids Playwright's own way of doing that."""
    end = time.monotonic() + 60
    while not page.evaluate(condition, arg):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def whole(page: Any) -> None:
    """Wait until a page is drawn."""
    wait(page, "document.querySelector('main .card') && !document.querySelector('main').textContent.includes('Reading…')")


def said(page: Any, *texts: str) -> None:
    """Wait for the page to say what an action changed, in one of these ways."""
    wait(page, "(texts) => texts.some(text => document.querySelector('#toast').textContent.includes(text))", texts)


def confirm(page: Any, verb: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()


def visit(site: Site, page: Any) -> Iterator[str]:
    """Show each page in turn."""
    for where in PAGES:
        page.goto(f"{site.url}/console/#orders/{where}")
        whole(page)
        yield where


def test_every_page_fits_and_is_whole(site: Site) -> None:
    with site.page("overview") as page:
        for where in visit(site, page):
            for viewport in (PHONE, DESKTOP):
                page.set_viewport_size(viewport)
                for theme in ("light", "dark"):
                    page.emulate_media(color_scheme=theme)
                    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], where
                    assert page.evaluate(CUT_OFF) == [], (where, viewport)
                    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == theme
                    wait(page, CURRENT_IN_SIGHT)
            assert page.locator(".banner.bad").count() == 0, where
            assert page.locator("#trouble").text_content() == ""
            assert page.locator("main h1").count() == 1, where


@pytest.mark.skipif(not AXE, reason="STRICTQ_AXE does not name axe-core's axe.min.js")
def test_an_accessibility_check_finds_nothing_serious(site: Site) -> None:
    with site.page("overview") as page:
        page.evaluate(Path(AXE).read_text(encoding="utf-8"))
        for where in visit(site, page):
            for viewport, theme in ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light")):
                page.set_viewport_size(viewport)
                page.emulate_media(color_scheme=theme)
                found = page.evaluate("axe.run({resultTypes: ['violations']}).then((r) => r.violations)")
                serious = [
                    f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0]['failureSummary'][:200]}"
                    for v in found
                    if v["impact"] in ("serious", "critical")
                ]
                assert serious == [], (where, viewport, theme)


def test_numbers_and_charts_follow_the_queue(site: Site) -> None:
    with site.page("overview") as page:
        tile = page.locator(".tile", has_text="Unresolved").locator("dd")
        before = int(tile.text_content())
        site.q.send_many([Message(b"", key=f"more-{n}") for n in range(7)])
        wait(
            page,
            "(n) => [...document.querySelectorAll('.tile')].some((t) => t.textContent.includes('Unresolved' + n))",
            str(before + 7),
        )
        page.wait_for_selector(".chart .area")
        page.hover(".chart >> nth=1")
        page.wait_for_selector(".chart .hover text")
        for n in range(7):
            site.q.purge(f"more-{n}")


def test_the_timeline_shows_what_a_worker_does(site: Site) -> None:
    started = threading.Semaphore(0)
    go_on = threading.Event()

    def process(job: Any) -> None:
        started.release()
        go_on.wait(60)

    worker = Worker(site.q, process, lambda job: None, keys=["busy-1", "busy-2"], consumer="mailer")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with site.page("overview") as page:
            site.q.send_many([Message(b"", key="busy-1"), Message(b"", key="busy-2")] * 3)
            page.wait_for_selector(".spans rect.s-process.s-open")
            go_on.set()
            wait(page, "document.querySelectorAll('.spans rect.s-process:not(.s-open)').length >= 2")
            assert page.locator(".spans .key").all_text_contents() == ["busy-1", "busy-2"]
            page.wait_for_selector("td:has-text('mailer')")
    finally:
        go_on.set()
        worker.stop()
        thread.join()


def test_a_key_is_found_and_shown(site: Site) -> None:
    with site.page("lanes") as page:
        page.wait_for_selector("text=lanes with messages")
        page.get_by_label("Key or beginning of keys").fill("order-3")
        page.get_by_role("button", name="Find").click()
        page.wait_for_selector("h1:text-is('order-3')")
        assert page.locator("nav [aria-current]").text_content() == "Lanes"
        assert "seq 1 can be received now" in page.locator(".say").text_content()
        assert "12345678901234567890" in page.locator("main").text_content(), "numbers are shown as they are"
        page.get_by_role("group", name="Show the body as").first.get_by_role("button", name="Hex").click()
        assert page.locator("pre").first.text_content().startswith("000000  7b 22 6e")
        page.get_by_role("button", name="Read the history").click()
        page.wait_for_selector("text=No message has finished")
        page.goto(f"{site.url}/console/#orders/lanes/depth/order-1")
        page.wait_for_selector("text=keys that begin with order-1")
        assert page.locator("tbody tr").count() == 5


def test_a_key_is_held_and_released(site: Site) -> None:
    with site.page("key/str/order-2") as page:
        page.get_by_role("button", name="Hold").click()
        page.get_by_label("Reason").fill("look into it")
        confirm(page, "Hold")
        said(page, "The key is held")
        page.wait_for_selector(".chip.held")
        assert site.q.explain("order-2").by == "look into it"
        page.get_by_role("button", name="Release").click()
        confirm(page, "Cancel")
        assert site.q.explain("order-2").state == "held"
        page.get_by_role("button", name="Release").click()
        confirm(page, "Release")
        said(page, "The key is released")
        page.wait_for_selector(".say .chip.ready")


def test_dead_letters_are_redriven_alone_and_as_a_group(site: Site) -> None:
    with site.page("dead") as page:
        page.get_by_role("row", name=re.compile("the only one")).last.get_by_role("button", name="Redrive").click()
        confirm(page, "Redrive")
        said(page, "1 dead letter returned")
        assert [message.seq for message in site.q.peek("one")] == [1]
        page.get_by_role("row", name=re.compile("no address #")).get_by_role("link", name="Show").click()
        page.wait_for_selector("text=Dead letters of one reason")
        page.get_by_role("link", name="Older").click()
        page.wait_for_selector("text=26 to 30 of 30")
        page.get_by_role("row", name=re.compile("no address #")).get_by_role("button", name="Redrive 30").click()
        dead = site.q.stats().dead
        die(site.q, "bad-0", "no address 99")
        confirm(page, "Redrive 30")
        said(page, "31 dead letters match now, not 30; nothing was changed")
        assert site.q.stats().dead == dead + 1
        page.get_by_role("button", name="Redrive 31").click()
        confirm(page, "Redrive 31")
        said(page, "31 dead letters returned to the front of their lanes")
        until(lambda: site.q.stats().dead == dead - 30)
        page.wait_for_selector("#nav b:text-is('1')")
        page.goto(f"{site.url}/console/#orders/actions")
        page.wait_for_selector("td:has-text('31 dead letters returned')")


def test_the_queue_is_paused_and_resumed(site: Site) -> None:
    with site.page("shards") as page:
        page.get_by_role("button", name="Pause the queue").click()
        confirm(page, "Pause")
        said(page, "The queue is paused")
        page.wait_for_selector(".banner:has-text('receives return nothing')")
        assert site.q.receive() == []
        page.get_by_role("button", name="Resume the queue").click()
        confirm(page, "Resume")
        said(page, "delivered again")
        wait(page, "!document.querySelector('.banner')")


def test_a_queue_that_cannot_be_read_and_a_server_that_is_gone_are_reported(tmp_path: Path, site: Site) -> None:
    with strictq.open(tmp_path / "orders.strictq", durability="process") as q:
        q.send(b"", key="a")
    context = site.browser.new_context()
    with serving(tmp_path) as server:
        page = context.new_page()
        page.goto(f"{server.url}/console/#orders/overview")
        page.wait_for_selector("#live.on")
        (tmp_path / "orders.strictq").rename(tmp_path / "elsewhere")
        wait(page, "document.querySelector('#trouble').textContent.includes('The queue cannot be read')")
        (tmp_path / "elsewhere").rename(tmp_path / "orders.strictq")
        wait(page, "document.querySelector('#trouble').textContent === ''")
    wait(page, "document.querySelector('#trouble').textContent.includes('The connection to the server is lost')")
    context.close()


def test_a_server_without_a_queue_shows_the_first_one_when_it_is_there(tmp_path: Path, site: Site) -> None:
    context = site.browser.new_context()
    failures: list[str] = []
    with serving(tmp_path) as server:
        page = context.new_page()
        page.on("console", lambda said: failures.append(said.text) if said.type == "error" else None)
        page.goto(f"{server.url}/console/")
        page.wait_for_selector("main:has-text('There is no queue in the directories of this server')")
        assert page.locator("#toast").text_content() == ""
        with strictq.open(tmp_path / "orders.strictq", durability="process") as q:
            q.send(b"", key="a")
            page.wait_for_selector("#live.on")
            page.wait_for_selector(".tile:has-text('Unresolved1')")
    assert failures == []
    context.close()


def test_a_queue_of_sqs_that_was_never_used_is_shown_before_there_is_another(tmp_path: Path, site: Site) -> None:
    entry = {"name": "new.fifo", "attributes": {}, "tags": {}, "created": 1_700_000_000}
    (tmp_path / "new.fifo.sqs.json").write_text(json.dumps(entry))
    context = site.browser.new_context()
    with serving(tmp_path) as server:
        page = context.new_page()
        page.goto(f"{server.url}/console/")
        page.get_by_role("link", name="SQS").click()
        page.wait_for_selector("td:has-text('new.fifo')")
    context.close()


def test_many_lanes_are_read_only_when_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_views, "LANES_BY_TIMER_MAX", 3)
    with site.page("lanes") as page:
        page.get_by_role("button", name="Read them").click()
        page.wait_for_selector("td:has-text('order-12')")
        page.goto(f"{site.url}/console/#orders/lanes/depth/order-1")
        page.wait_for_selector("td:has-text('order-12')")  # what begins with a text is read at once
        page.goto(f"{site.url}/console/#orders/consumers")
        page.get_by_role("button", name="Read them").click()
        page.wait_for_selector("td:has-text('order-5')")
        page.goto(f"{site.url}/console/#orders/overview")
        page.get_by_role("link", name="read them").first.click()
        page.wait_for_selector("h1:text-is('Lanes')")
        page.wait_for_selector("td:has-text('order-12')")


def test_a_shard_is_split(site: Site) -> None:
    with site.page("shards") as page:
        before = len(site.q.topology().shards)

        def is_advised() -> bool:
            """What other tests have sent to this queue may be a reason for a move. The page may be drawn again meanwhile."""
            if (look := page.get_by_role("button", name="Look")).count():
                look.click()
            return (
                page.locator("p:has-text('No move would help now.'), li:has-text('Split shard'), li:has-text('Isolate')").count()
                > 0
            )

        until(is_advised, "advice")
        page.get_by_role("button", name="Split", exact=True).first.click()
        confirm(page, "Split")
        said(page, "moved.", "The move has begun.")  # the second one if it takes longer
        page.wait_for_selector("td:has-text('3fffffffffffffff')")
    until(lambda: len(site.q.topology().shards) == before + 1, "the split")


def test_a_tenant_gets_a_limit(site: Site) -> None:
    with site.page("tenants") as page:
        page.get_by_role("button", name="New limit").click()
        page.get_by_label("Tenant", exact=True).fill("free-*")
        for label, value in (
            ("Unresolved messages at most", "700"), ("Sends per second", "9"), ("Deliveries per second", "2.5"), ("Burst", "4"),
            ("Keys leased at once", "3"), ("Target age, seconds", "60"),
        ):  # fmt: skip
            page.get_by_label(label).fill(value)
        confirm(page, "Set the limits")
        said(page, "receive rate 2.5")
        page.wait_for_selector("tr:has-text('free-*') >> td:has-text('700')")
    with strictq.open(site.q.path, read_only=True) as look:
        limit = TenantLimit("free-*", max_depth=700, send_rate=9, receive_rate=2.5, burst=4, concurrency=3, target_age_seconds=60)
        assert limit in look.config.limits


def test_hostile_keys_and_bodies_are_text(site: Site) -> None:
    with site.page("lanes") as page:
        link = page.locator("a.key", has_text="<script>")
        assert link.first.text_content().startswith(ESCAPED[:30])
        link.first.click()
        page.wait_for_selector("h1:has-text('<script>')")
        assert page.locator("h1").text_content() == ESCAPED
        pre = page.locator("pre").first
        assert pre.text_content().startswith('"<img src=x onerror=window.hacked=1>xxx')
        page.get_by_role("button", name="Show more").first.click()
        wait(page, "document.querySelector('pre').textContent.length > 150000")
        page.wait_for_selector("text=1.0 MB")
        page.goto(f"{site.url}/console/#orders/dead")
        page.wait_for_selector(f"text={ESCAPED[:30]}")
        page.goto(f"{site.url}/console/#orders/consumers")
        page.wait_for_selector("td:has-text('plain <script>')")
        text = page.locator("body").text_content()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        page.goto(f"{site.url}/console/#orders/key/bytes//wA=")
        page.goto(f"{site.url}/console/#orders/key/bytes/%2FwA%3D")
        page.wait_for_selector("h1:text-is('0xff00')")
        assert page.locator("pre").first.text_content().startswith("000000  00 ff 00 ff")


def test_without_actions_there_is_no_button_for_one(site: Site) -> None:
    with serving(Path(site.q.path)) as server, site.page("key/str/order-3", url=server.url) as page:
        page.wait_for_selector("h1:text-is('order-3')")
        assert page.locator("#mode").text_content() == "read-only"
        for name in ("Hold", "Purge", "Reject", "Redrive"):
            assert page.get_by_role("button", name=name).count() == 0


def test_a_page_of_another_origin_changes_and_reads_nothing(site: Site) -> None:
    target = f"{site.url}/console/api/act"
    script = f"""
      const body = JSON.stringify({{queue: "orders", action: "hold", key: "order-9", key_type: "str"}});
      const send = (kind) => fetch("{target}", {{method: "POST", mode: "no-cors", body, headers: {{"content-type": kind}}}});
      const read = fetch("{site.url}/console/api/lanes?queue=orders").then((r) => r.text());
      const stolen = read.then((text) => {{ window.stolen = text; }});
      Promise.allSettled([send("text/plain"), send("application/json"), stolen]).then(() => {{ window.tried = true; }});
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            form = f'<form method=post action="{target}" enctype="text/plain"><button>x</button></form>'
            self.wfile.write(f"<!doctype html>{form}<script>{script}</script>".encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        page = site.browser.new_page()
        try:
            page.goto(f"http://127.0.0.1:{other.server_port}/")
            wait(page, "window.tried")
            assert page.evaluate("window.stolen") is None
            with page.expect_navigation():
                page.click("button")
            assert "not allowed" in page.locator("body").text_content()
        finally:
            page.close()
            other.shutdown()
            thread.join()
    assert site.q.explain("order-9").state == "ready"


def test_a_rebound_name_is_refused(site: Site) -> None:
    page = site.browser.new_page()
    answer = page.goto(site.url.replace("127.0.0.1", "evil.example") + "/console/")
    assert (answer.status, "--host-name" in page.content()) == (403, True)
    page.close()


def test_a_token_is_given_once_in_a_form(site: Site) -> None:
    with serving(Path(site.q.path), token="0123456789abcdef") as server:
        context = site.browser.new_context()
        page = context.new_page()
        assert page.goto(f"{server.url}/console/").status == 403
        page.get_by_label("Token").fill("0123456789abcdef")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector("#live.on")
        assert page.evaluate("document.cookie") == "", "scripts cannot read it"
        context.close()


def test_the_keyboard_is_enough(site: Site) -> None:
    with site.page("overview") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.focus("nav a >> nth=1")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text-is('Lanes')")
        wait(page, "document.activeElement.id === 'main'")  # a reader of the screen begins at the new page
        page.focus("#theme")
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
