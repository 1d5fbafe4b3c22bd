"""What --json prints, field by field and type by type, is what docs/reference/cli.md says: no more and no less."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

import strictq
from strictq import Message, Queue, QueueConfig
from strictq._client.consumers import join, write_report
from strictq._store.api import RunningHandlers
from strictq.cli import COMMANDS
from strictq.replication.directory import DirectoryTarget
from strictq.replication.replica_home import read_proof, write_proof
from strictq.testing import sqs_endpoint
from tests.support.command import in_process, json_lines
from tests.support.format_1 import unpacked
from tests.support.injection import lose_ready
from tests.support.recorded_batches import holder
from tests.support.replicas import ship_to, token_file, until_level
from tests.support.running import PATIENCE_SECONDS, ROOT, until

REFERENCE = ROOT / "docs" / "reference" / "cli.md"
TABLE = re.compile(r"^`strictq ([A-Za-z -]+) --json`[^\n]*:\n\n((?:\|.*\n)+)", re.M)
FIELD = re.compile(r"`([^`]+)`")
Types = dict[str, set[str]]


# ---------------------------------------------------------------- what is documented


def rows(table: str) -> Iterator[tuple[list[str], str]]:
    """Fields and type of each row."""
    for line in table.splitlines()[2:]:
        fields, kind = (cell.strip() for cell in line.strip("|").split("|")[:2])
        yield FIELD.findall(fields), kind


def documented() -> dict[str, Types]:
    """Each table: path of a field → its types. The first one, COMMAND, has those that many commands share."""
    found: dict[str, Types] = {}
    shared: Types = {}
    for name, table in TABLE.findall(REFERENCE.read_text(encoding="utf-8")):
        types: Types = {}
        for fields, kind in rows(table):
            for field in fields:
                last = field.rpartition(".")[2]
                types[field] = set(shared[last]) if kind == "as above" else set(re.split(r" or |, ", kind))
        found[name] = types
        if name == "COMMAND":
            shared = types
    return found


# ---------------------------------------------------------------- what is printed


def kind_of(value: Any) -> str:
    """JSON's name of its type."""
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)]


def paths(value: Any, at: str, leaves: set[str], found: Types) -> None:
    """Every field below a value, `a.b`, and `a[].b` for those of an array's objects. What is documented as a whole is a leaf."""
    if at:
        found.setdefault(at, set()).add(kind_of(value))
    if at in leaves:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            paths(inner, f"{at}.{name}".lstrip("."), leaves, found)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict):
                for name, innermost in inner.items():
                    paths(innermost, f"{at}[].{name}", leaves, found)


class World:
    """A queue and a place for files; `run` collects what is printed."""

    def __init__(self, path: Path, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.place = place
        self.patch = patch
        self.printed: list[Any] = []

    def open(self) -> Queue:
        return strictq.open(self.path, create=False)

    def run(self, *words: object, codes: tuple[int, ...] = (0,), input: str | None = None) -> None:
        at = words.index("--") if "--" in words else len(words)
        result = in_process(*words[:at], "--json", *words[at:], input=input)
        assert result.exit_code in codes, (words, result.stdout, result.stderr)
        self.printed += json_lines(result.stdout)


KEYS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    ("a", ("a",)),
    (7, ("7", "--key-type", "int")),
    (b"\xff", ("ff", "--key-type", "hex")),
)
"""A key of every type, and how it is given."""


def create(w: World) -> None:
    w.run("create", w.place / "new", "--shards", 2)


def config(w: World) -> None:
    w.run("config", w.path)


def send(w: World) -> None:
    lines = '{"k": "a"}\n{"k": 1}\n'
    w.run("send", w.path, "--key-field", "k", input=lines)
    w.run("send", w.path, "--key-field", "k", input=lines + "bad\n", codes=(1,))


def receive(w: World) -> None:
    with w.open() as q:
        q.configure(keyless="random")
        q.send_many([Message(b"text", key=k, dedup_id="once", headers={"h": "1"}) for k, _ in KEYS] + [Message(b"\xff")])
    w.run("receive", w.path)


