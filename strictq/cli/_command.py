"""What all commands share: how they end, and what they say when something is wrong."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import cleandoc
from types import FrameType, TracebackType
from typing import IO, Any, Final, NoReturn, ParamSpec, Self

import click

from strictq._errors import ConfigError, InvalidArgument, PartialFailure, QueueNotFound, StoreError, StrictqError
from strictq.cli._advice import hint_of
from strictq.cli._group import Context

OK: Final = 0
WRONG: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
REASONS_MAX: Final = 3
"""Of several that failed: as many reasons as are shown."""

_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

P = ParamSpec("P")


class Failure(Exception):
    """Ends the command with a message on stderr.

    Attributes:
        code: the exit code.
        hint: what to do about it.
    """

    def __init__(self, message: str, code: int = WRONG, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class QueueCommand(click.Command):
    """A command that knows what is meant by a key such as -5."""

    context_class = Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, and with advice."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            if not any(isinstance(p, click.Argument) and p.name == "key" for p in self.params):
                raise
            word = next((word for word in given if word.startswith(e.option_name)), e.option_name)
            raise click.UsageError(
                f"{e.format_message()} If {word} is the key, it comes after --, behind all options: "
                f"{ctx.command_path} QUEUE -- {word}",
                ctx,
            ) from None


def command(examples: str, cls: type[QueueCommand] = QueueCommand) -> Callable[[Callable[P, int]], QueueCommand]:
    """Make a command of a function that returns an exit code: nobody sees a traceback for what can be expected."""
    # \b: the help keeps the lines as they are.
    epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in cleandoc(examples).splitlines())

    def made(run: Callable[P, int]) -> QueueCommand:
        @wraps(run)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
            raise click.exceptions.Exit(_ending(lambda: run(*args, **kwargs)))

        return click.command(cls=cls, epilog=epilog)(wrapper)

    return made


def _ending(run: Callable[[], int]) -> int:
    # Not where they are ignored, as nohup has it.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _terminate) for number in numbers}
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            sys.stdout.reconfigure(errors="replace")
        code = run()
        if sys.stdout is not None:  # it is None where the caller closed it
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence()
        return BROKEN_PIPE
    except Failure as e:
        return _complain(str(e), e.code, e.hint)
    except (InvalidArgument, ConfigError, QueueNotFound) as e:
        return _complain(*explained(e, USAGE))
    except StrictqError as e:
        return _complain(*explained(e, WRONG))
    except OSError as e:
        return failed(e)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def failed(e: OSError) -> int:
    """What the operating system refused: a full disk under the output, say. Returns the exit code."""
    _silence(sys.stdout)
    return _complain(f"{e.filename or 'the output'}: {e.strerror or e}", WRONG)


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    # As an exception, so that everything is cleaned up on the way out.
    sys.exit(128 + number)


def explained(e: StrictqError, code: int = WRONG) -> tuple[str, int, str]:
    """What to tell of an error: message, exit code, hint."""
    message = Exception.__str__(e)
    if isinstance(e, StoreError) and e.cause is not None and str(e.cause) not in message:
        message = f"{message}: {e.cause}"
    if isinstance(e, PartialFailure):
        reasons = dict.fromkeys(explained(r)[0] for r in e.results if isinstance(r, StrictqError))
        message = "; ".join([message, *list(reasons)[:REASONS_MAX]])
    return message, code, hint_of(e)


def _complain(message: str, code: int, hint: str = "") -> int:
    try:
        tell(f"strictq: {message}")
        if hint:
            tell(f"  hint: {hint}")
    except BrokenPipeError:
        _silence(sys.stderr)
    return code


def tell(text: str) -> None:
    """One line on stderr, if there is one."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr, flush=True)


def silence() -> None:
    """Nobody reads any more: what is still in a buffer goes nowhere, instead of failing again when the interpreter exits."""
    _silence(sys.stdout)
    _silence(sys.stderr)


def _silence(stream: IO[str] | None) -> None:
    if stream is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class Stopping:
    """Ctrl-C, SIGTERM and SIGHUP wait until a piece of work is done; a second one does not.

        with Stopping() as stopping:
            for piece in work:
                with stopping.at_once(): ...  # here they end it at once
                do(piece)
                stopping.check()

    Attributes:
        asked: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _STOPS}
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        first, self.asked = self.asked is None, number
        if self._at_once or not first:
            self.check()

    def check(self) -> None:
        """End now if it was asked for."""
        if self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked is not None:
            sys.exit(128 + self.asked)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A block that they interrupt: a wait, say."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False


def many(count: int, what: str) -> str:
    """A count and its noun: `1 event`, `2,000 events`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def printable_lines(text: str) -> str:
    """The same for a text whose line breaks are its own: a traceback, or what a command wrote."""
    return "\n".join(printable(line.expandtabs()) for line in text.rstrip().splitlines())


def printable(value: Any) -> str:
    """Text that cannot steer a terminal: keys and bodies may hold anything."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
