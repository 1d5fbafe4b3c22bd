"""What the rates of tenants permit the running plan of a claim to lease.

A plan looks at the rate of a tenant when it comes to the tenant's first lane. What it leases is taken of all rates at its end,
and no more is leased than that. So the file of rates is locked once for each claim.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..._values.tenants import TenantLimit
from ..disk.rate_file import RECEIVE, Rate, RateFile


class _Permit:
    """What one tenant may have: `room` by its rate, `used` by lanes of the plan, and `taken` of the rate for them.

    Attributes:
        room: -1: the plan has not looked. `wait`: the microseconds until there is room for one more.
    """

    __slots__ = ("name", "rate", "room", "taken", "used", "wait")

    def __init__(self, tenant: bytes, limit: TenantLimit) -> None:
        assert limit.receive_rate is not None
        self.name = RECEIVE + tenant
        self.rate = Rate(limit.receive_rate, limit.burst)
        self.room = -1
        self.taken = self.used = self.wait = 0


class Permits:
    """The permits of one plan."""

    def __init__(self, rates: RateFile) -> None:
        self._rates = rates
        self._of: dict[bytes, _Permit] = {}

    def __bool__(self) -> bool:
        """Return whether a plan has asked for any."""
        return bool(self._of)

    def ask(self, tenant: bytes, limit: TenantLimit) -> _Permit:
        """Let the rate of a tenant apply to the plan."""
        permit = self._of.get(tenant)
        if permit is None:
            permit = self._of[tenant] = _Permit(tenant, limit)
        return permit

    def room(self, tenant: bytes, limit: TenantLimit) -> int:
        """Return how many more messages a tenant may have."""
        permit = self.ask(tenant, limit)
        if permit.room < 0:
            permit.room, permit.wait = self._rates.look(permit.name, permit.rate)
        return max(0, permit.room - permit.used)

    def wait(self, tenant: bytes, limit: TenantLimit) -> int:
        """Return in how many microseconds a tenant may have a message. 0: now."""
        return 0 if self.room(tenant, limit) else self._of[tenant].wait

    def use(self, tenant: bytes, messages: int) -> None:
        """Note that the plan leases messages of a tenant."""
        permit = self._of.get(tenant)
        if permit is not None:
            permit.used += messages

    def take(self, leased: Mapping[bytes, int]) -> dict[bytes, int]:
        """Take what the plan leases of each tenant.

        Returns:
            How many messages it leases too many of a tenant, because another process or shard was faster.
        """
        wanted = [(tenant, permit, n) for tenant, permit in self._of.items() if (n := leased.get(tenant, 0))]
        got = self._rates.take([(permit.name, permit.rate, n) for _, permit, n in wanted]) if wanted else []
        over: dict[bytes, int] = {}
        for (tenant, permit, n), (taken, _) in zip(wanted, got, strict=True):
            permit.taken = taken
            if taken < n:
                over[tenant] = n - taken
        return over

    def return_all(self) -> bool:
        """Return to the rates what was taken for a plan that is not written. Return whether that was something."""
        taken = [(permit.name, permit.rate, permit.taken) for permit in self._of.values() if permit.taken]
        self._of = {}
        if taken:
            self._rates.give(taken)
        return bool(taken)

    def keep(self) -> None:
        """Note that the plan is written."""
        self._of = {}
