"""Schedules: which ticks are sent, and that each is sent once."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest

import strictq
from strictq import App, InvalidArgument, Job, Queue
from strictq._values.keys import encode_key
from strictq.testing import clock_of, drain
from strictq.worker.schedules import STATE_KEY, schedule
from tests.support.queues import Opener
from tests.support.running import PATIENCE_SECONDS

pytest.importorskip("cronsim")

HOUR = 3600.0


@pytest.fixture
def queue(strict_queue: Queue) -> Iterator[Queue]:
    """The plugin's queue."""
    return strict_queue  # type: ignore[return-value]


def set_clock(queue: Queue, iso: str) -> None:
    clock_of(queue).jump_wall(datetime.fromisoformat(iso).timestamp() - clock_of(queue).now)


def has_looked(queue: Queue) -> bool:
    """Return whether any tick of any schedule is recorded."""
    keys = [encode_key(STATE_KEY + name) for name in ("hourly", "note", "report")]
    return any(queue._storage.reports.key_state(key) is not None for key in keys)


def waiting(queue: Queue, key: Any) -> list[str]:
    """The ticks that wait, by a message's own header."""
    with queue.receive(max_messages=1000, keys=[key]) as batch:
        return [d.headers["strictq-tick"] for d in batch]


def reporting(queue: Queue, expression: str = "0 3 * * *", **options: Any) -> App:
    app = App(queue)

    @app.schedule(expression, **options)
    def report() -> None: ...

    return app


def test_a_tick_is_sent_when_it_is_due_and_handled(queue: Queue) -> None:
    app, calls = App(queue), []

    @app.schedule(
        "0 3 * * *", timezone="Europe/Berlin", key="reports", arguments={"of": "sales"}, options={"headers": {"h": "1"}}
    )
    def report(of: str, job: Job) -> None:
        calls.append((of, job.key, job.headers["strictq-tick"], job.headers["h"]))

    set_clock(queue, "2026-01-10T02:59:59+01:00")
    assert app.tick() == [], "a schedule begins when it is first looked at"
    assert [each.key for each in (clock_of(queue).advance(1.0), app.tick())[1]] == ["reports"]
    assert app.tick() == []
    drain(queue, app.process)
    assert calls == [("sales", "reports", "2026-01-10T03:00:00+01:00", "1")]
    assert app.schedules["report"].type == "report"


def test_of_missed_ticks_the_latest_is_sent_once(queue: Queue) -> None:
    app = reporting(queue, "*/10 * * * *")
    set_clock(queue, "2026-01-10T12:01:00+00:00")
    app.tick()
    clock_of(queue).advance(365 * 24 * HOUR + 75.0)
    assert len(app.tick()) == 1
    assert app.tick() == []
    assert waiting(queue, "report") == ["2027-01-10T12:00:00+00:00"]
    clock_of(queue).advance(8 * 60.0)
    assert len(app.tick()) == 1, "and then it goes on"


def test_two_programs_send_a_tick_once(queue: Queue) -> None:
    first, second = reporting(queue, "* * * * *"), reporting(queue, "* * * * *")
    first.tick()
    sent = 0
    for _ in range(5):
        clock_of(queue).advance(60.0)
        sent += len(first.tick()) + len(second.tick())
        first, second = second, reporting(queue, "* * * * *")  # one that knows nothing yet
    assert (sent, len(waiting(queue, "report"))) == (5, 5)


