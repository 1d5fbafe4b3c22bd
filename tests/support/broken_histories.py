"""Histories to test the checker: of a program on a queue in memory, with answers lost, or with one answer falsified.

`true_history(seed)` keeps every promise, and so does each `loosened` one. `broken` changes a history such that the queue would
have broken one rule, at places where nothing else in the history explains the change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import attrs

import strictq
from strictq.testing import FakeClock
from tests.support.faults import settle
from tests.support.history import Act, Effect, Event, Handed, Invoke, Left, Operated, Return, Sent, Stored, Tx, Wanted
from tests.support.powercut import Recorder, quiet
from tests.support.powercut_run import CONFIG, Named, Program
from tests.support.recorded import SCHEMA

STEPS: Final = 250
SECOND: Final = 10**9
AGES: Final = 10**6 * SECOND
GAP: Final = 100_000
"""Nanoseconds between the events of calls that are added. Others are a millisecond apart at least."""
OVERLAP: Final = 3_000_000


class InMemory(Program):
    """The program of the power cuts. Nothing is kept on a disk."""

    def keep(self) -> None:
        self.clock.advance(1.0)


@cache
def true_history(seed: int) -> tuple[Event, ...]:
    """Return what a program was answered, up to the last message."""
    clock = FakeClock()
    with quiet(clock), strictq.open(":memory:", shards=1 + seed % 2, config=CONFIG, clock=clock) as queue:
        queue.app_schema(SCHEMA)
        recorder = Recorder()
        program = InMemory(Named(queue, recorder), clock, random.Random(seed))
        for _ in range(STEPS):
            program.step()
        return tuple(settle(queue, recorder, clock))


class Call(NamedTuple):
    """A call that was answered, and the places of its events."""

    at: int
    invoke: Invoke
    done: Return

    @property
    def ok(self) -> bool:
        return self.done.outcome == "ok" and "LeaseLost" not in self.done.items

    @property
    def keys(self) -> set[str]:
        items = [*self.invoke.items, *self.done.items]
        return {item.key for item in items if hasattr(item, "key")} | {s.key for i in items if isinstance(i, Tx) for s in i.sends}


def calls_of(events: Sequence[Event]) -> list[Call]:
    returns = {e.call: e for e in events if isinstance(e, Return)}
    return [Call(n, e, returns[e.call]) for n, e in enumerate(events) if isinstance(e, Invoke) and e.call in returns]


def loosened(events: Sequence[Event], chance: random.Random, *, but: str | None = None) -> list[Event]:
    """Let calls overlap, and lose some answers.

    What a receive returned is lost only if nothing was done with it.

    Args:
        but: a key. Calls about it are left as they are, and receives, which may be about it, have their answers.
    """
    calls = calls_of(events)
    used = {item.token for c in calls for item in c.invoke.items if isinstance(item, Act | Tx)}
    fixed = {c.invoke.call for c in calls if but in c.keys or c.invoke.verb == "final"}
    lost: dict[int, bool] = {}
    for call in calls:
        tokens = {item.token for item in call.done.items if isinstance(item, Handed)}
        surely = call.invoke.call in fixed or tokens & used or (but and call.invoke.verb in ("receive", "more"))
        if not surely and chance.random() < 0.06:
            lost[call.invoke.call] = chance.random() < 0.5
    made: list[Event] = []
    for event in events:
        if event.call in fixed:
            made.append(event)
        elif isinstance(event, Invoke):
            made.append(attrs.evolve(event, at=event.at - chance.randrange(OVERLAP)))
        elif event.call not in lost:
            made.append(attrs.evolve(event, at=event.at + chance.randrange(OVERLAP)))
        elif lost[event.call]:
            made.append(Return(event.call, event.at, event.verb, "OutcomeUnknown", []))
    return made


# ---- one falsified answer

Change = tuple[str, dict[int, Event | None], list[Event]]
"""The key, events in the place of others (by call; None: the call is removed), and additional events."""


class Scene:
    """A history, and what can be found in it. Only keys count that were neither purged nor redriven."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.calls = calls_of(events)
        self.odd = {item.key for c in self.calls for item in c.invoke.items if c.invoke.verb in ("purge", "redrive")}
        self.final = next(c for c in self.calls if c.invoke.verb == "final")
        self.new = 1 << 62
        self.tops: dict[str, int] = {}
        for call in self.calls:
            if call.invoke.verb == "send":
                for sent, stored in zip(call.invoke.items, call.done.items, strict=False):
                    if isinstance(stored, Stored):
                        self.tops[sent.key] = max(self.tops.get(sent.key, 0), stored.seq)
            for item in call.done.items:
                if isinstance(item, Handed):
                    self.tops[item.key] = max(self.tops.get(item.key, 0), item.seq)

    def of(self, *verbs: str) -> Iterator[Call]:
        """Yield calls with one of these verbs that succeeded."""
        yield from (c for c in self.calls if c.invoke.verb in verbs and c.ok and not c.keys & self.odd)

    def sends(self) -> Iterator[tuple[Call, int, Sent, Stored]]:
        for call in self.of("send"):
            for n, (sent, stored) in enumerate(zip(call.invoke.items, call.done.items, strict=False)):
                if isinstance(stored, Stored):
                    yield call, n, sent, stored

    def given(self) -> Iterator[tuple[Call, int, Handed]]:
        """Yield deliveries that were not resolved by their receive."""
        for call in self.of("receive"):
            for n, item in enumerate(call.done.items):
                if not call.invoke.items[0].ack_first:
                    yield call, n, item

    def acts(self, key: str, token: int, seq: int | None = None) -> list[Call]:
        """Return the calls with one delivery, or of one lease; [] if one of them names others, too."""
        found = []
        for call in self.calls:
            items = [i for i in call.invoke.items if isinstance(i, Act | Tx)]
            mine = [i for i in items if i.key == key and i.token == token and seq in (None, i.seq)]
            if mine and len(mine) < len(items):
                return []
            found += [call] * bool(mine)
        return found

    def settled(self, *verbs: str) -> Iterator[tuple[Call, Act]]:
        """Yield calls that settled one delivery."""
        for call in self.of(*verbs):
            if len(call.invoke.items) == 1 and isinstance(call.invoke.items[0], Act):
                yield call, call.invoke.items[0]

    def later(self, call: Call, key: str) -> Call | None:
        """Return the first receive of a key after a call."""
        return next((c for c in self.of("receive") if c.at > call.at and key in {i.key for i in c.done.items}), None)

    def added(self, at: int, verb: str, item: Any, *results: Any) -> list[Event]:
        self.new += 1
        return [Invoke(self.new, at + GAP, 1, 1, verb, [item]), Return(self.new, at + 2 * GAP, verb, "ok", list(results))]

    @staticmethod
    def answered(call: Call, n: int, item: Any) -> dict[int, Event | None]:
        """Return a call with another result in this place."""
        items = [*call.done.items]
        items[n : n + 1] = [] if item is None else [item]
        return {call.invoke.call: attrs.evolve(call.done, items=items)}

    @staticmethod
    def earliest_end(call: Call) -> int:
        """Return when the leases of a receive certainly still hold, however its times are loosened."""
        return int(call.invoke.at + call.invoke.items[0].lease - SECOND)

    @staticmethod
    def gone(calls: Sequence[Call]) -> dict[int, Event | None]:
        return {call.invoke.call: None for call in calls}

    def ended(self, change: Callable[[list[Any]], list[Any]]) -> dict[int, Event | None]:
        return {self.final.invoke.call: attrs.evolve(self.final.done, items=change(self.final.done.items))}

    # ---- the rules

    def S1(self) -> Iterator[Change]:
        for call, n, sent, stored in self.sends():
            if stored.seq > 1 and not stored.duplicate:
                yield sent.key, self.answered(call, n, Stored(stored.seq - 1)), []

    def S2(self) -> Iterator[Change]:
        for _, _, sent, stored in self.sends():
            if not stored.duplicate:
                left = Left("pending", sent.key, self.tops[sent.key] + 1, sent.mid)
                yield sent.key, self.ended(lambda items, left=left: [*items, left]), []  # type: ignore[misc]

    def S3(self) -> Iterator[Change]:
        last: dict[str, tuple[Call, int, Stored]] = {}
        for call, n, sent, stored in self.sends():
            if stored.duplicate:
                continue
            before = last.get(sent.key)
            last[sent.key] = call, n, stored
            if before is not None and before[0] is not call:
                yield sent.key, self.answered(*before[:2], stored) | self.answered(call, n, before[2]), []

    def P1(self) -> Iterator[Change]:
        for call, n, item in self.given():
            yield item.key, self.answered(call, n, item._replace(mid="never-sent")), []

    def F1(self) -> Iterator[Change]:
        for call, n, item in self.given():
            if n and call.done.items[n - 1].key == item.key:
                items = [*call.done.items]
                items[n - 1 : n + 1] = items[n], items[n - 1]
                yield item.key, {call.invoke.call: attrs.evolve(call.done, items=items)}, []
        yield from self._again(("nack",))

    def _again(self, verbs: Sequence[str]) -> Iterator[Change]:
        """Leave out why a message was delivered again while its lease would have lasted."""
        for call, act in self.settled(*verbs):
            again = self.later(call, act.key)
            first = next((c for c, _, h in self.given() if h.token == act.token and h.key == act.key), None)
            if again is None or first is None or again.done.at > self.earliest_end(first):
                continue
            acts = self.acts(act.key, act.token)
            if acts and any(h.key == act.key and h.seq == act.seq for h in again.done.items):
                yield act.key, self.gone(acts), []

    def F2(self) -> Iterator[Change]:
        lasting = {(sent.key, stored.seq) for _, _, sent, stored in self.sends() if sent.ttl is None}  # others may have expired
        for call, act in self.settled("ack"):
            after, acts = self.later(call, act.key), self.acts(act.key, act.token, act.seq)
            skipped = after is not None and all(h.seq != act.seq for h in after.done.items)
            if acts and skipped and (act.key, act.seq) in lasting:
                yield act.key, self.gone(acts), []

    def F3(self) -> Iterator[Change]:
        new = {(sent.key, stored.seq) for _, _, sent, stored in self.sends()}  # only a receipt tells the seq of the others
        for call, n, item in self.given():
            behind = call.done.items[n + 1 : n + 2]
            if (item.key, item.seq) in new and behind and behind[0].key == item.key:
                acts = self.acts(item.key, item.token, item.seq)
                if acts and all(c.invoke.verb == "ack" and c.ok for c in acts):
                    yield item.key, self.answered(call, n, None) | self.gone(acts), []
            new.discard((item.key, item.seq))
        for key, top in self.tops.items():
            if key not in self.odd:
                at = self.final.invoke.at - 9 * GAP
                sends = [self.added(at + 3 * n * GAP, "send", Sent(key, f"new-{n}"), Stored(top + 1 + n)) for n in (0, 1)]
                skipping = Handed(key, top + 2, "new-1", 1 << 61)
                yield key, {}, [*sends[0], *sends[1], *self.added(at + 6 * GAP, "receive", Wanted(SECOND), skipping)]

    def M1(self) -> Iterator[Change]:
        for call, n, item in self.given():
            after, acts = self.later(call, item.key), self.acts(item.key, item.token)
            if n == 0 and acts and after is not None and after.done.at < self.earliest_end(call):
                yield item.key, self.gone(acts), []

    def T1(self) -> Iterator[Change]:
        first: dict[str, int] = {}
        for call, n, item in self.given():
            if item.token > first.setdefault(item.key, item.token) and sum(h.key == item.key for h in call.done.items) == 1:
                yield item.key, self.answered(call, n, item._replace(token=first[item.key] - 1)), []

    def T2(self) -> Iterator[Change]:
        for call, _, item in self.given():
            if (after := self.later(call, item.key)) is not None:
                yield item.key, {}, self.added(after.done.at, "extend", Act(item.key, item.seq, item.token, SECOND))

    def A1(self) -> Iterator[Change]:
        mids = {(item.key, item.seq): item.mid for _, _, item in self.given()}
        for call, act in self.settled("ack"):
            if mid := mids.get((act.key, act.seq or 0)):
                again = Handed(act.key, act.seq or 0, mid, 1 << 61)
                yield act.key, {}, self.added(call.done.at, "receive", Wanted(SECOND), again)

    def A2(self) -> Iterator[Change]:
        for call, act in self.settled("ack", "reject"):
            yield act.key, {}, self.added(call.done.at, "ack", act)

    def L1(self) -> Iterator[Change]:
        for key, top in self.tops.items():
            if key not in self.odd:
                at = self.final.invoke.at - 10 * GAP
                yield key, {}, self.added(at, "send", Sent(key, "lost"), Stored(top + 1))

    def D1(self) -> Iterator[Change]:
        for call, n, sent, stored in self.sends():
            if stored.duplicate:
                yield sent.key, self.answered(call, n, Stored(self.tops[sent.key] + 1)), []

    def W1(self) -> Iterator[Change]:
        delivered = {item.mid for _, _, item in self.given()}
        for call, n, sent, _ in self.sends():
            if sent.delay and sent.mid in delivered:
                items = [*call.invoke.items]
                items[n] = sent._replace(delay=AGES)
                yield sent.key, {-call.invoke.call: attrs.evolve(call.invoke, items=items)}, []
        unheld = {c.invoke.items[0].key for c in self.of("unhold") if c.invoke.at < self.final.invoke.at - 4000 * SECOND}
        for call, act in self.settled("nack"):
            again = self.later(call, act.key)
            if act.key not in unheld and again and any((h.key, h.seq) == (act.key, act.seq) for h in again.done.items):
                yield act.key, {-call.invoke.call: attrs.evolve(call.invoke, items=[act._replace(arg=AGES)])}, []
        for call, _, item in self.given():
            if item.key not in unheld:
                yield item.key, {}, self.added(call.invoke.at - 4 * GAP, "hold", Operated(item.key))

    def X1(self) -> Iterator[Change]:
        failed = [c.invoke.items[0] for c in self.calls if c.invoke.verb == "transact" and c.done.outcome == "Raised"]
        for tx in failed:
            yield tx.key, self.ended(lambda items, tx=tx: [*items, Effect(tx.effect, 1)]), []  # type: ignore[misc]
            for sent in tx.sends:
                left = Left("pending", sent.key, self.tops.get(sent.key, 0) + 1, sent.mid)
                yield sent.key, self.ended(lambda items, left=left: [*items, left]), []  # type: ignore[misc]
        for effect in [item for item in self.final.done.items if isinstance(item, Effect)]:
            yield "", self.ended(lambda items, e=effect: [i for i in items if i != e]), []  # type: ignore[misc]
            yield "", self.ended(lambda items, e=effect: [*items, e]), []  # type: ignore[misc]

    def H1(self) -> Iterator[Change]:
        for call, n, item in self.given():
            first = next(iter(self.acts(item.key, item.token)), None)
            if n == 0 and first and first.ok and first.invoke.verb == "ack" and first.done.at < self.earliest_end(call):
                yield item.key, {first.invoke.call: attrs.evolve(first.done, outcome="LeaseLost", items=[])}, []


RULES: Final = tuple(name for name in vars(Scene) if len(name) == 2 and name != "of")


def broken(events: Sequence[Event], rule: str, chance: random.Random, places: int) -> Iterator[list[Event]]:
    """Yield the history with this rule broken at some of its places, and with other answers lost."""
    found = list(getattr(Scene(events), rule)())
    for key, instead, more in chance.sample(found, min(places, len(found))):
        made: list[Event] = []
        for event in events:
            if isinstance(event, Invoke):
                changed = instead.get(-event.call, event)
                if instead.get(event.call, event) is not None and changed is not None:
                    made.append(changed)
            elif (changed := instead.get(event.call, event)) is not None:
                made.append(changed)
        # Nothing explains a change of effects but the answers of their own transactions.
        yield [*(loosened(made, chance, but=key) if key else made), *more]
