"""Tenants: a key belongs to the tenant that its text names before the first separator. Limits apply to tenants by name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from .errors import ConfigError
from .views import Report

COMMON: Final = b""
"""The name of the tenant of all keys without a separator, of integers, and of keyless messages."""
NAME_CHARS_MAX: Final = 256
NAMES_KEPT: Final = 10_000
"""Of so many keys that are sent to, the names of their tenants are kept."""
LIMITS_MAX: Final = 10_000
"""The most names with limits. Names that end in an asterisk stand for many tenants."""
RATE_MAX: Final = 1e9
BURST_MAX: Final = 10**9
AGE_MAX: Final = 1e9
DEPTH_MAX: Final = 2**53
_NAMING: Final = b"sb"
"""The types of keys that name tenants, as in `keys`."""


def tenant_of(key: bytes, separator: bytes) -> bytes:
    """Return the name of the tenant of a stored key.

    Args:
        separator: empty: there is only the common tenant.
    """
    end = key.find(separator, 1) if separator else 0
    return key[1:end] if end > 1 and key[0] in _NAMING else COMMON


@attrs.frozen
class TenantLimit(Report):
    """The limits of a tenant, or of all whose names begin alike. None: no limit.

    Attributes:
        tenant: its name, or the beginning of names and an asterisk: "free-*". "*" stands for all tenants.
        weight: its share, relative to the others' weights, while several tenants have messages.
        max_depth: its unresolved messages at which its sends are refused with QueueFull.
        send_rate: messages per second that are accepted. receive_rate: messages per second that are delivered.
        concurrency: its keys that may be leased at once.
        target_age_seconds: while its oldest ready message is older, `send_rate` is multiplied by this, divided by that age.
        burst: messages that may come at once after a pause; None: those of one second, at least one.
        paused: none of its messages are delivered.
    """

    tenant: str
    weight: float = 1.0
    max_depth: int | None = None
    send_rate: float | None = None
    receive_rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    target_age_seconds: float | None = None
    paused: bool = False

    def __attrs_post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one of them is invalid.
        """
        name = self.tenant
        if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or "*" in name[:-1]:
            raise ConfigError(
                f"the name of a tenant has at most {NAME_CHARS_MAX} characters, and an asterisk only at its end, not {name!r}"
            )
        _require_number("weight", self.weight, 0.001, 1_000.0)
        _require_whole("max_depth", self.max_depth, DEPTH_MAX)
        if self.target_age_seconds is not None:
            _require_number("target_age_seconds", self.target_age_seconds, 0.001, AGE_MAX)
            if self.send_rate is None:
                raise ConfigError("target_age_seconds reduces send_rate: give that, too, or remove both")
        for what, rate in (("send_rate", self.send_rate), ("receive_rate", self.receive_rate)):
            if rate is not None:
                _require_number(what, rate, 0.001, RATE_MAX)
        _require_whole("burst", self.burst, BURST_MAX)
        _require_whole("concurrency", self.concurrency, BURST_MAX)
        if self.burst is not None and self.send_rate is None and self.receive_rate is None:
            raise ConfigError("burst is of a send_rate or a receive_rate: give one, or remove the burst, too")
        if not isinstance(self.paused, bool):
            raise ConfigError(f"paused must be True or False, not {self.paused!r}")


