"""The limits of tenants, and of the queue's depth, over all shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from ..._platform.clock import Clock
from ..._values.errors import OutcomeUnknown, StrictqError, Throttled, refusal_of
from ..._values.tenants import LIMITS_MAX, TenantRules, send_rate_at, tenant_of
from ..disk import layout
from ..disk.rate_file import SEND, Rate, RateFile, Wanted
from ..shard import counting
from ..shard.sending import NOTHING_ELSEWHERE, Elsewhere
from ..shard.shard_file import Shard
from .routing import Routing

AGE_LOOK: Final = 1_000_000
"""The microseconds for which the age of a tenant's oldest message is used."""


class Quotas:
    """Checks sends and claims against what all shards have."""

    def __init__(self, store: Routing, now: Callable[[], int], directory: Path | None, clock: Clock) -> None:
        self._store = store
        self._now = now
        self._tenancy: TenantRules | None = None
        self._ages: dict[bytes, tuple[int, int]] = {}
        """Of tenants whose rates of sends depend on it: when, by the boot clock, the age of the oldest message was looked for."""
        self.rates = RateFile(None if directory is None else directory / layout.RATES, clock)

    @property
    def tenancy(self) -> TenantRules | None:
        """The limits of tenants. None: the queue has none."""
        config = self._store.settings[0]
        if config.tenant_separator is None:
            return None
        if self._tenancy is None or self._tenancy.limits is not config.limits or self._tenancy.text != config.tenant_separator:
            self._tenancy = TenantRules(config.tenant_separator, config.limits)
        return self._tenancy

    @contextmanager
    def admitted(self, wanted: Mapping[bytes, int], keys: Iterable[bytes] | None = None) -> Iterator[None]:
        """Take messages of the rates of their tenants. Return them if the block refuses to send.

        Args:
            wanted: the number of messages of each tenant.
            keys: the stored keys of the messages, so that the error says the messages of which ones are refused. None: all.
        Raises:
            Throttled: nothing was taken of the rates of the tenants.
        """
        rules = self.tenancy
        if rules is None or not rules.limits_sends:
            yield
            return
        sends: list[Wanted] = []
        for tenant, n in wanted.items():
            limit = rules.of(tenant)
            if limit.send_rate is not None:
                age = 0 if limit.target_age_seconds is None else self._age_of(tenant)
                sends.append((SEND + tenant, Rate(send_rate_at(limit, age / 1e6), limit.burst), n))
        if not sends:
            yield
            return
        taken: list[Wanted] = []
        refused: dict[bytes, Throttled] = {}
        for send, (got, wait) in zip(sends, self.rates.take(sends, whole=True), strict=True):
            if got:
                taken.append(send)
                continue
            tenant = send[0].removeprefix(SEND)
            shown = tenant.decode(errors="backslashreplace")
            refused[tenant] = Throttled(
                f"tenant {shown!r} sends more than {send[1].per_second:g} messages a second", tenant=shown,
                retry_after=wait / 1e6,
            )  # fmt: skip
        if refused:
            self.rates.give(taken)
            if keys is None:
                raise max(refused.values(), key=attrgetter("retry_after"))
            raise refusal_of({key: refused[name] for key in keys if (name := tenant_of(key, rules.separator)) in refused})
        try:
            yield
        except OutcomeUnknown:
            raise
        except StrictqError:
            self.rates.give(taken)
            raise

    def _age_of(self, tenant: bytes) -> int:
        """Return the age of a tenant's oldest ready message, microseconds, as of the last second."""
        at = self.rates.now()
        looked_at, age = self._ages.get(tenant, (-AGE_LOOK, 0))
        if at - looked_at >= AGE_LOOK:
            now = self._now()
            look = partial(counting.oldest_of_tenant, tenant=tenant, now=now)
            found = [sent for shard in self._store.healthy() if (sent := shard.view(look)) is not None]
            age = max(0, now - min(found)) if found else 0
            if len(self._ages) >= LIMITS_MAX:
                self._ages.clear()
            self._ages[tenant] = at, age
        return age

    def elsewhere(self, shard: Shard, tenants: Collection[bytes] = ()) -> Elsewhere:
        """Return what the other shards have committed of what maximum depths limit.

        Must be called before this shard's lock is taken: two shards that wait for each other's lock would deadlock.

        Args:
            tenants: those of the messages to send.
        """
        if len(self._store.shards) == 1:
            return NOTHING_ELSEWHERE
        counts, rules = self._store.settings[0].max_depth is not None, self.tenancy if tenants else None
        limited = [name for name in tenants if rules.of(name).max_depth is not None] if rules and rules.limits_depth else []
        if not counts and not limited:
            return NOTHING_ELSEWHERE
        messages, depths = 0, Counter[bytes]()
        for other in self._store.healthy():
            if other is not shard:
                messages += other.pending() if counts else 0
                depths.update(other.tenant_depths(limited) if limited else {})
        return Elsewhere(messages, depths)

    def in_flight_elsewhere(self, shard: Shard) -> Mapping[bytes, int] | None:
        """Return the keys in flight in the other shards, of tenants that may have only so many. None: there are none such.

        Must be called before this shard's lock is taken, as `elsewhere`.
        """
        rules = self.tenancy if self._store.settings[0].limits and len(self._store.shards) > 1 else None
        if rules is None or not rules.limits_keys:
            return None
        found: Counter[bytes] = Counter()
        for other in self._store.healthy():
            if other is not shard:
                found.update(other.look_briefly(lambda lanes: lanes.in_flight(rules, self._now())))
        return found
