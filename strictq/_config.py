"""QueueConfig: what is stored with a queue and seen by every process that uses it."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import attrs

from ._errors import ConfigError

FOREVER_SECONDS = 10 * 365 * 86400.0
"""The longest delay, TTL, lease or window: ten years, far inside what a 64-bit microsecond clock can add."""


def _seconds(minimum: float, *, optional: bool = False) -> Any:
    def check(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{attribute.name} must be a finite number of seconds, not {value!r}")
        if not minimum <= value <= FOREVER_SECONDS:
            raise ConfigError(f"{attribute.name} must be {minimum:g} to {FOREVER_SECONDS:,.10g} seconds, not {value!r}")

    return check


def _whole(minimum: int, maximum: int, *, optional: bool = False) -> Any:
    def check(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ConfigError(f"{attribute.name} must be a whole number from {minimum} to {maximum}, not {value!r}")

    return check


def _one_of(*choices: str) -> Any:
    def check(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in choices:
            raise ConfigError(f"{attribute.name} must be one of {', '.join(map(repr, choices))}, not {value!r}")

    return check


@attrs.frozen(kw_only=True)
class QueueConfig:
    """Settings of a queue, stored in it. Change them with `q.configure(...)`; every process sees them at its next write.

    Raises:
        ConfigError: a value is out of range, or two values contradict each other.
    """

    lease_seconds: float = attrs.field(default=30.0, validator=_seconds(0.001))
    """How long a receive holds a lane unless it says otherwise, seconds."""
    max_attempts: int | None = attrs.field(default=5, validator=_whole(1, 1_000_000, optional=True))
    """Starts of a handler after which a message is poison; None: no limit."""
    on_poison: Literal["dead_letter", "hold", "drop"] = attrs.field(
        default="dead_letter", validator=_one_of("dead_letter", "hold", "drop")
    )
    """What happens to a message that is out of attempts: dead-letter it and go on, hold its lane, or drop it."""
    retry_delay_seconds: float = attrs.field(default=0.0, validator=_seconds(0.0))
    """Wait before the second attempt after a nack without a delay of its own, seconds; 0: at once."""
    retry_backoff: float = attrs.field(default=2.0)
    """Factor by which that wait grows with each further attempt, 1.0 to 100.0."""
    retry_delay_max_seconds: float = attrs.field(default=900.0, validator=_seconds(0.0))
    """Upper bound of that wait, seconds."""
    dedup_window_seconds: float = attrs.field(default=300.0, validator=_seconds(0.001))
    """How long a dedup_id is remembered after its send, seconds."""
    ttl_seconds: float | None = attrs.field(default=None, validator=_seconds(0.001, optional=True))
    """Age at which a message that nobody holds expires, seconds; None: never."""
    on_expire: Literal["drop", "dead_letter"] = attrs.field(default="drop", validator=_one_of("drop", "dead_letter"))
    """What happens to an expired message."""
    keyless: Literal["refuse", "random", "round_robin"] = attrs.field(
        default="refuse", validator=_one_of("refuse", "random", "round_robin")
    )
    """What a send without a key does: refuse it, or spread over `keyless_lanes` lanes."""
    keyless_lanes: int = attrs.field(default=64, validator=_whole(1, 65_536))
    """How many lanes keyless messages are spread over."""
    max_depth: int | None = attrs.field(default=None, validator=_whole(1, 2**53, optional=True))
    """Unresolved messages at which sends are refused with QueueFull; None: no limit."""
    max_body_bytes: int = attrs.field(default=16 * 1024 * 1024, validator=_whole(1, 500_000_000))
    """Largest body, bytes."""
    idle_lane_seconds: float | None = attrs.field(default=None, validator=_seconds(0.001, optional=True))
    """Forget a lane that has been empty so long, seconds; None: never. It restarts at a higher seq."""
    history: Literal["off", "records", "bodies"] = attrs.field(default="off", validator=_one_of("off", "records", "bodies"))
    """Keep a record of each finished message, without or with its body; read them with `q.history()`."""
    history_seconds: float = attrs.field(default=7 * 86400.0, validator=_seconds(0.001))
    """How long a record is kept, seconds."""
    history_records_max: int = attrs.field(default=1_000_000, validator=_whole(1, 2**53))
    """Records that each shard keeps at most; the oldest go first."""

    @retry_backoff.validator
    def _check_backoff(self, attribute: attrs.Attribute[float], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1.0 <= value <= 100.0:
            raise ConfigError(f"{attribute.name} must be 1.0 to 100.0, not {value!r}")

    def __attrs_post_init__(self) -> None:
        if self.retry_delay_seconds > self.retry_delay_max_seconds:
            raise ConfigError(
                f"retry_delay_seconds={self.retry_delay_seconds:g} is more than "
                f"retry_delay_max_seconds={self.retry_delay_max_seconds:g}"
            )
        if self.max_attempts is None and self.on_poison != "dead_letter":
            raise ConfigError(f"on_poison={self.on_poison!r} never applies with max_attempts=None")

    def evolve(self, **changes: Any) -> QueueConfig:
        """This configuration with some values changed, validated again."""
        known = {a.name for a in attrs.fields(QueueConfig)}
        if unknown := sorted(set(changes) - known):
            raise ConfigError(f"unknown setting {unknown[0]!r}; the settings are {', '.join(sorted(known))}")
        return attrs.evolve(self, **changes)

    def to_json(self) -> str:
        """The stored form: a JSON object with every field."""
        return json.dumps(attrs.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> QueueConfig:
        """Read the stored form; fields this version does not know are an error, missing ones take their default."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ConfigError("the stored configuration is not a JSON object")
        return cls().evolve(**values)

    def retry_delay(self, attempts: int) -> float:
        """Seconds to wait after attempt number `attempts` (1 for the first) failed."""
        if self.retry_delay_seconds <= 0.0:
            return 0.0
        # The exponent is capped: 100.0 ** 1_000_000 overflows a float.
        factor = self.retry_backoff ** min(attempts - 1, 150)
        return min(self.retry_delay_seconds * factor, self.retry_delay_max_seconds)
