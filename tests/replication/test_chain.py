"""A chain of three: what is confirmed is on all of it, and a majority of its members elects the next primary."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import strictq
from strictq import (
    ConfigError,
    Diverged,
    InvalidArgument,
    NotConfirmed,
    NotElected,
    Queue,
    QueueNotFound,
    Replica,
    TargetUnavailable,
)
from strictq.replication import forwarding, replica_log
from strictq.replication.forwarding import Forwarding
from strictq.replication.membership import Votes
from strictq.replication.places import replica_at
from strictq.replication.received import ReceivedSegments
from strictq.replication.replica_home import ReplicaState
from strictq.replication.segment import decode, encode, hash_of
from strictq.replication.target import Beat
from strictq.replication.voting import Ballot, Membership, Question, VoterState
from tests.support.replicas import (
    FAST,
    Receiver,
    bodies,
    forget_contact,
    free_port,
    is_shipped,
    segments,
    ship_to,
    token_file,
)
from tests.support.running import PATIENCE_SECONDS, ROOT, until
from tests.support.shipping import ship_once


class Chain:
    """A queue, its replica B, and the replica C behind that, in confirmed mode."""

    def __init__(self, place: Path) -> None:
        self.token = token_file(place)
        self.b_home, self.c_home = place / "b", place / "c"
        self.b_address, self.c_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.c: Replica | None = None
        self.b: Replica | None = None
        self.start_c()
        self.start_b()
        self.q = strictq.open(place / "a", durability="process", shards=2)
        self.q.configure_replication(
            f"tcp://{self.b_address}", "confirmed", token_file=self.token, interval_seconds=FAST, timeout_seconds=20.0
        )

    def impatient(self) -> None:
        """Calls wait half a second for the replicas."""
        self.q.configure_replication(
            f"tcp://{self.b_address}", "confirmed", token_file=self.token, interval_seconds=FAST, timeout_seconds=0.5
        )

    def start_b(self) -> None:
        self.b = Replica(self.b_home, listen=self.b_address, token_file=self.token, forward_to=f"tcp://{self.c_address}")

    def start_c(self) -> None:
        self.c = Replica(self.c_home, listen=self.c_address, token_file=self.token)

    def stop_b(self) -> None:
        if self.b is not None:
            self.b.close()
            self.b = None

    def stop_c(self) -> None:
        if self.c is not None:
            self.c.close()
            self.c = None

    def form(self) -> None:
        found = strictq.members(self.q.path, form=[f"tcp://{self.b_address}", f"tcp://{self.c_address}"], token_file=self.token)
        assert len(found.members) == 3

    def lose_the_primary(self) -> None:
        self.q.close()
        for home in (self.b_home, self.c_home):
            forget_contact(home)

    def close(self) -> None:
        self.q.close()
        self.stop_b()
        self.stop_c()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    made = Chain(tmp_path)
    yield made
    made.close()


def expected(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def has(home: Path, count: int) -> bool:
    """Has the replica applied so many messages?"""
    try:
        return bodies(home) == expected(count)
    except QueueNotFound:  # it has no whole state yet
        return False


def last_error(q: Queue) -> str:
    found = q.replication()
    return "" if found is None or found.last_error is None else found.last_error


def fill(q: Queue, first: int, count: int) -> None:
    for n in range(first, first + count):
        q.send(b"%d" % n, key="k")


def test_what_is_confirmed_is_on_the_last_replica(chain: Chain) -> None:
    fill(chain.q, 0, 5)
    for home in (chain.b_home, chain.c_home):
        until(lambda home=home: has(home, 5))  # type: ignore[misc]


def test_without_the_last_replica_nothing_is_confirmed(chain: Chain) -> None:
    fill(chain.q, 0, 3)
    chain.impatient()
    chain.stop_c()
    with pytest.raises(NotConfirmed):
        chain.q.send(b"3", key="k")
    chain.start_c()
    until(lambda: has(chain.c_home, 4))
    chain.q.send(b"4", key="k")
    assert chain.q.stats().depth == 5


def test_the_middle_is_restarted_and_the_end_is_made_anew(chain: Chain) -> None:
    fill(chain.q, 0, 3)
    chain.stop_b()
    chain.start_b()
    fill(chain.q, 3, 3)
    until(lambda: has(chain.c_home, 6))
    chain.stop_c()
    for path in sorted(chain.c_home.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    chain.c_home.rmdir()
    chain.start_c()  # it lost its disk: the segments that B has no more are shipped as a new base
    fill(chain.q, 6, 3)
    until(lambda: has(chain.c_home, 9))


def test_a_middle_that_lost_its_next_replica_confirms_nothing(chain: Chain) -> None:
    """It was started without `forward_to`, and the members have not dropped the replica behind it."""
    fill(chain.q, 0, 2)
    chain.form()
    chain.impatient()
    chain.stop_b()
    chain.b = Replica(chain.b_home, listen=chain.b_address, token_file=chain.token)
    with pytest.raises(NotConfirmed):
        chain.q.send(b"2", key="k")
    until(lambda: "without forward_to" in last_error(chain.q))
    assert "--drop TARGET" in last_error(chain.q)
    chain.stop_b()
    chain.start_b()
    until(lambda: sends(chain.q, 3))
    until(lambda: has(chain.c_home, 4))
    chain.stop_b()
    chain.stop_c()
    chain.b = Replica(chain.b_home, listen=chain.b_address, token_file=chain.token)
    strictq.members(chain.q.path, drop=f"tcp://{chain.c_address}", token_file=chain.token)
    until(lambda: sends(chain.q, 4))  # without another start
    until(lambda: has(chain.b_home, 5))


def test_a_majority_elects_and_the_other_is_refused(chain: Chain) -> None:
    fill(chain.q, 0, 5)
    chain.form()
    chain.lose_the_primary()
    chain.stop_c()
    with pytest.raises(NotElected):
        strictq.promote(chain.b_home, token_file=chain.token)  # without A and C
    chain.start_c()
    done = strictq.promote(chain.c_home, token_file=chain.token)
    with strictq.open(chain.c_home) as r:
        assert [d.body for d in r.receive(10)] == expected(5)
        assert r.check() == []
    assert done.term == 2
    with pytest.raises(NotElected):
        strictq.promote(chain.b_home, token_file=chain.token)


def test_a_new_end_behind_a_survivor_follows_the_elected_primary(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the survivor knows of it before the new primary ships: the old history is not passed on any more."""
    fill(chain.q, 0, 3)
    chain.form()
    chain.lose_the_primary()
    strictq.promote(chain.c_home, token_file=chain.token)
    monkeypatch.setattr(ReceivedSegments, "finish", lambda _self: None)
    chain.stop_b()  # as if it was killed: its log has the old history
    asked, real = threading.Event(), Forwarding._step

    def step(self: Forwarding) -> None:
        try:
            real(self)
        finally:
            if not self._something:
                asked.set()

    monkeypatch.setattr(Forwarding, "_step", step)
    with Replica(tmp_path / "d", token_file=chain.token) as end:
        chain.b = Replica(chain.b_home, listen=chain.b_address, token_file=chain.token, forward_to=f"tcp://{end.address}")
        assert asked.wait(PATIENCE_SECONDS)
        with strictq.open(chain.c_home, durability="process") as q:
            q.configure_replication(
                f"tcp://{chain.b_address}", "confirmed", token_file=chain.token, interval_seconds=FAST, timeout_seconds=20.0
            )
            fill(q, 3, 2)
            until(lambda: has(tmp_path / "d", 5))
            done = strictq.members(chain.c_home, add=f"tcp://{end.address}", token_file=chain.token)
    assert len(done.members) == 3


