"""The attacks of docs/explanation/reliability.md, for a given time or count, with progress and totals.

    python -m tests.campaigns powercut --minutes 60 --jobs 2     # power cuts
    python -m tests.campaigns kills --count 1000 --seed 100      # until so many are done
    python -m tests.campaigns --minutes 60                       # all of them, an equal time each

Each attack is a sequence of rounds. Each round follows from its seed: --seed, the next number, and so on. Every line has the
totals so far; the last line of each attack also has the seeds. A failed round is reported with its seed. The others continue, and
the exit code is 1. To repeat a round:

    python -m tests.campaigns powercut --seed 17 --rounds 1

`replicas` ships one program a round, and cuts the power of its replica, of its target, and of a queue that is restored.
`sqskills` kills the server of the SQS endpoint every three seconds, `sqsfuzz` sends it 1,000 requests a round.
`remote` kills two workers on an endpoint, and the endpoint; answers are delayed by 0, 15 or 50 ms, and 5 % are cut off.
`poison` has a message there that always fails, or kills its process.
`moves` kills and stops nine processes on one queue, two of which move its ranges.
`forward` kills two forwarders to an endpoint, and the endpoint; 5 % of the answers are cut off.
`forwardcuts` cuts the power of a forwarder's queue.
`enumerate` has a last round, with which every sequence of five steps was seen; `enumeratemoves`, of four, with moves of keys.
Kills and stress do not repeat themselves: --keep DIR keeps the files of a round that failed, with every worker's history.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import attrs

from strictq.testing import sqs_endpoint
from tests.server.sqs.playing import JSON, Endpoint
from tests.support import failover, flips, lane_walk, replica_cuts, running, target_cuts
from tests.support.campaign import Campaign, tally
from tests.support.faults import CODES, fail_some, fresh
from tests.support.forward_chaos import ForwardChaos
from tests.support.forwarded_cuts import cut_the_power
from tests.support.powercut_campaign import Tally, cut_again
from tests.support.powercut_campaign import campaign as cut
from tests.support.powercut_run import KINDS, record
from tests.support.range_chaos import RangeChaos
from tests.support.remote_chaos import RemoteChaos
from tests.support.running import fast_directory
from tests.support.shipped_runs import ship
from tests.support.small_scope import Enumeration
from tests.support.sqs_chaos import Chaos
from tests.support.sqs_fuzz import fuzz
from tests.support.witness import Witness

TELL_SECONDS: Final = 30.0
WINDOWS: Final = 200, 1_000, 5_000
"""After so many rows workers fold the journal. Another process opens a copy after each fold, which takes longer than the work."""
ROUND_SECONDS: Final = 15.0
"""How long workers in processes of their own are at it in one round: histories are checked in memory."""
PATIENCE_SECONDS: Final = 600.0
CALLS: Final = 6
FLIPS: Final = 40
FUZZED: Final = 1000
FAILOVERS: Final = 4
STEPS: Final = 5
ROUND_TRIPS: Final = 0.0, 0.015, 0.05
POISONS: Final = [(limit, workers, dies) for limit in (3, 5, 10) for workers in (1, 3) for dies in (False, True)]
BEGINNINGS: Final = 24
"""So many sequences of two steps are not the same but for names. `MOVING_BEGINNINGS`: on two shards, with moves."""
MOVING_BEGINNINGS: Final = 45
Numbers = Counter[str]


def powercut(seed: int, place: Path) -> Numbers:
    """A recorded program, and images of it; some of them opened, recorded again, and cut a second time."""
    level, shards = KINDS[seed % len(KINDS)]
    done = Tally()
    with closing(Witness(place)) as other:
        run = record(fresh(place), seed=seed, level=level, shards=shards, steps=50, witness=other)
    done += cut(run, place / "image", seed=seed, per_point=12)
    run = record(fresh(place), seed=seed, level=level, shards=shards, steps=25)
    again = cut_again(run, place / "image", seed=seed, images=6, per_point=12, every=1)
    done += again
    return Counter({
        "images": done.images, "of a second cut": again.images, "files opened": done.files, "queues drained": done.queues,
        **{f"with {mode}": n for mode, n in done.modes.items()},
    })  # fmt: skip


def faults(seed: int, place: Path) -> Numbers:
    """Calls of one kind that fail under a program."""
    fault = list(CODES)[seed % len(CODES)]
    done, fired = fail_some(place, fault, seed=seed, calls=CALLS)
    return Counter({"points": done, "reached": fired})


def kills(seed: int, place: Path) -> Numbers:
    """Processes at work on one queue, killed and stopped past their leases, one after the other."""
    return _processes(seed, place, lambda c: c.disturb(processes=3, seconds=ROUND_SECONDS))


def stress(seed: int, place: Path) -> Numbers:
    """Threads of processes that do everything at once, undisturbed."""

    def work(it: Campaign) -> None:
        it.threads = 3
        for _ in range(3):
            it.start()
        end = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < end:
            it.progress()

    return _processes(seed, place, work)


def sharing(seed: int, place: Path) -> Numbers:
    """Consumers that divide four shards, hang and die, while limits change, and lanes are sidelined and return."""
    seen: Numbers = Counter()

    def work(it: Campaign) -> None:
        it.shards, it.affinities, it.witnessed = 4, ("prefer", "own"), False
        it.create()
        seen.update(it.disturb_sharing(processes=3, seconds=ROUND_SECONDS))

    return _processes(seed, place, work, create=False) + Counter({"changes": seen["changes"]})


def _processes(seed: int, place: Path, work: Callable[[Campaign], None], *, create: bool = True) -> Numbers:
    level, shards = KINDS[seed % len(KINDS)]
    directory, window = fresh(place), WINDOWS[seed // len(KINDS) % len(WINDOWS)]
    it = Campaign(directory, shards, level, threads=1 + seed % 2, seed=seed, witnessed=True, window=window)
    try:
        if create:
            it.create()
        work(it)
        it.stop()
    finally:
        it.abandon()
    events = it.settle()
    counts = tally(events)
    assert all(counts[verb] for verb in ("send", "receive", "ack", "transact")), counts
    return Counter(
        {"kills": it.kills, "stops": it.stops, "checked events": len(events), "calls without an answer": counts["lost"]}
    )


def failovers(seed: int, place: Path) -> Numbers:
    """Primaries that are killed, one after the other, and work that goes on at a replica that was promoted."""
    kind = failover.KINDS[seed % len(failover.KINDS)]
    made = failover.fail_over(
        fresh(place), seed=seed, kind=kind, times=FAILOVERS, shards=1 + seed % 4, threads=1 + seed % 2, witnessed=True
    )
    return failover.numbers(*made)


def replicas(seed: int, place: Path) -> Numbers:
    """A target, a replica and a restore, each recorded, and images of them. Some replicas are cut a second time."""
    with closing(Witness(place)) as other:
        run = ship(fresh(place), seed=seed, witness=other)
    made = replica_cuts.record(place / "recorded-replica", run, seed=seed)
    judge = replica_cuts.ReplicaJudge(place / "image", run)
    judge.judge(made)
    again = replica_cuts.cut_again(judge, made, place / "again", seed=seed, times=3)
    target = target_cuts.TargetJudge(place / "image", run)
    target.judge(every=3)
    restored = target_cuts.judge_restored(target_cuts.record_restore(place / "work", run), place / "image")
    images = judge.images + target.images + restored
    return Counter({
        "images": images.total(), "of replicas": judge.images.total(), "of a second cut": again, "promotions": judge.promotions,
        "of targets": target.images.total(), "of restores": restored.total(),
        **{f"with {mode}": n for mode, n in images.items()},
    })  # fmt: skip


def flip_bits(seed: int, place: Path) -> Numbers:
    """One bit, in copies of a closed queue."""
    name, checkpointed, durability = flips.FILES[seed % len(flips.FILES)]
    made = flips.original(fresh(place), checkpointed=checkpointed, durability=durability)
    reported = flips.flip_some(made, name, random.Random(seed), FLIPS)
    return Counter({"flips": FLIPS, "reported": reported})


def sqs_kills(seed: int, place: Path) -> Numbers:
    """Consume through the SQS endpoint while its server is killed; in every second round consumers open the queue, too."""
    chaos = Chaos(place / "queues", seed, consumers=8, groups=20 + seed % 80, natives=2 * (seed % 2))
    problems = chaos.run(ROUND_SECONDS, 3.0)
    assert not problems, problems
    return Counter({"kills": chaos.kills, "messages": len(chaos.history.sent), "receives": len(chaos.history.receives)})


def sqs_requests(seed: int, place: Path) -> Numbers:
    """Send random requests of both protocols to the SQS endpoint, in memory or on disk."""
    with sqs_endpoint(place if seed % 2 else None) as server, Endpoint(server.url, JSON, server.clock.advance) as endpoint:
        found = fuzz(endpoint, FUZZED, seed)
    assert not found.failures, found.failures
    return Counter({"requests": sum(found.statuses.values()), "refused": sum(found.statuses.values()) - found.statuses[200]})


def remote(seed: int, place: Path) -> Numbers:
    """Two workers on an SQS endpoint, killed 12 times and stopped once past their leases, and the endpoint, killed 8 times.

    It is down once for longer than a lease. One handler in a hundred takes longer than a lease.
    """
    chaos = RemoteChaos(fresh(place), seed, round_trip=ROUND_TRIPS[seed % len(ROUND_TRIPS)], long=0.01)
    problems = chaos.run(kills=7, stops=1, outages=1)
    assert not problems, problems
    return Counter({
        "kills": chaos.worker_kills + chaos.kills, "of the endpoint": chaos.kills, "stops": len(chaos.stops),
        "messages": len(chaos.sent), "answers cut off": chaos.cuts,
    })  # fmt: skip


def forward(seed: int, place: Path) -> Numbers:
    """Two forwarders, killed 12 times, and their endpoint, killed 5 times. A request has one message of a key, or ten."""
    chaos = ForwardChaos(fresh(place), seed, per_key=1 if seed % 2 else None)
    problems = chaos.run()
    assert not problems, problems
    return Counter({
        "kills": chaos.forwarder_kills + chaos.kills, "of the endpoint": chaos.kills, "messages": chaos.groups * chaos.messages,
        "answers cut off": chaos.cuts,
    })  # fmt: skip


def forwardcuts(seed: int, place: Path) -> Numbers:
    """A queue that is forwarded, and power cuts at all moments."""
    return Counter({"images": cut_the_power(fresh(place), seed)})


def moves(seed: int, place: Path) -> Numbers:
    """Processes of every kind that are killed and stopped while ranges move, are cancelled, and are backed up."""
    chaos = RangeChaos(fresh(place), ROUND_SECONDS, seed, KINDS[seed % len(KINDS)][0])
    chaos.run()
    return Counter({"kills": chaos.kills, "stops": chaos.stops, "moves": chaos.moves, "deliveries": chaos.deliveries})


def poison(seed: int, place: Path) -> Numbers:
    """A message that always fails, or kills its process, on an SQS queue with a redrive policy."""
    limit, workers, dies = POISONS[seed % len(POISONS)]
    chaos = RemoteChaos(fresh(place), seed, workers=workers, groups=3, messages=20, cut=0.0, failures=0.0, lease_seconds=2)
    problems = chaos.poison(limit, dies=dies)
    assert not problems, (limit, workers, dies, problems)
    return Counter({
        "queues": 1, "messages": len(chaos.sent), "kills": chaos.worker_kills,
        "innocent dead letters below the promised limit": chaos.innocent,
    })  # fmt: skip


def enumerate_steps(seed: int, place: Path, steps: int = STEPS, shards: int = 1, of_two: int = BEGINNINGS) -> Numbers:
    """All sequences of so many steps, and of fewer, that begin with the same two. On two shards, keys move."""
    enumeration = Enumeration(fresh(place), shards=shards)
    try:
        beginnings = enumeration.beginnings(2)
        assert len(beginnings) == of_two
        if seed > 1:
            enumeration.done.clear()  # they were counted in the first round
        if seed <= of_two:
            enumeration.all_below(beginnings[seed - 1], steps)
    finally:
        enumeration.close()
    return enumeration.done


def walks(seed: int, place: Path) -> Numbers:
    """Two openers of one shard, interrupted and restarted, against a naive model of its journal."""
    done = lane_walk.walk(seed, place)
    return Counter({"steps": done.total(), "interrupted": done["interrupted"]})


@attrs.frozen
class Attack:
    """What a round of it does, and which of its numbers counts.

    Attributes:
        rounds: there are no more than the seeds 1 to this; None: there are always more.
    """

    run: Callable[[int, Path], Numbers]
    goal: str
    rounds: int | None = None


ATTACKS: Final = {
    "powercut": Attack(powercut, "images"),
    "faults": Attack(faults, "points"),
    "kills": Attack(kills, "kills"),
    "sharing": Attack(sharing, "kills"),
    "failovers": Attack(failovers, "fail-overs"),
    "replicas": Attack(replicas, "images"),
    "flips": Attack(flip_bits, "flips"),
    "stress": Attack(stress, "checked events"),
    "walks": Attack(walks, "steps"),
    "sqskills": Attack(sqs_kills, "kills"),
    "sqsfuzz": Attack(sqs_requests, "requests"),
    "remote": Attack(remote, "kills"),
    "moves": Attack(moves, "moves"),
    "poison": Attack(poison, "queues"),
    "forward": Attack(forward, "kills"),
    "forwardcuts": Attack(forwardcuts, "images"),
    "enumerate": Attack(enumerate_steps, "sequences", BEGINNINGS),
    "enumeratemoves": Attack(
        partial(enumerate_steps, steps=4, shards=2, of_two=MOVING_BEGINNINGS), "sequences", MOVING_BEGINNINGS
    ),
}


def one_round(name: str, seed: int, keep: Path | None) -> Numbers:
    """A round, in a directory of its own. If it fails, its files are copied to `keep`."""
    running.PATIENCE_SECONDS = PATIENCE_SECONDS
    with tempfile.TemporaryDirectory(prefix="strictq-campaign-") as fallback, fast_directory(Path(fallback)) as place:
        try:
            return ATTACKS[name].run(seed, place)
        except Exception:
            if keep is not None:
                shutil.copytree(place, keep / f"{name}-{seed}", dirs_exist_ok=True)
            raise


@attrs.define
class Progress:
    """What was done of one attack so far."""

    name: str
    numbers: Numbers = attrs.Factory(Counter)
    seeds: list[int] = attrs.Factory(list)
    broken: list[int] = attrs.Factory(list)
    begun: float = attrs.Factory(time.monotonic)
    reported: float = attrs.Factory(time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def count(self) -> int:
        return self.numbers[ATTACKS[self.name].goal]

    def add(self, seed: int, done: Future[Numbers]) -> None:
        """A round is over."""
        self.seeds.append(seed)
        error = done.exception()
        if error is None:
            self.numbers += done.result()
        else:
            self.broken.append(seed)
            print(f"{self.name}: the round with seed {seed} failed. Repeat it:", flush=True)
            print(f"    python -m tests.campaigns {self.name} --seed {seed} --rounds 1", flush=True)
            traceback.print_exception(error, file=sys.stdout)
        if time.monotonic() - self.reported > TELL_SECONDS:
            self.reported = time.monotonic()
            print(f"{self.name}: {self}", flush=True)

    def __str__(self) -> str:
        goal = ATTACKS[self.name].goal
        rest = ", ".join(f"{n:,} {what}" for what, n in self.numbers.items() if what != goal)
        rest = f" ({rest})" if rest else ""
        return f"{self.count:,} {goal}{rest} in {self.seconds:,.0f} s, {len(self.seeds)} rounds, {len(self.broken)} broken"

    def last_line(self) -> str:
        seeds = f"seeds {min(self.seeds)} to {max(self.seeds)}" if self.seeds else "no seeds"
        broken = f", broken: {', '.join(map(str, self.broken))}" if self.broken else ""
        return f"{self.name} done: {self}; {seeds}{broken}"


class _Here:
    """Rounds in this process, where one at a time is wanted."""

    def submit(self, run: Callable[[str, int, Path | None], Numbers], name: str, seed: int, keep: Path | None) -> Future[Numbers]:
        done: Future[Numbers] = Future()
        try:
            done.set_result(run(name, seed, keep))
        except Exception as e:
            done.set_exception(e)
        return done


def attack(name: str, pool: ProcessPoolExecutor | _Here, options: argparse.Namespace, minutes: float) -> Progress:
    """Rounds until the time is over, or enough was done."""
    progress = Progress(name)
    last = ATTACKS[name].rounds
    seeds: Iterator[int] = itertools.count(options.seed) if last is None else iter(range(options.seed, last + 1))
    if options.rounds is not None:
        seeds = itertools.islice(seeds, options.rounds)
    running: dict[Future[Numbers], int] = {}

    def wanted() -> bool:
        return progress.seconds < minutes * 60 and (options.count is None or progress.count < options.count)

    try:
        while True:
            while len(running) < options.jobs and wanted() and (seed := next(seeds, None)) is not None:
                running[pool.submit(one_round, name, seed, options.keep)] = seed
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                progress.add(running.pop(done), done)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", flush=True)
    print(progress.last_line(), flush=True)
    return progress


def main(arguments: Sequence[str] | None = None) -> int:
    """0: no promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"{', '.join(ATTACKS)}; all of them if none is named")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all together; a round that has begun is finished")
    parser.add_argument(
        "--count", type=int, help="stop each earlier, once it has made so many images, points, kills, flips, events"
    )
    parser.add_argument("--rounds", type=int, help="stop each after so many rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the files of rounds that fail to this directory")
    options = parser.parse_args(arguments)
    names = options.attacks or list(ATTACKS)
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    if options.jobs == 1:
        done = [attack(name, _Here(), options, options.minutes / len(names)) for name in names]
    else:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=20) as pool:
            done = [attack(name, pool, options, options.minutes / len(names)) for name in names]
    return int(any(progress.broken or not progress.count for progress in done))


if __name__ == "__main__":
    sys.exit(main())
