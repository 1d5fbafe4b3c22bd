"""`strictq replicate`, `strictq replicas` and `strictq restore`."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

import strictq
from strictq import QueueNotFound, ReplicationStatus
from strictq.cli._arguments import PATH, Seconds, json_option, operating, queue_argument, quiet_option
from strictq.cli._command import OK, USAGE, WRONG, Failure, Stopping, command, many, printable, tell
from strictq.cli._render import counting, listing, waiting
from strictq.cli._words import emit, size, status_line, utc

EXAMPLES: Final = {
    "replicate": """
strictq replicate orders.strictq --to /mnt/backup/orders --once
strictq replicate orders.strictq --to s3://backups/orders
strictq replicate orders.strictq --to tcps://10.0.0.2:7400 --token-file token --authority ca.pem
strictq replicate orders.strictq --to tcp://127.0.0.1:7400 --token-file token --confirmed
strictq replicate orders.strictq
strictq replicate orders.strictq --detach
strictq replicate restored.strictq --alone
""",
    "replicas": """
strictq replicas /mnt/backup/orders
strictq replicas /mnt/backup/orders --points --json
""",
    "restore": """
strictq restore /mnt/backup/orders orders.strictq --alone
strictq restore /mnt/backup/orders before.strictq --at 2026-01-31T08:00:00+01:00
strictq restore /mnt/backup/orders - --dry-run
""",
}
LOOK_SECONDS: Final = 0.1


class Moment(click.ParamType[datetime]):
    """A point in time: seconds since 1970, or ISO 8601 with an offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return a datetime with a time zone."""
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromtimestamp(float(value), UTC)
        except (ValueError, OverflowError, OSError):
            pass
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither seconds since 1970 nor ISO 8601.", param, ctx)
        if found.tzinfo is None:
            self.fail(f"{value!r} has no UTC offset; write 2026-01-31T08:00:00+01:00, or end with Z for UTC.", param, ctx)
        return found


@command(EXAMPLES["replicate"])
@queue_argument
@click.option(
    "--to",
    metavar="TARGET",
    help="The replica: a directory, s3://BUCKET/PREFIX or tcps://HOST:PORT. Stored with the queue.",
)
@click.option("--interval", type=Seconds(min=0.01), default=1.0, help="With --to: seconds between two segments.")
@click.option("--keep", type=Seconds(min=0), default=86400.0, help="With --to: how many seconds a restore can go back.")
@click.option(
    "--max-lag",
    type=click.IntRange(min=1 << 20),
    default=1 << 30,
    help="With --to: keep at most this many bytes of changes while the target is unreachable.",
)
@click.option("--key-file", type=PATH, metavar="FILE", help="With --to: authenticate segments with the secret in this file.")
@click.option("--token-file", type=PATH, metavar="FILE", help="With --to tcps://: the file with the replica's token.")
@click.option("--authority", type=PATH, metavar="FILE", help="With --to tcps://: the authority of the replica's certificate.")
@click.option("--plaintext", is_flag=True, help="With --to tcp://: the network is private; do not require TLS.")
@click.option("--confirmed", is_flag=True, help="With --to: every call waits until the replica has stored its changes.")
@click.option("--timeout", type=Seconds(min=0.001), default=10.0, help="With --confirmed: how many seconds a call waits.")
@click.option(
    "--verify", type=Seconds(min=1), default=86400.0, help="With --to: seconds in which each segment is verified again."
)
@click.option("--once", is_flag=True, help="Exit when all changes are shipped.")
@click.option("--detach", is_flag=True, help="Stop replicating this queue, and exit.")
@click.option("--force", is_flag=True, help="With --detach: even if a confirmed replica is unreachable or was promoted.")
@click.option("--alone", is_flag=True, help="Put a restored queue in service without a replica, and exit.")
@quiet_option
@json_option
def replicate(
    queue: Path, to: str | None, interval: float, keep: float, max_lag: int, key_file: Path | None, token_file: Path | None,
    authority: Path | None, plaintext: bool, confirmed: bool, timeout: float, verify: float, once: bool, detach: bool,
    force: bool, alone: bool, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Ship a queue's changes to its replica until Ctrl-C.

    Every process that has the queue open for writing ships too, but only one at a time. This command keeps the replica current
    when no other program runs. On a restored queue, --to also puts the queue in service.

    Exit code 0: done. 1: shipping failed, or the target's newest state could not be restored, and the whole queue was shipped
    again. 2: invalid usage, there is no such queue, or it has no replica and --to is missing.
    """
    if sum((detach, alone, to is not None)) > 1:
        raise Failure("use only one of --to, --detach and --alone", USAGE)
    if alone or to is not None:
        from strictq._store.api import Storage, put_in_service

        with suppress(QueueNotFound):  # opening it reports that; or it is a promoted replica, which is in service already
            if Storage.facts(queue) is not None:
                put_in_service(queue)
    gaps: list[str] = []

    def noted(event: strictq.Event) -> None:
        if event.kind == "replication_gap":
            gaps.append(event.detail)

    with operating(queue, noted) as q, Stopping() as stopping:
        if alone:
            found = q.replication()
        elif detach:
            q.detach(force=force)
            found = q.replication()
        else:
            if to is not None:
                q.configure_replication(
                    to, "confirmed" if confirmed else "async", interval_seconds=interval, keep_seconds=keep,
                    max_lag_bytes=max_lag, key_file=key_file, token_file=token_file, authority=authority, plaintext=plaintext,
                    timeout_seconds=timeout, verify_seconds=verify,
                )  # fmt: skip
            found = _ship(q, stopping, once=once, quiet=quiet)
    if as_json:
        emit({"replication": None if found is None else found.to_dict()})
    elif not quiet:
        print(status_line(found))
    for gap in gaps:
        if found is None or gap != found.last_error:  # that one was printed
            tell(f"strictq: {gap}")
    return WRONG if gaps or (found is not None and (found.stopped or found.last_error)) else OK


