"""`strictq alarm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import attrs
import click

import strictq
from strictq import StrictqError
from strictq.cli._advice import in_words
from strictq.cli._arguments import Seconds, json_option, looking, queue_argument, quiet_option
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, printable
from strictq.cli._words import emit

EXAMPLES: Final = """
strictq alarm orders.strictq --dead 1 --age 300
strictq alarm orders.strictq --depth 100000 --json
strictq alarm orders.strictq --dead 1 --nagios
"""
CRITICAL: Final = 2
UNKNOWN: Final = 3
"""Exit codes of Nagios plugins other than 0."""


@attrs.frozen
class Watched:
    """One value and its limit.

    Attributes:
        value: the measured value; None: there is none, such as the age of an empty queue.
        limit: the value at which the alarm fires.
    """

    name: str
    value: float | None
    limit: float
    unit: str = ""

    @property
    def fires(self) -> bool:
        """Whether the value is at its limit or above."""
        return self.value is not None and self.value >= self.limit


@command(EXAMPLES)
@queue_argument
@click.option("--dead", type=click.IntRange(min=1), help="Fire at this many dead letters.")
@click.option("--held", type=click.IntRange(min=1), help="Fire at this many messages of held keys.")
@click.option("--depth", type=click.IntRange(min=1), help="Fire at this many unresolved messages.")
@click.option(
    "--age", type=Seconds(min=0.001), help="Fire when the oldest message that is next for its key is this many seconds old."
)
@click.option("--lag", type=Seconds(min=0.001), help="Fire when the replica lags by this many seconds.")
@click.option("--breakers", type=click.IntRange(min=1), help="Fire at this many open circuit breakers of workers and groups.")
@click.option("--nagios", is_flag=True, help="Print one line and exit as a Nagios plugin: 0 OK, 2 CRITICAL, 3 UNKNOWN.")
@quiet_option
@json_option
def alarm(
    queue: Path, dead: int | None, held: int | None, depth: int | None, age: float | None, lag: float | None,
    breakers: int | None, nagios: bool, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Compare a queue with limits and exit with 1 if one is reached. A quarantined shard always fires, and so does a
    replica that could not be promoted when it last promoted a copy.

    Read-only. Run it from cron, a health check or a monitoring system.

    Exit code 0: no limit was reached. 1: at least one was. 2: invalid usage, or there is no such queue.
    """
    limits = {"dead": dead, "held": held, "depth": depth, "age": age, "lag": lag, "breakers": breakers}
    if all(limit is None for limit in limits.values()):
        raise Failure("give a limit, such as --dead 1", USAGE)
    try:
        with looking(queue) as q:
            stats = q.stats()
    except StrictqError as e:
        if not nagios:
            raise
        print(f"STRICTQ UNKNOWN - {printable(e)}")
        return UNKNOWN
    watched = values(stats, limits)
    broken = [in_words(s.quarantined) for s in stats.shards if s.quarantined]
    proof = None if stats.replication is None else stats.replication.proof
    unproven = None if proof is None else proof.error
    fires = bool(broken or unproven) or any(each.fires for each in watched)
    unpromoted = [] if unproven is None else [f"the replica could not be promoted: {unproven}"]
    if as_json:
        emit(as_values(fires, watched, broken) | {"unproven": unproven})
    elif nagios:
        print(plugin_line(fires, watched, broken + unpromoted))
    elif fires and not quiet:
        for text in reasons(watched, broken + unpromoted):
            print(text)
    return OK if not fires else CRITICAL if nagios else WRONG


def values(stats: strictq.Stats, limits: dict[str, Any]) -> list[Watched]:
    """Return the values to compare, one for each limit given."""
    lag = None if stats.replication is None else stats.replication.lag_seconds
    found = {
        "dead": (stats.dead, ""),
        "held": (stats.held, ""),
        "depth": (stats.depth, ""),
        "age": (stats.oldest_age_seconds, "s"),
        "lag": (lag, "s"),
        "breakers": (len(stats.breakers), ""),
    }
    return [Watched(name, found[name][0], limit, found[name][1]) for name, limit in limits.items() if limit is not None]


def reasons(watched: list[Watched], broken: list[str]) -> list[str]:
    """Return the reasons for the alarm, one per line."""
    found = [f"{w.name} is {_number(w.value)}{w.unit}, the limit is {_number(w.limit)}{w.unit}" for w in watched if w.fires]
    return found + [printable(text) for text in broken]


def plugin_line(fires: bool, watched: list[Watched], broken: list[str]) -> str:
    """Return the state, reasons, and performance data: name=value[unit];warning;critical."""
    text = "; ".join(reasons(watched, broken)) or ", ".join(f"{w.name} {_number(w.value)}{w.unit}" for w in watched)
    data = " ".join(f"{w.name}={_number(w.value or 0)}{w.unit};;{_number(w.limit)}" for w in watched)
    return f"STRICTQ {'CRITICAL' if fires else 'OK'} - {text.replace('|', '/')} | {data}"


def as_values(fires: bool, watched: list[Watched], broken: list[str]) -> dict[str, Any]:
    """Return the result as JSON values."""
    looked = [{"name": w.name, "value": w.value, "limit": w.limit, "fires": w.fires} for w in watched]
    return {"fires": fires, "watched": looked, "quarantined": broken}


def _number(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"
