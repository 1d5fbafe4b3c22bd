"""Run the same work on several shards in parallel. SQLite releases the interpreter's lock while it works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

AT_ONCE: Final = 4
"""The most shards written to at once. More threads would only wait for the interpreter's lock."""


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks in parallel and wait for all of them, even if one fails. Then raise the first task's error, if any."""
    if len(tasks) < 2:
        for task in tasks:
            task()
        return
    from concurrent.futures import ThreadPoolExecutor  # imported late: it imports logging and more

    with ThreadPoolExecutor(min(len(tasks), AT_ONCE), "strictq-shards") as pool:
        for ended in [pool.submit(task) for task in tasks]:
            ended.result()
