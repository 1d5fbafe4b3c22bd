"""Schedules: cron expressions whose ticks are sent as messages. Each tick is sent once, even if processes crash.

The last tick sent is stored as the state of a separate key. It is read and written in the transaction that sends the tick, so
only one of several processes sends it, and a crash leaves it either sent and recorded or neither.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import attrs

from .._platform.clock import MICROSECONDS, SteeredClock
from .._platform.extras import need
from .._platform.log import Log
from .._values import hints
from .._values.errors import ConfigError, ForwardPending, InvalidArgument, SchemaMismatch, StoreCorrupt, StoreError
from .._values.types import Message, SendOptions

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from .._client.effects import PendingReceipt
    from .._values.keys import Key
    from ..queue import Queue

STATE_KEY: Final = "strictq-schedule:"
"""The prefix of the key whose state is the last tick. The schedule's name follows."""
TICK_HEADER: Final = "strictq-tick"
"""The header with the tick that a message is for: ISO 8601, with the offset of the schedule's time zone."""
RULES_MAX: Final = 8
"""Number of expressions per name whose last tick is kept, so that an old and a new version of a program can run together."""
AHEAD_SECONDS_MAX: Final = 86_400.0
"""A last tick further in the future than this was written by a wrong clock."""
LOOK_SECONDS: Final = 5.0
"""The longest wait between two readings of the clock: it may be set, or the machine may sleep."""
CHANGE_SECONDS: Final = 10_800
"""Longer than the effect of a clock change on the ticks after it."""
BACK_SECONDS: Final = 60.0
BACK_GROWTH: Final = 8.0
"""How far the latest missed tick is looked for at first, and by what factor that grows."""
AGAIN_SECONDS: Final = 1.0
AGAIN_SECONDS_MAX: Final = 60.0
log: Final = Log("strictq.schedule")


@attrs.frozen(eq=False)
class Schedule:
    """A message and the times at which it is sent.

    Attributes:
        name: unique within the app; its last tick is stored under it.
        expression: minute, hour, day of the month, month, day of the week; with six fields the first one is the second.
        timezone: the IANA name of the expression's time zone.
        type, key, arguments, options: those of the message; see `App.send`.
    """

    name: str
    expression: str
    timezone: str
    type: str
    key: Key
    arguments: Mapping[str, Any]
    options: SendOptions
    _zone: ZoneInfo = attrs.field(repr=False, alias="zone")

    @property
    def rule(self) -> str:
        """The identifier that the last tick is stored under. A changed expression has other ticks."""
        return f"{self.expression} {self.timezone}"

    def next(self, after: float) -> float:
        """Return the first tick after a time. Both are seconds since 1970.

        Raises:
            InvalidArgument: there is no tick within 50 years.
        """
        for at in self._ticks(after):
            if at > after:
                return at
        raise InvalidArgument(f"the schedule {self.expression!r} never comes", hint=hints.CRON_FIELDS)

    def due(self, last: float, now: float) -> float | None:
        """Return the latest tick after `last` that is not later than `now`; None: there is none."""
        latest = first = self.next(last)
        if first > now:
            return None
        # Only walks forward agree on the ticks of a repeated hour, so look back in growing steps.
        back = BACK_SECONDS
        while latest == first and now - back > first:
            for at in self._ticks(now - back):
                if at > now:
                    break
                latest = max(latest, at)
            back *= BACK_GROWTH
        if latest == first:
            for at in self._ticks(first):
                if at > now:
                    break
                latest = max(latest, at)
        return latest

    def at(self, tick: float) -> datetime:
        """Return a tick as a datetime in the schedule's time zone."""
        return datetime.fromtimestamp(tick, self._zone)

    def _ticks(self, start: float) -> Iterator[float]:
        """Yield the ticks from a time on, in order. Near a clock change, also some before it.

        A walk that begins between the two passes of a repeated hour would repeat the ticks of the first pass.
        """
        from cronsim import CronSim

        second = int(start)
        begin = datetime.fromtimestamp(second, UTC).astimezone(self._zone)
        before = datetime.fromtimestamp(second - CHANGE_SECONDS, UTC).astimezone(self._zone)
        if before.utcoffset() != begin.utcoffset():
            begin = before
        return (tick.timestamp() for tick in CronSim(self.expression, begin))


def schedule(
    name: str, expression: str, timezone: str, of_type: str, key: Key, arguments: Mapping[str, Any], options: SendOptions
) -> Schedule:
    """Return a validated schedule.

    Args:
        of_type: the message's type.
    Raises:
        MissingExtra: cronsim is not installed.
        InvalidArgument: the expression or the time zone is not valid, or the schedule has no tick.
    """
    need("cronsim", "app")
    from zoneinfo import ZoneInfo

    from cronsim import CronSim, CronSimError

    if not isinstance(expression, str):
        raise InvalidArgument(f"a schedule must be a str, not {type(expression).__name__}", hint=hints.CRON_FIELDS)
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, TypeError, OSError):
        raise InvalidArgument(f"there is no time zone {timezone!r}", hint=hints.ZONE_NAMES) from None
    words = " ".join(expression.split())
    try:
        CronSim(words, datetime.fromtimestamp(0.0, UTC))
    except CronSimError as e:
        raise InvalidArgument(f"the schedule {expression!r} is not valid: {e}", hint=hints.CRON_FIELDS) from None
    made = Schedule(name, words, timezone, of_type, key, dict(arguments), options, zone)
    made.next(0.0)  # raises if it has no tick
    return made


