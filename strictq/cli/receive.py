"""`strictq receive`: messages to stdout, acked once they are written."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

import strictq
from strictq import Batch, Delivery, LeaseLost, PartialFailure, StrictqError
from strictq._values.keys import Key
from strictq._values.views import body_fields, key_fields
from strictq.cli._arguments import (
    KeyType,
    Seconds,
    StoredText,
    consumer_option,
    key_of,
    key_type_option,
    operating,
    queue_argument,
)
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, many, tell
from strictq.cli._words import encoded

EXAMPLES: Final = """
strictq receive orders.strictq
strictq receive orders.strictq --max 1 --wait 60 | jq -r .body
strictq receive orders.strictq --drain > orders.jsonl
strictq receive orders.strictq --follow --raw
strictq receive orders.strictq --max 100 --no-ack
"""
MAX: Final = 10
BATCH: Final = 100
BATCH_OF_A_FILE: Final = 1000
LOOK_SECONDS: Final = 1.0
"""How often a waiting command checks that the reader of its output still exists."""


@command(EXAMPLES)
@queue_argument
@click.option(
    "at_most",
    "--max",
    "-n",
    type=click.IntRange(min=1),
    help=f"Receive at most this many messages. [{MAX}, if neither --drain nor --follow is given]",
)
@click.option("--wait", type=Seconds(min=0.0), default=0.0, help="Seconds to wait whenever no message is ready.")
@click.option("--drain", is_flag=True, help="Receive until no message is ready.")
@click.option("--follow", "-f", is_flag=True, help="Receive until interrupted.")
@click.option("--ack/--no-ack", default=True, help="Ack the printed messages, or release them without charging an attempt.")
@click.option("--nack", is_flag=True, help="Nack the printed messages. An attempt is charged for each.")
@click.option(
    "--delay", type=Seconds(min=0.0), help="With --nack: seconds before the next attempt. Default: the queue's retry delay."
)
@click.option("--reason", type=StoredText(), help="With --nack: the reason, shown by explain.")
@click.option("--key", multiple=True, metavar="KEY", help="Receive only this key. Repeatable.")
@key_type_option
@click.option(
    "--per-key",
    type=click.IntRange(min=1),
    help="At most this many messages of a key per batch. 1: the first message of each key.",
)
@click.option(
    "--lease", type=Seconds(min=0.001), help="Lease the keys for this many seconds. Default: the queue's lease_seconds."
)
@consumer_option
@click.option("--raw", is_flag=True, help="Print only the bodies, each followed by a newline.")
@click.option("as_json", "--json", is_flag=True, help="Print one JSON object per message (the default).")
def receive(
    queue: Path,
    at_most: int | None,
    wait: float,
    drain: bool,
    follow: bool,
    ack: bool,
    nack: bool,
    delay: float | None,
    reason: str | None,
    key: tuple[str, ...],
    key_type: KeyType,
    per_key: int | None,
    lease: float | None,
    consumer: str | None,
    raw: bool,
    as_json: bool,
) -> int:
    """Print the oldest ready messages, one per line, and ack them after writing.

    Messages are acked when the operating system has accepted the output. The reader of a pipe may not have read it yet.
    Messages that could not be written are released. To process messages with a command, use `strictq work`.

    Exit code 0: done, even if there was no message. 1: some messages were printed but not acked, because their lease was lost.
    2: invalid usage.
    """
    if raw and as_json:
        raise Failure("use either --raw or --json, not both", USAGE)
    settle = Settle("nack" if nack else "ack" if ack else "release", delay, reason)
    if nack and not ack:
        raise Failure("use either --nack or --no-ack, not both", USAGE)
    if not nack and (delay is not None or reason is not None):
        raise Failure("--delay and --reason require --nack", USAGE)
    if settle.how != "ack" and (drain or follow):
        raise Failure("--drain and --follow require acks: messages that are not acked would be delivered again", USAGE)
    if drain + follow + (at_most is not None) > 1:
        raise Failure("use only one of --max, --drain and --follow", USAGE)
    keys = [key_of(text, key_type) for text in key] or None
    out = Out(raw=raw)
    with operating(queue) as q:
        printer = Printer(q, out, settle, keys, per_key, lease, consumer)
        printer.run(None if drain or follow else at_most or MAX, None if follow else wait)
    if printer.lost:
        tell(f"strictq: {many(printer.lost, 'message')} printed but not acked: the lease was lost; they will be delivered again")
        return WRONG
    return OK


class Out:
    """Writes deliveries to stdout, as bytes."""

    def __init__(self, *, raw: bool) -> None:
        if sys.stdout is None:
            raise Failure("there is no stdout to write to", USAGE)
        self._raw = raw
        self._out = sys.stdout.buffer
        self._descriptor: int | None = None
        with suppress(OSError, AttributeError):
            self._descriptor = sys.stdout.fileno()
        self.is_file = self._descriptor is not None and stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def write(self, deliveries: Sequence[Delivery], *, durable: bool) -> None:
        """Write all messages or raise. With `durable`, fsync a regular file."""
        for d in deliveries:
            self._out.write((d.body if self._raw else _line(d)) + b"\n")
        self._out.flush()
        if durable and self.is_file:
            assert self._descriptor is not None
            os.fsync(self._descriptor)

    def require_reader(self) -> None:
        """Check that the output's reader still exists, so that nothing is received for a closed pipe.

        Raises:
            BrokenPipeError: the reader has closed the pipe.
        """
        if self._descriptor is None or self.is_file or not hasattr(select, "poll"):
            return
        poll = select.poll()
        poll.register(self._descriptor, 0)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            raise BrokenPipeError


def _line(d: Delivery) -> bytes:
    return encoded(as_values(d)).encode()


def as_values(d: Delivery) -> dict[str, Any]:
    """Return a message as JSON values."""
    return {
        **key_fields(d.key), "seq": d.seq, "id": d.id, **body_fields(d.body), "headers": d.headers, "dedup_id": d.dedup_id,
        "attempt": d.attempt, "enqueued_at": d.enqueued_at, "token": d.token, "shard": d.shard,
    }  # fmt: skip


class Settle:
    """Settles messages after they were written."""

    def __init__(self, how: str, delay: float | None, reason: str | None) -> None:
        self.how = how
        self._delay = delay
        self._reason = reason

    def __call__(self, q: strictq.Queue, deliveries: Sequence[Delivery]) -> int:
        """Settle the deliveries. Return how many had lost their lease."""
        if self.how == "release":
            give_back(deliveries)
            return 0
        try:
            if self.how == "ack":
                q.ack_many(deliveries)
            else:
                q.nack_many(deliveries, self._delay, self._reason)
        except LeaseLost:
            return len(deliveries)
        except PartialFailure as e:
            others = [r for r in e.results if isinstance(r, StrictqError) and not isinstance(r, LeaseLost)]
            if others:
                raise others[0] from None
            return sum(isinstance(r, LeaseLost) for r in e.results)
        return 0


def give_back(deliveries: Sequence[Delivery]) -> None:
    """Release every lease, with no attempt charged. Ignore errors: a lease that cannot be released expires."""
    for lease in dict.fromkeys(d.lease for d in deliveries):
        with suppress(StrictqError):
            lease.release()


class Printer:
    """Receives, writes and settles batches.

    Attributes:
        lost: messages that were written but lost their lease before they were settled.
    """

    def __init__(
        self,
        q: strictq.Queue,
        out: Out,
        settle: Settle,
        keys: Sequence[Key] | None,
        per_key: int | None,
        lease: float | None,
        consumer: str | None,
    ) -> None:
        self._q = q
        self._out = out
        self._settle = settle
        # starts=True: no message can crash this command, so its death must not end the delivery of several messages per lane.
        self._receiving = q._receiving
        self._request = self._receiving.request(1, per_key, lease, keys, consumer, starts=True)
        self.lost = 0

    def run(self, at_most: int | None, wait: float | None) -> None:
        """Run until `at_most` messages were printed, or none arrived for `wait` seconds. None means no such limit."""
        left = at_most
        batch = BATCH_OF_A_FILE if self._out.is_file else BATCH
        while left is None or left > 0:
            room = batch if left is None else left if self._settle.how == "release" else min(batch, left)
            got = self._next(min(room, 100_000), wait)
            if not got:
                return
            self._print(got)
            if left is not None:
                left -= len(got)
            if self._settle.how != "ack":
                return  # released messages would be delivered again

    def _next(self, room: int, wait: float | None) -> Batch:
        left = wait
        while True:
            self._out.require_reader()
            step = LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
            request = self._request._replace(room=room)
            got = self._receiving.batch(request)
            try:
                self._receiving.receive_into(got, request, step)
            except BaseException:
                give_back(got)
                raise
            if got or (left is not None and left <= LOOK_SECONDS):
                return got
            left = None if left is None else left - LOOK_SECONDS

    def _print(self, got: Batch) -> None:
        try:
            self._out.write(got, durable=self._settle.how == "ack" and self._q.durability == "full")
            self.lost += self._settle(self._q, got)
        except BaseException:
            give_back(got)
            raise