def _ship(q: strictq.Queue, stopping: Stopping, *, once: bool, quiet: bool) -> ReplicationStatus:
    """Ship until a stop signal or a permanent failure; with `once`, until everything is shipped."""
    shown = ""
    state = ""
    with waiting("shipping:", lambda: state, quiet=quiet):
        while True:
            found = q.replication()
            if found is not None and found.mode == "fenced":
                return found
            if found is None or found.mode == "off":
                raise Failure(f"{q.path} has no replica", USAGE, "give --to TARGET")
            state = status_line(found)
            if (found.last_error or "") != shown:
                shown = found.last_error or ""
                tell(f"strictq: {shown}" if shown else "strictq: shipping has resumed")
            shipped = found.segment is not None and found.lag_bytes == 0
            if found.stopped or stopping.asked is not None or (once and (shipped or found.last_error)):
                return found
            time.sleep(LOOK_SECONDS)


@command(EXAMPLES["replicas"])
@click.argument("target", metavar="TARGET", help="The directory or s3://BUCKET/PREFIX that a queue ships to.")
@click.option("--points", is_flag=True, help="List every state that can be restored.")
@json_option
def replicas(target: str, points: bool, as_json: bool) -> int:
    """Show which queue a replica belongs to, and the range of times that can be restored.

    Reads the headers of all segments, which shows missing segments. `strictq restore` also verifies their contents.

    Exit code 0: the newest state can be restored. 1: a segment that it needs is missing or damaged, there is no state, or the
    replica cannot be read. 2: there is no replica.
    """
    from strictq.replication.restoring import look, points_of

    found = look(target)
    states = points_of(target) if points else []
    if as_json:
        values: dict[str, Any] = found.to_dict()
        if points:
            values["states"] = [{"segment": n, "at": at} for n, at in states]
        emit(values)
    else:
        print(f"{printable(found.target)}: replica of queue {found.queue_id}, history {found.history_id}")
        print(f"{many(found.segments, 'segment')}, {size(found.stored_bytes)}, {many(found.points, 'state')}")
        if found.oldest_at is not None and found.newest_at is not None:
            print(f"from {utc(found.oldest_at)} to {utc(found.newest_at)}")
        if found.missing is not None:
            print(f"the newest state cannot be restored: segment {found.missing} is missing or damaged")
        if points:
            listing(("segment", "at"), [(f"{n}", utc(at)) for n, at in states], right=("segment",))
    return OK if found.points and found.missing is None else WRONG


@command(EXAMPLES["restore"])
@click.argument("target", metavar="TARGET", help="The directory or s3://BUCKET/PREFIX that a queue shipped to.")
@click.argument("queue", type=PATH, metavar="QUEUE", help="The new queue's directory, which must not exist.")
@click.option(
    "--at",
    type=Moment(),
    metavar="TIME",
    help="Restore the newest state at or before this time: seconds since 1970, or ISO 8601.",
)
@click.option("--cut", type=click.IntRange(min=0), metavar="N", help="Restore the state with this number.")
@click.option("--alone", is_flag=True, help="Put the restored queue in service. Use it only if the original is out of service.")
@click.option("--key-file", type=PATH, metavar="FILE", help="The file with the secret that authenticates the segments.")
@click.option("--dry-run", is_flag=True, help="Find the state; create nothing.")
@quiet_option
@json_option
def restore(
    target: str, queue: Path, at: datetime | None, cut: int | None, alone: bool, key_file: Path | None, dry_run: bool,
    quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Restore a queue from its replica: the newest state, or the state at a point in time.

    Without --alone the restored queue is read-only until `strictq replicate QUEUE --alone` or --to puts it in service. If
    both the original and the copy were in service, each message would be delivered twice.

    Exit code 0: done. 1: a segment is missing or damaged, or the disk is full; nothing was created. 2: invalid usage.
    """
    started = time.monotonic()
    with counting("restoring:", lambda n, of: f"{n:,} of {many(of, 'segment')}", quiet=quiet or dry_run) as step:
        done = strictq.restore(target, queue, at=at, cut=cut, alone=alone, dry_run=dry_run, key_file=key_file, on_progress=step)
    if as_json:
        emit({**done.to_dict(), "seconds": time.monotonic() - started})
    elif not quiet:
        what = "would be" if dry_run else "is"
        of = f"{many(done.segments, 'segment')}, {size(done.stored_bytes)}"
        print(f"{printable(done.path)} {what} the queue as of {utc(done.at)} (state {done.segment}, of {of})")
        if done.waiting and not dry_run:
            print("the queue is read-only; to put it in service, run strictq replicate QUEUE --alone, or --to TARGET")
    return OK