def _require_whole(what: str, value: object, most: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
        raise ConfigError(f"{what} must be a whole number from 1 to {most:,}, not {value!r}")


def _require_number(what: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not least <= value <= most:
        raise ConfigError(f"{what} must be a number from {least:g} to {most:,.10g}, not {value!r}")


def send_rate_at(limit: TenantLimit, age_seconds: float) -> float:
    """Return the messages per second that a tenant with a `send_rate` may send, while its oldest ready message has this age."""
    assert limit.send_rate is not None
    target = limit.target_age_seconds
    return limit.send_rate if target is None else max(0.001, limit.send_rate * target / max(target, age_seconds))


def _limits_deliveries(limit: TenantLimit) -> bool:
    return limit.paused or limit.receive_rate is not None or limit.concurrency is not None


NO_LIMIT: Final = TenantLimit("*")


def limits_of(given: object) -> tuple[TenantLimit, ...]:
    """Return limits in the order of their names, from their stored form or as they are.

    Raises:
        ConfigError: they are invalid, or there are more than LIMITS_MAX.
    """
    if not isinstance(given, list | tuple):
        raise ConfigError(f"limits must be a list, not {type(given).__name__}")
    known = {field.name for field in attrs.fields(TenantLimit)}
    found: dict[str, TenantLimit] = {}
    for one in given:
        if isinstance(one, Mapping):
            values: dict[str, Any] = {name: value for name, value in one.items() if name in known}  # a newer version has more
            if "tenant" not in values:
                raise ConfigError("a limit needs the name of a tenant")
            one = TenantLimit(**values)
        if not isinstance(one, TenantLimit):
            raise ConfigError(f"a limit is a TenantLimit, not {type(one).__name__}")
        found[one.tenant] = one
    if len(found) > LIMITS_MAX:
        raise ConfigError(f"there are {len(found):,} limits, and at most {LIMITS_MAX:,} are stored")
    return tuple(found[name] for name in sorted(found))


def changed_limits(limits: tuple[TenantLimit, ...], tenant: str, changes: dict[str, Any], *, remove: bool) -> list[TenantLimit]:
    """Return limits with those of one name changed or removed.

    Raises:
        ConfigError: a value is invalid.
    """
    others = [one for one in limits if one.tenant != tenant]
    if remove:
        return others
    before = next((one for one in limits if one.tenant == tenant), None)
    return [*others, TenantLimit(tenant, **changes) if before is None else attrs.evolve(before, **changes)]


class _Names(dict[bytes, bytes]):
    """The names of the tenants of stored keys, computed on first use."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator

    def __missing__(self, key: bytes) -> bytes:
        if len(self) >= NAMES_KEPT:
            self.clear()
        name = self[key] = tenant_of(key, self._separator)
        return name


class TenantRules:
    """Which limit applies to which tenant: the longest name that matches.

    Attributes:
        text: what ends a tenant's name in a key; empty: there is only the common tenant. `separator`: the same in a stored key.
        limits_sends: a tenant has a rate of sends. limits_depth: one has a maximum depth.
        sideline: the age from which on messages are sidelined, microseconds; 0: at none.
        sidelines: messages are sidelined, by their age or by the time at which they were sent.
        limits_keys: one may have only so many keys in flight.
        limits_deliveries: one is not always given what it has.
    """

    def __init__(
        self, separator: str, limits: tuple[TenantLimit, ...], *, sideline_seconds: float = 0.0, sideline_before: float = 0.0
    ) -> None:
        self.text = separator
        self.separator = separator.encode()
        self.sideline = round(sideline_seconds * 1_000_000)
        self._sidelined = round(sideline_before * 1_000_000)
        self.sidelines = bool(self.sideline or self._sidelined)
        self.limits = limits
        self.limits_sends = any(limit.send_rate is not None for limit in limits)
        self.limits_depth = any(limit.max_depth is not None for limit in limits)
        self.limits_keys = any(limit.concurrency is not None for limit in limits)
        self.limits_deliveries = any(map(_limits_deliveries, limits))
        self._exact = {limit.tenant.encode(): limit for limit in limits if not limit.tenant.endswith("*")}
        begins = [limit for limit in limits if limit.tenant.endswith("*")]
        self._beginnings = [(limit.tenant[:-1].encode(), limit) for limit in sorted(begins, key=lambda one: -len(one.tenant))]
        self._known: dict[bytes, TenantLimit] = {}
        self._names = _Names(self.separator)

    def sidelined_before(self, now: int) -> int:
        """Return the queue time before which messages were sent that are sidelined. 0: none are."""
        return max(self._sidelined, now - self.sideline) if 0 < self.sideline < now else self._sidelined

    def withholds(self, tenant: bytes) -> bool:
        """Return whether a tenant is not always given what it has."""
        return self.limits_deliveries and _limits_deliveries(self.of(tenant))

    def messages_of(self, keys: Iterable[bytes]) -> Counter[bytes]:
        """Return the number of messages of each tenant.

        Args:
            keys: the stored key of each message.
        """
        return Counter(map(self._names.__getitem__, keys))

    def of(self, tenant: bytes) -> TenantLimit:
        found = self._exact.get(tenant) or self._known.get(tenant)
        if found is None:
            found = next((limit for begin, limit in self._beginnings if tenant.startswith(begin)), NO_LIMIT)
            if len(self._known) < LIMITS_MAX:
                self._known[tenant] = found
        return found
