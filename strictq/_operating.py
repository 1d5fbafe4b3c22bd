"""Looking at a queue and operating it: the part of Queue that operators use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import attrs

from . import _consumers as consumers
from . import _validate as validate
from ._config import QueueConfig
from ._durations import Model
from ._errors import InvalidArgument, PartialFailure, StoreError
from ._keys import Key, decode_key, encode_key
from ._store import Store, admin, handing, looking
from ._store.calls import bound
from ._store.engine import Rows
from ._store.stored import headers as stored_headers
from ._types import ShardStats, Stats

if TYPE_CHECKING:
    from ._findings import (
        ConsumerStatus,
        DeadLetter,
        Explanation,
        HistoryRecord,
        KeyDepth,
        MessageStatus,
        PeekedMessage,
        Problem,
    )

_COUNTS = (
    "ready", "in_flight", "delayed", "held", "dead", "lanes", "sends", "receives", "claims", "empty_receives", "acks", "retries",
    "redeliveries", "expired", "dropped", "purged", "outbox", "disk_bytes", "wal_bytes", "handout_bytes",
)  # fmt: skip


class Operating:
    """Stats, single messages, dead letters, holds, purges, checks, configuration, the program's tables."""

    _store: Store

    def _estimates(self) -> dict[str, str]:
        """For a worker: what was learned of durations, by stage."""
        self._store.require_open(writing=False)
        return self._store.estimates()

    def _set_estimates(self, models: dict[str, str] | None) -> None:
        """For a worker: keep what was learned; None: forget all of it."""
        self._store.require_open()
        self._store.set_estimates(models)

    # ---- looking

    def stats(self) -> Stats:
        """Counts of the queue and of each shard: a frozen snapshot, one consistent read a shard.

        The cost does not grow with the backlog, but with how many keys are delayed or held. A quarantined shard counts nothing
        and says why. `prepare` and `process` are what workers learned of durations.

        Source: docs/explanation/lifecycle.md
        """
        store = self._store
        store.require_open(writing=False)
        shards = tuple(self._shard_stats(i) for i in range(len(store.shards)))
        counts: dict[str, Any] = {name: sum(getattr(s, name) for s in shards) for name in _COUNTS}
        claims = counts["claims"] + counts["empty_receives"]
        drains = [s.drain_seconds for s in shards]
        models: dict[str, str] = {}
        with suppress(StoreError):  # a broken queue.db is no reason to hide what the shards say
            models = self._store.estimates()
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
        )

    def _shard_stats(self, number: int) -> ShardStats:
        store = self._store
        shard = store.shards[number]
        try:
            return shard.look(lambda db: looking.stats(db, number, store.time, shard.path, store.unwritten_empties(number)))
        except StoreError as e:
            zeros: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
            return ShardStats(
                shard=number, **zeros, oldest_age_seconds=None, first_attempt_age_seconds=None, drain_seconds=None,
                quarantined=str(e),
            )  # fmt: skip

    def top_keys(self, n: int = 10, by: Literal["depth", "age"] = "depth") -> list[KeyDepth]:
        """The deepest keys, or those whose oldest message is oldest. Looks at every key that has messages.

        Raises:
            InvalidArgument: n is not 1..10,000, or `by` is neither "depth" nor "age".
        """
        store = self._store
        store.require_open(writing=False)
        validate.whole("n", n, 1, 10_000)
        if by not in ("depth", "age"):
            raise InvalidArgument(f"by must be 'depth' or 'age', not {by!r}")
        found: list[KeyDepth] = []
        for shard in store.healthy():
            found += shard.look(lambda db: looking.top_keys(db, n, by, store.time))
        rank = "depth" if by == "depth" else "oldest_age_seconds"
        return sorted(found, key=lambda k: getattr(k, rank), reverse=True)[:n]

    def peek(self, key: Key, limit: int = 10) -> list[PeekedMessage]:
        """The first unresolved messages of a key, in order, without touching them.

        Raises:
            InvalidArgument: no valid key, or limit is not 1..100,000.
        """
        store = self._store
        store.require_open(writing=False)
        raw = encode_key(key)
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        shard = store.shard_of(raw)
        return shard.read(lambda db: looking.peek(db, raw, limit, store.time, shard.number))

    def status(self, key: Key, seq: int) -> MessageStatus:
        """Where one message is; "resolved" for what is gone.

        Raises:
            UnknownMessage: that seq was never issued for that key.
        """
        store = self._store
        store.require_open(writing=False)
        raw = encode_key(key)
        validate.whole("seq", seq, 1, 2**62)
        return store.shard_of(raw).read(lambda db: looking.status(db, raw, seq, store.time))

    def explain(self, key: Key) -> Explanation:
        """Why a key is, or is not, handed out now: since when, by whom, until when."""
        store = self._store
        store.require_open(writing=False)
        raw = encode_key(key)
        return store.shard_of(raw).read(lambda db: looking.explain(db, raw, store.time))

    def dead_letters(self, key: Key | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters of one key, or of all, seq ascending within a key.

        Raises:
            InvalidArgument: limit is not 1..100,000.
        """
        from ._findings import DeadLetter

        store = self._store
        store.require_open(writing=False)
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        raw = None if key is None else encode_key(key)
        rows: list[tuple[int, tuple[Any, ...]]] = []
        for shard in store.healthy() if raw is None else [store.shard_of(raw)]:
            left = limit - len(rows)
            found = shard.read(bound(admin.dead_letters, raw, left))
            rows += [(shard.number, row) for row in found]
            if len(rows) >= limit:
                break
        wall = store.time.to_wall
        return [
            DeadLetter(
                key=decode_key(k), seq=seq, id=i, body=body, headers=stored_headers(headers, n), kind=kind,
                reason=reason, attempts=attempts, enqueued_at=wall(sent_at), died_at=wall(died_at),
            )
            for n, (_, k, seq, i, body, headers, kind, reason, attempts, sent_at, died_at) in rows
        ]  # fmt: skip

    def history(self, *, shard: int = 0, after: int = 0, key: Key | None = None, limit: int = 1000) -> list[HistoryRecord]:
        """Records of finished messages of one shard, in the order in which they ended, where the queue's `history` keeps them.

        To read on, give the last record's `n` as `after`; to read everything, do so for each shard.

        Args:
            shard: 0 to `shards` - 1; not looked at where a key is given.
            after: only records with a larger n.
            key: only this key's, of its shard; looks at every record from `after` on.
        Returns:
            0..limit records, n ascending; an empty list where there are no more. Of large bodies there are about 32 MiB in one
            list, so it may be shorter than limit although there are more.
        Raises:
            InvalidArgument: no such shard, or limit is not 1..100,000.
        Source: docs/howto/history.md
        """
        from ._findings import HistoryRecord

        store = self._store
        store.require_open(writing=False)
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        validate.whole("after", after, 0, 2**62)
        raw = None if key is None else encode_key(key)
        number = validate.whole("shard", shard, 0, len(store.shards) - 1) if raw is None else store.shard_of(raw).number
        rows = store.shards[number].look(lambda db: looking.history_page(db, after, raw, limit))
        wall = store.time.to_wall
        return [
            HistoryRecord(
                number, n, decode_key(k), seq, i, wall(sent_at), None if first_at is None else wall(first_at), wall(done_at),
                attempts, prepare, process, size, size_hint, outcome, body,
            )
            for n, k, seq, i, sent_at, first_at, done_at, attempts, prepare, process, size, size_hint, outcome, body in rows
        ]  # fmt: skip

    def _history_issued(self, shard: int) -> int:
        """For an export: the number of the last record ever made. It and all before it survive a power cut when this returns."""
        store = self._store
        store.require_open(writing=False)
        issued = store.shards[shard].look(looking.records_issued)
        store.shards[shard].sync()
        return issued

    def _forget_history(self, shard: int, upto: int) -> int:
        """For an export: remove a shard's records up to a number, in steps. Returns how many there were."""
        store = self._store
        store.require_open()
        return admin.forget_history(store.shards[shard], upto)

    def consumers(self) -> list[ConsumerStatus]:
        """The named consumers: those whose hand-outs are recorded, such as streams of Spark.

        Source: docs/explanation/spark.md
        """
        self._store.require_open(writing=False)
        return consumers.statuses(self._store)

    # ---- operating

    def reject(self, key: Key, seq: int, reason: str) -> bool:
        """Dead-letter one unresolved message: a message that kills whoever processes it, say.

        Where a hand-out of a named consumer holds it, that hand-out is read without it from now on.

        Returns:
            Whether it was unresolved; if not, nothing changed.
        Raises:
            UnknownMessage: that seq was never issued for that key.
            InvalidArgument: a consumer with a timed lease holds it; nothing changed.
        """
        store = self._store
        store.require_open()
        raw = encode_key(key)
        validate.whole("seq", seq, 1, 2**62)
        why = validate.text("reason", reason)
        if not why:
            raise InvalidArgument("give a reason")
        return store.shard_of(raw).run(lambda tx: handing.reject(tx, raw, seq, why))

    def release_consumer(self, name: str, *, force: bool = False) -> int:
        """Give back what a named consumer holds: its open hand-outs end, and their messages are ready for anybody.

        A query that had seen such a hand-out can't go on from its checkpoint, and is told so: start it with a new one.

        Args:
            force: although the consumer has a holder that is alive. It is fenced: its next write raises ConsumerLost.
        Returns:
            How many messages were given back.
        Raises:
            ConsumerBusy: it has such a holder; nothing changed.
        """
        self._store.require_open()
        return consumers.release_consumer(self._store, validate.name("consumer", name), force=bool(force))

    def redrive(self, key: Key | None = None, seqs: Iterable[int] | None = None) -> int:
        """Put dead letters back in their lane at their original seq, ahead of everything later: attempts 0, no TTL.

        Where a lease holds the lane, they come back when it ends.

        Args:
            key: whose; None: everybody's.
            seqs: which of the key's; None: all of them.
        Returns:
            How many were put back, or will be.
        Raises:
            InvalidArgument: seqs without a key.
        """
        store = self._store
        store.require_open()
        if seqs is not None and key is None:
            raise InvalidArgument("seqs are positions in a key: give the key, too")
        if seqs is not None and not isinstance(seqs, Iterable):
            raise InvalidArgument("seqs must be a list of seqs")
        wanted = None if seqs is None else [validate.whole("seq", s, 1, 2**62) for s in seqs]
        if key is not None:
            raw = encode_key(key)
            return admin.redrive_key(store, raw, wanted)
        return admin.redrive_all(store)

    def hold(self, key: Key, reason: str | None = None) -> None:
        """Hand out nothing more of this key until `release`; a lease that is live may finish."""
        store = self._store
        store.require_open()
        raw = encode_key(key)
        why = validate.text("reason", reason) or "held by an operator"
        store.shard_of(raw).run(lambda tx: admin.hold(tx, raw, why))

    def release(self, key: Key | None) -> bool:
        """End a hold, and the retry delay of what a poison policy held; its messages' attempts start again from 0.

        Args:
            key: which; None: all keyless messages that a poison policy holds.
        Returns:
            Whether anything was held.
        """
        store = self._store
        store.require_open()
        if key is None:
            return admin.release_all_keyless(store) > 0
        raw = encode_key(key)
        return store.shard_of(raw).run(lambda tx: admin.release(tx, raw))

    def purge(self, key: Key | None = None, *, dead: bool = False, history: bool = False) -> int:
        """Remove the unresolved messages of a key, or of the whole queue, and the dedup ids of those keys.

        Messages in flight stay with their holder. Seqs go on: none is issued twice. In steps of 1,000 messages, so that
        others can write in between.

        Args:
            dead: the dead letters, too.
            history: the records of finished messages, too; of what is purged now as well. Alone: `purge_history`.
        Returns:
            How many messages and dead letters were removed.
        """
        store = self._store
        store.require_open()
        raw = None if key is None else encode_key(key)
        gone = admin.purge(store, raw, dead=dead)
        if history:
            admin.purge_history(store, raw)
        return gone

    def purge_history(self, key: Key | None = None) -> int:
        """Remove the records of a key's finished messages, or of the whole queue's, and nothing else. In steps.

        Those that are there when a shard's turn comes: what ends meanwhile is kept. Numbers of records go on.

        Returns:
            How many records were removed.
        Source: docs/howto/history.md
        """
        store = self._store
        store.require_open()
        return admin.purge_history(store, None if key is None else encode_key(key))

    def check(self, fix: bool = False) -> list[Problem]:
        """Read everything and report each broken invariant; an empty list if all is well.

        Args:
            fix: put right what can be put right without losing anything.
        Returns:
            What was found; docs/explanation/storage.md says what each rule means.
        """
        from ._findings import Problem
        from ._store.check import check

        store = self._store
        store.require_open(writing=fix)
        problems = admin.check_catalog(store)
        for shard in store.shards:
            try:
                found = shard.look(bound(check, shard.number, shard.range.owns, len(store.shards)))
            except StoreError as e:
                problems.append(Problem(shard.number, "unreadable", str(e)))
                continue
            for problem, repair in found:
                if fix and repair is not None:
                    shard.run(repair)
                    problem = attrs.evolve(problem, fixed=True)
                problems.append(problem)
        return problems + admin.check_inlets(store)

    # ---- configuration and the program's tables

    def configure(self, **changes: Any) -> QueueConfig:
        """Change settings. They are stored; every process sees them at its next write.

        Returns:
            The configuration now.
        Raises:
            ConfigError: an unknown setting, or one that is out of range or contradicts another; nothing changed.
            InvalidArgument: this is inside a transaction of the queue; nothing changed.
            StoreError: it is stored, but a shard could not be reached: it has its copy with this object's next write there.
        """
        store = self._store
        store.require_open()
        return store.configure(changes)

    def reset_estimates(self) -> None:
        """Forget what workers learned of durations. Workers at work forget it, too, when they next store theirs."""
        self._set_estimates(None)

    def app_schema(self, sql: str) -> None:
        """Create the program's own tables, in every shard, future ones too. The same text a second time does nothing.

        Args:
            sql: statements on tables, indexes and views whose names start with app_.
        Raises:
            InvalidArgument: the SQL is wrong, or touches anything else; nothing changed.
        """
        store = self._store
        store.require_open()
        if not isinstance(sql, str) or not sql.strip():
            raise InvalidArgument("app_schema takes SQL as a str")
        store.define_app_schema(sql)

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = (), *, key: Key | None = None) -> Rows:
        """Read the program's app_* tables: over all shards, or in the shard of one key.

        Each shard is asked by itself: sums and order over shards are the caller's.

        Returns:
            The rows, as tuples; `.columns` has the columns' names where there are rows.
        Raises:
            InvalidArgument: the SQL is wrong, writes, touches anything else, or takes too long.
            PartialFailure: shards could not be read; results has the rows, or the error, of each.
        """
        store = self._store
        store.require_open(writing=False)
        shards = store.shards if key is None else [store.shard_of(encode_key(key))]
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
