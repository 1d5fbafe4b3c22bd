"""Handlers in separate processes: one child for each thread of the pool, which sends it jobs and waits.

A child that dies fails only its own job, and is replaced at the next one. Arguments and results are sent over the
standard library's connections. A value that cannot be pickled is reported as an error.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import attrs

from .._client import validate
from .._client.effects import Effects, Recording
from .._platform.observe import Observers, around, contexts
from .._store.api import share_holder
from .._values import hints
from .._values.errors import InvalidArgument, LeaseLost
from .._values.findings import AttemptError
from .._values.handlers import require_ran
from .._values.keys import Key
from .._values.types import UNSET, body_as_json
from ..delivery import describe, traceback_of
from .job import EFFECTS, NO_EFFECTS, RUNNING, Defer, Job, JobSource, Reject, Retry
from .load import PROGRESS_SECONDS

POLL_SECONDS: Final = 0.05
"""Interval at which a thread checks whether its job was cancelled, to kill the child."""
START_SECONDS: Final = 60.0
ELSEWHERE: Final = ("sequence_number", "message_id", "attributes", "source", "source_seq")
"""The attributes of a job whose message came from an endpoint."""


class HandlerDied(Exception):
    """The handler's process ended: it was killed, or exited the interpreter."""

    speaks_for_itself = True

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class HandlerError(Exception):
    """The exception of a handler in another process, as text."""

    speaks_for_itself = True

    def __init__(self, said: str, handler_traceback: str | None = None) -> None:
        super().__init__(said)
        self.handler_traceback = handler_traceback


@attrs.define
class Sent:
    """The data of a job that is sent to a child."""

    body: bytes
    key: Key | None
    seq: int
    attempt: int
    headers: dict[str, str]
    enqueued_at: float
    token: int
    key_state: bytes | None
    prepared: Any
    deadline: float | None
    runs: bool
    has_effects: bool
    errors: tuple[AttemptError, ...]
    inherited: dict[str, str]
    estimates: tuple[float | None, float | None, float | None]
    elsewhere: dict[str, Any]
    around: tuple[bytes, ...]


@attrs.define
class Answer:
    """A child's message when its handler returned."""

    effects: Effects
    result: Any = None
    error: tuple[str, Any] | None = None
    traceback: str | None = None


@attrs.define
class HandlerProgress:
    """A child's message while its handler runs: its progress."""

    fraction: float
    text: str


def require_sendable(what: str, handler: Any, *, is_async: bool) -> None:
    """Raise unless this handler can run in another process.

    Raises:
        InvalidArgument: it is async, or can't be pickled, such as a lambda or a nested function.
    """
    if is_async:
        raise InvalidArgument(f"{what} is async: executor='process' requires plain functions", hint=hints.USE_THREADS)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # The child imports the main module again. Creating a worker there would start children recursively.
        raise InvalidArgument(
            "a worker with executor='process' is made while a process for handlers starts, which imports the main module again",
            hint=hints.GUARD_MAIN,
        )
    try:
        ForkingPickler.dumps(handler)
    except Exception as e:
        raise InvalidArgument(f"{what} can't be sent to another process: {e}", hint=hints.DEFINE_AT_TOP) from None


