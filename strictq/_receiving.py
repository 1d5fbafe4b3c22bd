"""Receiving: what is leased becomes deliveries, and nothing stays leased that its caller never had."""

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
    """What queues, workers and the command call to receive."""

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
        """What may be received, checked. See Queue.receive, and Request for the last two.

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
        """Receive into what the caller has in hand already: an interrupt on the way back loses nothing that it can't release.

        Args:
            out: new.
            wait: seconds to wait for a first message; 0 returns at once, None waits for ever.
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
        """Receive what is ready now, into `out`, which is empty. See Storage.receive."""
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
        """What a request is received into."""
        return Batch(self._client, request)

    def consume(self, request: Request, wait: float | None) -> Iterator[Delivery]:
        """Receive again and again, and hand out one by one. See Queue.consume."""
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
                    # Not before: an interrupt on the way must find it among the rest. And no call, behind which one could come.
                    del waiting[0]
                    if not begun:
                        continue
                    if waiting and waiting[0].lease is d.lease:
                        d._next = waiting[0]
                    yield d
            finally:
                self._settling.release_rest(rest)

    def begin(self, d: Delivery) -> bool:
        """Start a delivery that `consume` is about to hand out, with enough of its lease left. False: it is not its holder's."""
        lease = d.lease
        if d._state != OPEN or d.seq > lease._hi:
            return False  # given back with an earlier one
        lost = lease._deadline - self._storage.now() <= lease._seconds // 2 and self._is_lost(lease)
        if lease.ack_first:
            return True  # resolved already, whoever has the lane
        if not lost:
            with suppress(LeaseLost):
                self._settling.start(d)
                return True
        return False

    def _is_lost(self, lease: Lease) -> bool:
        """Extend it, to see."""
        error = self._settling.renew([lease], lease._seconds)[lease]
        if error is not None and not isinstance(error, LeaseLost):
            raise error
        return error is not None


def leased_ahead(max_messages: int, *, ack_first: bool) -> int:
    """How many messages `consume` leases at a time.

    Raises:
        InvalidArgument: max_messages is none of receive's.
    """
    validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
    return 1 if ack_first else max_messages


@lru_cache(maxsize=64, typed=True)
def _plain_request(max_messages: int, consumer: str) -> Request:
    """With nothing but a number: most receives ask for the same again and again."""
    validate.whole("max_messages", max_messages, 1, validate.MESSAGES_MAX)
    return Request(max_messages, None, None, consumer)


_consumer: tuple[int, str] | None = None


def default_consumer() -> str:
    """Host name and process id."""
    global _consumer
    pid = _process.pid
    if _consumer is None or _consumer[0] != pid:
        with late():
            import socket  # only who receives needs a name

        _consumer = (pid, f"{socket.gethostname()}:{pid}")
    return _consumer[1]
