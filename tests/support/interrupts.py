"""An exception wherever Python runs signal handlers: as a function begins, behind a call of C, and as a loop begins again."""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

import strictq

PACKAGE: Final = strictq.__path__[0]
_RESUME: Final = opcode.opmap["RESUME"]
_BACK: Final = frozenset(
    number for name, number in opcode.opmap.items() if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name
)
_AWAITS: Final = 2
"""A generator that continues behind `yield from` or `await`, by the argument of its RESUME, runs no signal handler."""
_MADE_BY_C: Final = ("__init__", "__new__")
"""A class is called by C, which calls these. The check behind the call of the class is behind these."""


class Interrupt:
    """In the block, raises an exception at this thread's n-th check for signals, or none if n is 0.

    CPython 3.11 to 3.13 check at RESUME, at jumps backward, and behind calls of what is not a Python function. Checks in files
    outside of the package count, too, if the package calls them, such as those of contextlib.

    Attributes:
        checks: the number of checks so far.
    """

    def __init__(self, n: int, error: Callable[[], BaseException] = KeyboardInterrupt) -> None:
        self._n = n
        self._error = error
        self._codes: dict[CodeType, bytes] = {}
        self._over = False
        self.checks = 0

    def __enter__(self) -> Interrupt:
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        sys.setprofile(None)
        sys.settrace(None)

    def _check(self) -> None:
        self.checks += 1
        if self.checks == self._n and not self._over:
            self._over = True
            raise self._error()

    def _operation(self, frame: FrameType) -> tuple[int, int]:
        code = frame.f_code
        if code not in self._codes:
            self._codes[code] = code.co_code
        at = max(frame.f_lasti, 0)
        return self._codes[code][at], self._codes[code][at + 1]

    def _counts(self, frame: FrameType | None) -> bool:
        return frame is not None and not self._over and frame.f_code.co_filename.startswith(PACKAGE)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        ours = self._counts(frame)
        if event == "call":
            operation, argument = self._operation(frame)
            if (ours or self._counts(frame.f_back)) and not (operation == _RESUME and argument >= _AWAITS):
                self._check()
        elif (event == "c_return" and ours) or (
            event == "return" and frame.f_code.co_name in _MADE_BY_C and self._counts(frame.f_back)
        ):
            self._check()

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        if not self._counts(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._jump

    def _jump(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if event == "opcode" and self._operation(frame)[0] in _BACK:
            self._check()
        return self._jump
