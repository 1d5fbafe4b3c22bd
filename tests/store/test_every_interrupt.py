"""An interrupt at any check for signals of every verb: the queue works, nothing stays held, and the effect is whole or none.

Every fifteenth check. To try each one:

    STRICTQ_INTERRUPTS_EVERY=1 python -m pytest -n 4 tests/store/test_every_interrupt.py
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal

import apsw
import pytest

import strictq
from strictq import Delivery, Message, OutcomeUnknown, Queue, QueueConfig
from strictq._store.commit.tx import open_transaction
from strictq.testing import FakeClock
from tests.support.internals import at_rest, connected, connections, failing, shard_of, store_of
from tests.support.interrupts import Interrupt
from tests.support.running import PATIENCE_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a finalizer
EVERY: Final = int(os.environ.get("STRICTQ_INTERRUPTS_EVERY", "15"))
"""Every so many checks; "1" tries all of them, in some ten minutes of processor time."""
Durability = Literal["full", "process"]


def send_all(q: Queue, n: int, *, options: bool = False) -> None:
    q.send_many([Message(b"x", key=f"{key}{n}", headers={"a": "b"} if options else None) for key in "abc"])


def transact(q: Queue, n: int, d: Delivery, *, opened: bool, fails: bool = False) -> None:
    with q.transaction(d) as tx:
        tx.send(b"", f"sent{n}")
        tx.key_state = b"state"
        if opened:
            tx.run(lambda db: db.execute("INSERT INTO app_t VALUES (1)"))
        tx.execute("INSERT INTO app_t VALUES (2)")
        if fails:
            raise ZeroDivisionError


def nothing(_q: Queue, _n: int) -> None: ...


def first(q: Queue, n: int) -> Delivery:
    """Return the first of two leased messages of three."""
    q.send_many([Message(b"x", key=f"k{n}") for _ in range(3)])
    return q.receive(2)[0]


def consume(q: Queue) -> None:
    with closing(q.consume(wait=0.0)) as consuming:  # type: ignore[type-var]
        next(consuming)


VERBS: Final[dict[str, tuple[Callable[[Queue, int], Any], Callable[[Queue, int, Any], object]]]] = {
    "send": (nothing, lambda q, n, _: q.send(b"x", f"a{n}")),
    "send to a lane in memory": (send_all, lambda q, n, _: q.send(b"x", f"a{n}")),
    "send, dedup id": (nothing, lambda q, n, _: q.send(b"x", f"a{n}", dedup_id="id")),
    "send_many": (nothing, lambda q, n, _: send_all(q, n)),
    "send_many, headers": (nothing, lambda q, n, _: send_all(q, n, options=True)),
    "receive": (send_all, lambda q, _n, _: q.receive(3)),
    "receive, ack_first": (send_all, lambda q, _n, _: q.receive(1, ack_first=True)),
    "consume": (send_all, lambda q, _n, _: consume(q)),
    "ack": (first, lambda _q, _n, d: d.ack()),
    "ack_many": (first, lambda q, _n, d: q.ack_many([d])),
    "nack": (first, lambda _q, _n, d: d.nack(delay=100.0)),
    "defer": (first, lambda _q, _n, d: d.defer(100.0)),
    "reject": (first, lambda _q, _n, d: d.reject("no")),
    "extend": (first, lambda _q, _n, d: d.extend(100.0)),
    "more": (first, lambda _q, _n, d: d.lease.more(1)),
    "release of a lease": (first, lambda _q, _n, d: d.lease.release()),
    "transaction": (first, lambda q, n, d: transact(q, n, d, opened=False)),
    "open transaction": (first, lambda q, n, d: transact(q, n, d, opened=True)),
    "failing transaction": (first, lambda q, n, d: transact(q, n, d, opened=True, fails=True)),
    "hold": (nothing, lambda q, n, _: q.hold(f"h{n}")),
    "release": (lambda q, n: q.hold(f"h{n}"), lambda q, n, _: q.release(f"h{n}")),
    "redrive": (lambda q, n: first(q, n).reject("no"), lambda q, n, _: q.redrive(f"k{n}")),
    "purge": (send_all, lambda q, n, _: q.purge(f"a{n}")),
    "configure": (nothing, lambda q, n, _: q.configure(retry_delay_max_seconds=1000.0 + n)),
    "app_schema": (nothing, lambda q, n, _: q.app_schema(f"CREATE TABLE app_{n} (a)")),
    "query": (nothing, lambda q, _n, _: q.query("SELECT * FROM app_t")),
    "peek": (send_all, lambda q, n, _: q.peek(f"a{n}")),
    "explain": (send_all, lambda q, n, _: q.explain(f"a{n}")),
    "stats": (send_all, lambda q, _n, _: q.stats()),
    "check": (nothing, lambda q, _n, _: q.check()),
}
"""What prepares a verb, and the verb. Both get the number of the round, for keys of its own."""


def facts(q: Queue, file: Path) -> tuple[int, ...]:
    """Return how many rows of each kind are committed."""
    stats = q.stats()
    db = connected(file)
    try:
        own: tuple[int, ...] = db.execute("SELECT (SELECT count(*) FROM app_t), (SELECT count(*) FROM key_state)").get
    finally:
        db.close()
    return (stats.depth, stats.in_flight, stats.dead, stats.delayed, stats.held, stats.sends, stats.acks, *own)


def require_free(q: Queue, file: Path) -> None:
    """Verify that nothing is held while the exception lives, as this process and another one see it."""
    assert at_rest(q)
    assert {db.txn_state("main") for db in connections(q)} <= {apsw.SQLITE_TXN_NONE}
    block = open_transaction.get()
    assert block is None or not block.is_open
    db = connected(file)
    try:
        db.execute("BEGIN IMMEDIATE")
    finally:
        db.close()


def in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupt_at_any_check_for_signals(verb: str, durability: Durability, place: Path) -> None:
    prepare, act = VERBS[verb]
    file = place / "queue" / "shard-0000.db"
    with strictq.open(place / "queue", durability=durability, clock=FakeClock(), config=QueueConfig(max_attempts=None)) as q:
        q.app_schema("CREATE TABLE IF NOT EXISTS app_t (a)")
        store_of(q)._upkeep.stop()  # it would release what stays held, two seconds later

        def run(number: int, n: int) -> tuple[tuple[int, ...], int, BaseException | None]:
            """Return what changed, the checks for signals, and what was raised."""
            given = prepare(q, number)
            before = facts(q, file)
            kept: BaseException | None = None
            interrupt = Interrupt(n)
            try:
                with interrupt:
                    act(q, number, given)
            except (KeyboardInterrupt, ZeroDivisionError) as e:
                kept = e
            require_free(q, file)
            return tuple(b - a for a, b in zip(before, facts(q, file), strict=True)), interrupt.checks, kept

        outcomes = [(0,) * 9]
        if verb == "consume":
            # As a program's loop is left, its first step can be interrupted. Then all that it leased stays so until the deadline.
            outcomes.append((0, 10, *outcomes[0][2:]))
        number = checks = 0
        for _ in range(3):  # the first ones read and make what later ones have
            number += 1
            whole, checks, _ = run(number, 0)
        interrupted = 0
        for n in range(1, checks + 1, EVERY):
            number += 1
            changed, _, kept = run(number, n)
            interrupted += isinstance(kept, KeyboardInterrupt)
            assert changed in (whole, *outcomes), (n, repr(kept))
            in_another_thread(lambda: q.send(b"", "probe"))
            q.send(b"", "probe")
        assert interrupted > checks // EVERY // 2
        assert q.check() == []


ERRORS: Final = (
    TypeError("a handler's"),
    RecursionError("a handler's"),
    MemoryError("a handler's"),
    json.JSONDecodeError("a handler's", "{", 1),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a handler's"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "a handler's"),
    OverflowError("a handler's"),
    TimeoutError("a handler's"),
    LookupError("a handler's"),
)
LOOKS: Final = ("query", "peek", "explain", "stats")


@pytest.mark.parametrize("verb", ["send", "send, dedup id", "receive", "ack", "nack", "open transaction", "configure", *LOOKS])
def test_a_programs_exception_is_raised_as_it_is_and_never_taken_for_damage(verb: str, place: Path) -> None:
    """A signal handler can raise anything at any check for signals."""
    prepare, act = VERBS[verb]
    with strictq.open(place / "queue", durability="process", clock=FakeClock()) as q:
        q.app_schema("CREATE TABLE IF NOT EXISTS app_t (a)")
        checks = 0
        number = itertools.count()
        for n in itertools.chain((0, 0), itertools.count(1, EVERY)):
            round_ = next(number)
            given = prepare(q, round_)
            error = ERRORS[n % len(ERRORS)]
            raised: BaseException | None = None
            interrupt = Interrupt(n, lambda error=error: error)  # type: ignore[misc]
            try:
                with interrupt:
                    act(q, round_, given)
            except Exception as e:
                raised = e
            assert raised in (None, error) or (isinstance(raised, OutcomeUnknown) and raised.cause is error), (n, raised)
            assert shard_of(q).failed is None, (n, error)
            q.send(b"", "probe")
            checks = max(checks, interrupt.checks)
            if n >= checks:
                break
        assert q.check() == []


def at_depth(room: int, act: Callable[[], object]) -> object:
    """Run `act` where so many calls may still be nested."""
    depth, frame = 0, inspect.currentframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back

    def nested(left: int) -> object:
        return act() if left <= 0 else nested(left - 1)

    return nested(sys.getrecursionlimit() - depth - room)


@pytest.mark.parametrize("verb", ["send", "receive", "ack", "nack", "open transaction", "hold", "configure", "check", *LOOKS])
def test_a_program_near_its_recursion_limit_damages_nothing(verb: str, place: Path) -> None:
    prepare, act = VERBS[verb]
    failed, causes = 0, list[type]()
    with strictq.open(place / "queue", durability="process", clock=FakeClock()) as q:
        q.app_schema("CREATE TABLE IF NOT EXISTS app_t (a)")
        for number, room in enumerate(range(4, 90, 2)):
            given = prepare(q, number)
            try:
                at_depth(room, lambda given=given, number=number: act(q, number, given))  # type: ignore[misc]
            except RecursionError:
                failed += 1
            except OutcomeUnknown as e:
                causes.append(type(e.cause))
            assert shard_of(q).failed is None, room
            q.send(b"", "probe")
        assert q.check() == []
    assert failed
    assert set(causes) <= {RecursionError}


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_programs_exception_in_a_commit_is_the_cause_of_an_unknown_outcome(
    error: Exception, happened: bool, tmp_path: Path
) -> None:
    with strictq.open(tmp_path / "queue") as q:
        with failing(q, "COMMIT", error, after=happened), pytest.raises(OutcomeUnknown) as raised:
            q.send(b"", "k", dedup_id="d")
        assert raised.value.cause is error
        assert q.stats().depth == happened
        q.send(b"", "k", dedup_id="d")
        assert q.stats().depth == 1
        assert at_rest(q)
