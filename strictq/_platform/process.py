"""The process id, updated after a fork. Asking the system at every call would cost more than all other checks of a message."""

from __future__ import annotations

import os

pid = os.getpid()


def _forked() -> None:
    global pid
    pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
