"""Worker processes and their supervisor, which starts them, restarts those that die, and decides when they stop.

Ctrl-C in a terminal goes to the whole process group, and systemd sends SIGTERM to every process of a unit, so parent and
children get the same signal at the same time. Only the supervisor acts on it. A child ignores stop signals from its first
instruction on, and gets its orders over a socket:

    supervisor to child: each byte is a stop order; end of file means that the supervisor has exited, and also stops the child
    child to supervisor: a space when it begins to work; its totals, as JSON, before it ends by an order or drained

A child that ends without its totals has died, whatever its exit code: a handler may call `os._exit(0)`.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import attrs

from strictq.cli._command import OK, USAGE, WRONG

STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESTART_SECONDS: Final = 0.5
RESTART_SECONDS_MAX: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A process that ran at least this long is restarted after the shortest wait."""
AT_ONCE_SECONDS: Final = 5.0
"""Seconds after the second signal at which a running process is killed."""
STOPPING: Final = "stopping: running handlers may finish; send a second signal to end them"
BEGUN: Final = b" "
TOTALS: Final = ("acked", "retried", "rejected", "lost", "timeouts", "poison", "deferred")

log: Final = logging.getLogger("strictq.run")


class StopSignals:
    """Makes it possible to wait for stop signals. For the main thread."""

    def __init__(self, *more: signal.Signals) -> None:
        """Prepare to wait for stop signals. `more` are signals that end a wait without being stop signals."""
        self._numbers = [n for n in STOPS if signal.getsignal(n) is not signal.SIG_IGN]  # nohup and background jobs ignore some
        self._numbers += more
        self._before: dict[int, Any] = {}
        self._wake: tuple[socket.socket, socket.socket] | None = None

    def __enter__(self) -> Self:
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.getsignal(number) for number in self._numbers}
        self.install()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        assert self._wake is not None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        for end in self._wake:
            end.close()

    def install(self) -> None:
        """Install the handlers, again if an imported module has replaced them."""
        for number in self._numbers:
            # A handler, not SIG_IGN, which child processes would inherit.
            signal.signal(number, _noticed)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)

    def wake(self) -> None:
        """End a wait. From any thread."""
        assert self._wake is not None
        with suppress(OSError):  # it is full or closed, so no wait needs to be ended
            self._wake[1].send(b"\0")

    def wait(self, seconds: float | None, *lines: socket.socket) -> int:
        """Wait for a signal or a readable line. Return the number of stop signals."""
        assert self._wake is not None
        select.select([self._wake[0], *lines], [], [], seconds)
        try:
            return sum(number in STOPS for number in self._wake[0].recv(4096))
        except BlockingIOError:
            return 0


def _noticed(_number: int, _frame: object) -> None:
    """Do nothing: the wakeup descriptor has received the signal."""


class StopLine:
    """The child's end of the socket.

    Attributes:
        ended: the supervisor has exited.
    """

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.ended = False
        os.set_inheritable(descriptor, False)

    def orders(self) -> int:
        """Return the number of stop orders received."""
        if self.ended or not select.select([self.socket], [], [], 0)[0]:
            return 0
        try:
            orders = len(self.socket.recv(64))
        except OSError:
            orders = 0
        self.ended = not orders
        return orders

    def begin(self) -> None:
        """Tell the supervisor that the process begins to work."""
        with suppress(OSError):  # the supervisor is gone
            self.socket.sendall(BEGUN)

    def report(self, totals: dict[str, int]) -> None:
        """Send the totals."""
        with suppress(OSError):  # the supervisor is gone
            self.socket.sendall(json.dumps(totals).encode())


@attrs.define(eq=False)
class Seat:
    """The place of one worker process.

    Attributes:
        start_at: when to start the next process; None: one is running, or none should run.
        deaths: number of consecutive deaths soon after a start.
    """

    number: int
    process: subprocess.Popen[bytes] | None = None
    line: socket.socket | None = None
    began: float = 0.0
    start_at: float | None = 0.0
    deaths: int = 0


