"""An `__exit__` that an interrupt cannot skip.

Python runs signal handlers at the beginning of each function. If one raises as `__exit__` begins, nothing of it runs, and what
the block holds stays held as long as the exception lives. So this `__exit__` is not a Python function: it resumes a generator,
which waits inside a `try`. An exception of a signal handler is raised there, and what the block holds is released.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import cast

Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


def exit_of(leave: Exit, end: Callable[[], None]) -> Exit:
    """Return the `__exit__` of a block.

    Args:
        leave: what `__exit__` does. It may be interrupted anywhere, or not be called at all.
        end: ends in any case what the block holds. Called after `leave`; a second call does nothing.
    """
    waiting = _wait(leave, end)
    next(waiting)
    # `min` sends the generator each of its arguments: 0, the class of the error, the error, its traceback. What comes back
    # ascends, so it returns the first one, 0, and the error is not suppressed.
    return cast(Exit, partial(min, 0, key=waiting.send))


def _wait(leave: Exit, end: Callable[[], None]) -> Generator[int, object, None]:
    try:
        # No loop: CPython 3.12 leaves its jump backward, which checks for signals, out of the `try`.
        yield 0
        kind = yield 1
        error = yield 2
        trace = yield 3
        leave(kind, error, trace)  # type: ignore[arg-type]
    finally:
        try:
            end()
        finally:
            end()  # an interrupt can end the first call before its first step
    yield 4
