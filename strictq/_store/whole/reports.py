"""Read-only reports on a queue, over its shards. Those of one shard are in shard/reporting.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import attrs

from ..._platform import files
from ..._platform.clock import MICROSECONDS, QueueTime
from ..._values import hints
from ..._values.durations import Model
from ..._values.errors import InvalidArgument, PartialFailure, StoreError, UnknownMessage
from ..._values.keys import decode_key, is_keyless
from ..._values.retries import span
from ..._values.stats import OpenBreaker, QueueCounts, ReplicationStatus, ShardStats, Stats, TenantDepth, WorkerLoad
from ..._values.tenants import TenantRules, tenant_of
from ..commit.app_database import Rows
from ..commit.tx import NEVER, bound
from ..disk import layout, wal_file
from ..disk.rate_file import RECEIVE, Rate
from ..shard import counting, failures, history, looking, reporting
from ..shard.counting import FEW
from ..shard.loading import EMPTY
from ..shard.looking import LaneView
from ..shard.messages import headers_of
from ..shard.shard_file import Shard
from ..shard.shard_lanes import ShardLanes
from ..shipping.status import ShipProgress, ShipStatus
from ..shipping.values import FRAME_BYTES
from ..tables import key_states, outputs
from . import moving
from .live_consumers import statuses
from .store import Store
from .worker_reports import Attempt

if TYPE_CHECKING:
    from ..._values.findings import (
        AttemptError,
        ConsumerStatus,
        DeadLetter,
        Explanation,
        HistoryRecord,
        KeyDepth,
        LaneLease,
        MessageStatus,
        PeekedMessage,
        Problem,
        TenantStatus,
        Topology,
    )

T = TypeVar("T")
S = TypeVar("S", "MessageStatus", "Explanation")


class DeadReason(NamedTuple):
    """What a dead letter died of, and when, seconds since 1970. Its key is the stored one."""

    key: bytes
    seq: int
    kind: str
    reason: str | None
    died_at: float


PEEKED_MAX: Final = 1_000
"""A longer look at a lane's messages does not keep writers waiting."""
TENANTS_SHOWN: Final = 100
_COUNTS: Final = tuple(field.name for field in attrs.fields(QueueCounts) if str(field.type) == "int")
"""The counts that are summed over shards."""
_COUNTS_OF: Final = attrgetter(*_COUNTS)


