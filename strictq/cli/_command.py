"""The common parts of all commands: how they end, and how they report errors."""

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

from strictq._values.errors import ConfigError, InvalidArgument, PartialFailure, QueueNotFound, StoreError, StrictqError
from strictq.cli._advice import hint_of
from strictq.cli._group import Context

OK: Final = 0
WRONG: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
REASONS_MAX: Final = 3
"""Number of reasons that are shown if several items failed."""

_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

P = ParamSpec("P")


class Failure(Exception):
    """Ends the command with a message on stderr.

    Attributes:
        code: the exit code.
        hint: what to do about the failure.
    """

    def __init__(self, message: str, code: int = WRONG, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class QueueCommand(click.Command):
    """A command that explains how to write a key such as -5."""

    context_class = Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, and add advice to the error about an unknown option."""
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


def with_subcommands(under: dict[str, QueueCommand]) -> type[QueueCommand]:
    """Return the class of a command that runs a subcommand if the first word names one. A queue of that name is `./NAME`."""

    class Parent(QueueCommand):
        def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> Any:
            if args and args[0] in under:
                return under[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
            return super().make_context(info_name, args, parent=parent, **extra)

    return Parent


def command(examples: str, cls: type[QueueCommand] = QueueCommand) -> Callable[[Callable[P, int]], QueueCommand]:
    """Create a command from a function that returns an exit code. Expected errors are printed without a traceback."""
    # \b: the help keeps the line breaks.
    epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in cleandoc(examples).splitlines())

    def made(run: Callable[P, int]) -> QueueCommand:
        @wraps(run)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
            raise click.exceptions.Exit(_ending(lambda: run(*args, **kwargs)))

        return click.command(cls=cls, epilog=epilog)(wrapper)

    return made


def _ending(run: Callable[[], int]) -> int:
    # Ignored signals stay ignored, as with nohup.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _terminate) for number in numbers}
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            sys.stdout.reconfigure(errors="replace")
        code = run()
        if sys.stdout is not None:  # None if the caller closed it
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
    """Report an error of the operating system, such as a full disk under the output. Return the exit code."""
    _silence(sys.stdout)
    return _complain(f"{e.filename or 'the output'}: {e.strerror or e}", WRONG)


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    # Raised as an exception, so that everything is cleaned up.
    sys.exit(128 + number)


def explained(e: StrictqError, code: int = WRONG) -> tuple[str, int, str]:
    """Return an error's message, exit code and hint."""
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
    """Print a line to stderr, if there is one."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr, flush=True)


def silence() -> None:
    """Redirect stdout and stderr to the null device, so that buffered output does not fail again at the interpreter's exit."""
    _silence(sys.stdout)
    _silence(sys.stderr)


def _silence(stream: IO[str] | None) -> None:
    if stream is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class Stopping:
    """Delays Ctrl-C, SIGTERM and SIGHUP until a piece of work is done. A second signal takes effect at once.

        with Stopping() as stopping:
            for piece in work:
                with stopping.at_once(): ...  # signals take effect here at once
                do(piece)
                stopping.check()

    Attributes:
        asked: the first signal received, or None.
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
        """End the program if a signal was received."""
        if self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked is not None:
            sys.exit(128 + self.asked)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let signals take effect at once inside the block, such as a wait."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False


def many(count: int, what: str) -> str:
    """Format a count and its noun: `1 event`, `2,000 events`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def printable_lines(text: str) -> str:
    """Return a text that is safe to print, with its own line breaks: a traceback, or the output of a command."""
    return "\n".join(printable(line.expandtabs()) for line in text.rstrip().splitlines())


def printable(value: Any) -> str:
    """Return text without characters that control a terminal. Keys and bodies may contain anything."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