def test_what_fails_with_the_tick_leaves_it_due(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    app = reporting(queue)
    app.tick()
    clock_of(queue).advance(24 * HOUR)
    message = app.message

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no message")

    monkeypatch.setattr(app, "message", fail)
    with pytest.raises(RuntimeError, match="no message"):
        app.tick()
    monkeypatch.setattr(app, "message", message)
    assert len(app.tick()) == 1


@pytest.mark.parametrize(
    ("zone", "expression", "start", "ticks"),
    [
        # Skipped: 02:30 is not there on 29 March.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T03:00+01:00",
         ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        # Repeated: 02:30 is there twice on 25 October.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T03:00+02:00",
         ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        # Every hour is every hour.
        ("Europe/Berlin", "0 * * * *", "2026-10-25T01:30+02:00",
         ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"]),
        ("UTC", "0 0 29 2 *", "2026-01-01T00:00+00:00", ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]),
        ("America/New_York", "0 9 * * MON", "2026-11-20T00:00-05:00", ["2026-11-23T09:00:00-05:00", "2026-11-30T09:00:00-05:00"]),
        ("UTC", "30 0 0 1 1 *", "2026-01-01T00:00+00:00", ["2026-01-01T00:00:30+00:00", "2027-01-01T00:00:30+00:00"]),
    ],
    ids=["skipped", "repeated", "hourly", "leap-day", "weekday", "seconds"],
)  # fmt: skip
def test_ticks_are_those_of_the_time_zone(queue: Queue, zone: str, expression: str, start: str, ticks: list[str]) -> None:
    app = reporting(queue, expression, timezone=zone)
    set_clock(queue, start)
    app.tick()
    for tick in ticks:
        set_clock(queue, tick)
        clock_of(queue).jump_wall(-1.0)
        assert app.tick() == []
        clock_of(queue).jump_wall(1.0)
        assert len(app.tick()) == 1
        assert app.tick() == []
    assert waiting(queue, "report") == ticks


def test_a_tick_in_a_repeated_hour_is_sent_once_however_late_it_is_looked_for(queue: Queue) -> None:
    app = reporting(queue, "30 2 * * *", timezone="Europe/Berlin")
    set_clock(queue, "2026-10-25T02:20+02:00")
    app.tick()
    for at in ("2026-10-25T02:10+01:00", "2026-10-25T02:29+01:00", "2026-10-25T02:31+01:00", "2026-10-25T09:00+01:00"):
        set_clock(queue, at)
        app.tick()
    assert waiting(queue, "report") == ["2026-10-25T02:30:00+02:00"]


def test_a_schedule_that_begins_in_a_repeated_hour_does_not_look_back(queue: Queue) -> None:
    app = reporting(queue, "30 2 * * *", timezone="Europe/Berlin")
    set_clock(queue, "2026-10-25T02:10+01:00")
    app.tick()
    clock_of(queue).advance(HOUR)
    assert app.tick() == []


def test_a_clock_that_is_set_back_repeats_nothing(queue: Queue) -> None:
    app = reporting(queue, "0 * * * *")
    set_clock(queue, "2026-01-10T12:30+00:00")
    app.tick()
    clock_of(queue).jump_wall(HOUR)
    assert len(app.tick()) == 1
    clock_of(queue).jump_wall(-HOUR)
    assert app.tick() == []
    clock_of(queue).jump_wall(HOUR)
    assert app.tick() == []


def test_a_clock_that_was_years_ahead_stops_nothing_for_years(queue: Queue) -> None:
    app = reporting(queue, "0 * * * *")
    set_clock(queue, "2040-01-10T12:30+00:00")
    app.tick()
    set_clock(queue, "2026-01-10T12:30+00:00")
    assert app.tick() == []
    clock_of(queue).advance(HOUR)
    assert len(app.tick()) == 1
    assert waiting(queue, "report") == ["2026-01-10T13:00:00+00:00"]


def test_an_expression_that_changes_begins_anew_and_the_old_one_goes_on_elsewhere(queue: Queue) -> None:
    old, new = reporting(queue, "0 * * * *"), reporting(queue, "30 * * * *")
    set_clock(queue, "2026-01-10T12:10+00:00")
    old.tick()
    clock_of(queue).advance(HOUR)
    new.tick()
    assert len(old.tick()) == 1
    clock_of(queue).advance(HOUR)
    assert len(new.tick()) == len(old.tick()) == 1
    assert waiting(queue, "report") == [
        "2026-01-10T13:00:00+00:00", "2026-01-10T13:30:00+00:00", "2026-01-10T14:00:00+00:00",
    ]  # fmt: skip


def test_so_many_expressions_of_a_name_are_remembered(queue: Queue) -> None:
    for minute in range(20):
        reporting(queue, f"{minute} * * * *").tick()
        clock_of(queue).advance(1.0)
    with queue.transaction(key="strictq-schedule:report") as tx:
        assert tx.key_state is not None
        assert list(json.loads(tx.key_state)["ticks"]) == [f"{minute} * * * * UTC" for minute in range(12, 20)]


def test_ticks_reach_a_key_of_any_shard(make: Opener) -> None:
    queue = make(shards=4)
    app = App(queue)
    for n in range(8):
        app.schedule("0 * * * *", name=f"n{n}", key=n)(app.handler(f"t{n}")(lambda: None))
    app.tick()
    clock_of(queue).advance(HOUR)
    assert len(app.tick()) == 8
    assert queue.stats().ready == 8
    assert {queue.send(b"", key=n).shard for n in range(8)} == {0, 1, 2, 3}


# ---- what can't be


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"expression": "0 3 * *"}, "not valid: Wrong number of fields"),
        ({"expression": "61 3 * * *"}, "Bad minute"),
        ({"expression": "0 0 30 2 *"}, "not valid|never comes"),
        ({"expression": 5}, "must be a str"),
        ({"expression": "* * * * *", "timezone": "Europe/Nowhere"}, "no time zone 'Europe/Nowhere'"),
        ({"expression": "* * * * *", "timezone": "../../etc/passwd"}, "no time zone"),
        ({"expression": "* * * * *", "arguments": {"n": 1}}, "do not fit"),
        ({"expression": "* * * * *", "options": {"delay": -1.0}}, "delay"),
        ({"expression": "* * * * *", "key": ""}, "empty"),
        ({"expression": "* * * * *", "name": ""}, "name"),
    ],
)
def test_what_can_not_be_is_refused(queue: Queue, options: dict[str, Any], match: str) -> None:
    app = App(queue)
    with pytest.raises(InvalidArgument, match=match):
        app.schedule(options.pop("expression"), **options)(nothing)
    assert not app.schedules
    assert not app.handlers


