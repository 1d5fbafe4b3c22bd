"""Convert the events of a history to each key's events, for the checker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import attrs

from tests.support.history import Effect, Event, Invoke, Left, Return, Sent, Wanted

FOREVER = 1 << 62
YES, UNKNOWN, REFUSED, NO = range(4)
RESOLVES = frozenset({"ack", "reject", "transact"})
ENDS = frozenset({"release", "done"})
GIVES_BACK = frozenset({"nack", "defer"})
HARMLESS = frozenset(
    {"StoreBusy", "StoreFull", "QueueFull", "QueueClosed", "InvalidArgument", "MessageTooLarge", "ConfigError"}
    | {"ReadOnlyQueue", "ForkedProcess", "UnknownMessage", "Raised", "TargetUnavailable", "Fenced", "Throttled"}
)
"""Outcomes that promise that nothing changed. "Raised": the program's own exception inside a transaction."""


@attrs.define(eq=False)
class Send:
    call: int
    place: int
    key: str
    mid: str
    dedup: str | None
    delay: int
    ttl: int | None
    start: int
    end: int
    state: int
    seq: int | None = None
    duplicate: bool = False
    effect: str | None = None


@attrs.define(eq=False)
class Act:
    verb: str
    seq: int | None
    token: int
    arg: int | None
    start: int
    end: int
    state: int
    effect: str | None = None
    retry: bool = False


@attrs.define(eq=False)
class Operation:
    verb: str
    seqs: Any
    dead: bool
    start: int
    end: int
    state: int


@attrs.define(eq=False)
class Lease:
    token: int
    call: int
    start: int
    end: int
    ack_first: bool
    deadline: int
    process: int
    handed: dict[int, tuple[int, int, bool]] = attrs.Factory(dict)  # seq → (start, end, by more)
    acts: list[Act] = attrs.Factory(list)


@attrs.define(eq=False)
class Lane:
    key: str
    sends: list[Send] = attrs.Factory(list)
    leases: dict[int, Lease] = attrs.Factory(dict)
    acts: list[Act] = attrs.Factory(list)
    operations: list[Operation] = attrs.Factory(list)
    deliveries: list[tuple[int, str, int]] = attrs.Factory(list)  # seq, mid, not later than
    left: dict[int, Left] = attrs.Factory(dict)
    by_seq: dict[int, Send | None] = attrs.Factory(dict)
    rejected: set[int] = attrs.Factory(set)
    redrive_from: int = FOREVER
    purge_from: int = FOREVER
    resolved: dict[int, list[Act]] = attrs.Factory(lambda: defaultdict(list))  # certainly
    settled: dict[int, list[Act]] = attrs.Factory(lambda: defaultdict(list))  # certainly, or possibly


def state_of(outcome: str) -> int:
    if outcome in ("ok", "ForwardPending"):
        return YES
    if outcome == "LeaseLost":
        return REFUSED
    return NO if outcome in HARMLESS else UNKNOWN


