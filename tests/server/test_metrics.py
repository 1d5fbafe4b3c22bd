"""`/metrics`: its values, its two formats, and the dashboard and alert rules over its names."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq.server import metrics as _metrics
from strictq.server.app import Application, parts_of
from strictq.server.counters import BUCKETS_SECONDS, Counters
from strictq.server.metrics import GAUGES, STATES, TOTALS, QueueReading, QueueReadings, exposition, of_queues, of_server
from strictq.server.parts import ServerContext, ServerSettings
from strictq.server.queues import Queues
from tests.support.asgi import Answer, call

DOCS = Path(__file__).resolve().parents[2] / "docs"
ALERTS = DOCS / "metrics" / "alerts.yml"
NO_PROMTOOL = "promtool, of Debian's package prometheus, is not installed"
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two queues: orders with two shards, and one with a name that must be escaped."""
    config = strictq.QueueConfig(max_attempts=1)
    with strictq.open(tmp_path / "orders.strictq", shards=2, durability="process", config=config) as q:
        q.send_many(strictq.Message(b"x", key=f"k{n}") for n in range(20))
        first, second, *_ = q.receive(3)
        first.ack()
        second.reject("no")
    with strictq.open(tmp_path / 'a "b"\\c', durability="process"):
        return tmp_path