class Reports:
    """What a queue reports of itself. A report of one key reads one shard; the others read each shard in turn."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def stats(self) -> Stats:
        """Return counts of the queue and of each shard, one consistent read per shard. An unreadable shard counts as 0."""
        shards: tuple[ShardStats, ...] = ()
        while len(shards) < len(self._store.shards):  # reading one may make known that others were added
            shards = (*shards, _shard_stats(self._store, self._store.shards[len(shards)]))
        counts: dict[str, Any] = dict(zip(_COUNTS, map(sum, zip(*map(_COUNTS_OF, shards), strict=True)), strict=True))
        claims = counts["claims"] + counts["empty_receives"]
        drains = [s.drain_seconds for s in shards]
        loads = [seen.described for seen in self._store.consumers.live() if seen.described.kind == "worker"]
        loads.sort(key=lambda one: one.since)
        workers = tuple(WorkerLoad(one.name, one.since, one.concurrency, one.running, one.busy_ratio) for one in loads)
        slots = sum(w.concurrency for w in workers)
        models: dict[str, str] = {}
        with suppress(StoreError):  # a broken queue.db must not hide the shards' counts
            models = self._store.estimates()
        tenants, other_tenants = self._deepest_tenants()
        return Stats(
            **counts,
            oldest_age_seconds=max((s.oldest_age_seconds for s in shards if s.oldest_age_seconds is not None), default=None),
            first_attempt_age_seconds=max(
                (s.first_attempt_age_seconds for s in shards if s.first_attempt_age_seconds is not None), default=None
            ),
            empty_receive_ratio=counts["empty_receives"] / claims if claims else 0.0,
            drain_seconds=None if None in drains else max((d for d in drains if d is not None), default=0.0),
            shards=shards,
            prepare=Model.from_json(models.get("prepare", "")).snapshot(),
            process=Model.from_json(models.get("process", "")).snapshot(),
            breakers=tuple(self._store.consumers.notices(OpenBreaker)),
            workers=workers,
            busy_ratio=sum(w.busy_ratio * w.concurrency for w in workers) / slots if slots else None,
            replication=self.replication(),
            paused=self._store.config.paused,
            paused_types=self._store.config.paused_types,
            sidelined_before=self._sidelined_before(),
            tenants=tenants,
            other_tenants=other_tenants,
        )

    def unread(self) -> int:
        """Return about how many rows of its logs `stats` would read first."""
        n = 0
        for shard in self._store.shards:
            with suppress(StoreError):  # `stats` reports it
                n += shard.unread()
        return n

    def _sidelined_before(self) -> float | None:
        rules = self._store.config.turns
        before = 0 if rules is None else rules.sidelined_before(self._store.now())
        return self._store.time.to_wall(before) if before else None

    def live_consumers(self) -> list[ConsumerStatus]:
        """Return the status of the live consumers in all processes, sorted by name."""
        live = self._store.consumers.live()
        held: Counter[str] = Counter()
        for shard in self._store.everywhere() if live else ():  # a survey loads what has changed of every key
            held += shard.survey(lambda lanes: counting.held_by(lanes, self._store.now()))
        return statuses(live, moving.InUse(self._store.shards), held)

    def leases(self, limit: int) -> list[LaneLease]:
        """Return the leases that began first. Reads every leased lane."""
        from ..._values.findings import LaneLease

        found: list[tuple[counting.Leased, int]] = []
        for shard in self._store.everywhere():
            leased = shard.survey(lambda lanes: counting.longest_leased(lanes, self._store.now(), limit))
            found += ((one, shard.number) for one in leased)
        wall = self._store.time.to_wall
        return [
            LaneLease(
                decode_key(one.key), one.consumer, one.token, one.first, one.messages, wall(one.at),
                None if one.deadline >= NEVER else wall(one.deadline), shard,
            )
            for one, shard in sorted(found)[:limit]
        ]  # fmt: skip

    def tenants(self) -> list[TenantStatus]:
        """Return the tenants that have messages or limits of their own, the deepest first. Reads every key that has messages."""
        store, shards = self._store, self._store.everywhere()
        rules = store.tenancy  # everywhere() has read the newest settings
        if rules is None:
            return []
        found: dict[bytes, tuple[int, int, int]] = {}
        for shard in shards:
            for name, (depth, keys, sent_at) in shard.survey(lambda lanes: counting.by_tenant(lanes, rules.separator)).items():
                others, more, before = found.get(name, (0, 0, sent_at))
                found[name] = depth + others, keys + more, min(before, sent_at)
        for limit in rules.limits:
            if not limit.tenant.endswith("*"):
                found.setdefault(limit.tenant.encode(), (0, 0, 0))
        in_flight = self._in_flight()
        statuses = [_tenant(store, rules, name, *of, in_flight=in_flight[name]) for name, of in found.items()]
        return sorted(statuses, key=lambda one: (-one.depth, one.tenant))

    def _deepest_tenants(self) -> tuple[tuple[TenantDepth, ...], int]:
        """Return the deepest tenants, and the number of messages of all others."""
        if self._store.config.tenant_separator is None:
            return (), 0
        found: Counter[bytes] = Counter()
        for shard in self._store.everywhere():
            found.update(shard.view(ShardLanes.tenant_depths))
        deepest = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:TENANTS_SHOWN]
        shown = tuple(TenantDepth(name.decode(errors="backslashreplace"), depth) for name, depth in deepest)
        return shown, found.total() - sum(one.depth for one in shown)

    def _in_flight(self) -> Counter[bytes]:
        """Return the number of leased keys of each tenant."""
        found: Counter[bytes] = Counter()
        for shard in self._store.everywhere():
            found.update(shard.survey(lambda lanes: lanes.in_flight_of_all(self._store.now())))
        return found

    def replication(self) -> ReplicationStatus | None:
        """Return the status of the replica. None: the queue was never replicated."""
        if self._store.look is not None:
            return self._store.look.status()
        known, directory = self._store.replication, self._store.directory
        if known is None or directory is None:
            return None
        status = ShipStatus.read(directory, known.history_id)
        behind = sum(_unshipped(shard, status) for shard in self._store.shards) if known.ships else 0
        x = ShipProgress.read(directory)
        shipped = status.segment >= 0
        lag = max(self._store.now() - x, 0) / MICROSECONDS if shipped and x else None
        return ReplicationStatus(
            mode=known.mode,
            target=known.target,
            history_id=known.history_id,
            term=known.term,
            shipping=known.ships and files.is_held(directory / layout.SHIP_LOCK),
            lag_seconds=0.0 if lag is not None and behind == 0 else lag,
            lag_bytes=behind,
            confirmed_at=status.wall / MICROSECONDS if shipped else None,
            segment=status.segment if shipped else None,
            last_error=status.error or None,
            stopped=status.stopped,
            lapsed=status.lapsed,
            write_once=json.loads(known.settings or "{}").get("write_once", True),
        )

    def top_keys(self, n: int, by: Literal["depth", "age"], prefix: bytes = b"") -> list[KeyDepth]:
        """Return the n deepest keys, or those with the oldest messages. Reads every key with messages and this stored prefix."""
        found: list[KeyDepth] = []
        shards = self._store.everywhere()
        config, limited = self._store.config, self._limited()
        for shard in shards:
            found += shard.survey(lambda lanes: reporting.top_keys(lanes, n, by, self._store.time, prefix, config, limited))
        rank = "depth" if by == "depth" else "oldest_age_seconds"
        return sorted(found, key=lambda k: getattr(k, rank), reverse=True)[:n]

    def peek(self, key: bytes | None, limit: int, seq: int = 0) -> list[PeekedMessage]:
        """Return the first unresolved messages of a key from a seq on, in order. None: the oldest ones of all keys."""
        if key is not None:
            return _look_at_key(
                self._store, key,
                lambda view, lanes: [] if view is None else reporting.peeked(view, seq, limit, self._store.time, lanes.shard),
                long=limit > PEEKED_MAX,
            )  # fmt: skip
        found: list[PeekedMessage] = []
        for shard in self._store.everywhere():
            found += shard.survey(bound(_peek_oldest, limit, self._store.time))
        return sorted(found, key=lambda message: message.enqueued_at)[:limit]

    def peek_keyless(self, shard: int, arrival: int) -> list[PeekedMessage]:
        """Return the unresolved keyless message with this arrival number, if there is one."""

        def report(view: LaneView, seq: int) -> list[PeekedMessage]:
            return [message for message in reporting.peeked(view, seq, 1, self._store.time, shard) if message.id == arrival]

        try:
            return _look_at_keyless(self._store, shard, arrival, report) or []
        except UnknownMessage:
            return []

    def status(self, key: bytes, seq: int) -> MessageStatus:
        """Return the status of one message.

        Raises:
            UnknownMessage: that seq was never issued for that key.
        """

        def report(view: LaneView | None, lanes: ShardLanes) -> tuple[MessageStatus, Attempt | None]:
            return reporting.status(view, key, seq, self._store.time), _attempt(view, seq, lanes.shard)

        return _with_progress(self._store, *_look_at_key(self._store, key, report))

    def status_of_keyless(self, shard: int, arrival: int) -> MessageStatus | None:
        """Return the status of the keyless message with this arrival number. None: it is resolved, or has a key."""

        def report(view: LaneView, seq: int) -> tuple[MessageStatus, Attempt | None] | None:
            found = reporting.status_in(view, seq, self._store.time)
            return None if found.state == "resolved" else (found, _attempt(view, seq, shard))

        found = _look_at_keyless(self._store, shard, arrival, report)
        return None if found is None else _with_progress(self._store, *found)

    def output(self, key: bytes, seq: int) -> tuple[bool, str | None]:
        """Return whether a message has ended, and its kept output. None: none is kept.

        Raises:
            UnknownMessage: that seq was never issued for that key.
        """

        def look(lanes: ShardLanes) -> tuple[bool, str | None]:
            now = self._store.now()
            if (said := _kept_output(lanes, key, seq, now)) is not None:
                return True, said
            view = looking.view(lanes, key, now)
            if view is None or not 1 <= seq <= view.tail:
                raise UnknownMessage(f"key {decode_key(key)!r} has no message with seq {seq}")
            return view.arrival_of(seq) is None, None

        ended, said = self._store.look_at_owner(key, lambda shard, anywhere: shard.view(_unchecked(look) if anywhere else look))
        if ended and said is None:
            for shard in self._store.former(self._owner(key), key):
                said = said or shard.view(bound(_kept_output, key, seq, self._store.now()))
        return ended, said

    def output_of_keyless(self, shard: int, arrival: int) -> tuple[bool, str | None]:
        """Do the same for the keyless message with this arrival number.

        Raises:
            UnknownMessage: that number was never issued, or its message may have moved to another shard.
        """

        def look(lanes: ShardLanes) -> tuple[bool, str | None]:
            now = self._store.now()
            said = outputs.of_arrival(lanes.db, arrival, now) if outputs.has_table(lanes.memory.mark) else None
            if said is not None:
                return True, said
            found = looking.keyless(lanes, arrival, now)
            return found is None or found[0].arrival_of(found[1]) is None, None

        return self._store.shards[shard].view(look)

    def explain(self, key: bytes) -> Explanation:
        """Return why a key is, or is not, delivered now."""
        config, number = self._store.settings

        def report(view: LaneView | None, lanes: ShardLanes) -> tuple[int, Explanation, Attempt | None]:
            found = reporting.explain(view, key, self._store.time, lanes.shard, config)
            attempt = None if found.head_seq is None else _attempt(view, found.head_seq, lanes.shard)
            return lanes.memory.mark.config_version, found, attempt

        version, found, attempt = _look_at_key(self._store, key, report)
        if version > number and self._store.keep_up(version) is not config:
            return self.explain(key)  # another process has changed the settings
        return self._with_limits(key, _with_progress(self._store, found, attempt))

    def _with_limits(self, key: bytes, found: Explanation) -> Explanation:
        """Say that a ready key waits because of its tenant's limits."""
        rules = self._store.tenancy
        if rules is None or found.state != "ready":
            return found
        name = tenant_of(key, rules.separator)
        tenant = _tenant(self._store, rules, name, in_flight=self._in_flight()[name])
        waits = _why_limited(tenant)
        if waits is None:
            return found
        why, sentence, left = waits
        text = sentence.of(seq=found.head_seq, why=why, left=left, tenant=tenant.tenant)
        return attrs.evolve(found, state="throttled", since=None, text=text)

    def _limited(self) -> reporting.Limited:
        """Return a function that says why tenants get no message now."""
        rules = self._store.tenancy
        if rules is None or not rules.limits_deliveries:
            return lambda _key: None
        in_flight = self._in_flight() if rules.limits_keys else Counter[bytes]()
        known: dict[bytes, str | None] = {}

        def limited(key: bytes) -> str | None:
            name = tenant_of(key, rules.separator)
            if name not in known:
                waits = _why_limited(_tenant(self._store, rules, name, in_flight=in_flight[name]))
                known[name] = None if waits is None else waits[0]
            return known[name]

        return limited

    def key_state(self, key: bytes) -> bytes | None:
        """Return the committed state of a key."""

        def look(lanes: ShardLanes) -> bytes | None:
            lanes.loader.load((key,))  # its state is where its lane is
            return key_states.of(lanes.db, key)

        def at(shard: Shard, anywhere: bool) -> bytes | None:
            is_settled, value = shard.read(bound(key_states.settled, key))
            return value if is_settled else shard.view(_unchecked(look) if anywhere else look)

        return self._store.look_at_owner(key, at)

    def _owner(self, key: bytes) -> Shard:
        """Return the shard that has a key's lane, or may create it."""

        def look(lanes: ShardLanes) -> None:
            if lanes.memory.ranges is not None:
                lanes.loader.load((key,))

        def found(shard: Shard, anywhere: bool) -> Shard:
            if not anywhere:
                shard.view(look)
            return shard

        return self._store.look_at_owner(key, found)

    def errors(self, shard: int, key: bytes, seq: int) -> tuple[AttemptError, ...]:
        """Return the errors of an unresolved message's attempts, oldest first."""
        where = self._store.shards[shard]  # a parked keyless message has a key of its own, whose hash may be another shard's
        return _look_at(
            self._store, where, key, lambda view: () if view is None else reporting.errors(view, seq, self._store.time)
        )

    def dead_letters(self, key: bytes | None, limit: int) -> list[DeadLetter]:
        """Return dead letters of one key, or of all, seq ascending within a key."""
        out: list[DeadLetter] = []
        at = [] if key is None else [self._owner(key)]
        for shard in at or self._store.everywhere():
            out += self._shown_dead(shard, shard.read(bound(looking.dead_letters, key, limit - len(out))))
            if len(out) >= limit:
                break
        return out

    def dead_letter(self, key: bytes, seq: int) -> DeadLetter | None:
        """Return one dead letter; None: the message is not dead."""
        shard = self._owner(key)
        return next(iter(self._shown_dead(shard, shard.read(bound(looking.dead_letter, key, seq)))), None)

    def _shown_dead(self, shard: Shard, rows: list[tuple[Any, ...]]) -> list[DeadLetter]:
        with files.late():
            from ..._values.findings import DeadLetter

        wall = self._store.time.to_wall
        return [
            DeadLetter(
                key=decode_key(k), seq=seq, id=i, body=body, headers=headers_of(opts[0], shard.number), kind=kind,
                reason=reason, attempts=attempts, enqueued_at=wall(sent_at), died_at=wall(died_at),
                errors=failures.shown(errors, self._store.time), output=output, dedup_id=opts[4],
            )
            for k, seq, i, body, opts, kind, reason, attempts, sent_at, died_at, errors, output in rows
        ]  # fmt: skip

    def dead_reasons(self, limit: int) -> list[DeadReason]:
        """Return what the dead letters died of. Reads no messages."""
        found: list[DeadReason] = []
        for shard in self._store.everywhere():
            rows = shard.read(bound(looking.dead_reasons, limit - len(found)))
            found += [DeadReason(key, seq, kind, reason, self._store.time.to_wall(at)) for key, seq, kind, reason, at in rows]
            if len(found) >= limit:
                break
        return found

    def history(self, shard: int | None, after: int, key: bytes | None, limit: int) -> list[HistoryRecord]:
        """Return records of finished messages with a number above `after`, ascending: of a shard, or of one key in any shard.

        Args:
            shard: None: the first one. Of a key whose range has moved, the shard that `after` is a number of.
        Returns:
            Fewer than there are, if their bodies are too large for one list. An empty list if there are no more.
        """
        with files.late():
            from ..._values.findings import HistoryRecord

        wall = self._store.time.to_wall
        rows: list[tuple[Any, ...]] = []
        number = 0
        for number, n in [(shard or 0, after)] if key is None else self._places_of_records(key, shard, after):
            rows = self._store.shards[number].look(bound(history.page, n, key, limit))
            if rows:
                break
        return [
            HistoryRecord(
                number, n, decode_key(k), seq, i, wall(sent_at), None if first_at is None else wall(first_at), wall(done_at),
                attempts, prepare, process, size, size_hint, outcome, body, failures.shown(errors, self._store.time), output,
            )
            for (
                n, k, seq, i, sent_at, first_at, done_at, attempts, prepare, process, size, size_hint, outcome, errors, output,
                body,
            ) in rows
        ]  # fmt: skip

    def _places_of_records(self, key: bytes, shard: int | None, after: int) -> list[tuple[int, int]]:
        """Return the shards with records of a key, each with the number behind which to begin. They stay where a message ended.

        Raises:
            InvalidArgument: there are several, and it is not known which one the number is of.
        """
        owner = self._owner(key)
        numbers = [each.number for each in self._store.former(owner, key)]
        if not numbers:
            return [(owner.number, after)]
        numbers.append(owner.number)
        if shard is None and after:
            raise InvalidArgument("records of this key are in several shards", hint=hints.PASS_SHARD)
        begin = 0 if shard is None else numbers.index(shard) if shard in numbers else len(numbers)
        return [(n, after if n == shard else 0) for n in numbers[begin:]]

    def history_end(self, shard: int) -> int:
        """Return the last record number that this shard ever issued. All records up to it survive a power cut on return."""
        issued = self._store.shards[shard].look(history.issued)
        self._store.shards[shard].sync()
        return issued

    def topology(self) -> Topology:
        """Return what each shard owns and holds, and the move that runs."""
        return moving.topology(self._store)

    def ranges_have_moved(self) -> bool:
        """Return whether a range of keys ever moved between shards."""
        return any(shard.view(lambda lanes: lanes.memory.ranges is not None) for shard in self._store.everywhere())

    def check(self, *, fix: bool) -> list[Problem]:
        """Return every broken invariant of the queue and of each shard.

        Args:
            fix: repair what can be repaired without a loss.
        Raises:
            StoreError: no file descriptor is left to read with; transient.
        """
        with files.late():
            from .check import check_queue

        return check_queue(self._store, fix=fix)

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any], key: bytes | None) -> Rows:
        """Read the program's own tables of every shard, or of one key's.

        Raises:
            InvalidArgument: the SQL is wrong, writes, touches anything else, or takes too long.
            PartialFailure: shards could not be read; results has the rows, or the error, of each.
        """
        if key is None:
            self._store.everywhere()
        shards = self._store.shards if key is None else [self._owner(key)]
        results: list[Any] = []
        for shard in shards:
            try:
                results.append(shard.query(sql, params))
            except StoreError as e:
                results.append(e)
        failed = [r for r in results if isinstance(r, StoreError)]
        if failed:
            if len(shards) == 1:
                raise failed[0]
            raise PartialFailure("some shards could not be read: their rows are missing", results) from failed[0]
        return Rows.together(results)