class Gatherer:
    """Joins invokes and returns, and sorts them by key."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []
        self.lanes: dict[str, Lane] = {}
        self.mids: dict[str, Send] = {}
        self.operations: list[Operation] = []
        self.reboots: list[int] = []
        self.hidden: list[tuple[int, Wanted | None]] = []  # receives without an answer, when; None: a `more`
        self.slow: list[tuple[int, int, Wanted]] = []  # receives that outlasted their leases: what they lost is unknown
        self.attempts: dict[str, list[Act]] = defaultdict(list)  # effect → its transactions
        self.sent_by: dict[str, list[Send]] = defaultdict(list)
        self.effects: dict[str, int] = {}
        self.final = False

    def gather(self, events: Iterable[Event]) -> None:
        returns: dict[int, Return] = {}
        invokes: list[Invoke] = []
        growing: list[Invoke] = []
        for event in events:
            if isinstance(event, Invoke):
                (growing if event.verb == "more" else invokes).append(event)
            else:
                returns[event.call] = event
        take = {"send": self._take_send, "receive": self._take_receive, "more": self._take_receive}
        take |= {"transact": self._take_transaction, "final": self._take_final}
        take |= dict.fromkeys(("hold", "unhold", "purge", "redrive"), self._take_operation)
        for invoke in invokes + growing:
            if invoke.verb == "reboot":
                self.reboots.append(invoke.at)
            else:
                take.get(invoke.verb, self._take_acts)(invoke, returns.get(invoke.call))

    def _lane(self, key: str) -> Lane:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key)
        return lane

    def _add_send(self, item: Sent, call: int, place: int, start: int, end: int, state: int) -> Send:
        send = Send(call, place, item.key, item.mid, item.dedup, item.delay, item.ttl, start, end, state)
        if item.mid in self.mids:
            raise ValueError(f"two sends in the history are named {item.mid!r}")
        self.mids[item.mid] = send
        self._lane(item.key).sends.append(send)
        return send

    def _take_send(self, invoke: Invoke, done: Return | None) -> None:
        for place, item in enumerate(invoke.items):
            send = self._add_send(item, invoke.call, place, invoke.at, FOREVER, UNKNOWN)
            if done is None:
                continue
            answer = done.items[place] if done.items else done.outcome
            if isinstance(answer, str):
                send.state = state_of(answer)
            else:
                send.seq, send.duplicate = answer
                send.state, send.end = YES, done.at

    def _take_receive(self, invoke: Invoke, done: Return | None) -> None:
        wanted = invoke.items[0]
        more = invoke.verb == "more"
        if more:
            self._take_acts(invoke, None if done is None else Return(done.call, done.at, "more", done.outcome, []))
        if done is None or (not done.items and state_of(done.outcome) == UNKNOWN and done.outcome != "PartialFailure"):
            self.hidden.append((invoke.at, None if more else wanted))
            return
        if not more and done.at - invoke.at >= wanted.lease:
            self.slow.append((invoke.at, done.at, wanted))
        last: dict[str, int] = {}
        for item in done.items:
            key, seq = item.key, item.seq
            lane = self._lane(key)
            lease = lane.leases.get(item.token)
            if lease is None:
                length = 0 if more else wanted.lease
                deadline = invoke.at + length if item.deadline is None else item.deadline
                lease = Lease(
                    item.token, invoke.call, invoke.at, done.at, not more and wanted.ack_first, deadline, invoke.process
                )
                lane.leases[item.token] = lease
            elif not more and lease.call != invoke.call:
                self.broken("T1", key, f"token {item.token} was given to two receives")
            if seq in lease.handed:
                self.broken("F1", key, f"seq {seq} was delivered twice under token {item.token}")
            elif last.get(key, 0) > seq:
                self.broken("F1", key, f"seq {seq} came after seq {last[key]} under token {item.token}")
            last[key] = seq
            lease.handed.setdefault(seq, (invoke.at, done.at, more))
            lane.deliveries.append((seq, item.mid, done.at))

    def _take_acts(self, invoke: Invoke, done: Return | None) -> None:
        end = FOREVER if done is None else done.at
        for place, item in enumerate(invoke.items):
            state = UNKNOWN
            if done is not None:
                state = state_of(done.items[place] if done.items else done.outcome)
            act = Act(invoke.verb, item.seq, item.token, item.arg, invoke.at, end, state)
            self._lane(item.key).acts.append(act)

    def _take_transaction(self, invoke: Invoke, done: Return | None) -> None:
        effect, key, seq, token, sends = invoke.items[0]
        state = UNKNOWN if done is None else state_of(done.outcome)
        end = FOREVER if done is None else done.at
        act = Act("transact", seq, token or 0, None, invoke.at, end, state, effect)
        self.attempts[effect].append(act)
        if seq is not None:
            self._lane(key).acts.append(act)
        # Forwarding may end after the call: a send of a transaction has no certain end unless the call says "ok".
        sent = end if done is not None and done.outcome == "ok" else FOREVER
        for place, item in enumerate(sends):
            made = NO if state == REFUSED else state
            send = self.mids.get(item.mid)
            if send is not None and send.effect == effect:  # the transaction was repeated
                send.start, send.end, send.state = min(send.start, invoke.at), FOREVER, min(send.state, made)
                continue
            send = self._add_send(item, invoke.call, place, invoke.at, sent, made)
            send.effect = effect
            self.sent_by[effect].append(send)

    def _take_operation(self, invoke: Invoke, done: Return | None) -> None:
        key, seqs, dead = invoke.items[0]
        state = UNKNOWN if done is None else state_of(done.outcome)
        operation = Operation(invoke.verb, seqs, dead, invoke.at, FOREVER if done is None else done.at, state)
        if state in (YES, UNKNOWN):
            (self.operations if key is None else self._lane(key).operations).append(operation)

    def _take_final(self, invoke: Invoke, done: Return | None) -> None:
        if done is None:
            return
        self.final = True
        for item in done.items:
            if isinstance(item, Effect):
                self.effects[item.effect] = self.effects.get(item.effect, 0) + item.times
            else:
                self._lane(item.key).left[item.seq] = item

    def broken(self, rule: str, key: str, detail: str) -> None:
        self.found.append((rule, key, detail))