def run_app(w: World) -> None:
    (w.place / "app_of_fields.py").write_text(
        f"import strictq\napp = strictq.App(strictq.open({str(w.path)!r}))\napp.handler('t')(print)\n"
    )
    w.patch.chdir(w.place)
    w.patch.setattr("sys.path", [*sys.path])
    w.run("run", "app_of_fields", "--drain")


def proofs(w: World) -> Iterator[Path]:
    """A replica that was never promoted, was, and could not be any more."""
    home, token = w.place / "proving", token_file(w.place)
    with strictq.Replica(home, token_file=token) as opened, strictq.open(w.place / "proving-q") as q:
        ship_to(q, opened.address, token)
        until_level(q, home)
        q.detach()
    yield home
    for error in (None, "why"):
        write_proof(home, strictq.ReplicaProof(1.0, 1, 1.0, 1.0, error))
        yield home


def consumers(w: World) -> None:
    with w.open() as q:
        holder(q, "etl").close()
        w.run("consumers", w.path)
        report = strictq.QueryReport("orders", "0-1", "running", 7, 400, 0.25, 1600.0, time.time())
        write_report(q.path, q.queue_id, "etl", report)
        q.send(b"", key="a")
        h = holder(q, "etl")
        h.take(0, messages_max=10)
        with q.join():
            w.run("consumers", w.path)
        h.close()


def shards(w: World) -> None:
    with w.open() as q:
        w.run("shards", w.path)
        q.send(b"", key="a")
        with q.join(affinity="own"):
            w.run("shards", w.path)


def shards_advise(w: World) -> None:
    w.run("shards", "advise", w.path, "--process-seconds", "1", "--sample-seconds", "0")
    with w.open() as q:
        for key in ("a", 1):
            q.send(b"", key=key)
            w.run("shards", "advise", w.path, "--process-seconds", "1", "--sample-seconds", "0")
            q.purge(key)
        with q.join(), q.join(), q.join():
            w.run("shards", "advise", w.path, "--process-seconds", "1", "--sample-seconds", "0")
        q.send_many([strictq.Message(b"", key=key) for key in ["other", *["busy"] * 10_000, *range(20)]])
        w.run("shards", "advise", w.path, "--process-seconds", "1", "--sample-seconds", "0")


def shards_split(w: World) -> None:
    w.run("shards", "split", w.path, "0", "--parts", "3")
    w.run("shards", "merge", w.path, "3", "0")
    w.run("shards", "move", w.path, "--range", "0:ff", "--to", "new")
    w.run("shards", "isolate", w.path, "a")


def shards_cancel(w: World) -> None:
    w.run("shards", "cancel", w.path)


def tenants(w: World) -> None:
    with w.open() as q:
        q.configure(tenant_separator="/")
        q.send(b"", key="a/1")
        w.run("tenants", w.path)
        q.limit("a", concurrency=2, target_age_seconds=5.0, max_depth=9, send_rate=5.0, receive_rate=1.0, burst=3)
        q.limit("b", paused=True)
        w.run("tenants", w.path)


def leases(w: World) -> None:
    with w.open() as q:
        for key in ("a", b"b", 3):
            q.send(b"", key=key)
        q.configure(keyless="random")
        q.send(b"")
        batch = q.receive(consumer="me")
        assert len(batch) == 4
        w.run("leases", w.path)
        h = holder(q, "etl")
        q.send(b"", key="c")
        h.take(0)
        w.run("leases", w.path)
        h.close()


def limit(w: World) -> None:
    with w.open() as q:
        q.configure(tenant_separator="/")
    w.run("limit", w.path, "a")
    w.run("limit", w.path, "a", "--send-rate", "5", "--burst", "2", "--max-depth", "9", "--concurrency", "2", "--target-age", "9")
    w.run("limit", w.path, "a", "--send-rate", "none", "--target-age", "none", "--receive-rate", "2")


def alarm(w: World) -> None:
    limits = ("--dead", 1, "--held", 1, "--depth", 2, "--age", 1e6, "--lag", 1, "--breakers", 1)
    w.run("alarm", w.path, *limits)
    with w.open() as q:
        q.send(b"", key="k")
        w.run("alarm", w.path, *limits)
        q.receive(1)[0].reject("no")
        w.run("alarm", w.path, *limits, codes=(1,))
    for home in proofs(w):
        w.run("alarm", home, "--dead", 1, codes=(int(read_proof(home).error is not None),))


