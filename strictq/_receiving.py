"""Receiving: turn claims into deliveries, and release every claim that did not reach its caller."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache

from . import _process
from . import _validate as validate
from ._client import Client
from ._errors import LeaseLost
from ._files import late
from ._keys import Key
from ._leased import OPEN
from ._observe import ANY_SHARD
from ._store.api import Claimed, Joined, Request
from .batch import Batch
from .delivery import Delivery, Lease


class Receiving:
    """The receive operations for queues, workers and the command."""

    __slots__ = ("_client", "_settling", "_storage")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._storage = client.storage
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
        charge: bool = True,
        starts: bool = False,
    ) -> Request:
        """Return a validated request. See Queue.receive, and Request for `charge` and `starts`.

        Raises:
            InvalidArgument: an argument is invalid.
        """
        usual = per_key is None and lease_seconds is None and keys is None and consumer is None
        if usual and not ack_first and charge and not starts and type(max_messages) is int:
            return _plain_request(max_messages, default_consumer())
        validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
        if per_key is not None:
            validate.whole("per_key", per_key, 1, validate.MESSAGES_MAX)
        length = None if lease_seconds is None else validate.microseconds("lease_seconds", lease_seconds, minimum=0.001)
        who = default_consumer() if consumer is None else validate.name("consumer", consumer)
        wanted = validate.keys(keys)
        return Request(max_messages, per_key, length, who, bool(ack_first), wanted, charge, starts)

    def receive_into(self, out: Batch, request: Request, wait: float | None) -> None:
        """Receive into a batch that the caller already holds, so that it can release the leases if an interrupt comes on return.

        Args:
            out: a new, empty batch.
            wait: seconds to wait for a first message; 0 returns at once, None waits forever.
        """
        storage = self._storage
        storage.require_open()
        if type(wait) is float and not wait:
            self.receive_now(out, request, wait_for_busy=True)
            return
        patience = storage.patience(None if wait is None else validate.microseconds("wait", wait))
        waits_since = 0.0
        while True:
            seen = storage.seen()
            over = patience.over
            soonest = self.receive_now(out, request, wait_for_busy=over)
            if out or over:
                if waits_since:
                    storage.observers.timed("receive_wait", waits_since, ANY_SHARD)
                return
            waits_since = waits_since or time.monotonic()
            left = patience.left(soonest)
            if left > 0:
                began = time.monotonic()
                storage.wait(seen, left, idle=request.keys is None)
                storage.count_waiting(time.monotonic() - began)
            storage.require_open()

    def receive_now(self, out: Batch, request: Request, *, wait_for_busy: bool, joined: Joined | None = None) -> int | None:
        """Receive the messages that are ready now into `out`, which is empty. See Storage.receive."""
        leased: list[Claimed] = []
        try:
            soonest = self._storage.receive(request, leased, wait_for_busy=wait_for_busy, joined=joined)
            out.fill(leased)
        except BaseException:
            self._settling.release_rest(Batch(self._client, request, leased))
            out.fill([])
            raise
        return soonest

    def batch(self, request: Request) -> Batch:
        """Return an empty batch for a request."""
        return Batch(self._client, request)

    def consume(self, request: Request, wait: float | None) -> Iterator[Delivery]:
        """Receive repeatedly and yield the deliveries one by one. See Queue.consume."""
        while True:
            batch = self.batch(request)
            rest: Iterable[Delivery] = batch
            try:
                self.receive_into(batch, request, wait)
                if not batch and wait is not None:
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

    def begin(self, d: Delivery) -> bool:
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

    def _is_lost(self, lease: Lease) -> bool:
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
