"""The history checker: verifies that a queue's answers obey its promises.

Every rule is checked for each key separately, in one pass over its events sorted once. Nothing is assumed about a call without
an answer: a rule is broken only if every possible outcome of such calls breaks it.

| rule | says |
|---|---|
| S1, S2 | a (key, seq) belongs to one message for ever, and a message to one (key, seq) |
| S3 | a send that returned before another was invoked has the smaller seq; seqs have no gaps |
| P1 | what is delivered was sent before, on that key |
| F1 | first deliveries ascend; a repeated one follows a nack, a defer, an expiry or a redrive |
| F2 | a later seq is delivered only after an earlier, delivered one is resolved, or in one lease with it |
| F3 | the same of an earlier one that was never delivered: nothing is skipped |
| M1 | a lease begins only after the one before it ended |
| T1 | tokens of a lane strictly increase |
| T2 | a dead token never succeeds |
| A1 | what was acked or purged is never delivered again |
| A2 | nothing is resolved twice |
| L1 | a message whose send returned is resolved, dead, expired, purged or still pending |
| D1 | the same dedup id within its window gives the same seq |
| W1 | nothing is delivered before its delay is over, or while its key is held |
| X1 | the effects of a transaction exist once if it returned, never if it failed, else once or never, all or none |
| H1 | a holder whose lease is surely alive is not refused (not one of the promises' rules, but their other side) |

L1, and the part of X1 that counts effects, need a `final` event with what was found at the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import attrs

from tests.support.history import Event, Wanted
from tests.support.history_lanes import (
    ENDS,
    FOREVER,
    GIVES_BACK,
    NO,
    REFUSED,
    RESOLVES,
    UNKNOWN,
    YES,
    Act,
    Gatherer,
    Lane,
    Lease,
    Operation,
    Send,
)


class Violation(NamedTuple):
    """A broken rule."""

    rule: str
    key: str
    detail: str


@attrs.frozen
class Policy:
    """The configuration that the checker needs. Times in nanoseconds.

    Attributes:
        max_attempts: starts after which a message may be dead-lettered or dropped; None: never.
        dedup_window: how long a dedup id is remembered.
        ttl: age at which a message may expire; None: never.
        retry_delay: the minimum delay of a nack without an explicit one.
        gapless: seqs of a key have no gaps (False if idle lanes are forgotten).
        killed: processes whose leases end with them, and when each was last alive.
        slack: how much earlier than computed a deadline may be: the queue counts microseconds.
    """

    max_attempts: int | None = None
    dedup_window: int = 300 * 10**9
    ttl: int | None = None
    retry_delay: int = 0
    gapless: bool = True
    killed: Mapping[int, int] = {}
    slack: int = 2_000


def check(events: Iterable[Event], policy: Policy | None = None) -> list[Violation]:
    """Return every broken rule in a history. Its events may be in any order."""
    return _Checker(policy or Policy()).run(events)


class _Checker(Gatherer):
    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def run(self, events: Iterable[Event]) -> list[Violation]:
        self.gather(events)
        self._effects()
        for operation in self.operations:  # of every key
            for lane in self.lanes.values():
                lane.operations.append(operation)
        self.hidden.sort(key=lambda receive: receive[0])
        self.reboots.sort()
        lanes = list(self.lanes.values())
        for lane in lanes:
            self._acts(lane)
            self._identity(lane)
        for lane in lanes:
            lane.operations.sort(key=lambda o: o.start)
            lane.redrive_from = min((o.start for o in lane.operations if o.verb == "redrive"), default=FOREVER)
            purges = (o.start for o in lane.operations if o.verb == "purge" and not o.dead)
            lane.purge_from = min(purges, default=FOREVER)
            self._order_of_sends(lane)
            self._dedup(lane)
            self._leases(lane)
            self._tokens(lane)
            self._resolved_once(lane)
            self._loss(lane)
        return [Violation(*broken) for broken in self.found]

    # X1: each transaction's effect occurs as often as its answer says.

    def _effects(self) -> None:
        if not self.final:
            return
        for effect in self.effects.keys() - self.attempts.keys():
            self.broken("X1", "", f"effect {effect!r} belongs to no transaction")
        for effect, acts in self.attempts.items():
            count = self.effects.get(effect, 0)
            states = {act.state for act in acts}
            least = 1 if YES in states else 0
            most = 1 if YES in states or UNKNOWN in states else 0
            if not least <= count <= most:
                self.broken("X1", "", f"effect {effect!r} was found {count} times, not {least} to {most}")
            if YES not in states and UNKNOWN in states:
                # The effect decides about a transaction without an answer: all of it must have happened, or nothing.
                for act in acts:
                    if act.state == UNKNOWN and (count == 0 or len(acts) == 1):
                        act.state = YES if count else NO
                if count:
                    for send in self.sent_by.get(effect, ()):
                        send.state = YES

    # Before the rules: what is known about each act and each seq.

    def _acts(self, lane: Lane) -> None:
        lane.acts.sort(key=lambda a: a.start)
        unanswered: dict[tuple[str, int | None, int], int] = {}
        for act in lane.acts:
            if act.state == NO:
                continue
            lease = lane.leases.get(act.token)
            if lease is not None:
                lease.acts.append(act)
            if act.state == REFUSED:
                continue
            if act.state == UNKNOWN:
                unanswered.setdefault((act.verb, act.seq, act.token), act.start)
            elif unanswered:
                # A repeated act succeeds if the first one did: then it happened as early as that.
                first = unanswered.get((act.verb, act.seq, act.token))
                if first is not None:
                    act.start, act.retry = first, True
            if act.verb in RESOLVES and act.seq is not None:
                lane.settled[act.seq].append(act)
                if act.state == YES:
                    lane.resolved[act.seq].append(act)
                    if act.verb == "reject":
                        lane.rejected.add(act.seq)
        for lease in lane.leases.values():
            if lease.ack_first:
                for seq, (start, end, _) in lease.handed.items():
                    act = Act("ack_first", seq, lease.token, None, start, end, YES)
                    lane.settled[seq].append(act)
                    lane.resolved[seq].append(act)

    def _identity(self, lane: Lane) -> None:
        """Check S1, S2 and P1: one message, one seq. Also determine the seqs of sends without an answer."""
        key, by_seq = lane.key, lane.by_seq
        for send in lane.sends:
            if send.seq is not None and not send.duplicate:
                if send.seq in by_seq:
                    self.broken("S1", key, f"seq {send.seq} was given to two sends")
                by_seq[send.seq] = send
        found = [(item.seq, item.mid, FOREVER) for item in lane.left.values()]
        for seq, mid, by in lane.deliveries + found:
            sent = self.mids.get(mid)
            if sent is None or sent.key != key:
                self.broken("P1", key, f"seq {seq} carries {mid!r}, which was never sent to this key")
                by_seq.setdefault(seq, None)
                continue
            send = sent
            if send.start > by:
                self.broken("P1", key, f"seq {seq} carries {mid!r} before it was sent")
            if send.duplicate:
                self.broken("D1", key, f"seq {seq} carries {mid!r}, whose receipt said duplicate")
            if send.effect is not None and self._failed(send.effect):
                self.broken("X1", key, f"seq {seq} carries {mid!r} of a transaction that did not happen")
            elif send.state in (NO, REFUSED):
                self.broken("P1", key, f"seq {seq} carries {mid!r}, whose send failed")
            owner = by_seq.get(seq)
            if owner is not None and owner is not send:
                self.broken("S1", key, f"seq {seq} is {owner.mid!r} and {mid!r}")
            elif send.seq is None:
                send.seq = seq
            elif send.seq != seq and not send.duplicate:
                self.broken("S2", key, f"{mid!r} has the seqs {send.seq} and {seq}")
            by_seq[seq] = owner or send

    def _failed(self, effect: str) -> bool:
        return all(act.state in (NO, REFUSED) for act in self.attempts[effect])

    # The sender's side: S3 and D1.

    def _order_of_sends(self, lane: Lane) -> None:
        latest = last = 0
        places: dict[int, int] = {}
        for seq in sorted(lane.by_seq):
            send = lane.by_seq[seq]
            if send is None:
                continue
            if send.end < latest:
                self.broken("S3", lane.key, f"seq {seq} returned before a smaller one was invoked")
            elif places.get(send.call, -1) > send.place:
                self.broken("S3", lane.key, f"seq {seq} is out of order within its call")
            latest = max(latest, send.start)
            places[send.call], last = send.place, seq
        if self.policy.gapless and len(lane.by_seq) < last:
            unseen = sum(1 for send in lane.sends if send.seq is None and send.state in (YES, UNKNOWN))
            if last - len(lane.by_seq) > unseen:
                self.broken("S3", lane.key, f"{last - len(lane.by_seq)} seqs up to {last} belong to nobody")

    def _dedup(self, lane: Lane) -> None:
        groups: dict[str, list[Send]] = defaultdict(list)
        for send in lane.sends:
            if send.dedup is not None and send.state in (YES, UNKNOWN):
                groups[send.dedup].append(send)
        for dedup, sends in groups.items():
            stored = [s for s in sends if not s.duplicate]
            unknown = any(s.seq is None for s in stored)
            seqs = {s.seq for s in stored}
            for send in sends:
                if send.duplicate and send.seq not in seqs and not unknown:
                    self.broken("D1", lane.key, f"the receipt for dedup id {dedup!r} names a strange seq {send.seq}")
            known = sorted((s for s in stored if s.seq is not None), key=lambda s: s.start)
            for first, second in pairwise(known):
                inside = second.end - first.start < self.policy.dedup_window - self.policy.slack
                if inside and second.seq != first.seq and not self._purged(lane, first, second.end):
                    detail = f"dedup id {dedup!r} was stored as seq {first.seq} and again as {second.seq}"
                    self.broken("D1", lane.key, detail)

    def _purged(self, lane: Lane, send: Send, by: int) -> bool:
        return any(o.verb == "purge" and o.start <= by and o.end >= send.start for o in lane.operations)

    # The receiver's side: F1, F2, F3, M1, T1, W1, A1.

    def _leases(self, lane: Lane) -> None:
        key, policy = lane.key, self.policy
        known = sorted(lane.by_seq)
        handed: dict[int, Lease] = {}
        gone: set[int] = set()
        reopened: dict[int, Operation] = {}
        redrives = [o for o in lane.operations if o.verb == "redrive" and o.state == YES]
        redrives.sort(key=lambda o: o.end)
        latest_start = busy_until = top = first = 0
        for token in sorted(lane.leases):
            lease = lane.leases[token]
            if lease.end < latest_start:
                self.broken("T1", key, f"token {token} was given before a smaller one was asked for")
            latest_start = max(latest_start, lease.start)
            if busy_until > lease.end + policy.slack:
                detail = f"token {token} began {busy_until - lease.end} ns before the lease before it could end"
                self.broken("M1", key, detail)
            seqs = sorted(lease.handed)
            if redrives:
                self._redriven(lane, lease, redrives, reopened)
            first = self._skipped(lane, lease, seqs, known, first, gone, handed)
            for seq in seqs:
                by = lease.handed[seq][1]
                before = handed.get(seq)
                if before is not None:
                    self._repeated(lane, before, lease, seq)
                    gone.discard(seq)
                    first = min(first, bisect_left(known, seq))
                elif seq > top:
                    top = seq
                elif lane.redrive_from > by:
                    self.broken("F1", key, f"seq {seq} was first delivered after seq {top}")
                send = lane.by_seq[seq]
                if send is not None and send.delay and by + policy.slack < send.start + send.delay:
                    self.broken("W1", key, f"seq {seq} was delivered before its delay was over")
                handed[seq] = lease
            busy_until = max(busy_until, self._free_from(lease))
            if lane.operations:
                self._held_or_purged(lane, lease)
        for seq, item in lane.left.items():
            if item.state == "pending" and any(act.verb != "reject" for act in lane.resolved.get(seq, ())):
                self.broken("A1", key, f"seq {seq} was acked and is still there")

    def _skipped(
        self,
        lane: Lane,
        lease: Lease,
        seqs: list[int],
        known: list[int],
        first: int,
        gone: set[int],
        handed: dict[int, Lease],
    ) -> int:
        """Check F2 and F3: every smaller seq is resolved, or in this lease. Return how much of `known` needs no more checks."""
        at, follower, together = first, 0, True
        while at < len(known) and known[at] < seqs[-1]:
            seq = known[at]
            at += 1
            if seq in lease.handed:
                together = False
                continue
            while seqs[follower] < seq:
                follower += 1
            if seq not in gone:
                by = lease.handed[seqs[follower]][1]
                last = handed.get(seq)
                # What was resolved under a token before its last delivery was not: it came back, or never left.
                token = 0 if last is None else last.token
                settled = any(a.start <= by and a.token >= token for a in lane.settled.get(seq, ()))
                if not settled and not self._may_be_gone(lane, seq, by):
                    rule = "F3" if last is None else "F2"
                    self.broken(rule, lane.key, f"seq {seqs[follower]} was delivered before seq {seq} was resolved")
                gone.add(seq)
            if together:
                first = at
        nacks = [a for a in lease.acts if a.verb in GIVES_BACK and a.state == YES and a.seq is not None]
        for seq in seqs if nacks else ():
            start, _, more = lease.handed[seq]
            if more and any(a.seq < seq and a.end < start for a in nacks if a.seq is not None):
                self.broken("F2", lane.key, f"seq {seq} joined lease {lease.token} past a seq that was given back")
        return first

    def _may_be_gone(self, lane: Lane, seq: int | None, by: int, send: Send | None = None) -> bool:
        """Return whether a message can have left its lane by then without being resolved by a holder."""
        send = send or (None if seq is None else lane.by_seq.get(seq))
        start = 0 if send is None else send.start
        ttl = self.policy.ttl if send is None or send.ttl is None else send.ttl
        if ttl is not None and start + ttl <= by + self.policy.slack:
            return True
        if lane.purge_from <= by:
            return True
        if any(at <= by and self._took(wanted, lane.key) for at, wanted in self.hidden):
            return True
        if self.policy.max_attempts is None:
            return False
        starts = sum(1 for at, _ in self.hidden if at <= by)
        starts += sum(
            1 for lease in lane.leases.values() if seq in lease.handed and lease.start <= by and not self._uncharged(lease, seq)
        )
        return starts >= self.policy.max_attempts

    def _uncharged(self, lease: Lease, seq: int | None) -> bool:
        """Return whether the lease ended for this message by a defer, which takes back its start."""
        return any(a.verb == "defer" and a.seq == seq and a.state == YES for a in lease.acts)

    def _took(self, wanted: Wanted | None, key: str) -> bool:
        return wanted is not None and wanted.ack_first and (wanted.keys is None or key in wanted.keys)

    def _repeated(self, lane: Lane, before: Lease, lease: Lease, seq: int) -> None:
        """Check A1, F1 and W1 for a seq that was delivered again."""
        by = lease.handed[seq][1]
        redriven = lane.redrive_from <= by
        for act in lane.resolved.get(seq, ()):
            # Its token was dead once this lease began, so the ack came before, whatever the clocks say.
            if act.token < lease.token and act.verb != "reject":
                rule = "X1" if act.verb == "transact" else "A1"
                self.broken(rule, lane.key, f"seq {seq} was resolved under token {act.token}, then delivered again")
                return
            if act.token < lease.token and not redriven:
                self.broken("F1", lane.key, f"seq {seq} was rejected, and delivered again without a redrive")
                return
        given_back = [
            act
            for act in before.acts
            if (act.verb in ENDS or (act.verb in GIVES_BACK and act.seq is not None and act.seq <= seq))
            and act.state in (YES, UNKNOWN)
            and act.start <= by
        ]
        expired = self._deadline(before) <= by + self.policy.slack
        if not given_back and not expired and not redriven and not self._rebooted(before, by):
            self.broken("F1", lane.key, f"seq {seq} was delivered again with no nack, defer, expiry or redrive before it")
        for act in given_back:
            if act.verb in GIVES_BACK and act.seq == seq and act.state == YES:
                delay = self.policy.retry_delay if act.arg is None else act.arg
                early = by + self.policy.slack < act.start + delay
                if early and not self._released(lane, before.start, by):
                    self.broken("W1", lane.key, f"seq {seq} was delivered before the delay of its {act.verb} was over")

    def _released(self, lane: Lane, start: int, end: int) -> bool:
        return any(o.verb == "unhold" and o.end >= start and o.start <= end for o in lane.operations)

    def _deadline(self, lease: Lease) -> int:
        """Return the earliest moment at which the lease can expire."""
        return min(self._by_time(lease), self.policy.killed.get(lease.process, FOREVER))

    def _by_time(self, lease: Lease) -> int:
        extends = [a for a in lease.acts if a.verb == "extend" and a.state in (YES, UNKNOWN) and a.arg is not None]
        if not extends:
            return lease.deadline
        surely = max((a.start for a in extends if a.state == YES and not a.retry), default=0)
        # An earlier deadline no longer counts once a later extend has certainly replaced it.
        possible = [a.start + a.arg for a in extends if a.end >= surely and a.arg is not None]
        if lease.end >= surely:
            possible.append(lease.deadline)
        return min(possible)

    def _rebooted(self, lease: Lease, by: int) -> bool:
        return bisect_right(self.reboots, by) > bisect_right(self.reboots, lease.start)

    def _free_from(self, lease: Lease) -> int:
        """Return the earliest moment at which the lane can have been free again."""
        free = self._deadline(lease)
        if self.reboots:
            free = min([free, *(at for at in self.reboots if at > lease.start)])
        settled: dict[int, int] = {}
        cuts: list[tuple[int, int]] = []
        for act in lease.acts:
            if act.state == REFUSED:
                continue
            if act.verb in RESOLVES and act.seq is not None:
                settled.setdefault(act.seq, act.start)
            elif act.verb in GIVES_BACK and act.seq is not None:
                cuts.append((act.seq, act.start))
            elif act.verb in ENDS:
                free = min(free, act.start)
        if lease.ack_first or not (settled or cuts):
            return free
        latest = 0
        for seq in lease.handed:
            end = settled.get(seq, FOREVER)
            for cut, start in cuts:
                if cut <= seq and start < end:
                    end = start
            if end > latest:
                latest = end
                if latest >= free:
                    return free
        return latest

    def _redriven(self, lane: Lane, lease: Lease, redrives: list[Operation], reopened: dict[int, Operation]) -> None:
        """Check F2 after a redrive: redriven messages go before anything later."""
        while redrives and redrives[0].end < lease.start:
            redrive = redrives.pop(0)
            for seq in lane.rejected:
                acts = lane.settled[seq]  # an ack without an answer, of a redrive before this one, may have counted
                wanted = redrive.seqs is None or seq in redrive.seqs
                if wanted and all(a.verb == "reject" and a.end < redrive.start for a in acts):
                    reopened[seq] = redrive
        for seq, redrive in list(reopened.items()):
            by = lease.end
            if seq in lease.handed:
                del reopened[seq]
            elif seq < max(s for s, (_, _, more) in lease.handed.items() if not more):
                again = any(redrive.start <= a.start <= by for a in lane.settled[seq])
                if not again and not self._may_be_gone(lane, seq, by) and not self._purged_dead(lane, by):
                    self.broken("F2", lane.key, f"seq {max(lease.handed)} was delivered before redriven seq {seq}")
                del reopened[seq]

    def _purged_dead(self, lane: Lane, by: int) -> bool:
        return any(o.verb == "purge" and o.dead and o.start <= by for o in lane.operations)

    def _held_or_purged(self, lane: Lane, lease: Lease) -> None:
        """Check W1 and A1: nothing of a held key, and nothing purged. The last hold and purge before the lease count."""
        before = [o for o in lane.operations if o.state == YES and o.end < lease.start]
        hold = max((o for o in before if o.verb == "hold"), key=lambda o: o.start, default=None)
        if hold is not None and not self._released(lane, hold.start, lease.end):
            self.broken("W1", lane.key, f"token {lease.token} was given while the key was held")
        purge = max((o for o in before if o.verb == "purge" and not o.dead), key=lambda o: o.start, default=None)
        if purge is None or any(at <= purge.end for at, _ in self.hidden) or self._held_unseen(lane.key, purge):
            return
        for seq in lease.handed:
            send = lane.by_seq[seq]
            if send is None or send.state != YES or send.end >= purge.start:
                continue
            if not any(seq in other.handed and other.start <= purge.end for other in lane.leases.values()):
                self.broken("A1", lane.key, f"seq {seq} was purged, then delivered")

    def _held_unseen(self, key: str, purge: Operation) -> bool:
        """Return whether a receive may have leased it at that time, and lost it again before it returned."""
        return any(
            start <= purge.end and purge.start <= end and (wanted.keys is None or key in wanted.keys)
            for start, end, wanted in self.slow
        )

    # The holder's side: T2, H1, A2.

    def _tokens(self, lane: Lane) -> None:
        tokens = sorted(lane.leases)
        dead_from = [FOREVER] * (len(tokens) + 1)  # for tokens below tokens[i]: when a later one was certainly issued
        for i in range(len(tokens) - 1, -1, -1):
            dead_from[i] = min(dead_from[i + 1], lane.leases[tokens[i]].end)
        for act in lane.acts:
            if act.seq is None and act.verb == "transact":
                continue
            if act.state == REFUSED:
                self._refused(lane, act)
            if act.state != YES:
                continue
            if dead_from[bisect_right(tokens, act.token)] < act.start:
                self.broken("T2", lane.key, f"{act.verb} of seq {act.seq} succeeded under dead token {act.token}")
        for lease in lane.leases.values():
            ends = [a for a in lease.acts if a.state == YES and (a.verb in GIVES_BACK or a.verb in ENDS)]
            for end in ends:
                for act in lease.acts:
                    covered = end.verb not in GIVES_BACK or (act.seq is not None and end.seq is not None and act.seq >= end.seq)
                    if act.state == YES and covered and act.start > end.end and not act.retry:
                        detail = f"{act.verb} of seq {act.seq} succeeded after {end.verb} gave back token {act.token}"
                        self.broken("T2", lane.key, detail)

    def _refused(self, lane: Lane, act: Act) -> None:
        lease = lane.leases.get(act.token)
        if lease is None or act.end + self.policy.slack >= self._deadline(lease) or self._rebooted(lease, act.end):
            return
        if act.seq is not None and (act.seq not in lease.handed or lease.ack_first):
            return
        for other in lease.acts:
            if other is act or other.start > act.end or other.verb in ("start", "extend", "more"):
                continue
            if other.verb in ENDS or act.seq is None or other.seq == act.seq or other.verb in GIVES_BACK:
                return  # it may have been this one that ended it
        self.broken("H1", lane.key, f"{act.verb} of seq {act.seq} was refused under live token {act.token}")

    def _resolved_once(self, lane: Lane) -> None:
        redrives = sum(1 for o in lane.operations if o.verb == "redrive")
        for seq, acts in lane.resolved.items():
            # Two effects of one transaction are X1's; a repeated call has only one answer that says yes.
            if len(acts) > 1 + redrives or (len(acts) > 1 and sum(1 for a in acts if a.verb != "reject") > 1):
                self.broken("A2", lane.key, f"seq {seq} was resolved {len(acts)} times")
            left = lane.left.get(seq)
            if left is not None and left.state == "dead" and any(a.verb != "reject" for a in acts):
                self.broken("A2", lane.key, f"seq {seq} was acked and is dead")

    # L1: nothing is lost.

    def _loss(self, lane: Lane) -> None:
        if not self.final:
            return
        for send in lane.sends:
            if send.state != YES or send.duplicate:
                continue
            if send.effect is not None and self._failed(send.effect):
                continue
            seq = send.seq
            if seq is not None and (seq in lane.left or self._resolved_at_last(lane, seq)):
                continue
            if not self._may_be_gone(lane, seq, FOREVER - 1, send):
                self.broken("L1", lane.key, f"{send.mid!r} (seq {seq}) was sent and is nowhere")

    def _resolved_at_last(self, lane: Lane, seq: int) -> bool:
        if seq not in lane.settled:
            return False
        acts = lane.resolved.get(seq, [])
        if len(acts) != 1 or acts[0].verb != "reject":
            return True
        # Rejected means dead, and dead letters are among the remaining messages unless an operator removed them.
        if self._purged_dead(lane, FOREVER) or any(o.verb == "redrive" for o in lane.operations):
            return True
        return any(a.state == UNKNOWN for a in lane.settled[seq])