def work(w: World) -> None:
    with w.open() as q:
        q.send(b"", key="a")
    w.run("work", w.path, "--drain", "--", "true")
    with w.open() as q:
        q.send(b"", key="a")
        q.send(b"", key="a")
    w.run("work", w.path, "--drain", "--prepare", "true", "--", "true")


def forward(w: World) -> None:
    with w.open() as q:
        q.configure(max_attempts=None)
        q.send(b"", key="a")
    with sqs_endpoint() as endpoint:
        for name, value in endpoint.environment.items():
            w.patch.setenv(name, value)
        endpoint.create_queue("o.fifo")
        url = f"sqs+{endpoint.url}/queue/o.fifo"
        w.run("forward", w.path, "--to", url, "--drain")
    with w.open() as q:
        assert q.stats().depth == 0
    w.run("forward", w.path, "--to", url, "--drain", codes=(1,))


def stats_url(w: World) -> None:
    with sqs_endpoint() as endpoint:
        for name, value in endpoint.environment.items():
            w.patch.setenv(name, value)
        for name, limit in (("dead.fifo", None), ("o.fifo", "dead.fifo")):
            policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:000000000000:{limit}", "maxReceiveCount": 3}
            endpoint.create_queue(name, **({} if limit is None else {"RedrivePolicy": policy}))
            w.run("stats", f"sqs+{endpoint.url}/queue/{name}")


def stats(w: World) -> None:
    with w.open() as q:
        holder(q, "idle").close()
        w.run("stats", w.path)
        q.sideline(time.time())
        q.configure(tenant_separator="/")
        q.send_many([Message(b"", key=n) for n in range(50)])
        q.ack_many(q.receive(5))
        h = holder(q, "etl")
        h.take(0, messages_max=10)
        w.run("stats", w.path)
        report = strictq.QueryReport("orders", "0-1", "running", 7, 400, 0.25, 1600.0, time.time())
        write_report(q.path, q.queue_id, "etl", report)
        w.run("stats", w.path)
        write_report(q.path, q.queue_id, "etl", attrs.evolve(report, name=None, state="failed", error="no disk"))
        w.run("stats", w.path)
        h.close()
        holder(q, "new").close()
        w.run("stats", w.path)
        live = join(q._storage, "worker", "printer", None, concurrency=8)
        live.describe(running=3, busy_ratio=0.4)
        w.run("stats", w.path)
        live.end()
        opened = q._storage.notice(strictq.OpenBreaker)
        for group in ("ann", None):
            opened.put(strictq.OpenBreaker("etl", time.time(), 30, 40, "no network", 3, group))
            w.run("stats", w.path)
        opened.remove()
        looked, put = threading.Event(), DirectoryTarget.put
        w.patch.setattr(DirectoryTarget, "put", lambda *segment: looked.wait(PATIENCE_SECONDS) and put(*segment))
        q.configure_replication(w.place / "t", interval_seconds=0.05)
        w.run("stats", w.path)  # before anything has arrived
        looked.set()
        until(lambda: (found := q.replication()) is not None and found.segment is not None)
        (w.place / "t").rename(w.place / "away")
        q.send(b"", key="k")
        until(lambda: (found := q.replication()) is not None and found.last_error)
        w.run("stats", w.path)
    for home in proofs(w):
        w.run("stats", home)
    for file in w.path.glob("shard-0001.db*"):
        file.unlink()
    w.run("stats", w.path, codes=(1,))


def stats_watch(w: World) -> None:
    w.run("stats", w.path, "--watch", "--count", 2, "--interval", 0.1)
    for printed in w.printed:
        # The others are those of stats.
        for name in set(printed) - {"at", "sends_per_second", "acks_per_second", "retries_per_second"}:
            del printed[name]


def top_keys(w: World) -> None:
    with w.open() as q:
        q.send_many([Message(b"", key=k) for k, _ in KEYS])
        q.hold(KEYS[0][0], "a decision")
    w.run("top-keys", w.path)


@contextmanager
def handler_at(q: Queue, d: strictq.Delivery) -> Iterator[None]:
    """Report progress as the worker of a delivery does."""
    report = q._storage.notice(RunningHandlers)
    report.put(RunningHandlers({(d.lease.shard, d.id, d.token): (0.4, "page 4 of 10", time.time())}))
    yield
    report.remove()


