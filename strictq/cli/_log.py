"""The log of commands that run handlers: one line per record on stderr, with its time."""

from __future__ import annotations

import logging
import sys
from typing import Final

from strictq.cli._command import printable

FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname)s %(message)s"
WITH_PID: Final = "%(asctime)s.%(msecs)03d [%(process)d] %(levelname)s %(message)s"


class LogLines(logging.Formatter):
    """Replaces characters that could control a terminal. Only a traceback has several lines."""

    def __init__(self, *, pids: bool) -> None:
        super().__init__(WITH_PID if pids else FORMAT, "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        return super().formatMessage(record).replace("\n", "\\n")

    def format(self, record: logging.LogRecord) -> str:
        """Return the whole record."""
        return "\n".join(map(printable, super().format(record).split("\n")))


class StderrHandler(logging.Handler):
    """Writes to the current stderr, which a live status line may replace to print records above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # One write, so that the lines of several processes do not mix.
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except OSError:
            pass  # the reader of stderr has exited
        except Exception:
            self.handleError(record)


def log_to_stderr(*, quiet: bool = False, pids: bool = False) -> None:
    """Log to stderr, unless the program has configured logging itself.

    Args:
        quiet: log only warnings and errors.
        pids: add the process id to every line.
    """
    ours = logging.getLogger("strictq")
    if ours.hasHandlers() or sys.stderr is None:
        return
    handler = StderrHandler()
    handler.setFormatter(LogLines(pids=pids))
    logging.getLogger().addHandler(handler)
    if not quiet and ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)
