"""How callers share a commit, what one caller's failure means for the others, and what a failed COMMIT means."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import strictq
from strictq import Delivery, InvalidArgument, LeaseLost, Observer, OutcomeUnknown, Queue, StoreFull
from strictq._store.commit.writer import Writer
from strictq._store.disk import layout
from strictq._store.shard import sending
from strictq._store.shard.claiming import ALONE_MAX
from strictq._store.shard.leases import Settlement
from strictq._store.shard.sending import Append
from strictq._store.shard.settling import Ack
from strictq._store.shard.shard_lanes import LaneTotals, Tx
from strictq.testing import FakeClock
from tests.support.internals import at_rest, connection_of, failing, shard_of, writer_of
from tests.support.queues import Opener, drain, fill, seqs
from tests.support.running import PATIENCE_SECONDS, until


@pytest.fixture
def q(disk: Opener) -> Queue:
    """Return a queue whose callers share commits."""
    return disk.open(durability="full")


class Crowd:
    """Callers that arrive while a leader is busy, and so share one commit.

    The first operation occupies the shard. `join` adds waiting callers, in order. `go` lets the operation finish.
    """

    def __init__(self, q: Queue) -> None:
        self.writer: Writer = writer_of(q)
        self.statements: list[str] = []
        connection_of(q).trace_v2(apsw.SQLITE_TRACE_STMT, self._note)
        self._go = threading.Event()
        self._inside = threading.Event()
        self.threads: list[threading.Thread] = []
        self.results: list[Any] = []
        self._start(self._occupy)
        assert self._inside.wait(PATIENCE_SECONDS)

    def _note(self, event: dict[str, Any]) -> None:
        self.statements.append(event["sql"])

    @property
    def commits(self) -> list[str]:
        """Return the COMMITs so far."""
        return [sql for sql in self.statements if sql == "COMMIT"]

    def _occupy(self, tx: Tx) -> str:
        self._inside.set()
        assert self._go.wait(PATIENCE_SECONDS)
        return "first"

    def _start(self, operation: Callable[[Tx], Any]) -> None:
        place = len(self.results)
        self.results.append(None)

        def run() -> None:
            try:
                self.results[place] = self.writer.run(operation)
            except BaseException as e:
                self.results[place] = e

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self, *operations: Callable[[Tx], Any]) -> None:
        """Add waiting callers, in this order."""
        for operation in operations:
            waiting = len(self.writer._grouping._waiting)
            self._start(operation)
            until(lambda n=waiting: len(self.writer._grouping._waiting) > n, "a caller to queue up")  # type: ignore[misc]

    def go(self) -> list[Any]:
        """Let all of them run. Return the result of each."""
        self._go.set()
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
        assert not any(t.is_alive() for t in self.threads), "a follower was never released"
        assert self.writer._grouping._leader() is None
        assert not self.writer._grouping._waiting
        assert not self.writer._lock.locked()
        return self.results[1:]


def putting(name: str, value: object = 1) -> Callable[[Tx], str]:
    """Return an operation that leaves a trace."""

    def operation(tx: Tx) -> str:
        tx.run("INSERT INTO meta VALUES (?, ?)", (name, value))
        return name

    return operation


def then_raising(name: str, error: BaseException) -> Callable[[Tx], str]:
    """Return an operation that leaves a trace and fails."""

    def operation(tx: Tx) -> str:
        putting(name)(tx)
        raise error

    return operation


def traces(q: Queue) -> set[str]:
    """Return the committed traces."""
    rows = shard_of(q).look(lambda db: db.execute("SELECT name FROM meta").fetchall())
    return {name for (name,) in rows if name.startswith("t")}


def test_callers_that_wait_together_are_committed_together(q: Queue) -> None:
    crowd = Crowd(q)
    crowd.join(*[putting(f"t{n}") for n in range(8)])
    assert crowd.go() == [f"t{n}" for n in range(8)]
    assert traces(q) == {f"t{n}" for n in range(8)}
    assert len(crowd.commits) == 2, "the first one's, and one for all the others"


UNBINDABLE = [10**300, "\ud800", object(), 1j]


def selecting(*values: object) -> Callable[[Any], object]:
    """Return a read that binds these values to one placeholder."""
    return lambda db: db.execute("SELECT ?", values).get


@pytest.mark.parametrize("value", UNBINDABLE, ids=lambda value: type(value).__name__)
def test_a_value_that_cannot_be_bound_is_no_damage(q: Queue, value: object) -> None:
    """The shard stays in service, its connection stays open, and nothing changes, wherever the value is bound."""
    fill(q, "k", 1)
    db, shard = connection_of(q), shard_of(q)
    calls: list[Callable[[], object]] = [
        lambda: shard.run(putting("t", value)),
        lambda: shard.run(putting(value)),  # type: ignore[arg-type]
        lambda: shard.read(selecting(value)),
        lambda: shard.glance(selecting(value)),
        lambda: shard.look(selecting(value)),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="nothing was changed"):
            call()
        assert shard.failed is None
    assert connection_of(q) is db
    assert traces(q) == set()
    assert drain(q) == [("k", 1)]


def test_a_wrong_number_of_values_is_no_damage(q: Queue) -> None:
    for ask in (shard_of(q).read, shard_of(q).look, shard_of(q).glance):
        with pytest.raises(InvalidArgument):
            ask(selecting(1, 2))
    assert shard_of(q).failed is None


@pytest.mark.parametrize("value", UNBINDABLE, ids=lambda value: type(value).__name__)
def test_a_value_that_cannot_be_bound_fails_only_its_caller(q: Queue, value: object) -> None:
    crowd = Crowd(q)
    crowd.join(putting("t0"), putting("t1", value), putting("t2"))
    first, odd, last = crowd.go()
    assert (first, last) == ("t0", "t2")
    assert isinstance(odd, InvalidArgument)
    assert traces(q) == {"t0", "t2"}
    assert shard_of(q).failed is None
    assert len(crowd.commits) == 2, "the first one's, and one for the others"


def test_a_single_caller_begins_and_commits_once(q: Queue) -> None:
    statements: list[str] = []
    connection_of(q).trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))
    q.send(b"", "k")
    words = [s.split()[0] for s in statements]
    assert words.count("COMMIT") == words.count("BEGIN") == 1
    assert "SAVEPOINT" not in words, "there are no neighbours to protect"


def test_sends_from_many_threads_share_commits_and_keep_their_order(q: Queue) -> None:
    commits: list[int] = []
    connection_of(q).trace_v2(apsw.SQLITE_TRACE_STMT, lambda e: commits.append(1) if e["sql"] == "COMMIT" else None)
    barrier = threading.Barrier(8)
    got: dict[int, list[int]] = {}

    def send(me: int) -> None:
        barrier.wait(PATIENCE_SECONDS)
        got[me] = [q.send(b"%d" % me, "k").seq for _ in range(25)]

    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine in got.values():
        assert mine == sorted(mine)
    assert sorted(s for mine in got.values() for s in mine) == list(range(1, 201))
    assert len(commits) < 200
    assert seqs(q.receive(200)) == list(range(1, 201))


def whole_lease(d: Delivery) -> Settlement:
    """Return a lease of one message, as its ack passes it to the store."""
    return d.lease._held.some(range(d.seq, d.seq + 1))


def test_acks_from_many_threads_are_one_pass(q: Queue) -> None:
    for n in range(8):
        q.send(b"", f"k{n}")
    given = q.receive(8)
    crowd = Crowd(q)
    crowd.join(*[Ack([whole_lease(d)]) for d in given])
    assert crowd.go() == [[{}]] * 8
    assert crowd.statements.count("SAVEPOINT operation") == 1
    assert sum(s.startswith("INSERT INTO journal") for s in crowd.statements) == 1
    assert q.stats().acks == 8
    assert q.stats().depth == 0
    assert q.check() == []


def test_acks_sends_and_others_that_wait_together_each_take_effect(q: Queue) -> None:
    """Only the one that lost its lease gets an error."""
    for n in range(6):
        q.send(b"%d" % n, f"k{n}")
    first, second, lost, partly = q.receive(4)
    fill(q, partly.key, 2)
    (more,) = partly.lease.more(1)
    lost.lease.release()
    crowd = Crowd(q)
    crowd.join(
        Ack([whole_lease(first)]), putting("t1"), Ack([whole_lease(lost)]), Append([(b"sk9", b"", None, None)], q.config, 0),
        Ack([whole_lease(second)]), Append([(b"sk9", b"", None, None)], q.config, 0),
        Ack([partly.lease._held.some([partly.seq])]),
    )  # fmt: skip
    one, trace, gone, sent, two, also_sent, part = crowd.go()
    assert one == two == part == [{}]
    assert trace == "t1"
    assert [type(why) for why in gone[0].values()] == [LeaseLost]
    assert [seq for ((seq, _, _),) in (sent, also_sent)] == [1, 2]
    more.ack()
    assert q.check() == []
    assert sorted(drain(q)) == [("k2", 1), ("k3", 3), ("k4", 1), ("k5", 1), ("k9", 1), ("k9", 2)]


def test_two_acks_of_one_lease_that_wait_together_are_one(q: Queue) -> None:
    q.send(b"", "k")
    (d,) = q.receive()
    crowd = Crowd(q)
    crowd.join(Ack([whole_lease(d)]), Ack([whole_lease(d)]))
    assert crowd.go() == [[{}], [{}]]
    assert q.stats().acks == 1
    assert q.check() == []


def test_one_callers_failure_undoes_only_its_own_work(q: Queue) -> None:
    crowd = Crowd(q)
    crowd.join(
        putting("t1"), then_raising("t2", LookupError("mine alone")), putting("t3"), then_raising("t4", LeaseLost("k", 1, 1))
    )
    one, two, three, four = crowd.go()
    assert (one, three) == ("t1", "t3")
    assert isinstance(two, LookupError)
    assert isinstance(four, LeaseLost)
    assert traces(q) == {"t1", "t3"}


def test_what_a_failing_caller_counted_is_undone_with_it(q: Queue) -> None:
    """Totals and events are in memory until the commit, so a savepoint does not restore them."""
    events: list[strictq.Event] = []
    q.on_event(events.append)

    def counting(tx: Tx) -> None:
        sending.send(tx, [(b"sk", b"", None, None)])
        tx.report("dead_letter", b"sk", 1)
        raise LookupError

    crowd = Crowd(q)
    crowd.join(putting("t1"), counting, putting("t2"))
    assert [type(result) for result in crowd.go()] == [str, LookupError, str]
    assert events == []
    assert q.check() == []
    assert q.stats().depth == q.stats().sends == 0
    assert q.send(b"", "k").seq == 1


def test_verbs_that_fail_in_a_group_leave_the_others_alone(q: Queue) -> None:
    """The public verbs behave the same: a dead token, a full queue, a send."""
    q.configure(max_depth=3)
    fill(q, "a", 2)
    (first, *_) = q.receive(1)
    first.lease.release()
    outcomes: dict[str, Any] = {}

    def call(name: str, verb: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                outcomes[name] = verb()
            except BaseException as e:
                outcomes[name] = e

        return threading.Thread(target=run, daemon=True)

    crowd = Crowd(q)
    for thread in (
        call("send", lambda: q.send(b"", "b").seq),
        call("dead ack", lambda: first.ack()),
        call("full", lambda: q.send_many([strictq.Message(b"", key="b")] * 5)),
    ):
        waiting = len(crowd.writer._grouping._waiting)
        thread.start()
        until(lambda n=waiting: len(crowd.writer._grouping._waiting) > n, "a caller to queue up")  # type: ignore[misc]
        crowd.threads.append(thread)
    crowd.go()
    assert outcomes["send"] == 1
    assert isinstance(outcomes["dead ack"], LeaseLost)
    assert isinstance(outcomes["full"], strictq.QueueFull)
    assert sorted(drain(q)) == [("a", 1), ("a", 2), ("b", 1)]
    assert q.check() == []


class Interrupted(KeyboardInterrupt):
    """Ctrl-C that reaches the leader's thread."""


