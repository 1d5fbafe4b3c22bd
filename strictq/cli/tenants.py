"""`strictq tenants` and `strictq limit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from strictq import TenantLimit
from strictq.cli._arguments import json_option, limit_option, looking, operating, queue_argument
from strictq.cli._command import OK, USAGE, Failure, command, printable
from strictq.cli._render import show, show_found
from strictq.cli._words import emit, short, span

EXAMPLES: Final = {
    "tenants": """
strictq tenants orders.strictq
strictq tenants orders.strictq --json | jq -r 'select(.throttled_seconds > 0).tenant'
""",
    "limit": """
strictq limit orders.strictq acme --weight 4
strictq limit orders.strictq 'free-*' --send-rate 10 --burst 50 --max-depth 10000
strictq limit orders.strictq loud --concurrency 4
strictq limit orders.strictq acme --pause
strictq limit orders.strictq acme --remove
""",
}
_SETTINGS: Final = ("weight", "max_depth", "send_rate", "receive_rate", "burst", "concurrency", "target_age_seconds", "paused")


class _OrNone(click.ParamType):  # type: ignore[type-arg]
    """A number, or `none`."""

    def __init__(self, kind: click.ParamType) -> None:  # type: ignore[type-arg]
        self._kind = kind
        self.name = kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; "none": no limit."""
        return "none" if value == "none" else self._kind.convert(value, param, ctx)


_RATE: Final = _OrNone(click.FLOAT)
_COUNT: Final = _OrNone(click.IntRange(min=1))


@command(EXAMPLES["tenants"])
@queue_argument
@limit_option(20)
@json_option
def tenants(queue: Path, limit: int, as_json: bool) -> int:
    """List the tenants that have messages or limits of their own, the deepest first. Reads every key that has messages."""
    with looking(queue) as q:
        found = q.tenants()
    columns = ("tenant", "depth", "keys", "oldest", "weight", "sends/s", "receives/s", "next")
    return show_found(found[:limit], columns, lambda t: (
        short(printable(t.tenant)) or "(others)", f"{t.depth:,}", f"{t.keys:,}",
        "-" if t.oldest_age_seconds is None else span(t.oldest_age_seconds), f"{t.weight:g}", _rate(t.send_rate),
        _rate(t.receive_rate), "paused" if t.paused else f"in {span(t.throttled_seconds)}" if t.throttled_seconds else "now",
    ), right=columns[1:7], none="no tenant has messages or limits", as_json=as_json)  # fmt: skip


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


@command(EXAMPLES["limit"])
@queue_argument
@click.argument("tenant", help="Its name. With an asterisk at the end, such as free-*: all names that begin so.")
@click.option("--weight", type=float, metavar="NUMBER", help="Share while several tenants have messages, relative to 1.")
@click.option("--max-depth", type=_COUNT, metavar="MESSAGES|none", help="Unresolved messages at which its sends are refused.")
@click.option("--send-rate", type=_RATE, metavar="NUMBER|none", help="Messages per second that are accepted.")
@click.option("--receive-rate", type=_RATE, metavar="NUMBER|none", help="Messages per second that are delivered.")
@click.option("--burst", type=_COUNT, metavar="MESSAGES|none", help="Messages that may come at once after a pause.")
@click.option("--concurrency", type=_COUNT, metavar="KEYS|none", help="Its keys that may be leased at once, over all processes.")
@click.option(
    "--target-age", "target_age_seconds", type=_RATE, metavar="SECONDS|none",
    help="Lower the send rate while its oldest ready message is older.",
)  # fmt: skip
@click.option("--pause/--resume", "paused", default=None, help="Stop, or go on, delivering its messages. Sends go on.")
@click.option("--remove", is_flag=True, help="Remove the limits of this name.")
@json_option
def limit(
    queue: Path, tenant: str, weight: float | None, max_depth: Any, send_rate: Any, receive_rate: Any, burst: Any,
    concurrency: Any, target_age_seconds: Any, paused: bool | None, remove: bool, as_json: bool,
) -> int:  # fmt: skip
    """Set the limits of a tenant. Without options, show them.

    Every process applies a change at once.
    """
    given = {
        "weight": weight, "max_depth": max_depth, "send_rate": send_rate, "receive_rate": receive_rate, "burst": burst,
        "concurrency": concurrency, "target_age_seconds": target_age_seconds, "paused": paused,
    }  # fmt: skip
    changes: dict[str, Any] = {name: None if value == "none" else value for name, value in given.items() if value is not None}
    if remove and changes:
        raise Failure("--remove goes with no other option", USAGE)
    if changes or remove:
        with operating(queue) as q:
            found = q.limit(tenant, remove=remove, **changes)
    else:
        with looking(queue) as q:
            found = next((one for one in q.config.limits if one.tenant == tenant), None)
    if as_json:
        emit({"tenant": tenant, **_values(found)})
        return OK
    if found is None:
        show(f"no limits are stored for {printable(tenant)}")
        return OK
    show(
        [
            ("tenant", printable(tenant)),
            *((name, "none" if value is None else f"{value}") for name, value in _values(found).items()),
        ]
    )
    return OK


def _values(found: TenantLimit | None) -> dict[str, Any]:
    return {name: None if found is None else getattr(found, name) for name in _SETTINGS}
