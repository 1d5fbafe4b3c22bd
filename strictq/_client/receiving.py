"""Receiving: fill batches with claims, and release every claim that did not reach its caller."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, Literal, Protocol, TypeVar

from .._client import validate
from .._platform import process as _process
from .._platform.files import late
from .._platform.observe import ANY_SHARD, notify
from .._store.api import LOOK_SECONDS, Claimed, Joined, LiveConsumer, OnlyConsumer, Request
from .._values.errors import InvalidArgument, LeaseLost
from .._values.keys import Key
from .client import Client
from .leased import OPEN, LeaseState, MessageState

Live = LiveConsumer | OnlyConsumer
"""What says from which shards a consumer claims."""


class Fillable(Protocol):
    """A batch that a receive fills: a sequence of deliveries."""

    def fill(self, leased: Sequence[Claimed]) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


BatchT = TypeVar("BatchT", bound=Fillable)


class Receiving(Generic[BatchT]):
    """The receive operations for queues, workers and the command.

    Args:
        make: returns a batch with these claims.
    """

    __slots__ = ("_client", "_make", "_observers", "_settling", "_storage")

    def __init__(self, client: Client, make: Callable[[Client, Request, Sequence[Claimed]], BatchT]) -> None:
        self._client = client
        self._make = make
        self._storage = client.storage
        self._observers = client.storage.observers
        self._settling = client.settling

    @staticmethod
    def request(
        max_messages: int = 1,
        per_key: int | None = None,
        lease_seconds: float | None = None,
        keys: Iterable[Key] | None = None,
        consumer: str | None = None,
        *,
        ack_first: bool = False,
        charge: bool | Literal["started", "all"] = True,
        starts: bool = False,
    ) -> Request:
        """Return a validated request. See Queue.receive, and Request for `charge` and `starts`.

        Raises:
            InvalidArgument: an argument is invalid.
        """
        usual = per_key is None and lease_seconds is None and keys is None and consumer is None
        if usual and not ack_first and (charge is True or charge == "started") and not starts and type(max_messages) is int:
            return _plain_request(max_messages, default_consumer())
        validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
        if per_key is not None:
            validate.whole("per_key", per_key, 1, validate.MESSAGES_MAX)
        length = None if lease_seconds is None else validate.microseconds("lease_seconds", lease_seconds, minimum=0.001)
        who = default_consumer() if consumer is None else validate.name("consumer", consumer)
        wanted = validate.keys(keys)
        if charge not in (True, False, "started", "all"):
            raise InvalidArgument(f"charge must be 'started' or 'all', not {validate.shown(charge)}")
        if charge == "all" and ack_first:
            raise InvalidArgument("charge='all' does not go with ack_first=True: resolved messages have no further attempt")
        return Request(
            max_messages, per_key, length, who, bool(ack_first), wanted, bool(charge), starts, charge_all=charge == "all"
        )

    def receive_into(self, out: Fillable, request: Request, wait: float | None, live: Live | None = None) -> None:
        """Receive into a batch that the caller already holds, so that it can release the leases if an interrupt comes on return.

        Args:
            out: a new, empty batch.
            wait: seconds to wait for a first message; 0 returns at once, None waits forever.
            live: claim from the shards of this live consumer only.
        """
        storage = self._storage
        storage.require_open()
        if type(wait) is float and not wait:
            self.receive_now(out, request, wait_for_busy=True, live=live)
            return
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait))
        waits_since = 0.0
        while True:
            seen = storage.waker.seen()
            over = patience.over
            soonest = self.receive_now(out, request, wait_for_busy=over, live=live)
            if len(out) or over:
                if waits_since:
                    self._observers.timed("receive_wait", waits_since, ANY_SHARD)
                return
            waits_since = waits_since or time.monotonic()
            left = patience.left(soonest)
            if left > 0:
                began = time.monotonic()
                if live is None:
                    storage.waker.wait(seen, left, idle=request.keys is None)
                else:
                    storage.waker.wait(seen, min(left, LOOK_SECONDS), idle=live.helps)
                storage.count_waiting(time.monotonic() - began)
            storage.require_open()

    def receive_now(
        self, out: Fillable, request: Request, *, wait_for_busy: bool, joined: Joined | None = None, live: Live | None = None
    ) -> int | None:
        """Receive the messages that are ready now into `out`, which is empty. See `whole.receive.receive`."""
        leased: list[Claimed] = []
        observers = self._observers
        began = time.monotonic() if observers.received else 0.0
        if live is not None:
            request = request._replace(among=live.turn())
        try:
            soonest = self._storage.receive(request, leased, wait_for_busy=wait_for_busy, joined=joined)
            out.fill(leased)
        except BaseException:
            self._settling.release_rest(self._make(self._client, request, leased))
            out.fill([])
            raise
        if live is not None:
            found = len(out)
            live.found(found, behind=found >= request.room)
        if began and len(out):
            notify(observers.received, out, time.monotonic() - began)
        return soonest

    def batch(self, request: Request) -> BatchT:
        return self._make(self._client, request, ())

    def consume(self, request: Request, wait: float | None, live: Live | None = None) -> Iterator[Any]:
        """Receive repeatedly and yield the deliveries one by one. See Queue.consume."""
        while True:
            batch = self.batch(request)
            rest: Iterable[Any] = batch
            try:
                self.receive_into(batch, request, wait, live)
                if not len(batch) and wait is not None:
                    return
                rest = waiting = deque(batch)
                while waiting:
                    d = waiting[0]
                    begun = self.begin(d)
                    # Removed only now: until here, an interrupt must find it among the rest. `del`, because an interrupt
                    # could follow a call.
                    del waiting[0]
                    if not begun:
                        continue
                    if waiting and waiting[0].lease is d.lease:
                        d._next = waiting[0]
                    yield d
            finally:
                try:
                    self._settling.release_rest(rest)
                finally:
                    self._settling.release_rest(rest)  # an interrupt can end the first call anywhere

    def begin(self, d: MessageState) -> bool:
        """Start a delivery that `consume` is about to yield, and renew a lease past half of its time.

        Return False if it is lost.
        """
        lease = d.lease
        if d._state != OPEN or d.seq > lease._hi:
            return False  # returned to the lane together with an earlier message
        lost = lease._deadline - self._storage.now() <= lease._seconds // 2 and self._is_lost(lease)
        if lease.ack_first:
            return True  # already resolved, whether or not the lease is still held
        if not lost:
            with suppress(LeaseLost):
                self._settling.start(d)
                return True
        return False

    def _is_lost(self, lease: LeaseState) -> bool:
        """Extend the lease, and return whether it was lost."""
        error = self._settling.renew([lease], lease._seconds)[lease]
        if error is not None and not isinstance(error, LeaseLost):
            raise error
        return error is not None


def leased_ahead(max_messages: int, *, ack_first: bool) -> int:
    """Return the number of messages that `consume` leases at a time.

    Raises:
        InvalidArgument: max_messages is not 1..100,000.
    """
    validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
    return 1 if ack_first else max_messages


@lru_cache(maxsize=64, typed=True)
def _plain_request(max_messages: int, consumer: str) -> Request:
    """Return the cached request of a receive without options; most receives repeat the same one."""
    validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
    return Request(max_messages, None, None, consumer)


_consumer: tuple[int, str] | None = None


def default_consumer() -> str:
    """Return the host name and process id."""
    global _consumer
    pid = _process.pid
    if _consumer is None or _consumer[0] != pid:
        with late():
            import socket  # imported late: only a receive needs the host name

        _consumer = (pid, f"{socket.gethostname()}:{pid}")
    return _consumer[1]