def explain(w: World) -> None:
    w.run("explain", w.path, "nobody")
    with w.open() as q:
        for key, _ in KEYS:
            q.send_many([Message(b"", key=key)] * 2)
        (held, *_) = q.receive(2, keys=["a"])
        w.run("explain", w.path, "a")
        with handler_at(q, held):
            w.run("explain", w.path, "a")
        held.nack(delay=60.0, reason="no paper")
        w.run("explain", w.path, "a")
        q.hold(7)
    for _, given in KEYS:
        w.run("explain", w.path, *given)


def peek(w: World) -> None:
    with w.open() as q:
        for key, _ in KEYS:
            q.send(b"text", key=key, headers={"h": "1"})
        q.send(b"\xff", key="a", dedup_id="once", delay=60.0, ttl=90.0)
    for _, given in KEYS:
        w.run("peek", w.path, *given)
    w.run("peek", w.path)


def status(w: World) -> None:
    with w.open() as q:
        for key, _ in KEYS:
            q.send(b"", key=key)
        for _, given in KEYS:
            w.run("status", w.path, given[0], 1, *given[1:])
        (d,) = q.receive(keys=["a"])
        d.nack(reason="no paper", output="the printer says: no paper")
        (d,) = q.receive(keys=["a"])
        w.run("status", w.path, "a", 1)
        with handler_at(q, d):
            w.run("status", w.path, "a", 1)
        with suppress(ValueError), d:
            raise ValueError("no paper")
        w.run("status", w.path, "a", 1)
        q.configure(keyless="random")
        receipt = q.send(b"")
        w.run("status", w.path, "--id", receipt.id, "--shard", receipt.shard)


def wait(w: World) -> None:
    w.run("wait", w.path, "--timeout", 0.01, codes=(1,))
    with w.open() as q:
        q.send(b"", key="a")
    w.run("wait", w.path)


def output(w: World) -> None:
    with w.open() as q:
        q.configure(output_seconds=60.0, keyless="random")
        for key, _ in KEYS:
            q.send(b"", key=key)
        receipt = q.send(b"")
        for _, given in KEYS:
            w.run("output", w.path, given[0], 1, *given[1:], codes=(1,))
        for d in q.receive():
            d.ack(output="the printer says: done")
    for _, given in KEYS:
        w.run("output", w.path, given[0], 1, *given[1:])
    w.run("output", w.path, "--id", receipt.id, "--shard", receipt.shard)


def dead(w: World) -> None:
    with w.open() as q:
        q.configure(keyless="random")
        q.send_many([Message(b"text", key=k) for k, _ in KEYS] + [Message(b"\xff")])
        for d in q.receive(10):
            d.reject("no paper", output="the printer says: no paper")
        q.send(b"", key="out of attempts", dedup_id="once")
        for _ in range(2):
            q.receive()[0].nack(delay=0.0)
        q.send(b"", key="failing")
        for _ in range(2):
            with suppress(ValueError), q.receive()[0]:
                raise ValueError("no paper")
    w.run("dead", w.path)


def query(w: World) -> None:
    with w.open() as q:
        q.app_schema("CREATE TABLE app_t (a)")
        with q.transaction(key="k") as tx:
            tx.execute("INSERT INTO app_t VALUES (?)", (b"\xff",))
    w.run("query", w.path, "SELECT a FROM app_t")


def on_each_key(verb: str, *more: str) -> Callable[[World], None]:
    def run(w: World) -> None:
        with w.open() as q:
            q.send_many([Message(b"", key=k) for k, _ in KEYS])
        for _, given in KEYS:
            w.run(verb, w.path, *given, *more)
        if verb in ("redrive", "purge"):
            w.run(verb, w.path, "--all", *(("--yes",) if verb == "purge" else ()))

    return run


def hold(w: World) -> None:
    on_each_key("hold")(w)


def pause(w: World) -> None:
    w.run("pause", w.path)
    w.run("pause", w.path, "--type", "charge")


def sideline(w: World) -> None:
    w.run("sideline", w.path)
    w.run("sideline", w.path, "--end")