def test_followers_survive_a_leader_that_is_interrupted(q: Queue) -> None:
    """The interrupt hits the leader while it works for others. Nothing is committed, and the others are retried without it."""
    crowd = Crowd(q)
    hits = 0

    def interrupted_once(tx: Tx) -> str:
        nonlocal hits
        hits += 1
        if hits == 1:
            raise Interrupted
        return putting("t2")(tx)

    crowd.join(putting("t1"), interrupted_once, putting("t3"))
    leader, *followers = crowd.go()
    assert isinstance(leader, Interrupted)
    assert followers == ["t2", "t3"]
    assert traces(q) == {"t2", "t3"}


def test_followers_survive_a_leader_that_is_interrupted_in_its_own_operation(q: Queue) -> None:
    crowd = Crowd(q)
    crowd.join(then_raising("t1", Interrupted()), putting("t2"), putting("t3"))
    leader, *followers = crowd.go()
    assert isinstance(leader, Interrupted)
    assert followers == ["t2", "t3"]
    assert traces(q) == {"t2", "t3"}


@pytest.mark.parametrize("behind", [True, False], ids=["behind the COMMIT", "before it"])
def test_nothing_that_a_leader_has_committed_is_run_again(q: Queue, monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    """The interrupt hits the leader as its COMMIT returns. The commit happened, and the followers must not repeat it."""
    runs: list[str] = []

    def counted(name: str) -> Callable[[Tx], str]:
        def operation(tx: Tx) -> str:
            runs.append(name)
            return putting(name)(tx)

        return operation

    crowd = Crowd(q)
    crowd.join(counted("t1"), counted("t2"), counted("t3"))
    end = Writer._end

    def interrupted_once(self: Writer, tx: Tx) -> None:
        run = tx.run

        def commit(sql: str, *values: Any) -> Any:
            if len(runs) != 3 or sql != "COMMIT":
                return run(sql, *values)
            if behind:
                run(sql)
            raise Interrupted

        tx.run = commit
        end(self, tx)

    monkeypatch.setattr(Writer, "_end", interrupted_once)
    leader, *followers = crowd.go()
    assert isinstance(leader, Interrupted)
    assert followers == ["t2", "t3"]
    assert sorted(runs) == (["t1", "t2", "t3"] if behind else ["t1", "t2", "t2", "t3", "t3"])
    assert traces(q) == ({"t1", "t2", "t3"} if behind else {"t2", "t3"})
    assert at_rest(q)


def test_a_caller_that_failed_before_the_interrupt_gets_the_answer_of_its_second_try(q: Queue) -> None:
    """Its first failure was rolled back with everything else; the operation ran again and was committed."""
    tries: dict[str, int] = {"fickle": 0, "hit": 0}

    def fickle(tx: Tx) -> str:
        tries["fickle"] += 1
        if tries["fickle"] == 1:
            raise LookupError("the first time only")
        return putting("t2")(tx)

    def hit(tx: Tx) -> str:
        tries["hit"] += 1
        if tries["hit"] == 1:
            raise Interrupted
        return "hit"

    crowd = Crowd(q)
    crowd.join(putting("t1"), fickle, hit)
    _, two, three = crowd.go()
    assert tries["fickle"] == 2
    assert traces(q) == {"t2"}
    assert three == "hit"
    assert two == "t2", "it is committed, so the caller must not be told that it failed"


def test_a_follower_that_is_interrupted_while_it_waits_takes_its_call_with_it(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(q)
    crowd.join(putting("t1"))
    victim = crowd.writer._grouping._waiting[0]
    woken = threading.Event()

    class Interrupting:
        """The lock on which the follower sleeps, interrupted by Ctrl-C."""

        def __init__(self, real: Any) -> None:
            self.real = real

        def acquire(self, *args: Any, **options: Any) -> bool:
            woken.set()
            raise Interrupted

        def release(self) -> None:
            self.real.release()

    def follow() -> None:
        real_call = strictq._store.commit.writer.Call

        class Call(real_call):  # type: ignore[misc, valid-type]
            __slots__ = ()

            def follow(self) -> None:
                super().follow()
                self.wake = Interrupting(self.wake)

        monkeypatch.setattr(strictq._store.commit.writer, "Call", Call)
        try:
            crowd.writer.run(putting("t2"))
        except Interrupted:
            crowd.results.append("interrupted")
        finally:
            monkeypatch.undo()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert woken.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)
    assert list(crowd.writer._grouping._waiting) == [victim]
    assert crowd.go() == ["t1", "interrupted"]
    assert traces(q) == {"t1"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_group_whose_commit_fails_knows_for_everybody(q: Queue, after: bool) -> None:
    crowd = Crowd(q)
    crowd.join(putting("t1"), putting("t2"), putting("t3"))
    real = crowd.writer._db
    count = 0

    class GroupsCommitFails:
        """Fails the group's COMMIT: the caller before it uses the real connection, so the first COMMIT here is the group's."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def execute(self, sql: str, *args: Any) -> Any:
            nonlocal count
            if sql == "COMMIT":
                count += 1
                if count == 1 and not after:
                    raise apsw.IOError("fsync failed")
            cursor = real.execute(sql, *args)  # type: ignore[union-attr]
            if sql == "COMMIT" and count == 1 and after:
                raise apsw.IOError("fsync failed")
            return cursor

    crowd.writer._db = GroupsCommitFails()  # type: ignore[assignment]
    results = crowd.go()
    assert [type(r) for r in results] == [OutcomeUnknown] * 3
    assert traces(q) == ({"t1", "t2", "t3"} if after else set())
    assert at_rest(q)


def test_a_begin_that_fails_is_the_leaders_alone(q: Queue) -> None:
    """The others have time left: the next of them retries."""
    crowd = Crowd(q)
    crowd.join(putting("t1"), putting("t2"))
    real = crowd.writer._db
    begun = 0

    class Busy:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def execute(self, sql: str, *args: Any) -> Any:
            nonlocal begun
            if sql == "BEGIN IMMEDIATE":
                begun += 1
                if begun == 1:
                    raise apsw.BusyError("locked")
            return real.execute(sql, *args)  # type: ignore[union-attr]

    crowd.writer._db = Busy()  # type: ignore[assignment]
    leader, follower = crowd.go()
    assert isinstance(leader, strictq.StoreBusy)
    assert follower == "t2"
    assert traces(q) == {"t2"}


def test_a_misplaced_call_does_not_hold_up_other_threads(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call inside the thread's own transaction can never be served. It is refused at once, even while others wait."""
    monkeypatch.setattr(strictq._store.commit.writer, "BUSY_SECONDS", 2.0)
    other: list[Any] = []

    def send() -> None:
        try:
            other.append(q.send(b"", "k").seq)
        except BaseException as e:
            other.append(e)

    thread = threading.Thread(target=send, daemon=True)
    with q.transaction(key="k") as tx:
        tx.key_state = tx.key_state or b"x"
        thread.start()
        until(lambda: writer_of(q)._grouping._leader() is not None, "the other thread to wait")
        with pytest.raises(strictq.InvalidArgument):
            q.send(b"", "k")
    thread.join(PATIENCE_SECONDS)
    assert other == [1]


@pytest.mark.parametrize("durability", ["full", "process"])
def test_a_misplaced_call_is_refused_without_waiting_for_itself(disk: Opener, durability: str) -> None:
    """While it waited, no other caller could write to the shard, in any process."""
    q = disk.open(durability=durability)
    writer = writer_of(q)
    waits: list[float] = []

    class Lock:
        def __init__(self, lock: Any) -> None:
            self._lock = lock
            self.release, self.locked = lock.release, lock.locked

        def acquire(self, blocking: bool = True, timeout: float = -1.0) -> bool:
            waits.append(timeout)
            taken: bool = self._lock.acquire(blocking, 0.001)
            return taken

    with q.transaction(key="k") as tx:
        assert tx.key_state is None
        writer._lock = Lock(writer._lock)  # type: ignore[assignment]
        for call in (lambda: q.send(b"", "k"), lambda: q.receive(), lambda: q.hold("k"), lambda: q.peek("k")):
            with pytest.raises(strictq.InvalidArgument, match="inside a transaction"):
                call()
        assert waits == []
    assert q.send(b"", "k").seq == 1


# --- a COMMIT that fails -------------------------------------------------------------------------------------------------

LOST = apsw.IOError("the disk did not answer")


@pytest.fixture(params=["full", "process"])
def held(request: pytest.FixtureRequest, disk: Opener) -> tuple[Queue, list[Delivery]]:
    """Return a queue with a ledger, and three leased messages of one key."""
    q = disk.open(durability=request.param, shards=1)
    q.app_schema("CREATE TABLE app_effects (x INTEGER) STRICT")
    fill(q, "k", 4)
    return q, q.receive(3)


def settle(q: Queue, verb: str, ds: list[Delivery]) -> None:
    """Use a verb on the leased messages."""
    if verb == "ack":
        ds[0].ack()
    elif verb == "ack_many":
        q.ack_many(ds)
    elif verb == "some":
        q.ack_many([ds[0], ds[2]])
    elif verb == "nack":
        ds[1].nack(delay=0.0, reason="r")
    elif verb == "defer":
        ds[1].defer(0.0)
    elif verb == "reject":
        ds[0].reject("no")
    else:
        with q.transaction(ds[0]) as tx:
            tx.send(b"", "next")
            if verb.startswith("transaction reading"):
                tx.key_state = b"%d" % (int(tx.key_state or b"0") + 1)
            if verb.endswith("SQL"):
                tx.execute("INSERT INTO app_effects VALUES (1)")


VERBS = [
    "ack",
    "ack_many",
    "some",
    "nack",
    "defer",
    "reject",
    "transaction",
    "transaction with SQL",
    "transaction reading, with SQL",
]


@pytest.mark.parametrize("after", [False, True], ids=["it did not happen", "it happened"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_retried_call_after_a_lost_answer_happens_once(held: tuple[Queue, list[Delivery]], verb: str, after: bool) -> None:
    """P8: the COMMIT raised. The caller repeats the call under the same token, and it succeeds in both cases."""
    q, ds = held
    with failing(q, "COMMIT", LOST, after=after) as failed, pytest.raises(OutcomeUnknown) as caught:
        settle(q, verb, ds)
    assert failed == ["COMMIT"]
    assert caught.value.transient
    assert caught.value.shard == 0
    assert caught.value.cause is LOST
    assert writer_of(q)._db is None or at_rest(q), "the connection was given up"

    settle(q, verb, ds)
    assert at_rest(q)
    assert q.check() == []
    expected: dict[str, list[tuple[str, int]]] = {
        "ack": [], "ack_many": [("k", 4)], "some": [], "nack": [], "reject": [],
    }  # fmt: skip
    states = [q.status("k", n).state for n in (1, 2, 3)]
    if verb == "ack_many":
        assert states == ["resolved"] * 3
        assert drain(q) == expected[verb]
    elif verb == "some":
        assert states == ["resolved", "in_flight", "resolved"]
    elif verb == "nack":
        assert states == ["in_flight", "in_flight", "in_flight"] or states[0] == "in_flight"
        assert q.stats().retries == 1
    elif verb == "defer":
        assert states[0] == "in_flight"
        ds[0].ack()
        assert [(d.seq, d.attempt) for d in q.receive()] == [(2, 1), (3, 1), (4, 1)]
    elif verb == "reject":
        assert states[0] == "dead"
        assert len(q.dead_letters()) == 1
    else:
        assert states == ["resolved", "in_flight", "in_flight"]
    if verb.startswith("transaction"):
        assert seqs(q.peek("next")) == [1]
        assert len(q.query("SELECT * FROM app_effects")) == (1 if verb.endswith("SQL") else 0)


@pytest.mark.parametrize("after", [False, True], ids=["it did not happen", "it happened"])
def test_a_retried_send_is_safe_with_a_dedup_id(q: Queue, after: bool) -> None:
    with failing(q, "COMMIT", LOST, after=after), pytest.raises(OutcomeUnknown):
        q.send(b"", "k", dedup_id="d")
    again = q.send(b"", "k", dedup_id="d")
    assert (again.seq, again.duplicate) == (1, after)
    assert drain(q) == [("k", 1)]


def test_after_a_failed_commit_the_shard_is_opened_anew(q: Queue) -> None:
    """After a failed fsync the page cache may differ from the disk."""
    q.send(b"", "k")
    before = writer_of(q)._db
    with failing(q, "COMMIT", LOST), pytest.raises(OutcomeUnknown):
        q.send(b"", "k")
    assert q.send(b"", "k").seq == 2
    assert writer_of(q)._db is not before
    assert q.check() == []


@pytest.mark.parametrize("error", [apsw.IOError("read failed"), apsw.NoMemError(), apsw.CantOpenError()])
def test_an_error_inside_the_transaction_changes_nothing_and_drops_the_connection(q: Queue, error: apsw.Error) -> None:
    q.send(b"", "k")
    before = writer_of(q)._db
    with failing(q, "INSERT INTO message", error) as failed, pytest.raises(strictq.StoreError) as caught:
        q.send(b"", "k")
    assert failed
    assert not isinstance(caught.value, OutcomeUnknown), "the COMMIT was never tried"
    assert caught.value.cause is error
    assert q.send(b"", "k").seq == 2
    assert writer_of(q)._db is not before


def test_a_full_disk_at_the_commit_is_not_unknown(q: Queue) -> None:
    """The commit frame is written last: without room for all frames, nothing happened."""
    with failing(q, "COMMIT", apsw.FullError("full")), pytest.raises(StoreFull):
        q.send(b"", "k")
    assert q.send(b"", "k").seq == 1


def test_damage_quarantines_the_shard_once(q: Queue) -> None:
    events: list[strictq.Event] = []
    q.on_event(events.append)
    with failing(q, "INSERT INTO message", apsw.CorruptError("malformed")), pytest.raises(strictq.StoreCorrupt):
        q.send(b"", "k")
    for _ in range(3):
        with pytest.raises(strictq.StoreCorrupt):
            q.send(b"", "k")
    assert [e.kind for e in events] == ["shard_quarantined"]


def test_damage_that_one_of_a_group_meets_quarantines_the_shard(q: Queue) -> None:
    events: list[strictq.Event] = []
    q.on_event(events.append)
    q.send(b"", "k")
    crowd = Crowd(q)

    def damaged(_tx: Tx) -> None:
        raise apsw.CorruptError("malformed")

    crowd.join(damaged, lambda tx: tx.run("UPDATE mark SET sends = sends + 1"))
    results = crowd.go()
    assert [type(r) for r in results] == [strictq.StoreCorrupt] * 2
    assert [e.kind for e in events] == ["shard_quarantined"]
    with pytest.raises(strictq.StoreCorrupt):
        q.send(b"", "k")


def test_a_read_that_fails_for_one_of_a_group_drops_the_connection(q: Queue) -> None:
    q.send(b"", "k")
    before = connection_of(q)
    crowd = Crowd(q)

    def unreadable(_tx: Tx) -> None:
        raise apsw.IOError("disk I/O error")

    crowd.join(unreadable, lambda tx: tx.run("UPDATE mark SET sends = 77"))
    results = crowd.go()
    assert [type(r) for r in results] == [strictq.StoreError] * 2
    assert connection_of(q) is not before
    assert q.stats().sends == 1


def test_an_interrupted_commit_is_not_reported_as_success(disk: Opener) -> None:
    q = disk()
    with failing(q, "COMMIT", KeyboardInterrupt(), after=True), pytest.raises(KeyboardInterrupt):
        q.send(b"", "k")
    assert at_rest(q)
    assert q.send(b"", "k").seq in (1, 2)
    assert q.check() == []


@pytest.mark.parametrize("memory", [False, True], ids=["disk", "memory"])
@pytest.mark.parametrize("behind", [True, False], ids=["behind the COMMIT", "before it"])
def test_an_interrupt_at_a_commit_costs_nothing(disk: Opener, memory: bool, behind: bool) -> None:
    """Stored messages stay, and an interrupted receive releases what it committed."""
    q = strictq.open(":memory:") if memory else disk()
    fill(q, "precious", 3)
    before = connection_of(q)
    for interrupted in (lambda: q.send(b"", "other"), q.receive):
        with failing(q, "COMMIT", KeyboardInterrupt(), after=behind), pytest.raises(KeyboardInterrupt):
            interrupted()
    assert connection_of(q) is before
    assert [(d.key, d.seq, d.attempt) for d in q.receive()] == [
        *(("precious", n, 1) for n in (1, 2, 3)),
        *((("other", 1, 1),) if behind else ()),
    ]
    assert q.check() == []


def test_an_interrupt_behind_the_commit_of_a_connection_that_is_gone_is_reported_as_it_is(disk: Opener) -> None:
    """A fork in a signal handler leaves the connection like this."""
    q = disk()
    q.send(b"", "k")
    writer = writer_of(q)
    real = writer._db
    assert real is not None

    class Gone:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def execute(self, sql: str, *args: Any) -> Any:
            cursor = real.execute(sql, *args)
            if sql == "COMMIT":
                writer._drop_connection()
                raise KeyboardInterrupt
            return cursor

    writer._db = Gone()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        q.send_many([strictq.Message(b"", key="k")])  # a transaction
    assert at_rest(q)
    assert q.stats().depth == 2
    assert q.check() == []


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "SELECT"])
@pytest.mark.parametrize("error", [apsw.NoMemError("out of memory"), apsw.IOError("disk I/O error")], ids=["memory", "io"])
def test_an_error_of_sqlite_empties_no_queue_in_memory(statement: str, error: apsw.Error) -> None:
    q = strictq.open(":memory:")
    fill(q, "precious", 3)
    with failing(q, statement, error) as failed, suppress(strictq.StrictqError, LookupError), q.transaction(key="other") as tx:
        tx.send(b"", "other")
        tx.run(lambda _db: None)
        if statement == "ROLLBACK":
            raise LookupError
    assert failed
    assert [m.seq for m in q.peek("precious")] == [1, 2, 3]
    assert q.send(b"", "precious").seq == 4


def test_a_claim_whose_answer_was_lost_ends_with_its_deadline(disk: Opener, clock: Any) -> None:
    """No consumer has those tokens. The lanes become ready again by their deadlines, and in order."""
    q = disk()
    fill(q, "k", 3)
    with failing(q, "COMMIT", LOST, after=True), pytest.raises(strictq.StoreError):
        q.receive(ALONE_MAX + 1)  # a single statement reports whether it took effect, so its leases would be returned
    assert q.receive() == []
    clock.advance(31.0)
    assert drain(q) == [("k", 1), ("k", 2), ("k", 3)]
    assert q.check() == []


def test_a_real_fsync_that_fails(tmp_path: Path) -> None:
    """SQLite's own file system reports a failed sync of the WAL at the COMMIT."""
    pytest.importorskip("apsw")
    trouble = threading.Event()

    class File(apsw.VFSFile):
        def __init__(self, base: str, name: Any, flags: Any) -> None:
            super().__init__(base, name, flags)

        def xSync(self, flags: int) -> None:
            if trouble.is_set():
                raise apsw.IOError("no sync")
            super().xSync(flags)

    class Vfs(apsw.VFS):
        def __init__(self) -> None:
            self.name = f"failing-{id(self)}"
            super().__init__(self.name, "")

        def xOpen(self, name: Any, flags: Any) -> File:
            return File("", name, flags)

    vfs = Vfs()
    with strictq.open(tmp_path / "queue", durability="full") as q:
        q.send(b"", "k")
        writer = writer_of(q)
        db = apsw.Connection(str(tmp_path / "queue" / "shard-0000.db"), vfs=vfs.name)
        db.pragma("synchronous", "full")
        db.wal_autocheckpoint(0)
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        writer._drop_connection()
        writer._db = db
        q.send(b"", "k")
        trouble.set()
        with pytest.raises(OutcomeUnknown):
            q.send(b"", "k", dedup_id="d")
        trouble.clear()
        assert writer._db is None
        assert q.send(b"", "k", dedup_id="d").seq == 3
        assert drain(q) == [("k", 1), ("k", 2), ("k", 3)]
        assert q.check() == []
    vfs.unregister()


def test_a_commit_path_that_came_through_a_fork_unprepared_touches_nothing(disk: Opener) -> None:
    """The queue's own guard normally prevents this. Background calls bypass it."""
    q = disk()
    q.send(b"", "k")
    writer = writer_of(q)
    db, writer._pid = writer._db, -1
    try:
        for call in (lambda: shard_of(q).run(lambda tx: None), lambda: shard_of(q).read(lambda db: None)):
            with pytest.raises(strictq.ForkedProcess):
                call()
        assert writer._db is db
    finally:
        writer._pid = os.getpid()


class Counting(Observer):
    def count(self, name: str, n: int, shard: int) -> None:
        """Do nothing: the observer only has to exist."""


def test_what_nobody_watches_is_not_looked_at(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    counts = LaneTotals.counts
    monkeypatch.setattr(LaneTotals, "counts", lambda self: taken.append(self) or counts(self))
    q.send(b"", "k")
    assert taken == []
    with q.observe(Counting()):
        q.send(b"", "k")
    assert len(taken) == 2


def test_a_receive_whose_sync_fails_returns_its_leases(disk: Opener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.open(durability="full").send(b"", "k")
    disk.close()
    clock.reboot()
    q = disk.open(durability="full")

    def fails(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(OutcomeUnknown, match="could not be synced"):
        patch.setattr(layout, "sync_wal", fails)
        q.receive()
    assert q.stats().in_flight == 0
    assert [d.attempt for d in q.receive()] == [1]