def test_a_member_that_was_dropped_is_never_elected(chain: Chain) -> None:
    fill(chain.q, 0, 2)
    chain.form()
    left = strictq.members(chain.q.path, drop=f"tcp://{chain.c_address}", token_file=chain.token)
    assert len(left.members) == 2
    chain.lose_the_primary()
    with pytest.raises(NotElected):
        strictq.promote(chain.c_home, token_file=chain.token)


@pytest.mark.parametrize(("code", "permitted"), [(0, True), (1, False)])
def test_a_decider_decides_in_place_of_the_members(chain: Chain, tmp_path: Path, code: int, permitted: bool) -> None:
    fill(chain.q, 0, 2)
    chain.form()
    chain.lose_the_primary()
    chain.stop_b()
    program = tmp_path / "decide.py"
    program.write_text(f"import sys\nassert len(sys.argv) == 4\nsys.exit({code})\n", encoding="ascii")
    decider = [sys.executable, str(program)]
    if not permitted:
        with pytest.raises(NotElected):
            strictq.promote(chain.c_home, token_file=chain.token, decider=decider)
        return
    strictq.promote(chain.c_home, token_file=chain.token, decider=decider)
    with strictq.open(chain.c_home) as r:
        assert r.stats().depth == 2


def test_bad_members_change_nothing(chain: Chain) -> None:
    with pytest.raises(ConfigError):
        strictq.members(chain.q.path, token_file=chain.token)
    with pytest.raises(InvalidArgument, match="one of form, add and drop"):
        strictq.members(chain.q.path, add="tcp://127.0.0.1:1", drop="tcp://127.0.0.1:2", token_file=chain.token)
    fill(chain.q, 0, 1)
    chain.form()
    with pytest.raises(strictq.StrictqError):
        strictq.members(chain.q.path, drop="tcp://127.0.0.1:1", token_file=chain.token)
    assert len(strictq.members(chain.q.path, token_file=chain.token).members) == 3