@pytest.fixture(autouse=True)
def _no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each scrape read every queue, however busy the machine is."""
    monkeypatch.setattr(_metrics, "SCRAPE_SECONDS", math.inf)


def served(directory: Path) -> Application:
    context = ServerContext(ServerSettings(directories=(directory,)))
    return Application(parts_of(["metrics"], context), context)


def scraped(app: Application, **headers: str) -> Answer:
    return asyncio.run(call(app, "/metrics", headers=headers))


def values(text: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")}


def test_it_has_the_totals_of_each_shard_and_the_states_of_each_queue(directory: Path) -> None:
    app = served(directory)
    scraped(app)
    answer = scraped(app)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = values(answer.body.decode())
    totals = {name: sum(found[f'strictq_{name}_total{{queue="orders",shard="{n}"}}'] for n in (0, 1)) for name in TOTALS}
    assert (totals["sends"], totals["receives"], totals["acks"], totals["dead_letters"], totals["rejected"]) == (20, 3, 1, 1, 1)
    states = {state: found[f'strictq_messages{{queue="orders",state="{state}"}}'] for state in STATES}
    assert states == {"ready": 17, "in_flight": 1, "delayed": 0, "held": 0, "dead": 1}
    assert found['strictq_lanes{queue="orders"}'] == 20
    assert found['strictq_oldest_age_seconds{queue="orders"}'] > 0
    assert found['strictq_up{queue="a \\"b\\"\\\\c"}'] == 1
    assert found['strictq_server_requests_total{action="metrics",code="200"}'] == 1


def test_the_number_of_lines_does_not_depend_on_the_keys(directory: Path) -> None:
    app = served(directory)
    before = scraped(app).body.count(b"\n")
    with strictq.open(directory / "orders.strictq") as q:
        q.send_many(strictq.Message(b"x", key=f"more{n}") for n in range(500))
    after = scraped(app).body
    assert b"more" not in after
    assert after.count(b"\n") == before + len(BUCKETS_SECONDS) + 1 + 3  # the first scrape itself is counted now


def test_both_formats_are_read_by_prometheus_own_parsers(directory: Path) -> None:
    app = served(directory)
    scraped(app)
    text, openmetrics = scraped(app), scraped(app, **OPENMETRICS)
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    parser = pytest.importorskip("prometheus_client.parser")
    strict = pytest.importorskip("prometheus_client.openmetrics.parser")
    names = set()
    for found in (
        parser.text_string_to_metric_families(text.body.decode()),
        strict.text_string_to_metric_families(openmetrics.body.decode()),
    ):
        families = list(found)
        assert all(family.documentation for family in families)
        names.add(frozenset(sample.name for family in families for sample in family.samples))
        queues = {sample.labels["queue"] for family in families for sample in family.samples if "queue" in sample.labels}
        assert queues == {"orders", 'a "b"\\c'}
    assert len(names) == 1


def test_promtool_finds_nothing_to_improve(directory: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip(NO_PROMTOOL)
    app = served(directory)
    scraped(app)
    done = subprocess.run(["promtool", "check", "metrics"], input=scraped(app).body, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_other_requests_are_refused(directory: Path) -> None:
    app = served(directory)
    assert asyncio.run(call(app, "/metrics", "POST")).status == 405
    assert asyncio.run(call(app, "/")).status == 404


class TestQueues:
    def test_what_was_added_removed_or_replaced_is_noticed(self, directory: Path) -> None:
        queues = Queues((directory,))
        readings = QueueReadings(queues)

        def depths() -> dict[str, int | None]:
            found, _ = readings.scrape()
            return {name: None if one.stats is None else one.stats.depth for name, one in found.items()}

        assert depths() == {'a "b"\\c': 0, "orders": 18}
        with strictq.open(directory / "new.strictq", durability="process") as q:
            q.send(b"", key="k")
        shutil.rmtree(directory / 'a "b"\\c')
        shutil.rmtree(directory / "orders.strictq")
        with strictq.open(directory / "orders.strictq", durability="process"):
            pass
        assert depths() == {"new": 1, "orders": 0}
        (directory / "other").write_bytes(b"no database")
        (directory / "other").replace(directory / "new.strictq" / "queue.db")
        assert depths()["new"] is None
        queues.close()

    def test_two_queues_with_one_name_are_distinguished(self, tmp_path: Path) -> None:
        for place in ("a", "b"):
            (tmp_path / place).mkdir()
            strictq.open(tmp_path / place / "orders.strictq", durability="process").close()
        queues = Queues((tmp_path / "a", tmp_path / "b" / "orders.strictq"))
        assert list(queues.paths()) == ["orders", "b/orders"]

    def test_a_queue_in_memory_is_shown_while_it_is_lent(self) -> None:
        queues = Queues()
        with strictq.open(":memory:") as q:
            queues.lend("tests", q)
            q.send(b"", key="k")
            ((name, where),) = queues.found().items()
            assert (name, where, queues.look("tests")) == ("tests", None, q)
            queues.take_back("tests")
        assert queues.found() == {}
        with pytest.raises(strictq.QueueNotFound):
            queues.look("tests")

    def test_lending_does_not_wait_for_queues_that_are_opened(self) -> None:
        queues = Queues()
        with strictq.open(":memory:") as q, queues._lock:
            queues.lend("tests", q)
            queues.name(Path("orders"), "orders.fifo")
            queues.take_back("tests")

    def test_a_part_names_the_queues_that_it_made(self, directory: Path) -> None:
        queues = Queues((directory,))
        queues.name(directory / "orders.strictq", "orders.fifo")
        assert sorted(queues.paths()) == ['a "b"\\c', "orders.fifo"]


def test_a_queue_that_cannot_be_read_is_down() -> None:
    text = exposition(of_queues({"gone": QueueReading(None, 1.0, 0.0)}, 3.5))
    assert values(text) == {'strictq_up{queue="gone"}': 0, 'strictq_read_age_seconds{queue="gone"}': 2.5}


class TestCostlyQueues:
    """A scrape leaves queues that cost much to the time after it, and shows what was read of them last."""

    DEPTH = 'strictq_messages{queue="orders",state="ready"}'
    AGE = 'strictq_read_age_seconds{queue="orders"}'

    @pytest.fixture(autouse=True)
    def _budget(self, _no_budget: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_metrics, "SCRAPE_SECONDS", 3600.0)
        monkeypatch.setattr(_metrics, "OPEN_SECONDS", 0.0)
        monkeypatch.setattr(_metrics, "PATIENCE", 0)

    @staticmethod
    async def until(app: Application, name: str, value: float) -> dict[str, float]:
        async with asyncio.timeout(60):
            while (found := values((await call(app, "/metrics")).body.decode())).get(name) != value:
                await asyncio.sleep(0.01)
        return found

    def test_they_are_absent_until_they_were_read(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_metrics, "OPEN_SECONDS", 7200.0)
        app = served(directory)

        async def work() -> None:
            first = values((await call(app, "/metrics")).body.decode())
            assert [name for name in first if "queue=" in name] == []
            await self.until(app, self.DEPTH, 17)
            await app.stop()

        asyncio.run(work())

    def test_a_scrape_shows_the_last_reading_while_much_has_changed(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = served(directory)

        async def work() -> None:
            assert (await self.until(app, self.DEPTH, 17))[self.AGE] == 0
            monkeypatch.setattr(_metrics, "ROW_SECONDS", 600.0)
            with strictq.open(directory / "orders.strictq") as q:
                q.send_many(strictq.Message(b"x", key="k") for _ in range(3))
                assert (await self.until(app, self.DEPTH, 20))[self.AGE] == 0, "3 rows cost less than the budget"
                q.send_many(strictq.Message(b"x", key="k") for _ in range(10))
                late = values((await call(app, "/metrics")).body.decode())
                assert late[self.DEPTH] == 20
                assert late[self.AGE] > 0
                assert late['strictq_up{queue="orders"}'] == 1
                await self.until(app, self.DEPTH, 30)
            await app.stop()

        asyncio.run(work())

    def test_they_are_read_at_a_bounded_share_of_a_core(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_metrics, "SCRAPE_SECONDS", -1.0)
        monkeypatch.setattr(_metrics, "PATIENCE", 50)
        part = _metrics.make(ServerContext(ServerSettings(directories=(directory,))))
        monkeypatch.setattr(part._readings, "read", lambda _name: 0.25)
        slept: list[float] = []
        here, real = threading.get_ident(), asyncio.sleep

        async def sleep(seconds: float) -> None:
            if threading.get_ident() == here:
                slept.append(seconds)
            else:
                await real(seconds)  # a server of another test's fixture runs in a thread

        monkeypatch.setattr(asyncio, "sleep", sleep)
        asyncio.run(part._read_later(["a", "b"]))
        assert slept == [12.5, 12.5]


def test_the_histogram_counts_each_request_in_every_bucket_above() -> None:
    counters = Counters()
    for seconds in (0.0001, 0.0005, 0.3, 99.0):
        counters.answered("a", 200, seconds)
    found = values(exposition(of_server(counters)))
    below = [
        found[f'strictq_server_request_seconds_bucket{{action="a",le="{bound}"}}'] for bound in (0.0005, 0.25, 0.5, 20.0, "+Inf")
    ]
    assert below == [2, 2, 3, 3, 4]
    assert found['strictq_server_request_seconds_count{action="a"}'] == 4


def families() -> set[str]:
    queues = {f"strictq_{name}_total" for name in TOTALS} | {f"strictq_{name}" for name in GAUGES}
    counters = Counters()
    counters.answered("a", 200, 0.1)
    own = {family.name + suffix for family in of_server(counters) for suffix, _, _ in family.samples}
    return queues | own | {"strictq_up", "strictq_read_age_seconds", "strictq_messages", "strictq_shard_quarantined"}


def test_the_page_names_every_metric_and_no_other() -> None:
    table = (DOCS / "howto" / "metrics.md").read_text("utf-8").partition("## Names")[2].partition("\n## ")[0]
    written = {f"strictq{name}" if name[0] == "_" else name for name in re.findall(r"`(?:…|(?=strictq))(\w+)`", table)}
    described = {re.sub(r"_(bucket|sum|count)$", "", name) if "request_seconds" in name else name for name in families()}
    assert written == described


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "metrics" / "dashboard.json").read_text("utf-8"))
    return found


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m").replace("$queue", ".*")


def test_dashboard_and_alerts_use_metrics_that_exist() -> None:
    used = set(re.findall(r"strictq_\w+", " ".join(expressions()) + ALERTS.read_text("utf-8")))
    assert used <= families()
    assert len(used) > 25
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def test_prometheus_reads_the_expressions_of_the_dashboard_and_the_alerts(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip(NO_PROMTOOL)
    rules = [{"record": f"panel_{n}", "expr": text} for n, text in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run(["promtool", "check", "rules", str(file), str(ALERTS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules)} rules found" in done.stdout


FIRING = {
    "StrictqQueueUnreadable": ['strictq_up{queue="q"} 0x60'],
    "StrictqShardQuarantined": ['strictq_shard_quarantined{queue="q",shard="0"} 1x60'],
    "StrictqMessagesWait": ['strictq_oldest_age_seconds{queue="q"} 0+60x60'],
    "StrictqNotDrained": ['strictq_messages{queue="q",state="ready"} 5x60'],
    "StrictqDeadLetters": ['strictq_dead_letters_total{queue="q",shard="0"} 0x50 1x10'],
    "StrictqHeldMessages": ['strictq_messages{queue="q",state="held"} 1x60'],
    "StrictqMessagesDiscarded": [
        'strictq_expired_total{queue="q",shard="0"} 0+1x60', 'strictq_dropped_total{queue="q",shard="0"} 0x60',
    ],
    "StrictqManyRetries": [
        'strictq_retries_total{queue="q",shard="0"} 0+2x60', 'strictq_redeliveries_total{queue="q",shard="0"} 0x60',
        'strictq_receives_total{queue="q",shard="0"} 0+10x60',
    ],
    "StrictqBreakerOpen": ['strictq_breaker_open{queue="q"} 1x60'],
    "StrictqWorkersBusy": ['strictq_busy_ratio{queue="q"} 1x60'],
    "StrictqOutboxWaits": ['strictq_outbox{queue="q"} 1x60'],
    "StrictqWalGrows": ['strictq_wal_bytes{queue="q"} 200000000x60', 'strictq_shard_quarantined{queue="q",shard="0"} 0x60'],
    "StrictqReplicationLags": ['strictq_replication_lag_seconds{queue="q"} 61x60'],
    "StrictqReplicationStopped": ['strictq_replica_unproven{queue="q"} 1x60'],
    "StrictqServerErrors": ['strictq_server_requests_total{action="q",code="503"} 0+1x60'],
}  # fmt: skip
"""For each alert, the series that let it fire, a value a minute."""
CALM = [
    'strictq_up{queue="q"} 1x60', 'strictq_shard_quarantined{queue="q",shard="0"} 0x60',
    'strictq_oldest_age_seconds{queue="q"} 9x60',
    'strictq_messages{queue="q",state="ready"} 5x60', 'strictq_messages{queue="q",state="held"} 0x60',
    'strictq_drain_seconds{queue="q"} 3x60', 'strictq_dead_letters_total{queue="q",shard="0"} 7x60',
    'strictq_expired_total{queue="q",shard="0"} 1x60', 'strictq_dropped_total{queue="q",shard="0"} 1x60',
    'strictq_retries_total{queue="q",shard="0"} 0+1x60', 'strictq_redeliveries_total{queue="q",shard="0"} 0x60',
    'strictq_receives_total{queue="q",shard="0"} 0+20x60', 'strictq_breaker_open{queue="q"} 0x60',
    'strictq_busy_ratio{queue="q"} 0.5x60',
    'strictq_outbox{queue="q"} 0x60', 'strictq_wal_bytes{queue="q"} 9x60', 'strictq_replication_lag_seconds{queue="q"} 1x60',
    'strictq_replication_stopped{queue="q"} 0x60', 'strictq_server_requests_total{action="q",code="200"} 0+1x60',
]  # fmt: skip


def test_each_alert_fires_and_a_healthy_queue_fires_none(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip(NO_PROMTOOL)
    names = re.findall(r"alert: (\w+)", ALERTS.read_text("utf-8"))
    assert names == list(FIRING)

    def case(series: list[str], tests: list[dict[str, Any]]) -> dict[str, Any]:
        inputs = [{"series": name + "}", "values": value} for name, _, value in (line.partition("} ") for line in series)]
        return {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}

    def alerts(name: str) -> str:
        return f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'

    def fires(name: str) -> list[dict[str, Any]]:
        return [{"expr": alerts(name), "eval_time": "55m", "exp_samples": [{"value": 1, "labels": "{}"}]}]

    tests = [case(series, fires(name)) for name, series in FIRING.items()]
    tests.append(case(CALM, [{"expr": "ALERTS", "eval_time": "55m", "exp_samples": []}]))
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