def resume(w: World) -> None:
    w.run("resume", w.path)
    w.run("resume", w.path, "--type", "charge")


def release(w: World) -> None:
    on_each_key("release")(w)
    w.run("release", w.path, "--keyless")


def release_consumer(w: World) -> None:
    with w.open() as q:
        q.send(b"", key="a")
        h = holder(q, "etl")
        h.take(0, messages_max=10)
        h.close()
    w.run("release", w.path, "--consumer", "etl")


def reject(w: World) -> None:
    with w.open() as q:
        q.send_many([Message(b"", key=k) for k, _ in KEYS])
    for _, given in KEYS:
        w.run("reject", w.path, given[0], 1, "--reason", "no", *given[1:])


def resolve(w: World) -> None:
    with w.open() as q:
        q.send_many([Message(b"", key=k) for k, _ in KEYS])
    for _, given in KEYS:
        w.run("resolve", w.path, given[0], 1, *given[1:])


def history(w: World) -> None:
    with w.open() as q:
        q.configure(history="bodies", keyless="random")
        q.send_many([Message(b"text", key=k) for k, _ in KEYS] + [Message(b"\xff", size_hint=3.0)])
        q.ack_many(q.receive(10))
        q.send(b"", key="never tried")
        q.reject("never tried", 1, "no")
        q.send(b"", key="by a worker")
        strictq.Worker(q, lambda job: job.output("done"), lambda job: None).run(drain=True)
        q.send(b"", key="fails")
        for _ in range(2):
            with suppress(ValueError), q.receive()[0]:
                raise ValueError("no paper")
        q.send(b"", key="says why")
        q.receive()[0].nack(reason="no paper")
        q.ack_many(q.receive())
        q.configure(history="records")
        q.send(b"", key="a")
        q.ack_many(q.receive())
    w.run("history", w.path)


def history_export(w: World) -> None:
    pytest.importorskip("pyarrow")
    history(w)
    w.printed.clear()
    w.run("history", "export", w.path, w.place / "out")


def history_purge(w: World) -> None:
    history(w)
    w.printed.clear()
    for _, given in KEYS:
        w.run("history", "purge", w.path, *given)
    w.run("history", "purge", w.path, "--all", "--yes")


def migrate(w: World) -> None:
    w.run("migrate", w.path, "--dry-run")
    w.run("migrate", unpacked("idle", w.place / "old"))


def check(w: World) -> None:
    w.run("check", w.path)
    with w.open() as q:
        q.send(b"", key="k")
        lose_ready(q, "k")
    w.run("check", w.path, codes=(1,))
    w.run("check", w.path, "--fix")


def check_salvage(w: World) -> None:
    with w.open() as q:
        q.send_many([Message(b"", key=k) for k, _ in KEYS])
    w.run("check", w.path, "--salvage", w.place / "whole")
    for file in w.path.glob("shard-0001.db*"):
        file.unlink()
    w.run("check", w.path, "--salvage", w.place / "part", codes=(1,))
    lost = [strictq.LostRange(0, key, 1, 2) for key, _ in KEYS]
    w.patch.setattr(strictq, "salvage", lambda *_: strictq.Salvaged(1, 1, tuple(lost), (), tuple(lost)))
    w.run("check", w.path, "--salvage", w.place / "other", codes=(1,))


def history_plot(w: World) -> None:
    pytest.importorskip("matplotlib")
    (w.place / "out").mkdir()
    w.run("history", "plot", w.place / "out", "--png", w.place / "png")


def bench(w: World) -> None:
    w.run("bench", w.place, "--durability", "process", "--messages", 20, "--batch", 10, "--keys", 5, "--rounds", 1)


def demo(w: World) -> None:
    w.run("demo", "--events", 40, "--keys", 4, "--consumers", 1, "--no-kill")
    w.run("demo", "--events", 40, "--keys", 4, "--consumers", 1, "--no-kill", "--queue", w.place / "demo")


def demo_worker(w: World) -> None:
    few = ("demo", "--worker", "--events", 4, "--keys", 2, "--fetch", 0, "--process", 0)
    w.run(*few)
    w.run(*few, "--queue", w.place / "demo", "--plot", w.place / "demo.svg")


