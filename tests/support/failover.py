"""Fail-over campaigns: a primary whose processes are killed, a replica that is promoted, and work that goes on there.

Each fail-over kills every process of the primary at a random moment. Before that, single processes of it and its replicas are
killed and started again. One history has the calls of all primaries, one after the other; a promotion is a "reboot" in it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

import attrs

import strictq
from strictq import NotElected, Promoted
from strictq.replication import promoting
from strictq.replication.replica_home import ReplicaState
from tests.support import history
from tests.support.campaign import EXPECTED, Campaign
from tests.support.forked import forked
from tests.support.history import Event, Invoke, Return, now
from tests.support.recorded import mid_of
from tests.support.replicas import FAST, Receiver, free_port, is_shipped, token_file
from tests.support.running import until
from tests.support.stress_worker import ALL_KEYS, SHORT_LIVED

Kind = Literal["chain", "confirmed", "async"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNCONFIRMED = {"NotConfirmed", "TargetUnavailable", "Fenced"}
ANSWERS = 40
"""So many calls of each worker succeed before the next disturbance."""
FOLD_ROWS = 24
"""A primary is killed before it has seen many messages, so that it folds early."""
STEPS = ("asked", "voted", "reported", "fenced", "applied", "finished", "promoted")


@attrs.define(eq=False)
class Host:
    """A directory that is a replica, and later perhaps the primary. Its process can be killed and started again."""

    home: Path
    forward_to: Host | None = None
    address: str = attrs.field(factory=lambda: f"127.0.0.1:{free_port()}")
    receiver: Receiver | None = None

    @property
    def target(self) -> str:
        return f"tcp://{self.address}"

    def start(self) -> None:
        self.receiver = Receiver(self.home, self.address, forward_to="" if self.forward_to is None else self.forward_to.target)

    def kill(self) -> None:
        if self.receiver is not None:
            self.receiver.kill()
            self.receiver = None

    def restart(self) -> None:
        self.kill()
        self.start()


@attrs.define(eq=False)
class FailoverCampaign(Campaign):
    """See the module.

    Attributes:
        kind: "chain": three members in confirmed mode; "confirmed" and "async": one replica.
        failovers: how many there were.
        lost: sends that fail-overs in asynchronous mode lost, as the report of a merge lists them.
    """

    kind: Kind = "chain"
    failovers: int = 0
    replica_kills: int = 0
    lost: int = 0
    replicas: list[Host] = attrs.Factory(list)
    _primary: Path | None = None
    _names: int = 0
    _offset: int = 0
    _counted: dict[Path, tuple[int, int]] = attrs.Factory(dict)
    _random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.expected = EXPECTED | UNCONFIRMED

    @property
    def queue(self) -> Path:
        return self._primary or self.directory / "stress.strictq"

    @property
    def confirms(self) -> bool:
        return self.kind != "async"

    def written(self, worker: ForkServerProcess) -> int:
        """How many calls of a worker have succeeded: it also writes down those that were refused."""
        total = 0
        for path in self.histories.glob(f"{worker.pid}-*.jsonl"):
            at, count = self._counted.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(at)
                whole, end, _torn = file.read().rpartition(b"\n")
            count += whole.count(b',"ok",')
            self._counted[path] = at + len(whole) + len(end), count
            total += count
        return total

    # ---- hosts

    def _host(self) -> Host:
        self._names += 1
        return Host(self.directory / f"replica-{self._names}")

    def begin(self) -> None:
        """Make the queue and its replicas."""
        self.create()
        first, last = self._host(), self._host()
        self.replicas = [first, last] if self.kind == "chain" else [first]
        self._ship(form=True)

    def _ship(self, *, form: bool = False) -> None:
        """Let the primary ship to the first replica, and that to the last one."""
        if self.kind == "chain":
            first, last = self.replicas
            first.forward_to = last
            last.forward_to = None
        for host in reversed(self.replicas):
            host.restart()
        token = token_file(self.directory)
        timeout = self._random.choice((0.4, 2.0, 10.0))
        with strictq.open(self.queue, durability=self.durability, create=False) as q:
            self._offset = q._storage.now() - q._storage.clock.boot()
            mode: Literal["async", "confirmed"] = "confirmed" if self.confirms else "async"
            q.configure_replication(
                self.replicas[0].target, mode, token_file=token, interval_seconds=FAST, timeout_seconds=timeout
            )
            until(lambda: is_shipped(q), "the first segments")
            if self.kind != "chain":
                return
            targets = [host.target for host in self.replicas]
            if form:
                strictq.members(self.queue, form=targets, token_file=token)
            else:
                until(lambda: self._added(targets[1], token), "the new member")

    def _added(self, target: str, token: Path) -> bool:
        try:
            members = strictq.members(self._home, add=target, token_file=token).members
        except strictq.StrictqError as e:
            if isinstance(e, strictq.Diverged | NotElected):  # it has nothing yet; or a voter is being started
                return False
            raise
        return len(members) == 3

    @property
    def _home(self) -> Path:
        return self.queue

    def abandon(self) -> None:
        super().abandon()
        for host in self.replicas:
            host.kill()

    # ---- what happens to them

    def disturb_and_fail_over(self, *, last: bool) -> None:
        """Work, kill single processes, then all of the primary's, and go on at a replica.

        Args:
            last: the queue there is replicated no more.
        """
        while len(self.workers) < 2:
            self.start()
        self.progress(ANSWERS)
        for _ in range(self._random.randint(0, 2)):
            self._disturb_one()
        time.sleep(self._random.uniform(0.0, 0.2))
        self._fail_over()
        if last:
            for host in self.replicas:
                host.kill()
        else:
            self.replicas.append(self._host())
            self._ship()

    def _disturb_one(self) -> None:
        if self._random.random() < 0.4:
            self.kill(self._random.choice(self.workers))  # perhaps the one that ships
            self.start()
        else:
            host = self._random.choice(self.replicas)
            host.kill()
            self.replica_kills += 1
            time.sleep(self._random.choice((0.0, 0.0, 0.6)))
            host.start()
        self.progress(ANSWERS)

    def _fail_over(self) -> None:
        beside = self.kind == "confirmed" and self._random.random() < 0.3
        if not beside:
            self._kill_primary()
        old = self.queue
        winner = self._random.choice(self.replicas)
        if self._random.random() < 0.5:
            winner.kill()
        dead = not beside and self._random.random() < 0.5
        try:
            self._promote(winner, force=beside, dead=dead)
        except NotElected:
            winner = next(host for host in self.replicas if host is not winner)  # the other one has more
            self._promote(winner, force=beside, dead=dead)
        if beside:
            time.sleep(self._random.uniform(0.0, 0.3))
            self._kill_primary()
        winner.kill()
        if not self.confirms:
            self._forget_what_was_lost(winner, old)
        if dead:
            self._note("reboot")
        self.replicas.remove(winner)
        self._primary = winner.home
        self.failovers += 1

    def _kill_primary(self) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in list(self.workers):
            self.kill(worker)

    def _promote(self, host: Host, *, force: bool, dead: bool) -> None:
        token = token_file(self.directory)
        if self._random.random() < 0.3:
            step = self._random.choice(STEPS)
            forked(Path(os.devnull), promote, host.home, token, force=force, dead=dead, dies=step).join()
        done = promote(host.home, token, force=force, dead=dead)
        assert done.confirmed is self.confirms, done

    def _note(self, verb: str) -> None:
        self._names += 1
        at = now()
        events: list[Event] = [Invoke(self._names, at, 0, 0, verb, []), Return(self._names, at, verb, "ok", [])]
        history.write(self.histories / "promotions.jsonl", events)

    # ---- asynchronous mode

    def _forget_what_was_lost(self, winner: Host, old: Path) -> None:
        """What the primary answered after the replica's last cut never happened. A merge reports its sends."""
        state = ReplicaState.read(winner.home)
        assert state.applied is not None
        at = (state.applied.x - self._offset) * 1000
        after = cut_histories(self.histories, at)
        with strictq.open(old, read_only=True) as q:
            there = {(key, m.seq): mid_of(m.body) for key in ALL_KEYS for m in q.peek(key, 100_000)}
        found = strictq.merge(old, winner.home, dry_run=True).sent
        listed = {there[s.key, s.seq] for s in found if s.seq is not None and (s.key, s.seq) in there}
        answered = {e.call for e in history.read_all(self.histories) if isinstance(e, Return)}
        open_calls = [e for e in history.read_all(self.histories) if isinstance(e, Invoke) and e.call not in answered]
        assert listed <= set(_mids(open_calls)) | set(_mids(after)), "a merge lists what was answered before the cut"
        lost = {mid for (key, _), mid in there.items() if key != SHORT_LIVED} & set(_mids(after))
        assert lost <= listed, "a merge does not list what was lost"
        self.lost += len(listed)


