"""A command of the system as a handler: the message on its stdin, what it is in its environment, no shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from .._keys import Key
from .job import Defer, Job, Retry

RETRY_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""
DEFER_CODE: Final = 69
"""EX_UNAVAILABLE of sysexits.h: a service is unavailable. Postpones the message, if the worker was given a delay for it."""
POLL_SECONDS: Final = 0.05
SAID_BYTES_MAX: Final = 2000
"""How much of the end of a command's stderr is kept with the message."""


class CommandFailed(Exception):
    """The command ended by a signal, or with an exit code that means neither done nor retry nor defer."""

    speaks_for_itself = True


class Command:
    """Runs a command for each job; waits for it, and ends it with everything it started when the job is cancelled."""

    def __init__(self, arguments: Sequence[str], queue: str, *, defer_seconds: float | None = None) -> None:
        """Args: defer_seconds: how long exit code 69 postpones a message; None: it fails, as with any other code."""
        self._arguments = list(arguments)
        self._queue = queue
        self._defer_seconds = defer_seconds

    def process(self, job: Job) -> None:
        """A process handler: exit code 0 acks, 75 retries, 69 may defer, anything else fails."""
        self._run(job, None)

    def prepare(self, job: Job) -> IO[bytes]:
        """A prepare handler: its stdout, in a file that is gone when nobody needs it any more."""
        held = tempfile.NamedTemporaryFile(prefix="strictq-prepared-")  # noqa: SIM115 - it lives as long as the job
        try:
            self._run(job, held)
        except BaseException:
            held.close()
            raise
        held.flush()
        return held

    def _run(self, job: Job, stdout: IO[bytes] | None) -> None:
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as body:
            body.write(job.body)
            body.seek(0)
            holder = job._delivery.lease._client.storage.holder
            # A session of its own: Ctrl-C is for the worker, which lets the command finish.
            process = subprocess.Popen(  # noqa: S603 - the command is what the user asked for
                self._arguments,
                stdin=body,
                stdout=stdout,
                stderr=said,
                env=environment(job, self._queue, os.environ),
                start_new_session=True,
                pass_fds=() if holder is None else holder.descriptors,
            )
            try:
                self._wait(process, job)
            except BaseException:
                _end(process)
                raise
            _judge(process.returncode, _tail(said), job, self._defer_seconds)

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], job: Job) -> None:
        while True:
            try:
                process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if job.cancelled:
                    raise CommandFailed("the job was cancelled") from None
            else:
                return


def environment(job: Job, queue: str, base: Mapping[str, str]) -> dict[str, str]:
    """What a command is told of its message. STRICTQ_KEY is left out where the key can't be in an environment."""
    values = {
        **base,
        "STRICTQ_QUEUE": queue,
        "STRICTQ_SEQ": str(job.seq),
        "STRICTQ_ATTEMPT": str(job.attempt),
        "STRICTQ_TOKEN": str(job.token),
    }
    for name in ("STRICTQ_KEY", "STRICTQ_KEY_TYPE", "STRICTQ_KEY_HEX", "STRICTQ_PREPARED"):
        values.pop(name, None)
    if job.key is not None:
        kind, raw = _key(job.key)
        values["STRICTQ_KEY_TYPE"], values["STRICTQ_KEY_HEX"] = kind, raw.hex()
        if b"\0" not in raw:
            values["STRICTQ_KEY"] = os.fsdecode(raw)
    path = getattr(job.prepared, "name", None)
    if path is not None:
        values["STRICTQ_PREPARED"] = path
    return values


def _key(key: Key) -> tuple[str, bytes]:
    if isinstance(key, bytes):
        return "bytes", key
    return type(key).__name__, str(key).encode()


def _judge(code: int, said: str, job: Job, defer_seconds: float | None) -> None:
    if said:
        sys.stderr.write(said)
        sys.stderr.flush()
        job.output(said)
    if code == 0:
        return
    if code == RETRY_CODE:
        raise Retry(reason=said.strip() or f"the command ended with {RETRY_CODE}")
    if code == DEFER_CODE and defer_seconds is not None:
        raise Defer(defer_seconds)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    raise CommandFailed(f"the command {how}: {said.strip()}" if said.strip() else f"the command {how}")


def _tail(said: Any) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - SAID_BYTES_MAX))
    text: str = said.read().decode("utf-8", "replace")
    return text


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def shell(text: str) -> list[str]:
    """The command that has the user's shell run a text; for those who ask for it."""
    return [os.environ.get("SHELL") or str(Path("/bin/sh")), "-c", text]
