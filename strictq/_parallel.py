"""The same work in several shards, side by side: SQLite works without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

AT_ONCE: Final = 4
"""Most shards that are written to at the same time: more threads only wait for the interpreter's lock."""


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks side by side. All are waited for, also if one fails; then what the first of them raised is raised."""
    if len(tasks) < 2:
        for task in tasks:
            task()
        return
    from concurrent.futures import ThreadPoolExecutor  # with logging and more: who imports strictq need not wait for it

    with ThreadPoolExecutor(min(len(tasks), AT_ONCE), "strictq-shards") as pool:
        for ended in [pool.submit(task) for task in tasks]:
            ended.result()
