"""Histories to test the checker: a small simulated queue with many clients, correct or with one seeded fault.

`generate(seed)` returns a history that keeps every promise. `generate(seed, rule)` returns one in which the queue broke that rule
once, like a faulty engine, at the next moment at which the fault must show in the answers. Clients overlap, lose answers, are
killed, return late, and retry.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from tests.support.history import (
    Act,
    Effect,
    Event,
    Handed,
    Invoke,
    Left,
    Operated,
    Return,
    Sent,
    Stored,
    Tx,
    Wanted,
)
from tests.support.history_lanes import GIVES_BACK

MS = 1_000_000
LATENCY = 50_000
WINDOW = 20 * MS
RULES = ("S1", "S2", "S3", "P1", "F1", "F2", "F3", "M1", "T1", "T2", "A1", "A2", "L1", "D1", "W1", "X1", "H1")

# Operations that would explain a fault, and so must not occur in its history.
WITHOUT = {
    "F1": {"redrive", "purge"},
    "F2": {"purge", "ack_first"},
    "F3": {"purge", "ack_first"},
    "A1": {"purge", "redrive"},
    "A2": {"redrive"},
    "L1": {"purge", "ack_first"},
    "D1": {"purge"},
    "S2": {"purge"},
    "X1": {"purge"},
}


@attrs.define(eq=False)
class _Message:
    mid: str
    due: int
    known: bool  # its sender has the receipt
    delivered: bool = False
    nacked: bool = False  # since its last delivery, with an answer
    doubted: bool = False  # it may have been resolved: the answer is lost


@attrs.define(eq=False)
class _Lease:
    token: int
    deadline: int
    seqs: set[int]
    ack_first: bool
    given: int  # when its receive returned
    known: bool  # that receive was answered
    top: int  # the highest seq delivered under it
    cut: bool = False  # something was given back, so it no longer grows
    doubtful: bool = False  # something without an answer was done under it


@attrs.define(eq=False)
class _Lane:
    last: int = 0
    last_end: int | None = 0  # when the send of `last` returned; None: it did not
    hole: int | None = None
    queue: dict[int, _Message] = attrs.Factory(dict)
    dead: dict[int, _Message] = attrs.Factory(dict)
    redriven: dict[int, _Message] = attrs.Factory(dict)  # waits for the end of the lease
    lease: _Lease | None = None
    token: int = 0
    token_end: int | None = None
    held: bool = False
    hold_end: int = 0
    gone: dict[tuple[int, int], bool] = attrs.Factory(dict)  # (seq, token) → resolved with an answer
    retired: dict[int, int] = attrs.Factory(dict)  # token → when its successor's receive returned


@attrs.define(eq=False)
class _Client:
    process: int
    thread: int
    time: int
    holds: list[tuple[str, int, int, int]] = attrs.Factory(list)  # key, seq, token, deadline


class _Refused(Exception):
    pass


def generate(
    seed: int, fault: str | None = None, *, calls: int = 150, keys: int = 4, clients: int = 4, batch: int = 6
) -> list[Event]:
    """Return a history of about this many calls.

    Args:
        fault: a rule to break, or None.
    Raises:
        LookupError: the fault found no opportunity to show in a reasonable time.
    """
    simulation = _Simulation(seed, fault, keys, clients, batch)
    simulation.run(calls)
    if fault is not None and not simulation.fired:
        raise LookupError(f"seed {seed}: no occasion to break {fault}")
    return simulation.events


class _Simulation:
    def __init__(self, seed: int, fault: str | None, keys: int, clients: int, batch: int) -> None:
        self.random = random.Random(seed)
        self.fault = fault
        self.variant = seed // 2
        self.fired = False
        self.without = WITHOUT.get(fault or "", set())
        if fault == "W1":  # of a delay, or of a hold
            self.without = {"unhold"} if self.variant % 3 == 2 else {"hold", "unhold"}
        self.batch = batch
        self.events: list[Event] = []
        self.lanes = {f"k{i}": _Lane() for i in range(keys)}
        self.dedup: dict[tuple[str, str], tuple[int, int, bool]] = {}  # → seq, remembered until, known
        self.effects: dict[str, int] = {}
        self.names = 0
        self.turns = 0
        self.answered = True  # whether the present call will have an answer
        self.retrying = False
        self.start = self.now = self.end = 0  # of that call
        self.clients = [_Client(i // 2, i, MS + i * 1000) for i in range(clients)]
        self.agenda: list[tuple[int, int, _Client, Any, int, int]] = []

    # The clients.

    def run(self, calls: int) -> None:
        for client in self.clients:
            self._plan(client)
        while self.turns < calls or (self.fault and not self.fired and self.turns < calls * 40):
            self._turn()
            client = self._last
            client.time += self.random.choice((0, 10_000, 200_000, MS // 2))
            self._plan(client)
        while self.agenda:
            self._turn()
        self._drain()

    def _plan(self, client: _Client) -> None:
        """Choose the client's next call, and when it takes effect."""
        call = self._choose(client)
        start = client.time + self.random.randrange(1, LATENCY)
        moment = start + self.random.randrange(1, LATENCY)
        heapq.heappush(self.agenda, (moment, self._name(), client, call, start, moment))

    def _turn(self) -> None:
        moment, number, client, (verb, items, act), start, _ = heapq.heappop(self.agenda)
        self._last = client
        self.turns += 1
        self.start, self.now = start, moment
        self.end = moment + self.random.randrange(1, LATENCY)
        lost = 0.0 if self.fired else 0.04
        self.answered = self.random.random() >= lost
        self.events.append(Invoke(number, start, client.process, client.thread, verb, items))
        client.time = self.end
        if not self.answered:
            happened = self.random.random() < 0.5
            done = happened and self._attempt(act)[0] == "ok"
            if items and isinstance(items[0], Act | Tx):
                self._doubt(items)
            if self.random.random() < 0.5:
                client.holds = []  # killed; another one takes its place
                client.process += 100
                client.time += self.random.randrange(3 * MS)
            else:
                self.events.append(Return(number, self.end, verb, "OutcomeUnknown", []))
                if verb in ("ack", "nack", "defer", "transact") and self.random.random() < 0.7:
                    self._retry(client, verb, items, act, done)
            return
        outcome, results = self._attempt(act)
        self.events.append(Return(number, self.end, verb, outcome, results))
        if verb in ("receive", "more"):
            for item in results:
                client.holds.append((item.key, item.seq, item.token, self.now))

    def _retry(self, client: _Client, verb: str, items: list[Any], act: Callable[[], list[Any]], done: bool) -> None:
        """Repeat a call whose outcome is unknown. It succeeds at once if the first one happened."""
        number = self._name()
        self.start = self.end + 1000
        self.now = self.start + 1000
        # No other client moves in between: their turns are later than this one, or were earlier.
        if self.agenda and self.agenda[0][0] <= self.now:
            return
        self.end = self.now + 1000
        client.time = self.end
        self.answered = True
        self.retrying = True
        outcome, results = ("ok", []) if done else self._attempt(act)
        self.retrying = False
        self.events.append(Invoke(number, self.start, client.process, client.thread, verb, items))
        self.events.append(Return(number, self.end, verb, outcome, results))

    def _attempt(self, act: Callable[[], list[Any]]) -> tuple[str, list[Any]]:
        try:
            return "ok", act()
        except _Refused as refusal:
            return str(refusal), []

    def _doubt(self, items: list[Any]) -> None:
        lane = self.lanes[items[0].key]
        if lane.lease is not None:
            lane.lease.doubtful = True
        if items[0].seq in lane.queue:
            lane.queue[items[0].seq].doubted = True

    def _name(self) -> int:
        self.names += 1
        return self.names

    def _choose(self, client: _Client) -> tuple[str, list[Any], Callable[[], list[Any]]]:
        chance = self.random.random()
        if chance > 0.97:
            return self._operate()
        if chance < 0.25:
            sends = [self._message() for _ in range(self.random.choice((1, 1, 2, 5)))]
            return "send", sends, lambda: self._send_all(sends)
        if chance < 0.45 or not client.holds:
            wanted = Wanted(
                self.random.choice((MS, 3 * MS, 10 * MS)),
                "ack_first" not in self.without and self.random.random() < 0.05,
            )
            count = self.random.randint(1, self.batch)
            return "receive", [wanted], lambda: self._receive(wanted, count)
        return self._hold_on(client)

    def _hold_on(self, client: _Client) -> tuple[str, list[Any], Callable[[], list[Any]]]:
        place = 0 if self.random.random() < 0.7 else self.random.randrange(len(client.holds))
        key, seq, token, _ = client.holds[place]
        forget = self.random.random() < 0.9
        if forget:
            del client.holds[place]
        verb = self.random.choices(
            ("ack", "nack", "defer", "reject", "extend", "release", "start", "more", "transact", "done"),
            (50, 6, 2, 4, 4, 3, 5, 5, 12, 3),
        )[0]
        if verb == "transact":
            return self._transaction(key, seq, token)
        arg = None
        if verb in GIVES_BACK:
            arg = self.random.choice((0, 0, MS // 2, 2 * MS))
        elif verb == "extend":
            arg = self.random.choice((MS, 5 * MS))
        act = Act(key, None if verb in ("release", "more", "done") else seq, token, arg)
        if verb == "release" or verb in GIVES_BACK:
            client.holds = [h for h in client.holds if (h[0], h[2]) != (key, token) or self.random.random() < 0.1]
        if verb == "more":
            return verb, [act], lambda: self._more(act)
        return verb, [act], lambda: self._act(verb, act)

    def _message(self, key: str | None = None) -> Sent:
        key = key or self.random.choice(list(self.lanes))
        delay = self.random.choice((0, 0, 0, 0, 0, MS, 3 * MS))
        dedup = self.random.choice((None, None, None, f"d{self.random.randrange(4)}"))
        return Sent(key, f"m{self._name()}", dedup, delay)

    def _transaction(self, key: str, seq: int, token: int) -> tuple[str, list[Any], Callable[[], list[Any]]]:
        sends = tuple(self._message()._replace(dedup=None, delay=0) for _ in range(self.random.choice((0, 1, 2))))
        tx = Tx(f"e{self._name()}", key, seq, token, sends)
        raises = self.random.random() < 0.1
        return "transact", [tx], lambda: self._transact(tx, raises)

    def _operate(self) -> tuple[str, list[Any], Callable[[], list[Any]]]:
        verbs = [v for v in ("hold", "unhold", "unhold", "purge", "redrive", "redrive") if v not in self.without]
        verb = self.random.choice(verbs)
        key = None if verb == "redrive" and self.random.random() < 0.3 else self.random.choice(list(self.lanes))
        return verb, [Operated(key)], lambda: self._operated(verb, key)

    # The queue.

    def _fire(self, fault: str, variant: int = 0, of: int = 1) -> bool:
        """Return whether to break this rule now. Called only if the break will show."""
        if self.fault == fault and not self.fired and self.answered and not self.retrying and self.variant % of == variant:
            self.fired = True
            return True
        return False

    def _send_all(self, sends: list[Sent]) -> list[Any]:
        return [self._send(item, len(sends) == 1) for item in sends]

    def _send(self, item: Sent, alone: bool) -> Stored:
        lane = self.lanes[item.key]
        if item.dedup is not None:
            first = self.dedup.get((item.key, item.dedup))
            if first is not None and first[1] > self.now:
                soon = first[1] - WINDOW // 2 > self.now and first[2]
                if not (soon and self._fire("D1")):
                    return Stored(first[0], True)
        message = _Message(item.mid, self.now + item.delay, self.answered)
        last = lane.queue.get(lane.last)
        if last is not None and last.known and self._fire("S1"):
            lane.queue[lane.last] = message
            return Stored(lane.last)
        if lane.hole is not None and self.start > (lane.last_end or FAR) and self._fire("S3"):
            seq = lane.hole
        else:
            lane.last += 1
            if self.fault == "S3" and lane.hole is None and alone and self.answered:
                lane.hole = lane.last
                lane.last += 1
            seq = lane.last
            lane.last_end = self.end if self.answered else None
        if item.dedup is not None:
            self.dedup[item.key, item.dedup] = (seq, self.now + WINDOW, self.answered)
        if self._fire("L1"):
            return Stored(seq)
        lane.queue[seq] = message
        if self._fire("S2"):
            lane.last += 1
            lane.queue[lane.last] = message
        return Stored(seq)

    def _receive(self, wanted: Wanted, count: int) -> list[Any]:
        result: list[Any] = []
        lanes = list(self.lanes.items())
        self.random.shuffle(lanes)
        for key, lane in lanes:
            if len(result) >= count:
                break
            if not self._free(lane) or (lane.held and not self._hold_broken(lane)):
                continue
            seqs = self._heads(lane, count - len(result))
            if seqs:
                result += self._lease(key, lane, seqs, wanted)
        return result

    def _free(self, lane: _Lane) -> bool:
        lease = lane.lease
        if lease is None or lease.deadline <= self.now:
            lane.queue |= lane.redriven
            lane.redriven = {}
            return True
        sure = lease.known and not lease.doubtful and lease.deadline - self.now > LATENCY * 2
        return sure and not lane.held and self._ready(lane) and lease.given < self.start and self._fire("M1")

    def _hold_broken(self, lane: _Lane) -> bool:
        return self._ready(lane) and 0 < lane.hold_end < self.start and self._fire("W1", 2, 3)

    def _ready(self, lane: _Lane) -> bool:
        return bool(lane.queue) and lane.queue[min(lane.queue)].due <= self.now

    def _heads(self, lane: _Lane, count: int) -> list[int]:
        seqs: list[int] = []
        ordered = sorted(lane.queue)
        for place, seq in enumerate(ordered):
            if len(seqs) >= count:
                break
            message = lane.queue[seq]
            if message.due > self.now:
                early = message.due - self.now > 5 * LATENCY
                fresh = message.known and not message.delivered
                if early and not seqs and self._early(fresh, message.nacked):
                    seqs.append(seq)
                elif self._stuck(lane, message) and not seqs and place + 1 < len(ordered) and self._fire("F2"):
                    return [ordered[place + 1]]
                break
            seqs.append(seq)
        if len(seqs) > 1 and not any(lane.queue[s].delivered for s in ordered):
            if lane.queue[seqs[0]].known and self._fire("F3"):
                return seqs[1:]
            if self._fire("F1", 0, 2):
                return seqs[1:]
        return seqs

    def _stuck(self, lane: _Lane, message: _Message) -> bool:
        return message.nacked and lane.lease is None and not message.doubted

    def _early(self, fresh: bool, nacked: bool) -> bool:
        return (fresh and self._fire("W1", 0, 3)) or (nacked and self._fire("W1", 1, 3))

    def _lease(self, key: str, lane: _Lane, seqs: list[int], wanted: Wanted) -> list[Any]:
        if lane.token_end is not None and lane.token_end < self.start and self._fire("T1"):
            token = lane.token - (self.variant % 2)
        else:
            token = lane.token = lane.token + self.random.randint(1, 3)
        lane.retired.setdefault(token, FAR)
        if self.answered:
            for older in lane.retired:
                if older < token:
                    lane.retired[older] = min(lane.retired[older], self.end)
            lane.token_end = self.end
        else:
            lane.token_end = None
        deadline = self.now + wanted.lease
        lane.lease = _Lease(token, deadline, set(seqs), wanted.ack_first, self.end, self.answered, seqs[-1])
        result = []
        for seq in seqs:
            message = lane.queue[seq]
            if self.answered:
                message.delivered = True
            message.nacked = False
            mid = "never-sent" if self._fire("P1") else message.mid
            result.append(Handed(key, seq, mid, token, self.random.choice((None, deadline - 1000))))
            if wanted.ack_first:
                del lane.queue[seq]
        return result

    def _more(self, act: Act) -> list[Any]:
        lane = self.lanes[act.key]
        lease = self._live(lane, act)
        if lease.ack_first:
            raise _Refused("InvalidArgument")
        later = [s for s in sorted(lane.queue) if s > lease.top][:1]
        if not later or lease.cut or lane.queue[later[0]].due > self.now:
            return []
        lease.seqs.add(later[0])
        lease.top = later[0]
        if not self.answered:
            lease.doubtful = True
        else:
            lane.queue[later[0]].delivered = True
        return [Handed(act.key, later[0], lane.queue[later[0]].mid, act.token)]

    def _live(self, lane: _Lane, act: Act) -> _Lease:
        lease = lane.lease
        if lease is None or lease.token != act.token or (act.seq is not None and act.seq not in lease.seqs):
            raise _Refused("LeaseLost")
        return lease

    def _act(self, verb: str, act: Act) -> list[Any]:
        lane = self.lanes[act.key]
        if lane.gone.get((act.seq or 0, act.token)) and verb == "ack" and self._fire("A2"):
            return []
        if lane.retired.get(act.token, FAR) < self.start and self._fire("T2"):
            return []
        lease = self._live(lane, act)
        if not self.answered:
            lease.doubtful = True
        sure = lease.known and not lease.doubtful and lease.deadline - self.now > LATENCY * 2
        if verb in ("ack", "extend") and sure and not lease.ack_first and self._fire("H1"):
            raise _Refused("LeaseLost")
        if lease.ack_first and verb not in ("extend", "done"):
            raise _Refused("InvalidArgument")
        if verb == "ack" or verb == "reject":
            self._resolve(lane, lease, act, verb)
        elif verb in GIVES_BACK:
            self._nack(lane, lease, act)
        elif verb == "extend":
            lease.deadline = self.now + (act.arg or 0)
        elif verb == "release" or (verb == "done" and lease.ack_first):
            lane.lease = None
        elif verb == "done":
            raise _Refused("InvalidArgument")
        return []

    def _nack(self, lane: _Lane, lease: _Lease, act: Act) -> None:
        assert act.seq is not None
        message = lane.queue[act.seq]
        message.due = max(message.due, self.now + (act.arg or 0))
        message.nacked = bool(self.answered and act.arg)
        lease.seqs = {s for s in lease.seqs if s < act.seq}
        lane.gone[act.seq, act.token] = False
        lease.cut = True
        if not lease.seqs:
            lane.lease = None

    def _resolve(self, lane: _Lane, lease: _Lease, act: Act, verb: str) -> None:
        assert act.seq is not None
        lane.gone[act.seq, act.token] = self.answered
        lease.seqs.discard(act.seq)
        if not lease.seqs:
            lane.lease = None
        if verb == "ack" and self._fire("A1"):
            return
        if verb == "reject" and self._fire("F1", 1, 2):
            return
        message = lane.queue.pop(act.seq)
        if verb == "reject":
            lane.dead[act.seq] = message

    def _transact(self, tx: Tx, raises: bool) -> list[Any]:
        assert tx.seq is not None
        assert tx.token is not None
        lane = self.lanes[tx.key]
        lease = self._live(lane, Act(tx.key, tx.seq, tx.token))
        if lease.ack_first or tx.seq != min(lease.seqs):
            raise _Refused("InvalidArgument")
        if not self.answered:
            lease.doubtful = True
        if raises:
            if self._fire("X1", 2, 4):
                self._apply(tx)
            elif tx.sends and self._fire("X1", 3, 4):
                self._forward(tx)
            raise _Refused("Raised")
        self._resolve(lane, lease, Act(tx.key, tx.seq, tx.token), "transact")
        if not self._fire("X1", 0, 4):
            self._apply(tx)
            if self._fire("X1", 1, 4):
                self._apply(tx)
        self._forward(tx)
        return []

    def _apply(self, tx: Tx) -> None:
        self.effects[tx.effect] = self.effects.get(tx.effect, 0) + 1

    def _forward(self, tx: Tx) -> None:
        for send in tx.sends:
            lane = self.lanes[send.key]
            lane.last += 1
            lane.last_end = None
            lane.queue[lane.last] = _Message(send.mid, self.now, known=False)

    def _operated(self, verb: str, key: str | None) -> list[Any]:
        for lane in self.lanes.values() if key is None else [self.lanes[key]]:
            if verb == "hold":
                lane.held, lane.hold_end = True, self.end if self.answered else 0
            elif verb == "unhold":
                lane.held = False
            elif verb == "purge":
                leased = lane.lease.seqs if lane.lease is not None else set()
                lane.queue = {s: m for s, m in lane.queue.items() if s in leased}
                self.dedup = {k: v for k, v in self.dedup.items() if self.lanes[k[0]] is not lane}
            elif verb == "redrive":
                lane.redriven |= lane.dead
                lane.dead = {}
        return []

    # The end.

    def _drain(self) -> None:
        """Deliver and ack nearly everything once all leases are over, and report what is left."""
        client = _Client(99, 99, max(c.time for c in self.clients) + 60 * MS)
        self.clients.append(client)
        for key, lane in self.lanes.items():
            if lane.held:
                self._call(client, "unhold", [Operated(key)], partial(self._operated, "unhold", key))
        leave = self.random.random() < 0.3 and self.fault is None
        wanted = Wanted(100 * MS)
        while not leave:
            got = self._call(client, "receive", [wanted], lambda: self._receive(wanted, 50))
            if not got:
                break
            for item in got:
                act = Act(item.key, item.seq, item.token)
                self._call(client, "ack", [act], partial(self._act, "ack", act))
        left: list[Any] = [Effect(name, count) for name, count in self.effects.items()]
        for key, lane in self.lanes.items():
            left += [Left("pending", key, seq, m.mid) for seq, m in lane.queue.items()]
            left += [Left("dead", key, seq, m.mid) for seq, m in lane.dead.items()]
        self._call(client, "final", [], lambda: left)

    def _call(self, client: _Client, verb: str, items: list[Any], act: Callable[[], list[Any]]) -> list[Any]:
        self.start, self.now, self.end = client.time + 1, client.time + 2000, client.time + 4000
        self.answered = True
        number = self._name()
        outcome, results = self._attempt(act)
        self.events.append(Invoke(number, self.start, client.process, client.thread, verb, items))
        self.events.append(Return(number, self.end, verb, outcome, results))
        client.time = self.end + 1000
        return results


FAR = 1 << 62