# ---- what the next replica must have


def test_what_is_there_already_waits_for_the_next_replica(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipper that asks where to go on must not take for confirmed what the middle alone has."""
    fill(chain.q, 0, 2)
    chain.impatient()
    monkeypatch.setattr(forwarding, "NEXT_SECONDS", 0.2)
    chain.stop_c()
    with pytest.raises(NotConfirmed):
        chain.q.send(b"2", key="k")
    assert chain.b is not None
    with pytest.raises(TargetUnavailable):
        chain.b.receiving().head()
    chain.start_c()
    until(lambda: sends(chain.q, 3))
    assert chain.b.receiving().head() is not None


def test_the_next_replica_knows_first_that_calls_do_not_wait(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(chain.q, 0, 2)
    monkeypatch.setattr(forwarding, "NEXT_SECONDS", 0.2)
    chain.stop_c()
    assert chain.b is not None
    receiving = chain.b.receiving()
    state = receiving.state

    def beat(*, confirmed: bool, generation: int) -> None:
        receiving.beat(Beat(state.queue_id, state.history_id, state.term, 0, confirmed, generation))

    for confirmed, generation in ((True, state.generation), (False, state.generation + 1)):
        with pytest.raises(TargetUnavailable):
            beat(confirmed=confirmed, generation=generation)
        assert ReplicaState.read(chain.b_home).confirmed
    chain.start_c()
    until(lambda: chain.b is None or chain.b.error is None)
    chain.q.configure_replication(f"tcp://{chain.b_address}", token_file=chain.token, interval_seconds=FAST)
    assert not ReplicaState.read(chain.b_home).confirmed
    assert not ReplicaState.read(chain.c_home).confirmed


def test_a_next_replica_that_was_away_gets_the_rest_of_the_log(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no second base: what it lacks is kept for it."""
    fill(chain.q, 0, 1)
    chain.q.configure_replication(f"tcp://{chain.b_address}", token_file=chain.token, interval_seconds=FAST)
    monkeypatch.setattr(replica_log, "ROTATE_BYTES", 1)
    until(lambda: has(chain.c_home, 1))
    chain.stop_c()
    planned: list[int | None] = []
    real = Forwarding._goes_on_from

    def goes_on_from(self: Forwarding, n: int, digest: str) -> int | None:
        planned.append(real(self, n, digest))
        return planned[-1]

    monkeypatch.setattr(Forwarding, "_goes_on_from", goes_on_from)
    for n in range(1, 6):
        fill(chain.q, n, 1)
        until(lambda n=n: has(chain.b_home, n + 1))  # type: ignore[misc]
    chain.start_c()
    until(lambda: has(chain.c_home, 6))
    assert planned
    assert None not in planned


def test_what_was_shipped_before_calls_waited_is_confirmed_by_the_last_replica_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The middle learns by a heartbeat that calls wait for both. Until that returns, it confirms alone."""
    monkeypatch.setattr(forwarding, "NEXT_SECONDS", 0.2)
    token = token_file(tmp_path)
    with (
        Replica(tmp_path / "b", token_file=token, forward_to=f"tcp://127.0.0.1:{free_port()}") as b,
        strictq.open(tmp_path / "a", durability="process") as q,
    ):
        ship_to(q, b.address, token)
        q.send(b"1", key="k", dedup_id="1")
        until(lambda: is_shipped(q))
        q.configure_replication(f"tcp://{b.address}", "confirmed", token_file=token, interval_seconds=FAST, timeout_seconds=2.0)
        for _ in range(2):
            with pytest.raises((NotConfirmed, TargetUnavailable)):
                q.send(b"1", key="k", dedup_id="1")  # it changes nothing, and still waits


def test_nothing_of_a_superseded_history_is_forwarded(tmp_path: Path) -> None:
    """A replica that follows an elected primary, and was restarted, has segments of both histories in its log."""
    token = token_file(tmp_path)
    with strictq.open(tmp_path / "q", durability="process") as q:
        for n in range(2):
            q.send(b"%d" % n, key="k")
            ship_once(q, tmp_path / "t")
    old = segments(tmp_path / "t")
    header, pages = decode(old[0], 0)
    images = [image for _, of in pages for image in of]
    newer = attrs.evolve(header, history_id="e" * 32, n=2, first=2, base=2, prev=hash_of(old[1]))
    home = tmp_path / "c"
    c = ReceivedSegments(home, strictq.SystemClock())
    c.claim(header.queue_id, header.history_id, "")
    for n, data in enumerate(old):
        c.put(n, data)
    votes = Votes(home)
    with votes.held() as voter:
        own = voter.id
    members = ((own, "tcp://x:1"), ("other", ""))
    decided = Membership(1, 1, header.queue_id, members, "other", newer.history_id)
    assert c.answered(Question("learn", decided)).yes
    c.claim(header.queue_id, newer.history_id, "")
    c.put(2, encode(newer, images))
    c.leave()  # as if killed: its log stays
    with Replica(tmp_path / "d", token_file=token) as d:
        behind = replica_at(f"tcp://{d.address}", token_file=token, authority=None, key=b"", plaintext=False)
        c = ReceivedSegments(home, strictq.SystemClock(), next_replica=behind)
        try:
            until(lambda: (found := d.receiving().head()) is not None and found.n == 2)
            assert c.trouble is None
            assert d.receiving().state.history_id == newer.history_id
        finally:
            c.close()


def test_a_next_replica_of_another_chain_is_not_written_to() -> None:
    forward = Forwarding(None, lambda _place: b"", ReplicaState, lambda _step: None)  # type: ignore[arg-type]
    forward.loaded((4, "d"), [])
    assert (forward._goes_on_from(4, "d"), forward._goes_on_from(2, "b")) == (4, None)
    with pytest.raises(Diverged, match="has more than this replica"):
        forward._goes_on_from(5, "e")
    with pytest.raises(Diverged, match="has another segment 4"):
        forward._goes_on_from(4, "other")


# ---- votes


def voter_of(home: Path) -> VoterState:
    found = Votes(home).look()
    assert found is not None
    return found


def elected(decided: Membership, host: str) -> Membership:
    others = tuple(each for each in decided.members if each[0] != decided.primary)
    return Membership(decided.version + 1, decided.term + 1, decided.queue_id, others, host, "e" * 32)


def test_behind_a_vote_the_old_primary_confirms_nothing(chain: Chain) -> None:
    fill(chain.q, 0, 2)
    chain.form()
    chain.impatient()
    assert chain.b is not None
    decided = voter_of(chain.b_home).decided
    assert decided is not None
    other = voter_of(chain.c_home).id
    ballot = Ballot(1, other)
    assert chain.b.answered(Question("accept", decided, ballot, elected(decided, other))).yes
    assert voter_of(chain.b_home).accepted is not None
    with pytest.raises(NotConfirmed):
        chain.q.send(b"2", key="k")
    chain.b.answered(Question("learn", elected(decided, other)))
    until(lambda: (found := chain.q.replication()) is not None and found.mode == "fenced")


def test_a_member_that_was_dropped_does_not_follow(chain: Chain) -> None:
    fill(chain.q, 0, 2)
    chain.form()
    strictq.members(chain.q.path, drop=f"tcp://{chain.c_address}", token_file=chain.token)
    decided = voter_of(chain.b_home).decided
    assert decided is not None
    later = elected(decided, voter_of(chain.b_home).id)
    assert chain.c is not None
    chain.c.answered(Question("learn", later))
    with pytest.raises(Diverged, match="another history"):
        chain.c.receiving().claim(later.queue_id, later.history_id, "")


def test_the_elected_host_fetches_what_it_lacks(chain: Chain) -> None:
    fill(chain.q, 0, 2)
    chain.form()
    chain.q.configure_replication(f"tcp://{chain.b_address}", token_file=chain.token, interval_seconds=FAST)
    until(lambda: has(chain.c_home, 2))
    chain.stop_c()
    fill(chain.q, 2, 3)
    until(lambda: has(chain.b_home, 5))
    chain.lose_the_primary()
    chain.stop_b()
    chain.start_c()
    with Replica(chain.b_home, listen=chain.b_address, token_file=chain.token):  # it ships on to no one
        strictq.promote(chain.c_home, token_file=chain.token)
    assert bodies(chain.c_home) == expected(5)


# ---- kill -9

SENDER = """
import sys
import strictq

with strictq.open(sys.argv[1]) as q:
    for n in range(int(sys.argv[2]), 1_000_000):
        q.send(b"%d" % n, key="k")
        print(n, flush=True)
"""


def started(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )


def received_by(chain: Chain, place: str) -> Receiver:
    """The replica B or C in a process of its own."""
    if place == "middle":
        return Receiver(chain.b_home, chain.b_address, forward_to=f"tcp://{chain.c_address}")
    return Receiver(chain.c_home, chain.c_address)


def sends(q: Queue, n: int) -> bool:
    try:
        q.send(b"%d" % n, key="k", dedup_id=str(n))
    except strictq.StrictqError as e:
        if not e.transient:
            raise
        return False
    return True


@pytest.mark.in_turn
@pytest.mark.parametrize("place", ["middle", "end"])
def test_a_replica_that_is_killed_loses_nothing_that_was_confirmed(chain: Chain, place: str) -> None:
    if place == "middle":
        chain.stop_b()
    else:
        chain.stop_c()
    process = received_by(chain, place)
    chain.impatient()
    moments = random.Random(place)
    sent = 0
    for _ in range(4):
        killer = threading.Timer(moments.uniform(0.0, 0.1), process.signal, (signal.SIGKILL,))
        killer.start()
        while sent % 30 != 29 or process.alive:
            try:
                chain.q.send(b"%d" % sent, key="k", dedup_id=str(sent))
            except strictq.StrictqError as e:
                if not e.transient:
                    raise
                if not process.alive:
                    break
                time.sleep(0.02)  # it was started again, and is not heard of yet
                continue
            sent += 1
        killer.join()
        process.kill()
        process = received_by(chain, place)
    try:
        until(lambda: sends(chain.q, sent))  # what was not confirmed is repeated
        until(lambda: has(chain.c_home, sent + 1))
    finally:
        process.kill()


def test_a_primary_that_is_killed_is_followed_by_one_with_all_that_was_confirmed(chain: Chain) -> None:
    fill(chain.q, 0, 2)
    chain.form()
    chain.q.close()
    process = started(SENDER, chain.q.path, "2")
    assert process.stdout is not None
    confirmed = 1
    for line in process.stdout:
        confirmed = int(line)
        if confirmed > 40:
            process.send_signal(signal.SIGKILL)
            break
    rest = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    confirmed = max([confirmed, *map(int, rest)])
    chain.lose_the_primary()
    strictq.promote(chain.c_home, token_file=chain.token)
    with strictq.open(chain.c_home) as r:
        found = [d.body for d in r.receive(10_000)]
        assert r.check() == []
    assert found[: confirmed + 1] == expected(confirmed + 1)
    assert found == expected(len(found))
