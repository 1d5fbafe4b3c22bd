"""What all commands share: how they end, and where they write."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import IO, Any, Final, NoReturn, ParamSpec

import typer
from rich.console import Console

from strictq._errors import ConfigError, InvalidArgument, QueueNotFound, StrictqError

OK: Final = 0
WRONG: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

P = ParamSpec("P")


class Failure(Exception):
    """Ends the command with a message on stderr.

    Attributes:
        code: the exit code.
    """

    def __init__(self, message: str, code: int = WRONG) -> None:
        super().__init__(message)
        self.code = code


class Terminal(Console):
    """A rich console that leaves a broken pipe to `command`, as it leaves any other error."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def command(run: Callable[P, int]) -> Callable[P, None]:
    """Make a command of a function that returns an exit code: nobody sees a traceback for what can be expected."""

    @wraps(run)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(_ending(lambda: run(*args, **kwargs)))

    return wrapper


def _ending(run: Callable[[], int]) -> int:
    before = {number: signal.signal(number, _terminate) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        code = run()
        if sys.stdout is not None:  # it is None where the caller closed it
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence(sys.stdout)
        _silence(sys.stderr)
        return BROKEN_PIPE
    except Failure as e:
        return _complain(e, e.code)
    except (InvalidArgument, ConfigError, QueueNotFound) as e:
        return _complain(e, USAGE)
    except StrictqError as e:
        return _complain(e, WRONG)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    # As an exception, so that everything is cleaned up on the way out.
    sys.exit(128 + number)


def _complain(e: Exception, code: int) -> int:
    try:
        print(f"strictq: {printable(str(e))}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr)
    return code


def _silence(stream: IO[str]) -> None:
    # What is still in its buffer goes nowhere, instead of failing again when the interpreter exits.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def many(count: int, what: str) -> str:
    """A count and its noun: `1 event`, `2,000 events`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def printable(value: Any) -> str:
    """Text that cannot steer a terminal: keys and bodies may hold anything."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
