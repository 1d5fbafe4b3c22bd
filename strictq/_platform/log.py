"""The package's loggers. A program's log handler that raises cannot fail the code that logs."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


class Log:
    """A logger that never raises.

    logging is imported late, because most programs that open a queue never log.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def logger(self) -> logging.Logger:
        """The logger of this name."""
        import logging

        return logging.getLogger(self._name)

    def debug(self, text: str, *arguments: object) -> None:
        self._log(10, text, arguments)

    def info(self, text: str, *arguments: object) -> None:
        self._log(20, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        self._log(30, text, arguments)

    def error(self, text: str, *arguments: object) -> None:
        self._log(40, text, arguments)

    def exception(self, text: str, *arguments: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._log(40, text, arguments, traceback=True)

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record to the handlers."""
        try:
            self.logger.handle(record)
        except Exception:
            _complain()

    def _log(self, level: int, text: str, arguments: tuple[object, ...], *, traceback: bool = False) -> None:
        try:
            self.logger.log(level, text, *arguments, exc_info=traceback, stacklevel=3)
        except Exception:
            _complain()


log = Log("strictq")


def _complain() -> None:
    """Print the exception on stderr, as logging itself does for its own handlers."""
    import logging

    if logging.raiseExceptions and sys.stderr is not None:
        import traceback

        with suppress(OSError):  # the reader of stderr has exited
            traceback.print_exc()