def _unshipped(shard: Shard, status: ShipStatus) -> int:
    """Return the number of bytes in a shard's WAL that are not at the target."""
    assert shard.path is not None
    known = status.captured[shard.number] if shard.number < len(status.captured) else ("", 0)
    return wal_file.frames_behind(shard.path, known) * FRAME_BYTES


def _shard_stats(store: Store, shard: Shard) -> ShardStats:
    try:
        empties = store.unwritten_empties(shard.number)

        def stats(lanes: ShardLanes, most: int | None) -> tuple[ShardStats | None, int]:
            found = reporting.stats(lanes, shard.range.bounds, store.time, shard.path, empties, most)
            return found, lanes.memory.mark.config_version

        found, version = shard.view(lambda lanes: stats(lanes, FEW))
        if found is None:
            found, version = shard.survey(lambda lanes: stats(lanes, None))
        assert found is not None
        store.keep_up(version)
        return found
    except StoreError as e:
        if shard.failed is None:
            raise  # its counts are unknown, not 0
        zeros: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
        return ShardStats(
            shard=shard.number, hash_lo=shard.range.bounds[0], hash_hi=shard.range.bounds[1], **zeros,
            oldest_age_seconds=None, first_attempt_age_seconds=None, drain_seconds=None,
            quarantined=hints.QUARANTINED.of(message=Exception.__str__(e), hint=e.hint) if e.hint else str(e),
        )  # fmt: skip


