"""The receiver and the worker of docs/howto/webhooks.md, as the files that they are, with a flaky API."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

import strictq
from tests.support.running import PATIENCE_SECONDS

from .test_code_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "webhooks.md"
SECRET = b"a secret"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the page's files."""
    for block in blocks(PAGE):
        if block.language == "python":
            (tmp_path / block.lines[0].removeprefix("# ")).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET.decode())
    return tmp_path


class Flaky(BaseHTTPRequestHandler):
    """An API that fails each third call, and knows what it has done."""

    calls = 0
    done: ClassVar[dict[str, list[int]]] = defaultdict(list)
    lock = threading.Lock()

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        customer = self.path.rpartition("/")[2]
        with self.lock:
            type(self).calls += 1
            if event["n"] < 0:
                code = 422
            elif self.calls % 3 == 0:
                code = 503 if self.calls % 2 else 429
            else:
                code = 200
                self.done[customer].append(event["n"])
        self.send_response(code)
        self.send_header("Retry-After", "0.01")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def api() -> Iterator[str]:
    Flaky.calls, Flaky.done = 0, defaultdict(list)
    with ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("receiver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def post(app: Any, body: bytes, signature: str | None = None) -> tuple[int, Any]:
    """One request, as a server makes it."""
    signed = hmac.new(SECRET, body, hashlib.sha256).hexdigest() if signature is None else signature
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/events",
        "raw_path": b"/events", "query_string": b"", "root_path": "", "headers": [(b"x-signature", signed.encode("latin-1"))],
        "server": ("test", 80), "client": ("test", 1), "state": {},
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))


def event(customer: str, n: int) -> bytes:
    return json.dumps({"id": f"{customer}-{n}", "customer": customer, "n": n}).encode()


def test_events_are_stored_once_and_delivered_in_order(place: Path, api: str) -> None:
    pytest.importorskip("starlette")
    with strictq.open("events.strictq", config=strictq.QueueConfig(retry_delay_seconds=0.01, history="records")):
        pass
    receiver = loaded(place / "receiver.py")

    async def run() -> None:
        async with receiver.lifespan(receiver.app):
            for n in range(10):
                for customer in ("ann", "ben", "zoë"):
                    answer = await post(receiver.app, event(customer, n))
                    assert answer == (202, {"seq": n + 1, "duplicate": False})
            assert await post(receiver.app, event("ann", 3)) == (202, {"seq": 4, "duplicate": True})
            assert (await post(receiver.app, event("ann", 3), "forged"))[0] == 401
            assert (await post(receiver.app, event("ann", 3), "ü"))[0] == 401
            for bad in (b"", b"[]", b"7", b'{"id": 1}', b'{"id": 1, "customer": ""}'):
                assert (await post(receiver.app, bad))[0] == 400, bad
            assert (await post(receiver.app, event("ben", -1)))[0] == 202

    anyio.run(run)
    for _ in range(50):  # what failed waits for its retry, which a run that drains leaves to the next one
        done = subprocess.run(
            [sys.executable, "deliver.py", api, "--drain"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        with strictq.open("events.strictq") as q:
            stats = q.stats()
        if not stats.depth:
            break
    assert {"ann": list(range(10)), "ben": list(range(10))}.items() <= Flaky.done.items()
    assert list(range(10)) in [Flaky.done[name] for name in Flaky.done if name not in ("ann", "ben")]
    with strictq.open("events.strictq") as q:
        assert [(d.key, d.reason) for d in q.dead_letters()] == [("ben", "the API answered 422")]
        records = q.history(limit=1000)
    assert sum(r.outcome == "acked" for r in records) == 30
    assert {r.output for r in records if r.outcome == "acked"} == {"200"}