class Child:
    """A handler that is called in a child process: one child for each calling thread."""

    def __init__(
        self,
        stage: str,
        handler: Callable[..., Any],
        source: JobSource,
        observers: Observers,
        check: Callable[[Job], object] | None = None,
    ) -> None:
        """Start no process yet.

        Args:
            observers: asked for contexts of the handler in the child.
            check: called here before a job is sent; it may raise what a handler may raise.
        """
        self._check = check
        self._stage = stage
        self._handler = handler
        self._source = source
        self._observers = observers
        self._local = threading.local()

    def ready(self) -> None:
        """Start a child before a job is taken, so that the start does not count towards the handler's time or time-out."""
        held = getattr(self._local, "held", None)
        if held is not None and not held[0].is_alive():
            self.close()
        try:
            self._started()
        except HandlerDied as e:
            if e.exit_code >= 0:  # not killed: it cannot import the handler, and no message is the cause
                raise InvalidArgument(f"no process for {self._stage} handlers can start: {e}; its stderr says why") from None

    def __call__(self, job: Job) -> Any:
        if self._check is not None:
            self._check(job)
        process, there = self._started()
        observers = [partial(_pickled, method) for method in self._observers.elsewhere]
        sent = _sent(job, tuple(contexts(observers, self._stage, job)))
        try:
            there.send(sent)
        except OSError:
            self.close()  # it died while it was idle, so the job is not the cause
            process, there = self._started()
            there.send(sent)
        while True:
            while not there.poll(POLL_SECONDS):
                if job.cancelled:
                    self._kill()
                    raise LeaseLost(job.key, job.seq, job.token, "this job was cancelled")
                if not process.is_alive() and not there.poll(0):
                    raise self._died(process)
            try:
                answer: Answer | HandlerProgress = there.recv()
            except (EOFError, OSError):
                process.join()
                raise self._died(process) from None
            if isinstance(answer, Answer):
                return _apply(job, answer)
            job.progress(answer.fraction, answer.text)

    def _died(self, process: BaseProcess) -> HandlerDied:
        process.join()
        code = process.exitcode or 0
        self.close()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return HandlerDied(f"the handler's process {how}", code)

    def _started(self) -> tuple[BaseProcess, Connection]:
        held: tuple[BaseProcess, Connection] | None = getattr(self._local, "held", None)
        if held is None:
            # spawn: a fork would share the queue's files with a process that must not use them.
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            holder = self._source.holder
            arguments = (there, self._handler, None if holder is None else holder.file)
            process = context.Process(target=_serve, args=arguments, name=f"strictq-{self._stage}", daemon=True)
            process.start()
            there.close()
            self._local.held = held = (process, here)
            self._greeted(process, here)
        return held

    def _greeted(self, process: BaseProcess, here: Connection) -> None:
        """Wait for the child's greeting. Raise if it cannot import the handler, instead of failing every message silently."""
        until = time.monotonic() + START_SECONDS
        while not here.poll(POLL_SECONDS):
            if not process.is_alive() or time.monotonic() > until:
                raise self._died(process)
        try:
            here.recv()
        except (EOFError, OSError):
            raise self._died(process) from None

    def _kill(self) -> None:
        process, here = self._local.held
        process.kill()
        process.join()
        here.close()
        self._local.held = None

    def close(self) -> None:
        """End this thread's child."""
        held = getattr(self._local, "held", None)
        if held is not None:
            process, here = held
            here.close()  # the child sees the end of its input
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
            self._local.held = None


def _pickled(method: Callable[[str, Job], object], stage: str, job: Job) -> bytes | None:
    """Return what an observer has for the handler's process. It is sent on its own: if it can't be, only the observer failed."""
    found = method(stage, job)
    return None if found is None else bytes(ForkingPickler.dumps(found))


def _context(sent: bytes) -> AbstractContextManager[object]:
    """Return the context of an observer, in the handler's process."""
    found: AbstractContextManager[object] = ForkingPickler.loads(sent)()
    return found


def _sent(job: Job, around: tuple[bytes, ...]) -> Sent:
    has_effects = EFFECTS in job._source.capabilities
    return Sent(
        job.body, job.key, job.seq, job.attempt, job.headers, job.enqueued_at, job.token,
        job.key_state if has_effects else None, job.prepared, job.deadline, job._stage == RUNNING, has_effects,
        job.errors if job.attempt > 1 else (), job._inherited(),
        (job.size_hint, job.prepare_seconds, job.process_seconds), {name: getattr(job, name) for name in ELSEWHERE},
        around,
    )  # fmt: skip


def _apply(job: Job, answer: Answer) -> Any:
    """Apply the effects and the outcome of the child's copy to the real job."""
    for text in answer.effects.output:
        job.output(text)
    if answer.error is not None:
        kind, said = answer.error
        if kind == "retry":
            raise Retry(*said)
        if kind == "defer":
            raise Defer(*said)
        if kind == "reject":
            raise Reject(said)
        raise HandlerError(said, answer.traceback)
    if answer.effects.need_commit:
        job._effects_for("what the handler did").take(answer.effects)
    return answer.result


# ---- in the child