def promote(home: Path, token: Path, *, force: bool, dead: bool, dies: str | None = None) -> Promoted:
    """Promote a replica, whose primary was heard of a moment ago; kill this process at a step."""

    def kill(step: str) -> None:
        if step == dies:
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(promoting, "ALIVE_SECONDS", 0.0):
        return strictq.promote(home, token_file=token, force=force, dead=dead, on_step=kill)


def _mids(events: Iterable[Event]) -> Iterator[str]:
    """The messages that these calls send."""
    for event in events:
        if isinstance(event, Invoke) and event.verb in ("send", "transact"):
            for item in event.items:
                yield from [item.mid] if event.verb == "send" else [sent.mid for sent in item.sends]


def cut_histories(directory: Path, at: int) -> list[Event]:
    """Let the histories end at a moment: calls that had not returned by then may or may not have happened.

    Returns what was after it.
    """
    after: list[Event] = []
    for path in directory.glob("*.jsonl"):
        events = list(history.read(path))
        kept = [event for event in events if event.at <= at]
        if len(kept) < len(events):
            after += [event for event in events if event.at > at]
            path.unlink()
            if kept:
                history.write(path, kept)
    return after


def fail_over(directory: Path, *, seed: int, kind: Kind, times: int, **options: Any) -> tuple[FailoverCampaign, list[Event]]:
    """A campaign with so many fail-overs, and its history, which the checker found right."""
    campaign = FailoverCampaign(directory, seed=seed, kind=kind, window=FOLD_ROWS, **options)
    try:
        campaign.begin()
        for n in range(times):
            campaign.disturb_and_fail_over(last=n == times - 1)
    finally:
        campaign.abandon()
    return campaign, campaign.settle()


def numbers(campaign: FailoverCampaign, events: list[Event]) -> Counter[str]:
    """What it did."""
    returned = {e.call for e in events if isinstance(e, Return)}
    return Counter({
        "fail-overs": campaign.failovers,
        f"of {campaign.kind}": campaign.failovers,
        "kills of the primary's processes": campaign.kills,
        "kills of replicas": campaign.replica_kills,
        "checked events": len(events),
        "calls without an answer": sum(1 for e in events if isinstance(e, Invoke) and e.call not in returned),
        "not confirmed": sum(1 for e in events if isinstance(e, Return) and e.outcome in UNCONFIRMED),
        "sends lost in asynchronous mode": campaign.lost,
    })  # fmt: skip