def nothing() -> None:
    """A handler."""


def test_a_name_is_taken_once(queue: Queue) -> None:
    app = App(queue)
    app.schedule("* * * * *")(nothing)
    with pytest.raises(InvalidArgument, match="already") as caught:
        app.schedule("5 * * * *")(nothing)
    assert "name=" in caught.value.hint
    app.schedule("5 * * * *", name="other")(nothing)
    assert {n: s.type for n, s in app.schedules.items()} == {"nothing": "nothing", "other": "nothing"}


def test_a_state_that_is_not_a_schedules_is_left_alone(queue: Queue) -> None:
    app = reporting(queue)
    with queue.transaction(key="strictq-schedule:report") as tx:
        tx.key_state = b"mine"
    with pytest.raises(strictq.ConfigError, match="not that of a schedule"):
        app.tick()
    with queue.transaction(key="strictq-schedule:report") as tx:
        assert tx.key_state == b"mine"


def test_without_its_library_the_extra_is_named(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(strictq.StrictqError, match="cronsim") as caught:
        App(queue).schedule("* * * * *")(nothing)
    assert "strictq[app]" in caught.value.hint


# ---- with a worker


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_sends_ticks_while_it_runs(queue: Queue, kind: str) -> None:
    app, came, ticks = App(queue), threading.Event(), []

    def note(job: Job) -> None:
        ticks.append(job.headers["strictq-tick"])
        came.set()

    async def note_async(job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        note(job)

    set_clock(queue, "2026-01-10T12:30+00:00")
    app.schedule("0 * * * *", name="hourly")(app.handler("note")(note if kind == "plain" else note_async))
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        while not has_looked(queue):
            came.wait(0.01)
        for _ in range(3):
            came.clear()
            clock_of(queue).advance(HOUR)
            assert came.wait(PATIENCE_SECONDS)
            while queue.stats().depth:  # its lease would be over
                threading.Event().wait(0.01)
    finally:
        worker.stop()
        thread.join()
    assert ticks == [f"2026-01-10T{hour}:00:00+00:00" for hour in (13, 14, 15)]


def test_a_run_that_drains_finds_what_was_missed(queue: Queue) -> None:
    app, calls = App(queue), []
    app.schedule("0 * * * *")(app.handler("note")(lambda: calls.append(1)))
    app.tick()
    clock_of(queue).advance(HOUR)
    app.worker().run(drain=True)
    assert calls == [1]


def test_what_ends_the_ticks_ends_the_worker(queue: Queue) -> None:
    app = reporting(queue)
    worker = app.worker()
    with queue.transaction(key="strictq-schedule:report") as tx:
        tx.key_state = b"mine"
    with pytest.raises(strictq.ConfigError):
        worker.run()
    with queue.transaction(key="strictq-schedule:report") as tx:
        tx.key_state = None
    worker, failed = app.worker(), []

    def run() -> None:
        try:
            worker.run()
        except strictq.ConfigError as e:
            failed.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    while not has_looked(queue):
        threading.Event().wait(0.01)
    with queue.transaction(key="strictq-schedule:report") as tx:
        tx.key_state = b"mine"
    clock_of(queue).advance(24 * HOUR)
    thread.join(PATIENCE_SECONDS)
    assert len(failed) == 1


def test_a_store_that_is_busy_is_tried_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    app, calls, came = App(queue), [], threading.Event()
    app.schedule("0 * * * *")(app.handler("note")(lambda: came.set()))
    transaction = queue.transaction

    def busy(*arguments: Any, **options: Any) -> Any:
        if len(calls) < 2:
            calls.append(1)
            raise strictq.StoreBusy("busy", shard=0)
        return transaction(*arguments, **options)

    monkeypatch.setattr("strictq.worker.schedules.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(Queue, "transaction", lambda _, *a, **o: busy(*a, **o))
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        while not has_looked(queue):
            came.wait(0.01)
        clock_of(queue).advance(HOUR)
        assert came.wait(PATIENCE_SECONDS)
    finally:
        worker.stop()
        thread.join()
    assert len(calls) == 2


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca", "UTC"]
RULES = ["30 2 * * *", "45 1 * * *", "*/20 * * * *", "0,30 1-2 * * *", "15 1,2 * * *", "30 */2 * * *", "30 1 * * 0"]
DAY = 86_400


def clock_changes(zone: str) -> list[int]:
    """The seconds at which a zone's offset changes in 2026; one of a zone without changes."""
    there = ZoneInfo(zone)
    starts = range(int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()), 1800)
    offsets = [(at, datetime.fromtimestamp(at, there).utcoffset()) for at in starts]
    return [at for (_, one), (at, two) in pairwise(offsets) if one != two] or [starts[4000]]


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("rule", RULES)
def test_around_a_clock_change_the_latest_missed_tick_is_due_wherever_the_walk_begins(zone: str, rule: str) -> None:
    """Compared with one walk that begins days before the change, as of a program that runs all the time."""
    made = schedule("n", rule, zone, "t", "k", {}, {})
    for change in clock_changes(zone):
        ticks = list(takewhile(lambda at, end=change + 9 * DAY: at <= end, made._ticks(change - 5.0 * DAY)))
        assert ticks == sorted(set(ticks))
        for last in range(change - DAY // 4, change + DAY // 4, 900):
            assert made.next(last) == min(at for at in ticks if at > last)
            for pause in (60, 1800, 3600, 7200, 40_000):
                assert made.due(last, last + pause) == max((at for at in ticks if last < at <= last + pause), default=None)
