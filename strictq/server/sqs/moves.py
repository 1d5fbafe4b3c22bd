"""Tasks that move the messages of a dead-letter queue back, or to another queue."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ..._platform.clock import MICROSECONDS, Clock
from ..._values.errors import StrictqError
from . import received
from .catalogue import MOVES_KEPT, Catalogue, Entry
from .errors import SqsError, bad, invalid
from .opened import OpenedQueue, OpenQueues
from .received import Taken, Wanted

RUNNING, COMPLETED, CANCELLED, FAILED = "RUNNING", "COMPLETED", "CANCELLED", "FAILED"
RATE_MAX: Final = 500
RESULTS_MAX: Final = 10
HIDDEN_SECONDS: Final = 60
LOOK_AGAIN_SECONDS: Final = 0.1
NO_RESOURCE: Final = "The resource that you specified for the {name} parameter doesn't exist."

Store = Callable[..., Awaitable[None]]
"""Changes an entry of the catalogue, and stores it."""


class Moves:
    """The move tasks of an endpoint. A task is stored with its source, and is continued after a restart."""

    def __init__(self, catalogue: Catalogue, queues: OpenQueues, store: Store, clock: Clock) -> None:
        self._catalogue = catalogue
        self._queues = queues
        self._write = store
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Continue the tasks that a stop or a crash interrupted."""
        for entry in self._catalogue.entries.values():
            for task in entry.moves:
                if task["Status"] == RUNNING:
                    self._begin(entry, task, resumed=True)

    async def start(self, parameters: Mapping[str, Any]) -> str:
        """Start a task. Return its handle."""
        source = self._of(parameters["SourceArn"], "SourceArn")
        if not self._catalogue.sources(source):
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        to = parameters.get("DestinationArn")
        if to is not None and self._of(to, "DestinationArn").fifo != source.fifo:
            raise invalid("The destination queue must be of the same type as the source queue.")
        rate = parameters.get("MaxNumberOfMessagesPerSecond")
        if rate is not None and not 1 <= rate <= RATE_MAX:
            raise bad(rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {RATE_MAX}, if provided.")
        if any(task["Status"] == RUNNING for task in source.moves):
            raise invalid(
                "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
            )
        visible, _, _ = await self._counts(source)
        task = {
            "TaskHandle": _handle(source.arn),
            "Status": RUNNING,
            "SourceArn": source.arn,
            "DestinationArn": to,
            "MaxNumberOfMessagesPerSecond": rate,
            "ApproximateNumberOfMessagesMoved": 0,
            "ApproximateNumberOfMessagesToMove": visible,
            "StartedTimestamp": self._clock.wall() // 1000,
        }
        await self._write(source, moves=[task, *source.moves][:MOVES_KEPT])
        self._begin(source, task)
        return str(task["TaskHandle"])

    def listed(self, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the newest tasks of a source."""
        source = self._of(parameters["SourceArn"], "SourceArn")
        most = parameters.get("MaxResults", 1)
        if not 1 <= most <= RESULTS_MAX:
            raise bad(most, "MaxResults", f"Must be between 1 and {RESULTS_MAX}, if provided.")
        shown = []
        for task in source.moves[:most]:
            hidden = () if task["Status"] == RUNNING else ("TaskHandle",)
            shown.append({name: value for name, value in task.items() if value is not None and name not in hidden})
        return shown

    async def cancel(self, handle: str) -> int:
        """Cancel a task. Return how many messages it has moved."""
        entry = self._of(_source_of(handle), "SourceArn")
        for task in entry.moves:
            if task["TaskHandle"] == handle:
                if task["Status"] != RUNNING:
                    raise invalid("Only active tasks can be cancelled.")
                await self._end(entry, task, CANCELLED)
                return int(task["ApproximateNumberOfMessagesMoved"])
        raise SqsError("ResourceNotFoundException", "Task does not exist.")

    async def stop(self) -> None:
        """End the running tasks. They are continued at the next start."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _of(self, arn: str, name: str) -> Entry:
        entry = self._catalogue.find(arn)
        if entry is None:
            raise SqsError("ResourceNotFoundException", NO_RESOURCE.format(name=name))
        return entry

    # ---- running

    async def _counts(self, entry: Entry) -> tuple[int, int, int]:
        opened = await self._queues.get(entry)
        return await opened.calls.run(opened.served.counts)

    def _begin(self, entry: Entry, task: dict[str, Any], *, resumed: bool = False) -> None:
        handle = task["TaskHandle"]
        running = self._running[handle] = asyncio.get_running_loop().create_task(self._run(entry, task, resumed=resumed))
        running.add_done_callback(lambda _: self._running.pop(handle, None))

    async def _run(self, entry: Entry, task: dict[str, Any], *, resumed: bool) -> None:
        rate = task["MaxNumberOfMessagesPerSecond"]
        wanted = Wanted(1 if rate else 10, HIDDEN_SECONDS)
        hidden_until = self._clock.boot() + HIDDEN_SECONDS * MICROSECONDS if resumed else 0
        try:
            if resumed:
                left = task["ApproximateNumberOfMessagesToMove"] - sum(await self._counts(entry))
                task["ApproximateNumberOfMessagesMoved"] = max(task["ApproximateNumberOfMessagesMoved"], left)
            while task["Status"] == RUNNING and self._catalogue.entries.get(entry.name) is entry:
                began = time.monotonic()
                source = await self._queues.get(entry)
                taken = await source.polls.take(wanted)
                if not taken:
                    # What the interrupted process had received becomes visible later, and the rest of its groups with it.
                    if self._clock.boot() < hidden_until and (await self._counts(entry))[1]:
                        await asyncio.sleep(LOOK_AGAIN_SECONDS)
                        continue
                    await self._end(entry, task, COMPLETED)
                    return
                await self._move(source, task, taken)
                pause = len(taken) / rate - (time.monotonic() - began) if rate else 0.0
                await asyncio.sleep(max(0.0, pause))
        except SqsError as e:
            await self._end(entry, task, FAILED, e.old)
        except StrictqError as e:
            await self._end(entry, task, FAILED, type(e).__name__)

    async def _move(self, source: OpenedQueue, task: dict[str, Any], taken: list[Taken]) -> None:
        """Send messages, then delete them here. A crash in between repeats the send, which is a duplicate then.

        A message that dies again while the task runs has another seq here, or another key: it is no duplicate.
        """
        done = 0
        try:
            for each in taken:
                target = task["DestinationArn"] or each.message.info.get(received.SOURCE)
                if target is None:
                    raise SqsError("CouldNotDetermineMessageSource", "The message was not moved here by a redrive policy.")
                await source.calls.run(self._move_one, source, task["TaskHandle"], target, each)
                (error,) = await source.calls.delete([each.handle])
                if error is not None:
                    raise error
                done += 1
                task["ApproximateNumberOfMessagesMoved"] += 1
        finally:
            if done < len(taken):
                await source.calls.run(source.served.give_back, taken[done:])
                source.polls.changed()

    def _move_one(self, source: OpenedQueue, handle: str, target: str, each: Taken) -> None:
        m = each.message
        if m.body is None:  # it was too large to be kept
            m.body = each.answer["Body"].encode()
        info = {name: value for name, value in m.info.items() if name not in (received.RECEIVES, received.SOURCE)}
        message = source.served.moved(m, info, received.id_from("move", handle, m.message_id, m.hold.key, m.seq))
        if not self._queues.bury(source.entry, target, message):
            raise SqsError("QueueDoesNotExist", "The specified queue does not exist.")

    async def _end(self, entry: Entry, task: dict[str, Any], status: str, reason: str | None = None) -> None:
        task["Status"] = status
        if reason is not None:
            task["FailureReason"] = reason
        if self._catalogue.entries.get(entry.name) is entry:
            await self._write(entry, moves=entry.moves)


def _handle(source: str) -> str:
    """Return the handle of a new task. Like that of AWS it says the ARN of the task's source."""
    return base64.b64encode(json.dumps({"taskId": str(uuid.uuid4()), "sourceArn": source}).encode()).decode()


def _source_of(handle: str) -> str:
    try:
        return str(json.loads(base64.b64decode(handle, validate=True))["sourceArn"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise invalid("Value for parameter TaskHandle is invalid.") from None
