"""The patterns in which strictq and its peers are compared, by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from benchmarks.measure import Durability, Figure, Sample, child, grown, percentile, report_of, run_child, signal_to

from . import ALL, notes
from .contest import OURS, Contest, Entrant, Point, fill
from .strict import Strictq
from .work import in_threads, life_beside_others, look

BATCH: Final = 1000


def batches(contest: Contest) -> Iterator[Figure]:
    """Measure the whole life over batch sizes, at both durabilities."""
    sizes = contest.sizes
    for batch in sizes.full_batches:
        yield from contest.compare(
            Point(case="batch", what="whole life", durability="full", batch=batch, keys=sizes.usual_keys, size=batch)
        )
    for batch in sizes.batches:
        yield from contest.compare(
            Point(case="batch", what="whole life", durability="process", batch=batch, keys=sizes.usual_keys, size=batch)
        )


def keys(contest: Contest) -> Iterator[Figure]:
    """Measure the whole life over numbers of keys."""
    for size, meant in contest.sizes.keys:
        point = Point(
            case="keys",
            what=f"whole life, {size:,} key{'s' if size > 1 else ''}",
            durability="process",
            batch=BATCH,
            keys=size,
            size=size,
            note=notes.scaled(size, meant),
        )
        yield from contest.compare(point)


def backlogs(contest: Contest) -> Iterator[Figure]:
    """Measure the whole life behind backlogs. The oldest messages are received, so a backlog slides."""
    sizes = contest.sizes
    for size, meant in sizes.backlogs:
        point = Point(
            case="backlog",
            what=f"whole life behind a backlog of {size:,}",
            durability="process",
            batch=BATCH,
            keys=sizes.usual_keys,
            size=size,
            note=notes.scaled(size, meant),
        )

        def prepare(e: Entrant, size: int = size) -> None:
            fill(e, size, sizes.usual_keys, sizes.fill_seconds)

        yield from contest.compare(point, prepare)


def blocked(contest: Contest) -> Iterator[Figure]:
    """Measure the whole life beside a key with very many messages, the first of which is held by a consumer."""
    sizes, (size, meant) = contest.sizes, contest.sizes.blocked
    point = Point(
        case="blocked",
        what=f"whole life beside a blocked lane of {size:,}",
        durability="process",
        batch=BATCH,
        keys=sizes.usual_keys,
        size=size,
        note=notes.scaled(size, meant),
    )

    def prepare(e: Entrant) -> None:
        fill(e, size, None, sizes.fill_seconds)
        if not e.peer.receive(1):
            raise RuntimeError("nothing was received")
        if "order per key" not in e.peer.about.offers:
            e.say(f"{e.name} hands out the blocked key's messages")

    yield from contest.compare(point, prepare)


def threads(contest: Contest) -> Iterator[Figure]:
    """Measure the whole life of one message at a time, in several threads."""
    usual = contest.sizes.usual_keys
    for count in contest.sizes.threads:
        point = Point(
            case="threads",
            what=f"whole life, one at a time, {count} thread{'s' if count > 1 else ''}",
            durability="full",
            batch=1,
            keys=usual,
            size=count,
        )

        def action(e: Entrant, number: int, count: int = count) -> Sample:
            with ExitStack() as stack:
                peers = [e.peer] * count
                if not e.peer.about.shared and count > 1:
                    peers = [e.another() for _ in range(count)]
                    for peer in peers:
                        stack.callback(peer.close)
                todo = e.todo(max(number, count), usual)
                workers = [lambda p=p, n=n: life_beside_others(p, todo[n::count], 1) for n, p in enumerate(peers)]
                return _counted(e, len(todo), lambda: in_threads(workers))

        yield from contest.compare(point, None, action)


def processes(contest: Contest) -> Iterator[Figure]:
    """Measure several processes, each of which sends, receives and acks its part in batches."""
    usual = contest.sizes.usual_keys
    batch = min(BATCH, contest.sizes.messages // 4)
    for count in contest.sizes.processes:
        point = Point(
            case="processes",
            what=f"whole life, {count} process{'es' if count > 1 else ''}",
            durability="process",
            batch=batch,
            keys=usual,
            size=count,
            writers=count,
        )

        def action(e: Entrant, number: int, count: int = count) -> Sample:
            part = max(batch, number // count)
            e.number = part * count
            return _counted(e, e.number, lambda: _run_processes(e, part, usual, batch, count))

        def prepare(e: Entrant) -> None:
            if isinstance(e.peer, Strictq) and e.peer.q.shards > 1:
                e.say(f"strictq has {e.peer.q.shards} shards")

        yield from contest.compare(point, prepare, action, rounds=1 if contest.sizes.name != "long" else contest.bench.rounds)


def _run_processes(e: Entrant, part: int, usual: int, batch: int, count: int) -> tuple[float, int, int | None]:
    with ExitStack() as stack:
        arguments = {
            "peer": e.name,
            "path": e.directory,
            "durability": e.durability,
            "number": part,
            "keys": usual,
            "batch": batch,
        }
        workers = [stack.enter_context(child("peer-everything", **arguments, seed=n)) for n in range(count)]
        for w in workers:
            report_of(w)
        for w in workers:
            signal_to(w)
        reports = [report_of(w) for w in workers]
    # perf_counter is the same clock in all processes of the machine.
    seconds = max(r["ended"] for r in reports) - min(r["started"] for r in reports)
    written = None if any(r["written"] is None for r in reports) else sum(r["written"] for r in reports)
    return seconds, sum(r["acked"] for r in reports), written


def _counted(e: Entrant, number: int, run: Callable[[], tuple[float, int] | tuple[float, int, int | None]]) -> Sample:
    """Return the sample of a run that times itself. If the numbers of acked and sent messages differ, add a note.

    It has no processor time, because consumers poll the empty queue at the end.
    """
    before = e.host.written()
    seconds, acked, *children = run()
    written = grown(before, e.host.written())
    # Children that write the files themselves have counted the bytes.
    if children and e.peer.about.kind != "server":
        (written,) = children
    if acked != number:
        wrong = notes.counted(e.name, number, acked)
        if e.name == OURS:
            raise RuntimeError(wrong)
        e.say(wrong)
    return Sample(seconds, acked, written)


def latencies(contest: Contest) -> Iterator[Figure]:
    """Measure the duration of single calls without other load: one send, and one receive with its ack."""
    sizes = contest.sizes
    levels: tuple[Durability, ...] = ("full", "process")
    for durability in levels:
        point = Point(case="latency", what="single calls", durability=durability, batch=1, keys=sizes.usual_keys)
        took: dict[str, tuple[list[float], list[float]]] = {}
        with contest.entrants(point) as entrants:
            for e in entrants:
                took[e.name] = ([], [])
                _time_calls(e, min(50, sizes.latencies), sizes.usual_keys, sizes.seconds)  # a warm-up
            for _ in range(contest.bench.rounds):
                for e in entrants:
                    for kept, new in zip(
                        took[e.name],
                        _time_calls(e, sizes.latencies // contest.bench.rounds, sizes.usual_keys, 5 * sizes.seconds),
                        strict=True,
                    ):
                        kept.extend(new)
        for what, index in (("one send", 0), ("one receive and its ack", 1)):
            for name, both in took.items():
                ordered = sorted(both[index])
                rest = " ".join(f"p{p:g} {percentile(ordered, p):.3f}" for p in (50, 99, 99.9))
                yield Figure(
                    case="latency",
                    what=f"p99 of {what}: {name}",
                    unit="ms",
                    values=[percentile(ordered, 99)],
                    durability=point.durability,
                    batch=1,
                    keys=sizes.usual_keys,
                    note=notes.joined(
                        f"{rest} max {ordered[-1]:.2f} ms, {len(ordered):,} calls", notes.lacks(ALL[name].about.lacks)
                    ),
                )


def _time_calls(e: Entrant, number: int, usual: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each call, for a number of calls or as many as the time allows."""
    sends, receives = [], []
    clock = time.perf_counter
    end = clock() + seconds
    for message in e.todo(max(1, number), usual):
        first = clock()
        e.peer.send([message])
        second = clock()
        handed = e.peer.receive(1)
        look(e.peer, handed)
        e.peer.ack(handed)
        third = clock()
        sends.append((second - first) * 1000)
        receives.append((third - second) * 1000)
        if third > end:
            break
    return sends, receives


