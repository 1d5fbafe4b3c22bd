"""`strictq run`."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, Literal, NoReturn

import click

from strictq import App, InvalidArgument, StrictqError
from strictq.cli._arguments import Seconds, consumer_option, drain_option, grace_option, no_breaker_option
from strictq.cli._command import OK, USAGE, WRONG, Failure, command, many
from strictq.cli._log import log_to_stderr
from strictq.cli._supervisor import STOPPING, TOTALS, StopLine, StopSignals, Supervisor, command_line
from strictq.cli._words import emit
from strictq.worker import Breaker
from strictq.worker.several import Several

EXAMPLES: Final = """
strictq run shop:app
strictq run shop:app mails:app --concurrency 4 --processes 2
strictq run shop:app --drain
"""
LEFT_SECONDS: Final = 0.5
"""How long to wait for the threads of abandoned handlers at exit."""

log: Final = logging.getLogger("strictq.run")


@command(EXAMPLES)
@click.argument(
    "targets",
    nargs=-1,
    required=True,
    metavar="MODULE:APP...",
    help="A strictq.App, as module:attribute; the default attribute is app.",
)
@click.option(
    "--concurrency", "-c", type=click.IntRange(1, 10_000), default=8, help="Messages processed in parallel, per app and process."
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(1, 256),
    default=1,
    help="Number of worker processes. A process that dies is restarted.",
)
@click.option(
    "--executor",
    type=click.Choice(["thread", "process"]),
    default="thread",
    help="Where plain handlers run: in threads, or each in a process of its own, for CPU-bound work.",
)
@click.option(
    "--timeout",
    type=Seconds(min=0.001),
    help="Abandon and retry a handler after this many seconds, unless it has its own timeout.",
)
@drain_option
@grace_option("handlers")
@consumer_option
@no_breaker_option("handlers")
@click.option("--quiet", "-q", is_flag=True, help="Log only warnings and errors.")
@click.option("as_json", "--json", is_flag=True, help="Print the totals as one JSON object at exit.")
@click.option("--line", type=int, hidden=True)
def run(
    targets: tuple[str, ...],
    concurrency: int,
    processes: int,
    executor: Literal["thread", "process"],
    timeout: float | None,
    drain: bool,
    grace: float | None,
    consumer: str | None,
    no_breaker: bool,
    quiet: bool,
    as_json: bool,
    line: int | None,
) -> int:
    """Run the handlers and schedules of strictq apps, each on its own queue, until Ctrl-C or SIGTERM.

    docs/howto/app.md explains apps.

    Modules are imported from the working directory first. The first signal lets running handlers finish and releases all other
    messages. A second signal ends the program at once; the messages of running handlers are delivered again. With --processes,
    a supervisor starts the worker processes: send signals to it. It restarts a process that has died, after 0.5 s. If that one
    dies, too, the wait grows, up to 30 s. With --grace, it kills a process that has not ended 5 s after the grace period.

    Exit code 0: stopped or drained. 1: a queue or a process failed, or a handler ended the program. 2: invalid usage, or an app
    cannot be imported.
    """
    began = time.monotonic()
    if processes > 1:
        log_to_stderr(quiet=quiet, pids=True)
        options = {
            "--concurrency": concurrency,
            "--executor": executor,
            "--timeout": timeout,
            "--grace": grace,
            "--consumer": consumer,
        }
        flags = {"--drain": drain, "--no-breaker": no_breaker, "--quiet": quiet}
        words = [
            *(f"{name}={value}" for name, value in options.items() if value is not None),
            *(name for name, given in flags.items() if given),
            *("--", *targets),
        ]
        supervisor = Supervisor(lambda descriptor: command_line("run", f"--line={descriptor}", *words), processes, grace=grace)
        code = supervisor.run()
        _finish(dict(supervisor.totals), began, processes=processes, restarts=supervisor.restarts, as_json=as_json)
        return code
    with ExitStack() as stack:
        orders = None if line is None else StopLine(line)
        if orders is None:
            stack.enter_context(_no_silent_exit())
        else:
            signals = stack.enter_context(StopSignals())  # before anything that takes long
        apps = load(targets)
        for app in apps:
            stack.callback(app.queue.close)
        log_to_stderr(quiet=quiet, pids=orders is not None)
        given: dict[str, Any] = {
            "concurrency": concurrency,
            "executor": executor,
            "timeout_seconds": timeout,
            "consumer": consumer,
            "breaker": None if no_breaker or drain else Breaker(),
        }
        workers = Several([app.worker(**given) for app in apps])
        if orders is None:
            signals = stack.enter_context(StopSignals())
        else:
            orders.begin()
        working = Working(workers, drain=drain, grace=grace)
        code = working.run(signals, orders)
        stats = workers.stats()
        totals = {name: getattr(stats, name) for name in TOTALS}
        if orders is not None:
            orders.report(totals)
        else:
            _finish(totals, began, processes=1, restarts=0, as_json=as_json)
    if working.hurried:
        _leave(code)
    return code


def load(targets: Sequence[str]) -> list[App]:
    """Import the apps.

    Raises:
        Failure: an app does not exist, or two apps use the same queue.
        StrictqError: raised by a module that opens a queue.
    """
    with suppress(FileNotFoundError):  # the current directory was deleted: the module may be found elsewhere
        sys.path.insert(0, os.getcwd())
    apps = [_app(target) for target in targets]
    if len({app.queue.queue_id for app in apps}) != len(apps):
        raise Failure("two of the apps use the same queue; each would receive the other's messages", USAGE)
    return apps


def _app(target: str) -> App:
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except StrictqError:
        raise
    except (Exception, SystemExit) as e:
        if isinstance(e, ModuleNotFoundError) and e.name is not None and f"{module}.".startswith(f"{e.name}."):
            hint = "run the command in the module's directory, or set PYTHONPATH"
            if module.endswith(".py"):
                hint = f"give the module's name, not its file's: {module.removesuffix('.py').replace('/', '.')}:{name or 'app'}"
            raise Failure(f"there is no module {module!r}", USAGE, hint) from None
        traceback.print_exc()
        raise Failure(f"the module {module!r} cannot be imported: {type(e).__name__}: {e}", USAGE) from None
    imported = found
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        what = "does not exist" if found is None else f"is of type {type(found).__name__}"
        apps = ", ".join(f"{module}:{each}" for each, value in vars(imported).items() if isinstance(value, App))
        hint = f"the module has {apps}" if apps else f"the module {module!r} has no strictq.App"
        raise Failure(f"{module}:{name or 'app'} {what}; it must be a strictq.App", USAGE, hint)
    return found


class Working:
    """Runs workers in a thread; the main thread forwards stop signals."""

    def __init__(self, workers: Several, *, drain: bool, grace: float | None) -> None:
        self._workers = workers
        self._drain = drain
        self._grace = grace
        self._orders = 0
        self._over = False
        self._error: BaseException | None = None

    @property
    def hurried(self) -> bool:
        """Whether it was stopped without waiting for every running handler."""
        return self._orders > (0 if self._grace is not None else 1)

    def run(self, signals: StopSignals, line: StopLine | None) -> int:
        """Run until stopped or drained. Return the exit code.

        Args:
            line: the source of stop orders; None: signals are stop orders.
        """
        signals.install()
        thread = threading.Thread(target=self._work, args=(signals,), name="strictq-run", daemon=True)
        thread.start()
        while not self._over:
            if line is None:
                for _ in range(signals.wait(None)):
                    log.info("stopping at once" if self._orders else STOPPING)
                    self._order()
                continue
            signals.wait(None, *([] if line.ended else [line.socket]))
            for _ in range(line.orders()):
                self._order()
            if line.ended and not self._orders:
                log.warning("the supervisor has exited; stopping")
                self._order()
        thread.join()
        return self._code()

    def _work(self, signals: StopSignals) -> None:
        try:
            self._workers.run(drain=self._drain, grace_seconds=self._grace)
        except BaseException as e:
            self._error = e
        finally:
            self._over = True
            signals.wake()

    def _order(self) -> None:
        self._orders += 1
        self._workers.stop(self._grace if self._orders == 1 else 0.0)

    def _code(self) -> int:
        error = self._error
        if error is None or (self._orders and isinstance(error, InvalidArgument)):  # it was stopped before it ran
            return OK
        if isinstance(error, SystemExit):
            log.error("a handler ended the process: %r", error)  # its exit code must not be mistaken for this command's
            return WRONG
        raise error


@contextmanager
def _no_silent_exit() -> Iterator[None]:
    """Let an `os._exit(0)` of the program fail, because no supervisor notices that the work was not done."""
    leave, process = os._exit, os.getpid()

    def fail(status: int) -> NoReturn:
        if status == OK and os.getpid() == process:  # a forked child may end so
            log.error("the program called os._exit(0) before its work was done")
            leave(WRONG)
        leave(status)

    os._exit = fail
    try:
        yield
    finally:
        os._exit = leave


def _finish(totals: dict[str, int], began: float, *, processes: int, restarts: int, as_json: bool) -> None:
    seconds = time.monotonic() - began
    if as_json:
        emit({**totals, "processes": processes, "restarts": restarts, "seconds": seconds})
    counts = [f"{many(totals['acked'], 'message')} done", *(f"{totals[name]:,} {name}" for name in TOTALS[1:] if totals[name])]
    log.info("ended after %.1f s: %s", seconds, ", ".join(counts))


def _leave(code: int) -> None:
    """Exit the process even if abandoned handlers still run in non-daemon threads."""
    end = time.monotonic() + LEFT_SECONDS
    left = [t for t in threading.enumerate() if not t.daemon and t is not threading.current_thread()]
    for thread in left:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in left):
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)
