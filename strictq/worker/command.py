"""A command of the system as a handler: the message on its stdin, what it is in its environment, no shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, TextIO

from .._keys import Key
from .job import Defer, Job, Retry

RETRY_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""
DEFER_CODE: Final = 69
"""EX_UNAVAILABLE of sysexits.h: a service is unavailable. Postpones the message, if the worker was given a delay for it."""
POLL_SECONDS: Final = 0.05
ERROR_BYTES_MAX: Final = 2000
"""How much of the end of a command's stderr is kept with the message."""
OUTPUT_BYTES_MAX: Final = 8000
"""And of its stdout."""
CHUNK_BYTES: Final = 64 * 1024
LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is passed on in pieces."""


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
        """A process handler: exit code 0 acks, 75 retries, 69 may defer, anything else fails. Its stdout is the job's output."""
        with tempfile.TemporaryFile() as out:
            self._run(job, out, Relay(out, sys.stdout, OUTPUT_BYTES_MAX))

    def prepare(self, job: Job) -> IO[bytes]:
        """A prepare handler: its stdout, in a file that is gone when nobody needs it any more."""
        held = tempfile.NamedTemporaryFile(prefix="strictq-prepared-")  # noqa: SIM115 - it lives as long as the job
        try:
            self._run(job, held, None)
        except BaseException:
            held.close()
            raise
        held.flush()
        return held

    def _run(self, job: Job, stdout: IO[bytes], output: Relay | None) -> None:
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as body:
            errors = Relay(said, sys.stderr, ERROR_BYTES_MAX)
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
                self._wait(process, job, errors, output)
            except BaseException:
                _end(process)
                raise
            _judge(process.returncode, errors.tail, self._defer_seconds)

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], job: Job, errors: Relay, output: Relay | None) -> None:
        over = False
        while not over:
            try:
                process.wait(POLL_SECONDS)
                over = True
            except subprocess.TimeoutExpired:
                if job.cancelled:
                    raise CommandFailed("the job was cancelled") from None
            errors.go_on(to_the_end=over)
            if output is not None:
                output.go_on(to_the_end=over)
                if output.tail:
                    job._recorded.output = [output.tail]


class Relay:
    """Passes on what a command writes, as it comes and in whole lines, and keeps the end of it.

    Attributes:
        tail: the end of what was passed on.
    """

    def __init__(self, source: IO[bytes], to: TextIO, bytes_max: int) -> None:
        self.tail = ""
        self._fd = source.fileno()
        self._to = to
        self._bytes_max = bytes_max
        self._read = 0
        self._waiting = b""
        self._end = b""

    def go_on(self, *, to_the_end: bool) -> None:
        """Pass on the lines that are complete; to_the_end: everything.

        Raises:
            OSError: the stream can't be written. (A reader that went away is no error: then nothing is passed on.)
        """
        while data := os.pread(self._fd, CHUNK_BYTES, self._read):
            self._read += len(data)
            lines, newline, rest = (self._waiting + data).rpartition(b"\n")
            self._waiting = rest
            self._pass_on(lines + newline)
            if len(rest) > LINE_BYTES_MAX:
                self._flush()
        if to_the_end:
            self._flush()
        self.tail = self._end.decode("utf-8", "replace")

    def _flush(self) -> None:
        rest, self._waiting = self._waiting, b""
        self._pass_on(rest)

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._end = (self._end + data)[-self._bytes_max :]
            with _PRINTING, suppress(BrokenPipeError):
                _print(self._to, data)


_PRINTING: Final = threading.Lock()


def _print(to: TextIO, data: bytes) -> None:
    """Write bytes to a stream. On a terminal as text, so that a line of progress makes room for them."""
    buffer = getattr(to, "buffer", None)
    if buffer is None or to.isatty():
        to.write(data.decode("utf-8", "replace"))
        to.flush()
        return
    to.flush()
    rest = memoryview(data)
    while rest:  # past the buffer: what a failing stream did not take must not stay there
        rest = rest[os.write(buffer.fileno(), rest) :]


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


def _judge(code: int, said: str, defer_seconds: float | None) -> None:
    if code == 0:
        return
    if code == RETRY_CODE:
        raise Retry(reason=said.strip() or f"the command ended with {RETRY_CODE}")
    if code == DEFER_CODE and defer_seconds is not None:
        raise Defer(defer_seconds)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    raise CommandFailed(f"the command {how}: {said.strip()}" if said.strip() else f"the command {how}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def shell(text: str) -> list[str]:
    """The command that has the user's shell run a text; for those who ask for it."""
    return [os.environ.get("SHELL") or str(Path("/bin/sh")), "-c", text]
