"""QueueConfig: the settings that are stored with a queue and seen by every process that uses it."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final, Literal

import attrs

from . import hints
from .errors import ConfigError
from .tenants import TenantLimit, TenantRules, limits_of

FOREVER_SECONDS = 10 * 365 * 86400.0
"""The longest delay, TTL, lease or window: ten years, far inside what a 64-bit microsecond clock can add."""

LAST_SECOND: Final = 253_402_300_799.0
"""The end of the year 9999, seconds since 1970."""

BODY_BYTES_MAX: Final = 500_000_000
"""The largest max_body_bytes. SQLite accepts no value over 1e9 bytes."""

SEPARATOR_CHARS_MAX: Final = 16
TYPE_CHARS_MAX: Final = 256
"""The longest handler type that can be paused."""
TYPES_MAX: Final = 1_000
"""The most handler types that can be paused at a time."""

BEFORE: Final = {"retry_delay_seconds": 0.0, "retry_for_seconds": 0.0}
"""The values of fields that a stored configuration lacks: the behaviour of the version that stored it."""

OBSOLETE: Final = {"hot_lanes": "every lane is kept in a journal and in memory"}
"""Settings of older versions that have no effect any more, and why. They are accepted, and never stored."""


def _seconds(minimum: float, *, optional: bool = False, maximum: float = FOREVER_SECONDS) -> Any:
    def check(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{attribute.name} must be a finite number of seconds, not {value!r}")
        if not minimum <= value <= maximum:
            raise ConfigError(f"{attribute.name} must be {minimum:g} to {maximum:,.12g} seconds, not {value!r}")

    return check


def _whole(minimum: int, maximum: int, *, optional: bool = False) -> Any:
    def check(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ConfigError(f"{attribute.name} must be a whole number from {minimum} to {maximum}, not {value!r}")

    return check


def _remembers_given(cls: type[QueueConfig]) -> type[QueueConfig]:
    """Record which settings the constructor was given, before attrs fills in the defaults."""
    init = cls.__init__

    @functools.wraps(init)
    def __init__(self: QueueConfig, **given: Any) -> None:
        given = effective(given)
        init(self, **given)
        self._remember(given.keys(), {})

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def effective(given: Mapping[str, Any], stacklevel: int = 3) -> dict[str, Any]:
    """Return these settings without the obsolete ones, for each of which a warning is raised.

    Raises:
        ConfigError: a name is unknown.
    """
    require_known(given)
    for name in OBSOLETE.keys() & given.keys():
        warnings.warn(no_effect(name), DeprecationWarning, stacklevel)
    return {name: value for name, value in given.items() if name not in OBSOLETE}


def no_effect(name: str) -> str:
    """Return the text of a warning about an obsolete setting."""
    return f"the setting {name} has no effect any more, because {OBSOLETE[name]}"


def require_known(names: Iterable[str]) -> None:
    """Raise ConfigError for names that are not settings.

    Raises:
        ConfigError: a name is unknown; the hint has the most similar setting, if there is one.
    """
    known = [a.name for a in attrs.fields(QueueConfig)]
    unknown = sorted(set(names).difference(known, OBSOLETE))
    if not unknown:
        return
    from difflib import get_close_matches  # few programs need it

    near = get_close_matches(unknown[0], known, 1)
    hint = hints.DID_YOU_MEAN.of(name=near[0]) if near else hints.SETTINGS_ARE.of(settings=", ".join(known))
    raise ConfigError(f"unknown setting {unknown[0]!r}", hint=hint)


def _one_of(*choices: str) -> Any:
    def check(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in choices:
            raise ConfigError(f"{attribute.name} must be one of {', '.join(map(repr, choices))}, not {value!r}")

    return check


def _flag(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{attribute.name} must be True or False, not {value!r}")


def _names(value: Any) -> Any:
    """Return a list of names as a sorted tuple without repetitions. Leave anything else to the validator."""
    if isinstance(value, list | tuple | set | frozenset) and all(isinstance(name, str) for name in value):
        return tuple(sorted(set(value)))
    return value


def _check_names(_: QueueConfig, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(name, str) and 0 < len(name) <= TYPE_CHARS_MAX for name in value):
        raise ConfigError(f"{attribute.name} must be a list of types, each of 1 to {TYPE_CHARS_MAX} characters, not {value!r}")
    if len(value) > TYPES_MAX:
        raise ConfigError(f"{attribute.name} must have at most {TYPES_MAX} types, not {len(value):,}")


class _Remembered:
    """State of a QueueConfig that is not a setting, and is ignored in comparisons."""

    _given: frozenset[str]
    _unknown: Mapping[str, Any]
    """Settings of a newer version, as stored."""


@_remembers_given
@attrs.frozen(kw_only=True, slots=False)
class QueueConfig(_Remembered):
    """Settings of a queue, stored in it. Change them with `q.configure(...)`; every process applies them at its next write.

    The object records which settings were passed. `strictq.open` compares only those with the stored ones.

    `hot_lanes`, a setting of older versions, is accepted with a DeprecationWarning, and has no effect.

    Raises:
        ConfigError: a value is out of range, or two values contradict each other.

    Examples:
        >>> config = strictq.QueueConfig(lease_seconds=60.0, max_attempts=3)
        >>> config.retry_for_seconds, sorted(config.given)
        (21600.0, ['lease_seconds', 'max_attempts'])
    """

    lease_seconds: float = attrs.field(default=30.0, validator=_seconds(0.001))
    """Default length of a lease, seconds."""
    max_attempts: int | None = attrs.field(default=5, validator=_whole(1, 1_000_000, optional=True))
    """Starts of a handler after which a message can be out of attempts, see `retry_for_seconds`; None: never."""
    on_poison: Literal["dead_letter", "hold", "drop"] = attrs.field(
        default="dead_letter", validator=_one_of("dead_letter", "hold", "drop")
    )
    """What to do with a message that is out of attempts: dead-letter it, hold its lane, or drop it."""
    retry_delay_seconds: float = attrs.field(default=1.0, validator=_seconds(0.0))
    """Wait before the second attempt, after a nack without its own delay, seconds; 0: none.

    A wait varies by up to a quarter from lane to lane, so that lanes that failed together are not retried together.
    """
    retry_backoff: float = attrs.field(default=2.0)
    """Factor by which that wait grows with each further attempt, 1.0 to 100.0."""
    retry_delay_max_seconds: float = attrs.field(default=900.0, validator=_seconds(0.0))
    """Upper bound of that wait, seconds."""
    retry_for_seconds: float = attrs.field(
        default=attrs.Factory(lambda self: 0.0 if self.retry_delay_seconds == 0 else 6 * 3600.0, takes_self=True),
        validator=_seconds(0.0),
    )
    """Minimum time from its first failure until a message is out of attempts, seconds; 0: `max_attempts` alone decides.

    The default is six hours, and 0 if `retry_delay_seconds` is 0, because immediate retries for hours would be a busy loop.

    A start that ended without an outcome, because the lease expired, counts against `max_attempts` alone.
    """
    dedup_window_seconds: float = attrs.field(default=300.0, validator=_seconds(0.001))
    """How long a dedup_id is kept after its send, seconds."""
    dedup_scope: Literal["key", "queue"] = attrs.field(default="key", validator=_one_of("key", "queue"))
    """Whether a dedup_id is unique per key or in the whole queue. "queue" needs a queue of one shard."""
    ttl_seconds: float | None = attrs.field(default=None, validator=_seconds(0.001, optional=True))
    """Age at which a message expires unless a consumer holds it, seconds; None: never."""
    on_expire: Literal["drop", "dead_letter"] = attrs.field(default="drop", validator=_one_of("drop", "dead_letter"))
    """What to do with an expired message."""
    keyless: Literal["refuse", "random", "round_robin"] = attrs.field(
        default="refuse", validator=_one_of("refuse", "random", "round_robin")
    )
    """Sends without a key: refuse them, or spread them over `keyless_lanes` lanes."""
    keyless_lanes: int = attrs.field(default=64, validator=_whole(1, 65_536))
    """Number of lanes for keyless messages."""
    max_depth: int | None = attrs.field(default=None, validator=_whole(1, 2**53, optional=True))
    """Unresolved messages at which sends are refused with QueueFull; None: no limit."""
    max_key_depth: int | None = attrs.field(default=None, validator=_whole(1, 2**53, optional=True))
    """Unresolved messages of one key at which sends to it are refused with QueueFull; None: no limit. Not of keyless messages."""
    max_body_bytes: int = attrs.field(default=16 * 1024 * 1024, validator=_whole(1, BODY_BYTES_MAX))
    """Largest body, bytes."""
    idle_lane_seconds: float | None = attrs.field(default=None, validator=_seconds(0.001, optional=True))
    """Forget a lane that has been empty for this long, seconds; None: never. It restarts at a higher seq."""
    history: Literal["off", "records", "bodies"] = attrs.field(default="off", validator=_one_of("off", "records", "bodies"))
    """Keep a record of each finished message, without or with its body; read them with `q.history()`."""
    history_seconds: float = attrs.field(default=7 * 86400.0, validator=_seconds(0.001))
    """How long a record is kept, seconds."""
    history_records_max: int = attrs.field(default=1_000_000, validator=_whole(1, 2**53))
    """Most records per shard; the oldest are deleted first."""
    output_seconds: float = attrs.field(default=0.0, validator=_seconds(0.0))
    """How long to keep the output of an acked message, for `q.output`, seconds; 0: not at all."""
    tenant_separator: str | None = attrs.field(default=None)
    """What precedes it in a key of text or bytes is a tenant: "/" makes "acme" of "acme/order-7". None: there are no tenants.

    Tenants take turns. Changing it takes about a second for each million of keys with messages.
    """
    sideline_seconds: float | None = attrs.field(default=None, validator=_seconds(0.001, optional=True))
    """Age from which on messages are sidelined, seconds: they get one turn in ten while newer ones are ready. None: never."""
    sideline_before: float | None = attrs.field(default=None, validator=_seconds(0.0, optional=True, maximum=LAST_SECOND))
    """Messages that were sent before this time of the queue are sidelined. None: none. See `q.sideline`."""
    limits: tuple[TenantLimit, ...] = attrs.field(default=(), converter=limits_of)
    """Weights, rates and pauses of tenants; needs `tenant_separator`. See `q.limit`."""
    prepare_seconds: float | None = attrs.field(default=None, validator=_seconds(0.0, optional=True))
    """Estimate of the prepare stage of messages without their own, seconds; None: workers learn it."""
    process_seconds: float | None = attrs.field(default=None, validator=_seconds(0.0, optional=True))
    """Estimate of the process stage of messages without their own, seconds; None: workers learn it."""

    paused: bool = attrs.field(default=False, validator=_flag)
    """Whether the queue is paused: receives return nothing, and sends go on. See `q.pause()`."""
    paused_types: tuple[str, ...] = attrs.field(default=(), converter=_names, validator=_check_names)
    """The handler types of an App that are paused. See `q.pause(type)`."""

    @retry_backoff.validator
    def _check_backoff(self, attribute: attrs.Attribute[float], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1.0 <= value <= 100.0:
            raise ConfigError(f"{attribute.name} must be 1.0 to 100.0, not {value!r}")

    @tenant_separator.validator
    def _check_separator(self, attribute: attrs.Attribute[str | None], value: object) -> None:
        if value is not None and (
            not isinstance(value, str) or not 1 <= len(value) <= SEPARATOR_CHARS_MAX or not value.isprintable()
        ):
            raise ConfigError(f"{attribute.name} must be 1 to {SEPARATOR_CHARS_MAX} printable characters, or None, not {value!r}")

    def __attrs_post_init__(self) -> None:
        if self.retry_delay_seconds > self.retry_delay_max_seconds:
            raise ConfigError(
                f"retry_delay_seconds={self.retry_delay_seconds:g} is more than "
                f"retry_delay_max_seconds={self.retry_delay_max_seconds:g}"
            )
        if self.max_attempts is None and self.on_poison != "dead_letter":
            raise ConfigError(f"on_poison={self.on_poison!r} never applies with max_attempts=None")

        if self.limits and self.tenant_separator is None:
            raise ConfigError("limits need tenant_separator, which says what the tenant of a key is", hint=hints.SET_SEPARATOR)

    def evolve(self, **changes: Any) -> QueueConfig:
        """Return this configuration with some values changed and validated."""
        changes = effective(changes)
        return attrs.evolve(self, **changes)._remember(self.given | changes.keys(), self._unknown)

    @functools.cached_property
    def keeps_ends(self) -> bool:
        """Whether an ack may leave something: a record, or an output."""
        return self.history != "off" or self.output_seconds > 0

    @functools.cached_property
    def turns(self) -> TenantRules | None:
        """The rules by which keys are next. None: the one that has waited longest is."""
        if self.tenant_separator is None and self.sideline_seconds is None and self.sideline_before is None:
            return None
        return TenantRules(
            self.tenant_separator or "", self.limits, sideline_seconds=self.sideline_seconds or 0.0,
            sideline_before=self.sideline_before or 0.0,
        )  # fmt: skip

    @property
    def given(self) -> frozenset[str]:
        """The names of the settings that were passed, changed or stored; the others are defaults."""
        return self._given

    def _remember(self, given: Set[str], unknown: Mapping[str, Any]) -> QueueConfig:
        vars(self).update(_given=frozenset(given), _unknown=dict(unknown))
        return self

    def to_json(self) -> str:
        """Return the stored form: a JSON object with every field, and the fields that `from_json` did not know."""
        return json.dumps({**self._unknown, **attrs.asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> QueueConfig:
        """Read the stored form. A missing field takes the value that it had in effect when this was stored.

        Fields that this version does not know, which a newer one wrote, have no effect; `to_json` writes them back unchanged.
        """
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: Any) -> QueueConfig:
        """Do the same for the parsed form.

        Raises:
            ConfigError: it is invalid.
        """
        if not isinstance(values, dict):
            raise ConfigError("the stored configuration is not a JSON object")
        known = {a.name for a in attrs.fields(cls)} & values.keys()
        unknown = {name: value for name, value in values.items() if name not in known and name not in OBSOLETE}
        return cls(**(BEFORE | {name: values[name] for name in known}))._remember(known, unknown)

    def retry_delay(self, attempts: int) -> float:
        """Return the seconds that a lane waits after attempt number `attempts` failed. It goes with the next version."""
        from .retries import seconds_between

        warnings.warn("QueueConfig.retry_delay goes with the next version", DeprecationWarning, stacklevel=2)
        return seconds_between(self, attempts)
