"""An attempt to do a call in a single statement, and what it needs."""

from __future__ import annotations

from typing import Any, Protocol

from ..._config import QueueConfig
from ..._observe import Observers
from .leases import Claimed, Request


class DirectHost(Protocol):
    """What this needs from its queue."""

    settings: tuple[QueueConfig, int]
    observers: Observers

    def wake(self) -> None: ...


class Commit(Protocol):
    """The transaction of a claim."""

    @property
    def committed(self) -> bool:
        """Whether it is committed."""
        ...


Brought = tuple[Any, Commit, Claimed]
"""The Shard of a claim, its transaction, and its leases."""


class Attempt:
    """An attempted receive from one shard.

    Attributes:
        brought: gets the claim just before it is committed, for a caller that is interrupted.
    """

    __slots__ = ("brought", "committed", "lease", "request", "shard")

    def __init__(self, request: Request, shard: object, brought: list[Brought]) -> None:
        self.request = request
        self.shard = shard
        self.brought = brought
        self.lease = 0
        self.committed = False