def replicate(w: World) -> None:
    w.run("replicate", w.path, "--alone")
    (w.place / "file").touch()
    w.run("replicate", w.path, "--to", w.place / "t", "--once")
    (w.place / "t").rename(w.place / "away")
    with w.open() as q:
        q.send(b"", key="k")
    w.run("replicate", w.path, "--once", codes=(1,))
    w.run("replicate", w.path, "--detach")
    shutil.rmtree(w.place / "away")


def replicas(w: World) -> None:
    (w.place / "t").mkdir()
    (w.place / "t" / "replica.json").write_text('{"queue_id": "q", "history_id": "h"}', encoding="utf-8")
    w.run("replicas", w.place / "t", codes=(1,))
    shutil.rmtree(w.place / "t")
    with w.open() as q:
        q.configure_replication(w.place / "t")
    w.run("replicas", w.place / "t", "--points")
    next((w.place / "t").glob("*.seg")).write_bytes(b"")
    w.run("replicas", w.place / "t", codes=(1,))


def replica(w: World) -> None:
    token = token_file(w.place)
    for broken in (False, True):
        timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.start()
        if broken:
            w.patch.setattr(strictq.Replica, "error", "the disk is full")
        w.run("replica", w.place / "r", "--listen", "127.0.0.1:0", "--token-file", token)
        timer.join()
    write_proof(w.place / "r", strictq.ReplicaProof(1.0, 1, 1.0, 1.0, "why"))
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    w.run("replica", w.place / "r", "--listen", "127.0.0.1:0", "--token-file", token, codes=(1,))
    timer.join()
    fork(w)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    w.run("replica", w.path, "--listen", "127.0.0.1:0", "--token-file", token, "--rejoin")
    timer.join()


def fork(w: World) -> Path:
    """A queue that left the history of the world's one."""
    with w.open() as q:
        q.app_schema("CREATE TABLE app_t (n INTEGER) STRICT")
        q.send_many([strictq.Message(b"", key=key) for key in ("acked", "held", "both")])
        q.configure_replication(w.place / "target", interval_seconds=0.02)
        until(lambda: (found := q.replication()) is not None and found.segment is not None and not found.lag_bytes)
        q.detach()
    strictq.restore(w.place / "target", w.place / "new", alone=True)
    return w.place / "new"


def merge(w: World) -> None:
    new = fork(w)
    with w.open() as q, strictq.open(new) as r:
        for key in ("acked", "held", "both"):
            q.receive(keys=[key])[0].ack()
        r.receive(keys=["both"])[0].ack()
        r.receive(keys=["held"])
        q.send(b"", key="sent")
        q.send(b"", key="dead")
        q.receive(keys=["dead"])[0].reject("no")
        with q.transaction(key="k") as tx:
            tx.key_state = b"1"
            tx.execute("INSERT INTO app_t VALUES (1)")
    w.run("merge", w.path, new, "--dry-run")
    w.run("merge", w.path, new)
    (new / "fork").unlink()
    w.run("merge", w.path, new)


def members(w: World) -> None:
    token = token_file(w.place)
    last = strictq.Replica(w.place / "c", token_file=token)
    with strictq.Replica(w.place / "b", token_file=token, forward_to=f"tcp://{last.address}") as next_, w.open() as q:
        ship_to(q, next_.address, token)
        until_level(q, w.place / "c")
        form = ("--form", f"tcp://{next_.address}", "--form", f"tcp://{last.address}")
        w.run("members", w.path, *form, "--token-file", token)
        last.close()
        w.run("members", w.path, "--token-file", token)


def backup(w: World) -> None:
    w.run("backup", w.path, f"{w.path}.copy")


def adopt(w: World) -> None:
    w.run("adopt", w.path)
    w.run("adopt", w.path)


def promote(w: World) -> None:
    token = token_file(w.place)
    with strictq.Replica(w.place / "r", token_file=token) as receiving, w.open() as q:
        ship_to(q, receiving.address, token)
        until_level(q, w.place / "r")
    w.run("promote", w.place / "r", codes=(1,))
    (w.place / "r" / "contact").rename(w.place / "contact")
    w.run("promote", w.place / "r", "--dry-run")
    (w.place / "contact").rename(w.place / "r" / "contact")
    w.run("promote", w.place / "r", "--force", "--dead")


