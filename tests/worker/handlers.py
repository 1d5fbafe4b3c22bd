"""Handlers that can be sent to another process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from strictq import Defer, Message, Reject, Retry
from tests.support.running import until


def nothing(job: Any) -> None:
    """Acks."""


def twice(job: Any) -> int:
    """A prepare."""
    return 2 * int(job.body)


def everything(job: Any) -> None:
    """All that a job can do in another process."""
    count = int(job.key_state or b"0")
    job.key_state = b"%d" % (count + 1)
    job.send(b"%d from %d" % (job.prepared or 0, os.getpid()), key="out")
    job.execute("INSERT INTO app_seen VALUES (?, ?)", (str(job.key), job.seq))


def fails_twice(job: Any) -> None:
    job.output(f"attempt {job.attempt}")
    if job.attempt == 1:
        raise ValueError("broken")
    if job.attempt == 2:
        raise Retry(reason="again")


def rejects(job: Any) -> None:
    raise Reject("unwanted")


def killed(job: Any) -> None:
    """Takes its process with it, if the body says so."""
    if job.body == b"kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.body == b"exit":
        sys.exit(7)


def hangs(job: Any) -> None:
    """Until it is killed, at its first attempt."""
    if job.attempt == 1:
        time.sleep(600)


def unsendable(job: Any) -> Any:
    return threading.Lock()


def uses_run(job: Any) -> None:
    job.run(lambda db: None)


def unrun(job: Any) -> Any:
    """What it returns has not run."""
    return (n for n in range(3))


def defers(job: Any) -> None:
    raise Defer(3600.0)


def fail_while_the_file_is_there(job: Any) -> None:
    """A dependency that is down as long as the file that the message names is there."""
    if Path(os.fsdecode(job.body)).exists():
        raise ConnectionError("connection refused")


async def afail_while_the_file_is_there(job: Any) -> None:
    """The same, async."""
    fail_while_the_file_is_there(job)


def catches_a_bad_send(job: Any) -> None:
    try:
        job.send("text", key="out")
    except ValueError as e:
        job.send(str(e).split(" (")[0].encode(), key="out")


def sends_in_all_forms(job: Any) -> None:
    """JSON, and a body that changes before the worker has it."""
    job.send_json({"seq": job.seq}, key="out")
    body = bytearray(b"changed later")
    job.send(body, key="out")
    body[:] = b"x"


def reads_json(job: Any) -> None:
    """Fails where the body is none."""
    job.json()


def says_what_failed_before(job: Any) -> None:
    """Fails once, and then says why it did."""
    if job.last_error is None:
        assert job.errors == ()
        raise ValueError("no paper")
    job.output(f"{job.last_error.attempt} {job.last_error.error}")
    job.key_state = b"done"


def waits_for_a_file(job: Any) -> None:
    """Says which process it is, and goes on when there is a second file."""
    begun = Path(job.body.decode())
    begun.with_suffix(".new").write_text(str(os.getpid()))
    begun.with_suffix(".new").rename(begun)
    until(lambda: begun.with_suffix(".go").exists())


def sends_with_headers(job: Any) -> None:
    """With headers of their own and without."""
    job.send(b"plain", key="out")
    job.send_json("json", key="out")
    job.send(Message(b"own", key="out", headers={"request-id": "mine", "own": "1"}))
    job.send(f"{job.size_hint} {job.prepare_seconds} {job.process_seconds}".encode(), key="out")


def raise_it(error: BaseException) -> None:
    raise error


def reports(job: Any) -> None:
    """Reports its progress much more often than that is sent, and waits for a file."""
    for n in range(76):
        job.progress(n / 100, "waits")
    while not Path(job.body.decode()).exists():
        time.sleep(0.01)


def says_the_body(job: Any) -> None:
    job.output(f"{job.body.decode()} done")


def alone_in(place: str) -> None:
    """Fails if another process is in it."""
    lock = Path(place) / "lock"
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    time.sleep(0.02)
    lock.unlink()


def touches(place: str, name: str) -> None:
    (Path(place) / name).touch()


def _unread() -> None:
    raise ValueError("it can't be read here")


class NotReadable:
    """Can be sent to another process, and not be read there."""

    def __reduce__(self) -> Any:
        return _unread, ()
