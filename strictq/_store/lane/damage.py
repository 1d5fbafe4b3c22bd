"""Distinguish errors that stored values cause from those of the program, whose signal handlers may run at any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

_OURS: Final = (str(Path(__file__).parent.parent.parent), str(Path(json.__file__).parent))


def is_of_values(error: BaseException) -> bool:
    """Return whether this package raised an error, or reading stored JSON did. The frames of a handler are of other code."""
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            return False
        trace = trace.tb_next
    return True