def _look_at(store: Store, shard: Shard, key: bytes, report: Callable[[LaneView | None], T]) -> T:
    """Return a report on one lane. None: nothing was ever sent to it."""
    return shard.view(lambda lanes: report(looking.view(lanes, key, store.now())))


def _look_at_key(store: Store, key: bytes, report: Callable[[LaneView | None, ShardLanes], T], *, long: bool = False) -> T:
    """Return a report on the lane of a key, which gets the lanes of its shard, too."""

    def at(lanes: ShardLanes) -> T:
        return report(looking.view(lanes, key, store.now()), lanes)

    def look(shard: Shard, anywhere: bool) -> T:
        view = shard.survey if long else shard.view
        return view(_unchecked(at) if anywhere else at)

    return store.look_at_owner(key, look)


def _unchecked(look: Callable[[ShardLanes], T]) -> Callable[[ShardLanes], T]:
    """Return a look that finds no lane, instead of naming another shard that may have it."""

    def without(lanes: ShardLanes) -> T:
        with lanes.loader.giving(EMPTY):
            return look(lanes)

    return without


def _look_at_keyless(store: Store, number: int, arrival: int, report: Callable[[LaneView, int], T | None]) -> T | None:
    """Return a report on a keyless message and its lane. None: it is resolved, or has a key.

    Raises:
        UnknownMessage: its number was never issued.
    """

    def look(lanes: ShardLanes) -> T | None:
        found = looking.keyless(lanes, arrival, store.now())
        return None if found is None else report(*found)

    return store.shards[number].view(look)


