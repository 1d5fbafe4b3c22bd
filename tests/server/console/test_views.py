"""The console without a browser: its views, its actions, its stream, and what protects them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import Message, QueueConfig
from strictq.server.app import Application, parts_of
from strictq.server.console import actions as _actions
from strictq.server.console import console as _console
from strictq.server.console.views import VIEWS, for_page, pattern_of
from strictq.server.parts import ServerContext, ServerSettings
from tests.support.asgi import Answer, call
from tests.support.moved_ranges import unfinished
from tests.support.queues import fill
from tests.support.running import until

STATIC = Path(_console.__file__).parent / "static"
JSON = {"content-type": "application/json"}


class Console:
    """A server with the console, called without a socket."""

    def __init__(self, *directories: Path, allow_actions: bool = False, **settings: Any) -> None:
        self.context = ServerContext(ServerSettings(directories=directories, allow_actions=allow_actions, **settings))
        self.application = Application(parts_of(["console"], self.context), self.context)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def started() -> Any:
            await self.application.start()
            try:
                return await work
            finally:
                self.application.drain()
                await self.application.stop()

        return asyncio.run(started())

    async def get(self, path: str, **arguments: str) -> Answer:
        return await call(self.application, path, query=arguments)

    async def view(self, name: str, **arguments: str) -> Any:
        answer = await self.get(f"/console/api/{name}", queue="orders", **arguments)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    async def token(self) -> str:
        page = (await self.get("/console/")).body.decode()
        (found,) = re.findall(r'name="strictq-page" content="([^"]*)"', page)
        return str(found)

    async def act(
        self, action: str, token: str | None = None, headers: Mapping[str, str] = JSON, **given: Any
    ) -> tuple[int, Any]:
        token = await self.token() if token is None else token
        body = json.dumps({"queue": "orders", "action": action, **given}).encode()
        answer = await call(self.application, "/console/api/act", "POST", {**headers, "x-strictq-page": token}, body)
        return answer.status, json.loads(answer.body)


@pytest.fixture
def path(place: Path) -> Path:
    return place / "orders.strictq"


@pytest.fixture
def q(path: Path) -> Iterator[strictq.Queue]:
    with strictq.open(path, shards=2, durability="process", config=QueueConfig(history="bodies", max_attempts=1)) as q:
        yield q


def die(q: strictq.Queue, key: Any, *reasons: str) -> None:
    for reason in reasons:
        q.send(b'{"n": 1}', key=key)
        q.receive(1, keys=[key])[0].reject(reason)


def test_the_page_and_its_files_are_small_and_refer_to_nothing_else(q: strictq.Queue, path: Path) -> None:
    console = Console(path)

    async def work() -> None:
        assert (await console.get("/")).headers["location"] == "/console/"
        whole = 0
        for name in ("", "app.js", "charts.js", "pages.js", "ui.js", "app.css"):
            answer = await console.get(f"/console/{name}")
            assert answer.status == 200
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\bstyle=", text), name
            whole += len(answer.body)
        assert whole < 200_000
        assert (await console.get("/console/../app.js")).status == 404
        assert (await console.get("/console/console.py")).status == 404
        assert await console.token() == "", "without actions there is none"

    console.run(work())
    assert {file.name for file in STATIC.iterdir()} == {name for name, _ in _console.FILES.values()}


def test_lanes_are_listed_and_found_by_key_and_prefix(q: strictq.Queue, path: Path) -> None:
    for key, n in (("order-1", 3), ("order-2", 1), ("user", 2), (2**70, 1), (b"\xff", 1)):
        fill(q, key, n)
    console = Console(path)

    async def work() -> None:
        rows = (await console.view("lanes"))["rows"]
        assert [row["depth"] for row in rows] == [3, 2, 1, 1, 1]
        assert {(row["key"], row["key_type"]) for row in rows} >= {(str(2**70), "int"), ("/w==", "bytes")}
        assert {row["key"] for row in (await console.view("lanes", prefix="order-", by="age"))["rows"]} == {"order-1", "order-2"}
        assert [one["key"] for one in (await console.view("find", text="user"))["found"]] == ["user"]
        assert [one["key_type"] for one in (await console.view("find", text=str(2**70)))["found"]] == ["int"]
        assert (await console.view("find", text="nobody"))["found"] == []

    console.run(work())


def test_with_many_lanes_a_page_reads_them_only_when_asked(q: strictq.Queue, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq.server.console.views.LANES_BY_TIMER_MAX", 1)
    fill(q, "a", 1)
    fill(q, "b", 1)
    console = Console(path)

    async def work() -> None:
        assert await console.view("lanes", timer="1") | {"seconds": 0} == {"rows": None, "lanes": 2, "seconds": 0}
        assert len((await console.view("lanes"))["rows"]) == 2
        q.receive(1, consumer="me")
        assert (await console.view("consumers", timer="1"))["leases"] is None
        assert [lease["consumer"] for lease in (await console.view("consumers"))["leases"]] == ["me"]

    console.run(work())


def test_a_key_has_its_reason_messages_attempts_and_dead_letters(q: strictq.Queue, path: Path) -> None:
    die(q, "k", "no address")
    q.send_many([Message(b"\xff" * 3000, key="k", headers={"a": "b"}), Message(b"2", key="k")])
    q.configure(max_attempts=5, retry_delay_seconds=60.0)
    q.receive(1, consumer="me")[0].nack(reason="busy")
    console = Console(path)

    async def work() -> None:
        found = await console.view("key", key="k", key_type="str")
        assert (found["explain"]["state"], found["explain"]["dead"], found["history"]) == ("delayed", 1, True)
        (letter,) = found["dead"]
        assert (letter["seq"], letter["reason"], letter["body"]["size"]) == (1, "no address", 8)
        head, second = found["messages"]
        assert (head["seq"], head["headers"], head["body"]["size"]) == (2, {"a": "b"}, 3000)
        assert base64.b64decode(head["body"]["data"]) == b"\xff" * 2000
        assert [error["error"] for error in head["status"]["errors"]] == ["busy"]
        assert (second["seq"], second["status"]) == (3, None)
        body = await console.view("body", key="k", key_type="str", seq="2")
        assert base64.b64decode(body["data"]) == b"\xff" * 3000
        body = await console.view("body", key="k", key_type="str", seq="1", dead="1")
        assert base64.b64decode(body["data"]) == b'{"n": 1}'
        (record,) = (await console.view("history", key="k", key_type="str"))["records"]
        assert (record["seq"], record["outcome"], record["body"]["size"]) == (1, "rejected", 8)
        answer = await console.get("/console/api/body", queue="orders", key="k", seq="99")
        assert (answer.status, json.loads(answer.body)["type"]) == (400, "UnknownMessage")

    console.run(work())


def test_dead_letters_are_grouped_by_reason_without_numbers(q: strictq.Queue, path: Path) -> None:
    die(q, "a", "no address 17", "no address 4", "a lone failure")
    die(q, "b", "no address 123")
    console = Console(path)

    async def work() -> None:
        found = await console.view("dead")
        assert [(group["n"], group["keys"], group["pattern"]) for group in found["groups"]] == [
            (3, 2, "no address #"),
            (1, 1, "a lone failure"),
        ]
        assert (found["all"], found["complete"], len(found["letters"])) == (4, True, 4)
        some = await console.view("dead", kind="rejected", pattern="a lone failure")
        assert (some["matching"], [letter["reason"] for letter in some["letters"]]) == (1, ["a lone failure"])

    console.run(work())


def test_the_answers_of_costly_views_are_kept_until_an_action(
    q: strictq.Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_console, "PATIENCE", 1e9)
    die(q, "a", "x")
    console = Console(path, allow_actions=True)

    async def work() -> None:
        assert (await console.view("dead"))["all"] == 1
        die(q, "a", "x")
        assert (await console.view("dead"))["all"] == 1
        assert (await console.view("dead", fresh="1"))["all"] == 2
        assert (await console.view("dead"))["all"] == 2
        assert (await console.act("redrive", key="a", key_type="str"))[0] == 200
        assert (await console.view("dead"))["all"] == 0

    console.run(work())


def test_every_view_of_an_empty_queue_is_an_answer(q: strictq.Queue, path: Path) -> None:
    console = Console(path)

    async def work() -> None:
        for name in VIEWS.keys() - {"body", "key", "history"}:
            await console.view(name)
        assert (await console.view("key", key="new", key_type="str"))["explain"]["state"] == "empty"
        for name, arguments in (
            ("key", {}),
            ("key", {"key": "x", "key_type": "int"}),
            ("body", {"key": "x"}),
            ("lanes", {"by": "y"}),
        ):
            answer = await console.get(f"/console/api/{name}", queue="orders", **arguments)
            assert answer.status == 400, name
        assert (await console.get("/console/api/lanes", queue="other")).status == 404
        assert (await console.get("/console/api/nothing", queue="orders")).status == 404
        assert (await console.view("sqs"))["queues"] == []

    console.run(work())


def test_consumers_have_the_leases_of_plain_receivers(q: strictq.Queue, path: Path) -> None:
    fill(q, "a", 2)
    batch = q.receive(consumer="plain")
    console = Console(path)

    async def work() -> None:
        (lease,) = (await console.view("consumers"))["leases"]
        assert (lease["key"], lease["consumer"], lease["messages"]) == ("a", "plain", len(batch))

    console.run(work())


def test_attributes_of_sqs_are_those_of_the_endpoint(q: strictq.Queue, path: Path) -> None:
    entry = {"name": "orders", "attributes": {"VisibilityTimeout": "5"}, "tags": {"team": "a"}, "created": 1, "moves": []}
    path.with_name("orders.sqs.json").write_text(json.dumps(entry))
    console = Console(path.parent)

    async def work() -> None:
        (found,) = (await console.view("sqs"))["queues"]
        assert (found["queue"], found["attributes"], found["tags"]) == ("orders", {"VisibilityTimeout": "5"}, {"team": "a"})

    console.run(work())


def test_an_sqs_queue_that_was_never_used_is_shown(q: strictq.Queue, path: Path) -> None:
    """The endpoint makes the directory of a queue when it is used first."""
    for name, more in (("new.fifo", {}), ("gone", {"deleted": True})):
        entry = {"name": name, "attributes": {}, "tags": {}, "created": 1, "moves": [], **more}
        path.with_name(f"{name}.sqs.json").write_text(json.dumps(entry))
    console = Console(path.parent)

    async def work() -> None:
        (found,) = (await console.view("sqs"))["queues"]
        assert (found["queue"], found["name"], found["depth"]) == (None, "new.fifo", None)

    console.run(work())


# ---------------------------------------------------------------- actions


def test_without_allow_actions_nothing_is_changed_and_the_queue_is_read_only(q: strictq.Queue, path: Path) -> None:
    die(q, "a", "x")
    console = Console(path)

    async def work() -> None:
        status, said = await console.act("redrive", key="a", key_type="str")
        assert (status, said["hint"]) == (403, "strictq serve --allow-actions")
        with pytest.raises(strictq.ReadOnlyQueue):
            console.context.queues.look("orders").hold("a")

    console.run(work())
    assert q.stats().dead == 1


def test_a_query_with_many_fields_is_no_internal_failure(q: strictq.Queue, path: Path) -> None:
    console = Console(path)
    many = {f"field{n}": "1" for n in range(100)}

    async def work() -> None:
        assert (await console.get("/console/api/lanes", queue="orders", **many)).status == 404
        assert (await console.get("/console/events", queue="orders", **many)).status == 404

    console.run(work())


def test_actions_need_the_page_and_json(q: strictq.Queue, path: Path) -> None:
    console = Console(path, allow_actions=True)

    async def work() -> None:
        token = await console.token()
        assert len(token) > 20
        for given in ({"token": "x" * 32}, {"token": ""}, {"headers": {"content-type": "text/plain"}}, {"headers": {}}):
            status, said = await console.act("hold", key="a", key_type="str", **given)
            assert (status, "nothing was changed" in said["error"]) == (403, True), given
        own = {"x-strictq-page": token, **JSON}
        for origin in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
            answer = await call(console.application, "/console/api/act", "POST", {**own, **origin}, b"{}")
            assert answer.status == 403, origin
        for body in (b"", b"[]", b"{", b"[" * 100_000, b'{"queue": "orders", "action": "format"}'):
            answer = await call(console.application, "/console/api/act", "POST", own, body)
            assert answer.status == 400, body[:20]
        assert (await call(console.application, "/console/api/act", "PUT", own, b"{}")).status == 405

    console.run(work())
    assert q.explain("a").state == "empty"


def test_a_token_is_needed_if_there_is_one(q: strictq.Queue, path: Path) -> None:
    console = Console(path, token="0123456789abcdef")

    async def work() -> None:
        for where in ("/", "/console/", "/console/api/lanes", "/console/events", "/console/app.js"):
            assert (await console.get(where)).status == 403
        answer = await call(console.application, "/console/", headers={"authorization": "Bearer 0123456789abcdef"})
        assert answer.status == 200

    console.run(work())


def test_actions_say_what_they_changed_and_are_logged(q: strictq.Queue, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    die(q, "a", "no 1", "no 2", "other")
    die(q, "b", "no 3")
    fill(q, "c", 2)
    q.configure(tenant_separator="/")
    console = Console(path, allow_actions=True)
    c, a = {"key": "c", "key_type": "str"}, {"key": "a", "key_type": "str"}

    async def said(action: str, **given: Any) -> str:
        status, answer = await console.act(action, **given)
        assert status == 200, answer
        return str(answer["said"])

    async def work() -> None:
        assert "is held" in await said("hold", **c, reason="look into it")
        assert q.explain("c").by == "look into it"
        assert await said("release", **c) == "The key is released."
        assert "Nothing was changed" in await said("release", **c)
        status, answer = await console.act("redrive", kind="rejected", pattern="no #", expect=2)
        assert (status, answer["error"]) == (400, "3 dead letters match now, not 2; nothing was changed")
        assert q.stats().dead == 4
        assert (
            await said("redrive", kind="rejected", pattern="no #", expect=3)
            == "3 dead letters returned to the front of their lanes."
        )
        assert q.stats().dead == 1
        assert await said("redrive", **a, seq=3) == "1 dead letter returned to the front of its lane."
        assert "dead letter now" in await said("reject", **c, seq=1, reason="bad")
        assert (await console.act("redrive", all=True, expect=5))[0] == 400
        assert "1 dead letter " in await said("redrive", all=True, expect=1)
        assert await said("pause") == "The queue is paused."
        assert q.config.paused or q.stats().paused
        assert "Nothing" in await said("pause")
        assert await said("resume") == "The queue is delivered again."
        assert "send rate 5" in await said("limit", tenant="acme", send_rate=5)
        assert "removed" in await said("limit", tenant="acme", remove=True)
        assert (await console.act("limit", tenant="acme"))[0] == 400
        assert (await console.act("purge"))[0] == 400
        assert await said("purge", **c) == "2 messages purged. Messages in flight stay with their consumers."
        assert "4 messages" in await said("purge", all=True)
        assert (await console.act("reject", **c, seq=True))[0] == 400
        done = (await console.view("actions"))["done"]
        assert {one["who"] for one in done} == {"127.0.0.1"}
        assert done[-1]["action"] == "hold"
        assert any(one["said"].startswith("failed: ") for one in done)

    console.run(work())
    assert any("hold by 127.0.0.1 on 'orders'" in record.getMessage() for record in caplog.records)


def test_a_queue_in_memory_is_shown_and_changed() -> None:
    console = Console(allow_actions=True)
    with strictq.open(":memory:") as q:
        fill(q, "a", 1)
        console.context.queues.lend("orders", q)

        async def work() -> None:
            assert (await console.view("lanes"))["lanes"] == 1
            assert (await console.act("hold", key="a", key_type="str"))[0] == 200

        console.run(work())
        assert q.explain("a").state == "held"


# ---------------------------------------------------------------- values


def test_numbers_that_a_script_cannot_represent_are_text() -> None:
    assert for_page({"a": [2**53, 5, True, None, 0.5]}) == {"a": [str(2**53), 5, True, None, 0.5]}
    assert for_page({"key": 7, "key_type": "int"}) == {"key": "7", "key_type": "int"}


def test_patterns_have_no_numbers_and_an_end() -> None:
    assert pattern_of("order 17 took 3.5 s.") == pattern_of("order 4 took 3 s.") == "order # took # s."
    assert pattern_of(None) == ""
    assert len(pattern_of("x" * 5000)) == 300


def test_ranges_move_from_the_page(q: strictq.Queue, path: Path) -> None:
    keys = [f"k{n}" for n in range(40)]
    q.send_many([Message(b"", key=key) for key in keys])
    console = Console(path, allow_actions=True)

    async def work() -> None:
        found = await console.view("ranges")
        assert [one["ranges"] for one in found["shards"]] == [
            [["0000000000000000", "7fffffffffffffff"]], [["8000000000000000", "ffffffffffffffff"]],
        ]  # fmt: skip
        assert found["moving"] is None
        assert sum(one["messages"] for one in found["shards"]) == len(keys)
        assert (await console.view("advice"))["advice"] == []
        status, answer = await console.act("split", shard=0)
        assert status == 200
        assert re.fullmatch(r"\d+ messages of \d+ keys moved\.", answer["said"])
        status, answer = await console.act("isolate", key="k1", key_type="str")
        assert (status, answer["said"]) == (200, "1 message of 1 key moved.")
        assert len((await console.view("ranges"))["shards"]) == 4
        status, answer = await console.act("split", shard=9)
        assert (status, answer["error"][:20]) == (400, "there is no shard 9:")
        assert (await console.act("cancel_move"))[1]["said"] == "No range is moving. Nothing was changed."

    console.run(work())
    assert q.check() == []


def test_a_move_that_runs_is_shown_and_cancelled(q: strictq.Queue, path: Path) -> None:
    q.send_many([Message(b"", key=f"k{n}") for n in range(40)])
    console = Console(path, allow_actions=True)
    with unfinished():
        q.split(0)

    async def work() -> None:
        found = await console.view("ranges")
        messages = found["shards"][0]["messages"]
        assert found["moving"] == {
            "source": 0, "target": 2, "lo": "4000000000000000", "hi": "7fffffffffffffff", "left": round(messages / 2), "moved": 0,
        }  # fmt: skip
        assert (await console.act("cancel_move"))[1]["said"] == "The move is cancelled."
        assert (await console.view("ranges"))["moving"] is None

    console.run(work())
    assert q.check() == []


def test_a_long_move_goes_on_without_the_page(q: strictq.Queue, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q.send_many([Message(b"", key=f"k{n}") for n in range(40)])
    monkeypatch.setattr(_actions, "BEGIN_SECONDS", 0.0)
    console = Console(path, allow_actions=True)

    async def work() -> None:
        assert (await console.act("split", shard=0))[1]["said"] == "The move has begun."

    console.run(work())
    until(lambda: len(q.topology().shards) == 3 and q.topology().moving is None and not q.topology().shards[2].retired)
    assert q.check() == []
