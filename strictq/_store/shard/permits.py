"""What the rates of tenants permit the running plan of a claim to take.

A plan takes as much of a tenant's rate as it has room for when it comes to the tenant's first lane, and returns what it did not
use at its end. So the file of rates is locked for each tenant of a claim, and not for each lane.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..._values.tenants import TenantLimit
from ..disk.rate_file import RECEIVE, Rate, RateFile


class _Permit:
    """What one tenant may have: `taken` of its rate, and `used` by lanes of the plan."""

    __slots__ = ("name", "rate", "taken", "used")

    def __init__(self, tenant: bytes, limit: TenantLimit) -> None:
        assert limit.receive_rate is not None
        self.name = RECEIVE + tenant
        self.rate = Rate(limit.receive_rate, limit.burst)
        self.taken = self.used = 0


class Permits:
    """The permits of one plan."""

    def __init__(self, rates: RateFile) -> None:
        self._rates = rates
        self._of: dict[bytes, _Permit] = {}

    def __bool__(self) -> bool:
        """Return whether a plan has any that were neither kept nor returned."""
        return bool(self._of)

    def wait(self, tenant: bytes, limit: TenantLimit) -> int:
        """Return in how many microseconds a tenant may have a message. 0: now."""
        permit = self._of.get(tenant) or _Permit(tenant, limit)
        return 0 if permit.taken > permit.used else self._rates.take(permit.name, permit.rate, 0)[1]

    def take(self, tenant: bytes, limit: TenantLimit, room: int) -> tuple[int, int]:
        """Return how many messages a tenant may have, and if it is none, as `wait`.

        Args:
            room: how many more messages the plan takes.
        """
        permit = self._of.get(tenant)
        if permit is None:
            permit = self._of[tenant] = _Permit(tenant, limit)
        wait = 0
        if permit.taken == permit.used:
            taken, wait = self._rates.take(permit.name, permit.rate, room)
            permit.taken += taken
        return permit.taken - permit.used, wait

    def use(self, tenant: bytes, messages: int) -> None:
        """Note that the plan leases messages of a tenant."""
        permit = self._of.get(tenant)
        if permit is not None:
            permit.used += messages

    def limit_to(self, leased: Mapping[bytes, int]) -> None:
        """Note that the plan leases no more than this of each tenant, because the rest does not fit."""
        for tenant, permit in self._of.items():
            permit.used = min(permit.used, leased.get(tenant, 0))

    def return_unused(self) -> bool:
        """Return to the rates what the plan did not use. Return whether that was something."""
        some = False
        for permit in self._of.values():
            if permit.taken > permit.used:
                self._rates.give(permit.name, permit.rate, permit.taken - permit.used)
                permit.taken, some = permit.used, True
        return some

    def return_all(self) -> bool:
        """Return to the rates what was taken for a plan that is not written. Return whether that was something."""
        self.limit_to({})
        some = self.return_unused()
        self._of = {}
        return some

    def keep(self) -> None:
        """Note that the plan is written."""
        self._of = {}