class RemoteJob(Recording):
    """The Job of a handler in another process. It has the same names; its effects are sent to the worker when it returns."""

    def __init__(self, sent: Sent, reporter: Reporter) -> None:
        self._reporter = reporter
        self.body = sent.body
        self.key = sent.key
        self.seq = sent.seq
        self.attempt = sent.attempt
        self.headers = sent.headers
        self.enqueued_at = sent.enqueued_at
        self.token = sent.token
        self.prepared = sent.prepared
        self.deadline = sent.deadline
        self.cancelled = False
        self.errors = sent.errors
        self.size_hint, self.prepare_seconds, self.process_seconds = sent.estimates
        self._sent_inherited = sent.inherited
        self.sequence_number: str | None = sent.elsewhere["sequence_number"]
        self.message_id: str | None = sent.elsewhere["message_id"]
        self.attributes: Mapping[str, Any] | None = sent.elsewhere["attributes"]
        self.source: str | None = sent.elsewhere["source"]
        self.source_seq: int | None = sent.elsewhere["source_seq"]
        self._around = sent.around
        self._runs = sent.runs
        self._has_effects = sent.has_effects
        self._state_before = sent.key_state
        self._effects = Effects()

    def json(self) -> Any:
        return body_as_json(self.body, self.key, self.seq)

    @property
    def last_error(self) -> AttemptError | None:
        return next(reversed(self.errors), None)

    def _inherited(self) -> dict[str, str]:
        return self._sent_inherited

    def _effects_for(self, verb: str) -> Effects:
        if not self._has_effects:
            raise InvalidArgument(f"job.{verb} {NO_EFFECTS}", hint=hints.EFFECTS_ARE_LOCAL)
        if not self._runs:
            raise InvalidArgument(f"{verb} is only allowed in process: prepare runs ahead and must have no side effects")
        return self._effects

    @property
    def key_state(self) -> bytes | None:
        if not self._has_effects:
            raise InvalidArgument(f"job.key_state {NO_EFFECTS}", hint=hints.EFFECTS_ARE_LOCAL)
        state = self._effects.key_state
        return self._state_before if state is UNSET else state

    @key_state.setter
    def key_state(self, value: bytes | None) -> None:
        self._effects_for("key_state").set_key_state(value)

    def run(self, _work: Any) -> Any:
        """Raise InvalidArgument, because the write transaction is in another process."""
        raise InvalidArgument("job.run needs the queue, which is in another process", hint=hints.USE_EXECUTE)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the handler is. See Job.progress."""
        self._reporter.progress(HandlerProgress(*validate.progress(fraction, text)))

    def output(self, text: str) -> None:
        """Record output of the handler. See Job.output."""
        self._effects.say(text)


class Reporter:
    """Sends to the worker what the running handler reports: the newest progress, at intervals, and the answer."""

    def __init__(self, there: Connection) -> None:
        self._there = there
        self._lock = threading.Lock()
        self._newest: HandlerProgress | None = None
        self._news = threading.Event()
        self._thread: threading.Thread | None = None

    def progress(self, newest: HandlerProgress) -> None:
        """Send a handler's progress soon. A failure changes nothing for the handler."""
        with self._lock:
            self._newest = newest
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="strictq-progress", daemon=True)
                with suppress(RuntimeError):  # no more threads can be started
                    thread.start()
                    self._thread = thread
        self._news.set()

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            with self._lock, suppress(OSError):
                if self._newest is not None:
                    self._there.send(self._newest)
                self._newest = None
            time.sleep(PROGRESS_SECONDS)

    def answer(self, answer: Answer) -> None:
        """Send the answer of the handler. Its progress is not sent any more."""
        with self._lock:
            self._newest = None
            self._there.send(answer)


def _serve(there: Connection, handler: Callable[..., Any], holder: str | None) -> None:
    """Run jobs one after another in the child, until the worker closes the connection.

    Args:
        holder: file of the worker's claims, which must not end while this process may be running.
    """
    held = share_holder(holder)
    # Ctrl-C reaches the whole process group. The worker handles it, and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # So do the SIGTERM of a service manager and the SIGHUP of a closed terminal. Not SIG_IGN, which programs started by a handler
    # would inherit.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with_worker, name="strictq-parent", daemon=True).start()
    reporter = Reporter(there)
    try:
        there.send(os.getpid())
        while True:
            job = RemoteJob(there.recv(), reporter)
            answer = _call(handler, job)
            try:
                reporter.answer(answer)
            except (EOFError, OSError):
                return
            except Exception as e:  # the handler's result can't be pickled
                reporter.answer(
                    Answer(Effects(), error=("error", f"what the handler returned can't be sent: {type(e).__name__}: {e}"))
                )
    except (EOFError, OSError):
        return
    finally:
        if held is not None:
            held.leave()


def _end_with_worker() -> None:
    """End this process when the worker's process ends, even in a handler.

    No process could use the handler's result, and none extends the lease, so another worker would soon run the message beside it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _call(handler: Callable[..., Any], job: RemoteJob) -> Answer:
    answer = Answer(job._effects)
    try:
        with around([partial(_context, sent) for sent in job._around]):
            result = require_ran("the handler", handler(job))
    except Retry as e:
        answer.error = ("retry", (e.delay, e.reason))
    except Defer as e:
        answer.error = ("defer", (e.delay_seconds, e.reason))
    except Reject as e:
        answer.error = ("reject", e.reason)
    except Exception as e:
        answer.error, answer.traceback = ("error", describe(e)), traceback_of(e)
    else:
        answer.result = None if job._runs else result
    return answer
