"""A system command as a handler. It gets the message on stdin and its metadata in the environment. No shell is involved."""

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

from .._platform import files
from .._values.keys import Key
from .job import Defer, Job, Retry

RETRY_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""
DEFER_CODE: Final = 69
"""EX_UNAVAILABLE of sysexits.h: a service is unavailable. Defers the message if the worker has a delay for it."""
POLL_SECONDS: Final = 0.05
ERROR_BYTES_MAX: Final = 2000
"""The number of last bytes of a command's stderr that are stored with the message."""
OUTPUT_BYTES_MAX: Final = 8000
"""The number of last bytes of its stdout that are stored."""
CHUNK_BYTES: Final = 64 * 1024
LINE_BYTES_MAX: Final = 1024 * 1024
"""Longer lines are passed on in pieces."""


class CommandFailed(Exception):
    """The command was killed by a signal, or its exit code means neither done nor retry nor defer."""

    speaks_for_itself = True


class Command:
    """Run a command for each job and wait for it. Kill it with all its children when the job is cancelled."""

    def __init__(self, arguments: Sequence[str], *, defer_seconds: float | None = None) -> None:
        """Prepare to run `arguments`. `defer_seconds` is the delay for exit code 69; None: it fails like any other code."""
        self._arguments = list(arguments)
        self._defer_seconds = defer_seconds

    def process(self, job: Job) -> None:
        """Process a job: exit code 0 acks, 75 retries, 69 may defer, any other code fails. Its stdout is the job's output."""
        with tempfile.TemporaryFile() as out:
            self._run(job, out, Relay(out, sys.stdout, OUTPUT_BYTES_MAX))

    def prepare(self, job: Job) -> IO[bytes]:
        """Prepare a job, and return a file with the command's stdout, deleted when it is no longer referenced."""
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
            holder = job._source.holder
            # A separate session, so that Ctrl-C reaches only the worker, which lets the command finish.
            process = subprocess.Popen(  # noqa: S603 - the user gave the command
                self._arguments,
                stdin=body,
                stdout=stdout,
                stderr=said,
                env=environment(job, os.environ),
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
    """Passes on a command's output at once, in whole lines, and keeps the end of it.

    Attributes:
        tail: the end of the output that was passed on.
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
        """Pass on the complete lines; with to_the_end, everything.

        Raises:
            OSError: the stream can't be written. A closed pipe is not an error; the output is then discarded.
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
    """Write bytes to a stream. To a terminal, write text, so that a progress line makes room for it."""
    buffer = getattr(to, "buffer", None)
    if buffer is None or to.isatty():
        to.write(data.decode("utf-8", "replace"))
        to.flush()
        return
    to.flush()
    # Not through the buffer: the bytes that a failing stream did not accept must not stay in it.
    files.write_all(buffer.fileno(), data)


def environment(job: Job, base: Mapping[str, str]) -> dict[str, str]:
    """Return a command's environment for its message. STRICTQ_KEY is omitted if the key contains a NUL byte."""
    values = {
        **base,
        "STRICTQ_QUEUE": job.queue_path,
        "STRICTQ_SEQ": job.sequence_number or str(job.seq),
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
    """Return the command that runs a text in the user's shell."""
    return [os.environ.get("SHELL") or str(Path("/bin/sh")), "-c", text]
