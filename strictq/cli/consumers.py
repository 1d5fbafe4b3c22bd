"""`strictq consumers` and `strictq leases`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strictq import ConsumerStatus
from strictq.cli._arguments import json_option, limit_option, looking, queue_argument
from strictq.cli._command import command, printable
from strictq.cli._render import show_found
from strictq.cli._words import moment, short, shown_key

EXAMPLES: Final = {
    "consumers": """
strictq consumers orders.strictq
strictq consumers orders.strictq --json | jq -r 'select(.slow).name'
""",
    "leases": """
strictq leases orders.strictq
strictq leases orders.strictq --json | jq -r 'select(.consumer == "billing").key'
""",
}


def _state(one: ConsumerStatus) -> str:
    if one.kind == "stream":
        return "active" if one.active else "stopped"
    return "slow" if one.slow else "live"


def _shards(one: ConsumerStatus) -> str:
    if one.affinity is None or one.affinity == "none":
        return "all"
    return ", ".join(map(str, one.shards or ())) or "surplus"


@command(EXAMPLES["consumers"])
@queue_argument
@json_option
def consumers(queue: Path, as_json: bool) -> int:
    """List the consumers of a queue: running workers, running loops that joined, and streams.

    A slow consumer has not asked for messages for a second. Others receive messages of its shards meanwhile.
    """
    with looking(queue) as q:
        found = q.consumers()
    columns = ("consumer", "kind", "state", "process", "since", "shards", "in flight", "busy")
    none = "no consumer runs, and there is no stream"
    return show_found(found, columns, lambda one: (
        short(one.name), one.kind, _state(one), "-" if one.host is None else printable(f"{one.host}:{one.pid}"),
        "-" if one.since is None else moment(one.since), _shards(one), f"{one.in_flight:,}",
        "-" if one.busy_ratio is None or one.kind != "worker" else f"{one.busy_ratio:.0%}",
    ), right=("in flight", "busy"), none=none, as_json=as_json)  # fmt: skip


@command(EXAMPLES["leases"])
@queue_argument
@limit_option(20)
@json_option
def leases(queue: Path, limit: int, as_json: bool) -> int:
    """List the live leases, the oldest first: which consumer holds which key, and until when.

    Includes loops that only call receive. Reads every leased key.
    """
    with looking(queue) as q:
        found = q.leases(limit)
    return show_found(found, ("key", "consumer", "seq", "messages", "since", "until"), lambda one: (
        short(shown_key(one.key)), short(printable(one.consumer)), f"{one.first_seq:,}", f"{one.messages:,}",
        moment(one.since), "-" if one.until is None else moment(one.until),
    ), right=("seq", "messages"), none="no consumer holds a key", as_json=as_json)  # fmt: skip