class Supervisor:
    """Keeps worker processes running until a stop signal, or until one of them cannot start work.

    Attributes:
        totals: the sums of the totals that processes reported at exit.
        restarts: number of restarts.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], processes: int, *, grace: float | None = None) -> None:
        """Start no process yet.

        Args:
            command: returns a process's command line for its socket's descriptor.
            grace: seconds that a process waits for its handlers after a stop signal. One that runs for AT_ONCE_SECONDS longer is
                killed: it hangs, or has not begun to work. None: processes are waited for until a second signal.
        """
        self.totals: Counter[str] = Counter(dict.fromkeys(TOTALS, 0))
        self.restarts = 0
        self._command = command
        self._grace = grace
        self._seats = [Seat(number) for number in range(1, processes + 1)]
        self._orders = 0
        self._kill_at: float | None = None
        self._code = OK

    def run(self) -> int:
        """Run until all processes have ended. Return the exit code."""
        with StopSignals(signal.SIGCHLD) as signals:
            try:
                while True:
                    now = time.monotonic()
                    for seat in self._seats:
                        self._attend(seat, now)
                    if self._kill_at is not None and now >= self._kill_at:
                        self._kill()
                    if not any(seat.process or seat.start_at is not None for seat in self._seats):
                        return self._code
                    for _ in range(signals.wait(self._patience(now))):
                        self._order()
            finally:
                for seat in self._seats:
                    if seat.line is not None:
                        seat.line.close()  # open only after an error; the processes then stop by themselves

    def _patience(self, now: float) -> float | None:
        times = [seat.start_at for seat in self._seats if seat.start_at is not None]
        if self._kill_at is not None:
            times.append(self._kill_at)
        return max(0.0, min(times) - now) if times else None

    def _attend(self, seat: Seat, now: float) -> None:
        if seat.process is not None and seat.process.poll() is not None:
            self._ended(seat, now)
        if seat.start_at is not None and now >= seat.start_at:
            self._start(seat, now)

    def _start(self, seat: Seat, now: float) -> None:
        here, there = socket.socketpair()
        # Blocked until the child handles them, so that an early stop signal does not kill it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            with there:
                seat.process = subprocess.Popen(  # noqa: S603 - this program
                    self._command(there.fileno()), stdin=subprocess.DEVNULL, pass_fds=[there.fileno()]
                )
        except BaseException:
            here.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        seat.line, seat.began, seat.start_at = here, now, None
        log.info("started worker process %d (pid %d)", seat.number, seat.process.pid)

    def _ended(self, seat: Seat, now: float) -> None:
        assert seat.process is not None
        assert seat.line is not None
        code, pid = seat.process.returncode, seat.process.pid
        begun, totals = _reported(seat.line)
        self.totals.update(totals or {})
        seat.line.close()
        seat.process = seat.line = None
        name = f"worker process {seat.number} (pid {pid})"
        died = code != OK or totals is None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == OK and died:
            how += " before it was done"
        if not died or self._orders:
            log.log(logging.ERROR if died else logging.INFO, "%s %s", name, how)
            self._code = self._code or (WRONG if died else OK)
        elif code == USAGE and not begun:
            log.error("%s cannot start work; not restarting", name)
            self._code = USAGE
            self._order()
        else:
            seat.deaths = 0 if now - seat.began >= STEADY_SECONDS else seat.deaths + 1
            seconds = min(RESTART_SECONDS * 2.0 ** max(0, min(seat.deaths - 1, 16)), RESTART_SECONDS_MAX)
            seat.start_at = now + seconds
            self.restarts += 1
            log.error("%s %s; restarting in %.1f s", name, how, seconds)

    def _order(self) -> None:
        """Forward a stop order."""
        self._orders += 1
        soon = time.monotonic() + AT_ONCE_SECONDS
        if self._orders == 1:
            log.info(STOPPING)
            self._kill_at = None if self._grace is None else soon + self._grace
        else:
            if self._orders == 2:
                log.info("stopping at once")
            self._kill_at = soon if self._kill_at is None else min(soon, self._kill_at)
        for seat in self._seats:
            seat.start_at = None
            if seat.line is not None:
                with suppress(OSError):  # the process has just ended
                    seat.line.send(b".")

    def _kill(self) -> None:
        self._kill_at = None
        for seat in self._seats:
            if seat.process is not None:
                log.error("worker process %d (pid %d) does not exit; killing it", seat.number, seat.process.pid)
                seat.process.kill()


def _reported(line: socket.socket) -> tuple[bool, dict[str, int] | None]:
    """Return whether a process began to work, and the totals that it reported; None if it died."""
    line.setblocking(False)
    said = b""
    with suppress(OSError):  # a process forked by it may hold its end of the socket
        while more := line.recv(65536):
            said += more
    try:
        found = json.loads(said)
    except ValueError:
        return said.startswith(BEGUN), None
    return True, {name: int(found[name]) for name in TOTALS}


def command_line(*words: str) -> list[str]:
    """Return a command line that runs this program with this interpreter."""
    return [sys.executable, "-P", "-m", "strictq", *words]
