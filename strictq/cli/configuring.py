"""Create a queue and change its settings: create, config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click

import strictq
from strictq import ConfigError, QueueConfig
from strictq._values.config import OBSOLETE, no_effect, require_known
from strictq.cli._arguments import Decorator, Durability, full_option, json_option, looking, operating, queue_argument
from strictq.cli._command import OK, USAGE, Failure, command, explained, many, printable, tell
from strictq.cli._render import show
from strictq.cli._words import emit

EXAMPLES: Final = {
    "create": """
        strictq create orders.strictq
        strictq create orders.strictq --shards 4 --durability process
        strictq create orders.strictq max_attempts=10 on_poison=hold
    """,
    "config": """
        strictq config orders.strictq
        strictq config orders.strictq max_attempts=10 ttl_seconds=none
    """,
}
settings_argument: Final[Decorator] = click.argument(
    "settings", nargs=-1, metavar="[NAME=VALUE]...", help="Settings. docs/reference/config.md lists them."
)


@command(EXAMPLES["create"])
@queue_argument
@settings_argument
@click.option("--shards", type=click.IntRange(min=1, max=256), default=1, help="Number of shard files. Cannot be changed later.")
@full_option
@json_option
def create(queue: Path, settings: tuple[str, ...], shards: int, durability: Durability, as_json: bool) -> int:
    """Create a queue. If a queue with these settings exists, do nothing; settings that are not given may differ.

    Exit code 0: the queue exists. 1: the disk is full, or the operating system refused; nothing was created. 2: invalid usage,
    or the path has a queue with different settings, or something that is not a queue.
    """
    wanted = QueueConfig().evolve(**changes(settings))
    with _made(queue, shards, durability, wanted) as q:
        if as_json:
            emit(as_values(q))
        else:
            print(f"{printable(q.path)}: {many(q.shards, 'shard')}, durability {q.durability}")
    return OK


def _made(queue: Path, shards: int, durability: Durability, wanted: QueueConfig) -> strictq.Queue:
    try:
        return strictq.open(queue, shards=shards, durability=durability.value, config=wanted, on_config_mismatch="error")
    except ConfigError as e:
        if not queue.exists():
            raise
        text, _, _ = explained(e)
        hint = "nothing was changed; show its settings with strictq config QUEUE, change one with strictq config QUEUE NAME=VALUE"
        raise Failure(text, USAGE, hint) from e


@command(EXAMPLES["config"])
@queue_argument
@settings_argument
@json_option
def config(queue: Path, settings: tuple[str, ...], as_json: bool) -> int:
    """Show the settings of a queue, or change some. Other processes apply a change at their next write."""
    asked = changes(settings)
    with operating(queue) if asked else looking(queue) as q:
        if asked:
            q.configure(**asked)
        if as_json:
            emit(as_values(q))
            return OK
        before = attrs.asdict(QueueConfig())
        now = attrs.asdict(q.config)
        shown = {name: text(value) + ("" if value == before[name] else "  (changed)") for name, value in now.items()}
        show([("queue", printable(q.path)), ("shards", f"{q.shards}"), ("durability", q.durability), *shown.items()])
    return OK


def as_values(q: strictq.Queue) -> dict[str, Any]:
    """Return a queue's properties as JSON values."""
    return {
        "path": q.path, "queue_id": q.queue_id, "shards": q.shards, "durability": q.durability, "config": attrs.asdict(q.config),
    }  # fmt: skip


def changes(settings: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs as settings: numbers, `none`, or words. Report obsolete settings on stderr, and leave them out.

    Raises:
        Failure: one is not a pair.
        ConfigError: there is no such setting.
    """
    found: dict[str, Any] = {}
    for pair in settings:
        name, is_pair, value = pair.partition("=")
        if not is_pair:
            raise Failure(f"{pair!r} is not NAME=VALUE", USAGE)
        found[name.strip()] = _value(value.strip())
    require_known(found)
    for name in OBSOLETE.keys() & found.keys():
        tell(f"strictq: {no_effect(name)}")
        del found[name]
    return found


def _value(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text.replace("_", "")) if text[:1].isdigit() else text
    except ValueError:
        return text


def text(value: Any) -> str:
    """Return a setting as text, in the form that `config` accepts."""
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"