def _kept_output(lanes: ShardLanes, key: bytes, seq: int, now: int) -> str | None:
    return outputs.of(lanes.db, key, seq, now) if outputs.has_table(lanes.memory.mark) else None


def _peek_oldest(lanes: ShardLanes, limit: int, time: QueueTime) -> list[PeekedMessage]:
    found: list[PeekedMessage] = []
    views: dict[bytes, LaneView] = {}
    for arrival, key, seq in lanes.arrivals.unresolved():
        if is_keyless(key):
            key = lanes.loader.keys_of([arrival])[arrival]
        if key not in views and (one := looking.view(lanes, key, time.now())) is not None:
            views[key] = one
        found += reporting.peeked(views[key], seq, 1, time, lanes.shard)
        if len(found) == limit:
            break
    return found


def _attempt(view: LaneView | None, seq: int, shard: int) -> Attempt | None:
    """Return what identifies the attempt of a message that a lease may hold. None: there is no lease."""
    lease = None if view is None else view.lease
    if view is None or lease is None or (arrival := view.arrival_of(seq)) is None:
        return None
    return shard, arrival, lease.token


def _with_progress(store: Store, found: S, attempt: Attempt | None) -> S:
    """Add what the running handler reported."""
    progress = None if attempt is None else store.consumers.progress(attempt)
    if progress is None:
        return found
    from ..._values.findings import Progress

    return attrs.evolve(found, progress=Progress(*progress))