def memory(contest: Contest) -> Iterator[Figure]:
    """Measure the resident memory with a backlog, and the disk space with it and after a drain. Each in a fresh process."""
    sizes, (size, meant) = contest.sizes, contest.sizes.held
    for name in (OURS, *contest.names):
        point = Point(case="memory", what=f"{size:,} messages", durability="process", batch=BATCH, keys=sizes.usual_keys)
        with contest.bench.place("memory") as place, ALL[name].hosted(place, "process") as host:
            try:
                report = run_child(
                    "peer-backlog", peer=name, path=place, number=size, keys=sizes.usual_keys, seconds=sizes.fill_seconds
                )
            except RuntimeError as error:
                contest.leave_out(point, name, f"failed: {error}")
                continue
            beside = host.resident()
        held = report["held"]
        note = notes.joined(
            notes.scaled(size, meant) if held == size else f"{held:,} were sent in {sizes.fill_seconds:.0f} s",
            f"{report['full'] / max(held, 1):.0f} bytes a message on disk before",
            f"{report['left']:,} were still there after {sizes.fill_seconds:.0f} s" if report["left"] else "",
            notes.lacks(ALL[name].about.lacks),
        )
        if report["peak"] is not None:
            yield Figure(
                case="memory",
                what=f"peak resident memory with a backlog: {name}",
                unit="MiB",
                values=[report["peak"] + (beside[1] if beside else 0.0)],
                durability="process",
                batch=BATCH,
                keys=sizes.usual_keys,
                size=held,
                note=f"{f'of which its server {beside[1]:.0f}; ' if beside else ''}{note}",
            )
        yield Figure(
            case="memory",
            what=f"on disk after a drain: {name}",
            unit="MiB",
            values=[report["drained"] / 2**20],
            durability="process",
            batch=BATCH,
            keys=sizes.usual_keys,
            size=held,
            note=f"{report['full'] / 2**20:.1f} MiB before; {note}",
        )


PATTERNS: Final[dict[str, Callable[[Contest], Iterator[Figure]]]] = {
    "batch": batches,
    "keys": keys,
    "backlog": backlogs,
    "blocked": blocked,
    "threads": threads,
    "processes": processes,
    "latency": latencies,
    "memory": memory,
}
