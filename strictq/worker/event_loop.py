"""A worker inside an event loop: its keeper runs in a thread, async handlers as tasks, plain handlers in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from ..aio.threads import from_any_thread
from . import tasks
from .batches import BatchBoard
from .dispatch import Handover
from .loop import Keeper
from .threads import Threads


async def serve(
    keeper: Keeper,
    handover: Handover,
    process: Callable[..., Any],
    prepare: Callable[..., Any] | None,
    slots: int,
    pools: list[Threads],
) -> None:
    """Run until the keeper ends. If cancelled, cancel the handlers, let the keeper release its leases, and raise."""
    state = keeper.state
    board = state.board
    crews: list[tasks.Tasks] = []
    if isinstance(board, BatchBoard):
        if not pools:
            work = partial(tasks.run_group, handover, process)
            crews.append(tasks.Tasks(slots, handover.take_group, board.ready_groups.__len__, work))
    elif not any(pool.stage == "process" for pool in pools):
        work = partial(tasks.run_process, handover, process)
        crews.append(tasks.Tasks(slots, handover.take_process, board.ready.__len__, work))
    if prepare is not None and not any(pool.stage == "prepare" for pool in pools):
        work = partial(tasks.run_prepare, handover, prepare)
        crews.append(tasks.Tasks(slots, handover.take_prepare, board.to_prepare.__len__, work))
    state.executors += [*pools, *crews]
    over = anyio.Event()
    tell = from_any_thread(over.set)

    def keep() -> None:
        try:
            keeper.run()
        except BaseException as e:
            keeper.crash = keeper.crash or e
        finally:
            tell()

    thread = threading.Thread(target=keep, name="strictq-keeper", daemon=True)
    async with anyio.create_task_group() as group:
        for crew in crews:
            crew.start(group)
        thread.start()
        try:
            await over.wait()
        except BaseException:
            # The same cancellation reaches the tasks. Each of them reports to the keeper.
            keeper.stop(state.clock())
            with anyio.CancelScope(shield=True):
                await over.wait()
            raise
        finally:
            for crew in crews:
                crew.stop()
            with anyio.CancelScope(shield=True):
                for pool in pools:
                    await anyio.to_thread.run_sync(pool.stop, 0.5 if state.gave_up else None)
                await anyio.to_thread.run_sync(thread.join)
            if state.gave_up:
                group.cancel_scope.cancel()
    if keeper.crash is not None:
        raise keeper.crash