def _why_limited(tenant: TenantStatus) -> tuple[str, hints.Coded, str] | None:
    """Return why a tenant gets no message now, the sentence of `explain` for it, and how long; None: it gets them."""
    name = f"tenant {tenant.tenant}"
    if tenant.paused:
        return f"{name} is paused", hints.TENANT_PAUSED, ""
    if tenant.throttled_seconds:
        left = span(int(tenant.throttled_seconds * MICROSECONDS))
        return f"{name} gets {tenant.receive_rate:g} messages a second", hints.TENANT_THROTTLED, left
    if tenant.concurrency is not None and tenant.in_flight >= tenant.concurrency:
        keys = "1 key" if tenant.in_flight == 1 else f"{tenant.in_flight:,} keys"
        return f"{name} has {keys} in flight, as many as its concurrency", hints.TENANT_BUSY, ""
    return None


def _tenant(
    store: Store, rules: TenantRules, name: bytes, depth: int = 0, keys: int = 0, sent_at: int = 0, *, in_flight: int
) -> TenantStatus:
    with files.late():
        from ..._values.findings import TenantStatus

    limit = rules.of(name)
    waits: float | None = 0.0
    if limit.paused:
        waits = None
    elif limit.receive_rate is not None:
        room, wait = store.rates.look(RECEIVE + name, Rate(limit.receive_rate, limit.burst))
        waits = 0.0 if room else wait / MICROSECONDS
    return TenantStatus(
        name.decode(errors="backslashreplace"), depth, keys, max(store.now() - sent_at, 0) / MICROSECONDS if depth else None,
        in_flight, limit.weight, limit.max_depth, limit.send_rate, limit.receive_rate, limit.burst, limit.concurrency,
        limit.target_age_seconds, limit.paused, waits,
    )  # fmt: skip