class Ticks:
    """Send the ticks of schedules. Every process that works on the queue may have one."""

    def __init__(self, queue: Queue, message: Callable[[Schedule, SendOptions], Message]) -> None:
        """Prepare to send ticks. `message` builds a schedule's message with the given options."""
        self._queue = queue
        self._message = message
        self._last: dict[Schedule, float] = {}
        """The last ticks, as far as this process knows. The stored ones are never earlier."""

    @property
    def clock(self) -> Any:
        return self._queue._storage.clock

    def now(self) -> float:
        """Return seconds since 1970."""
        now: int = self.clock.wall()
        return now / MICROSECONDS

    def send_due(self, schedules: list[Schedule]) -> list[PendingReceipt]:
        """Send the due ticks that were not sent. Of several missed ticks of a schedule, send only the latest.

        Raises:
            StrictqError: as `q.transaction`; the ticks sent before the error stay sent.
        """
        now = self.now()
        sent: list[PendingReceipt] = []
        for each in schedules:
            last = self._last.get(each)
            if last is not None and last <= now + AHEAD_SECONDS_MAX and each.next(last) > now:
                continue
            receipt = self._tick(each, now)
            if receipt is not None:
                sent.append(receipt)
        return sent

    def wait_seconds(self, schedules: list[Schedule]) -> float:
        """Return the seconds until the next tick, at most LOOK_SECONDS."""
        now = self.now()
        due = [each.next(self._last[each]) - now if each in self._last else 0.0 for each in schedules]
        return max(0.0, min([LOOK_SECONDS, *due]))

    def _tick(self, each: Schedule, now: float) -> PendingReceipt | None:
        receipt = None
        with suppress(ForwardPending), self._queue.transaction(key=STATE_KEY + each.name) as tx:
            known = _read(each, tx.key_state)
            last = known.get(each.rule, math.inf)
            if last > now + AHEAD_SECONDS_MAX:
                last = known[each.rule] = now  # a new schedule, or one stored by a wrong clock, begins now
                tx.key_state = _written(known)
            elif (due := each.due(last, now)) is not None:
                last = known[each.rule] = due
                headers = {**(each.options.get("headers") or {}), TICK_HEADER: each.at(due).isoformat()}
                receipt = tx.send(self._message(each, {**each.options, "headers": headers}))
                tx.key_state = _written(known)
        self._last[each] = last
        if receipt is not None:
            log.info("sent %s for %s", each.name, each.at(last).isoformat())
        return receipt


def _read(each: Schedule, state: bytes | None) -> dict[str, float]:
    if state is None:
        return {}
    try:
        found = json.loads(state)
        return {str(rule): float(last) for rule, last in found["ticks"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"the state of the key {STATE_KEY + each.name!r} is not that of a schedule", hint=hints.NAME_SCHEDULE
        ) from None


def _written(known: dict[str, float]) -> bytes:
    newest = sorted(known.items(), key=lambda each: each[1])[-RULES_MAX:]
    return json.dumps({"ticks": dict(newest)}).encode()


class Ticker:
    """A thread that sends the ticks of an app while its worker runs. A context manager, entered once, by one worker.

    Attributes:
        error: the exception that ended the thread early.
    """

    def __init__(self, ticks: Ticks, schedules: list[Schedule], failed: Callable[[], None]) -> None:
        """Prepare the thread. `failed` is called when it ends early; its error is raised at the end of the block."""
        self._ticks = ticks
        self._schedules = schedules
        self._failed = failed
        self._over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strictq-schedules", daemon=True)
        self._failures = 0
        self._seconds = 0.0
        self.error: BaseException | None = None

    def __enter__(self) -> Ticker:
        if isinstance(self._ticks.clock, SteeredClock):
            self._ticks.clock.listen(self._moved)
        # The first look comes before the worker starts, so that a draining run finds the missed ticks.
        self._seconds = self._look()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._over = True
        self._wake.set()
        self._thread.join()
        if self.error is not None and kind is None:
            raise self.error

    def _moved(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        seconds = self._seconds
        while True:
            self._wake.wait(seconds)
            self._wake.clear()
            if self._over:
                return
            try:
                seconds = self._look()
            except BaseException as e:  # raised at the end of the block
                self.error = e
                self._failed()
                return

    def _look(self) -> float:
        """Send the due ticks and return the seconds to wait. After a transient store failure, return the time until a retry."""
        try:
            self._ticks.send_due(self._schedules)
        except (StoreCorrupt, SchemaMismatch):
            raise
        except StoreError as e:
            self._failures += 1
            log.warning("the store failed; trying again: %s", e)
            return min(AGAIN_SECONDS * 2.0 ** min(self._failures - 1, 10), AGAIN_SECONDS_MAX)
        self._failures = 0
        return self._ticks.wait_seconds(self._schedules)