def restore(w: World) -> None:
    with w.open() as q:
        q.configure_replication(w.place / "t")
    w.run("restore", w.place / "t", w.place / "r", "--dry-run")
    w.run("restore", w.place / "t", w.place / "r")


RUNS: dict[str, Callable[[World], None]] = {
    "create": create, "config": config, "send": send, "receive": receive, "run": run_app, "work": work,
    "forward": forward, "stats": stats, "stats URL": stats_url,
    "alarm": alarm, "tenants": tenants, "limit": limit, "consumers": consumers, "leases": leases, "shards": shards,
    "shards advise": shards_advise, "shards split": shards_split, "shards cancel": shards_cancel,
    "stats --watch": stats_watch, "top-keys": top_keys, "explain": explain, "peek": peek, "status": status, "output": output,
    "wait": wait,
    "dead": dead,
    "redrive": on_each_key("redrive"), "hold": hold, "pause": pause, "resume": resume, "sideline": sideline,
    "release": release, "release --consumer": release_consumer,
    "reject": reject, "resolve": resolve, "purge": on_each_key("purge"), "history": history, "history export": history_export,
    "history plot": history_plot, "history purge": history_purge,
    "check": check, "check --salvage": check_salvage, "bench": bench, "demo": demo, "demo --worker": demo_worker,
    "migrate": migrate, "replicate": replicate, "replicas": replicas, "restore": restore,
    "replica": replica, "promote": promote, "merge": merge, "backup": backup, "adopt": adopt, "members": members,
}  # fmt: skip

DOCUMENTED = documented()
NOT_ON_PURPOSE = {
    ("demo", "consumers[].held"): "integer", ("work", "breaker"): "object", ("merge", "sent[].seq"): "null",
    ("stats", "replication.lag_seconds"): "null", ("stats", "replication.confirmed_at"): "null",
    ("stats", "replication.segment"): "null", ("shards", "quarantined"): "string",
    ("shards", "write_share"): "null",
}  # fmt: skip
"""Types that no run is sure to print: a consumer is killed with messages in its hands, or without; a breaker open at the end; a
queue whose first segment is not shipped yet."""


def test_every_command_has_its_table() -> None:
    assert set(DOCUMENTED) - {"COMMAND"} == set(RUNS)
    # The columns of query are the program's, and serve prints no values.
    assert {name.split()[0] for name in RUNS} | {"query", "serve"} == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_what_is_printed_is_what_is_documented(name: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = DOCUMENTED[name]
    shared = DOCUMENTED["COMMAND"]
    world = World(path, tmp_path, monkeypatch)
    RUNS[name](world)
    assert world.printed
    leaves = {field for field in known if not any(other.startswith((f"{field}.", f"{field}[].")) for other in known)}
    printed: Types = {}
    for value in world.printed:
        paths(value, "", leaves, printed)
    assert set(printed) - set(known) == set(), "printed, but not documented"
    assert set(known) - set(printed) == set(), "documented, but never printed"
    for field, types in known.items():
        if types == shared.get(field.rpartition(".")[2]):
            assert printed[field] <= types, field
        else:
            assert types - printed[field] <= {NOT_ON_PURPOSE.get((name, field), "")}, f"{field}: documented, never printed"
            assert printed[field] - types == set(), f"{field}: printed, but not documented"


def test_keys_and_bodies_are_of_every_type_somewhere(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(path, tmp_path, monkeypatch)
    history(world)
    printed: Types = {}
    for value in world.printed:
        paths(value, "", set(), printed)
    assert {field: printed[field] for field in DOCUMENTED["COMMAND"]} == DOCUMENTED["COMMAND"]


def test_a_row_of_a_query_is_an_object_by_its_columns(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(path, tmp_path, monkeypatch)
    query(world)
    assert world.printed == [{"a": {"base64": "/w=="}}]


def test_the_settings_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "config.md").read_text(encoding="utf-8")
    assert [a.name for a in attrs.fields(QueueConfig) if f"`{a.name}`" not in page] == []


def test_every_setting_is_printed(path: Path) -> None:
    (printed,) = json_lines(in_process("config", path, "--json").stdout)
    assert set(printed["config"]) == {a.name for a in attrs.fields(QueueConfig)}
