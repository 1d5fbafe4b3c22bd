"""Which process this is, as forks tell: asking the system at every call would cost a message more than all other checks."""

from __future__ import annotations

import os

pid = os.getpid()


def _forked() -> None:
    global pid
    pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
