"""Inspect and operate a queue. Arguments are checked before the store is called.

Each method is documented at the method of Queue with the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import _consumers as consumers
from . import _hints as hints
from . import _validate as validate
from ._clock import MICROSECONDS
from ._config import QueueConfig, effective
from ._errors import InvalidArgument
from ._keys import Key, encode_key
from ._stats import ReplicationStatus, Stats
from ._store.api import Rows, Storage
from ._types import Receipt

if TYPE_CHECKING:
    import os

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


class Operations:
    """Stats, single messages, dead letters, holds, purges, checks, configuration, the program's tables."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def _open(self, *, writing: bool) -> Storage:
        self._storage.require_open(writing=writing)
        return self._storage

    # ---- looking

    def stats(self) -> Stats:
        return self._open(writing=False).stats()

    def top_keys(self, n: int, by: Literal["depth", "age"]) -> list[KeyDepth]:
        storage = self._open(writing=False)
        validate.whole("n", n, 1, 10_000)
        if by not in ("depth", "age"):
            raise InvalidArgument(f"by must be 'depth' or 'age', not {by!r}")
        return storage.top_keys(n, by)

    def peek(self, of: Key | Receipt | None, limit: int) -> list[PeekedMessage]:
        storage = self._open(writing=False)
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        if not isinstance(of, Receipt):
            return storage.peek(_encoded(of), limit)
        if of.key is None:
            return storage.peek_keyless(*self._place(of))
        seq = validate.whole("seq", of.seq, 1, 2**62)
        return [m for m in storage.peek(encode_key(of.key), 1, seq) if m.seq == seq]

    def status(self, of: Key | Receipt, seq: int | None) -> MessageStatus:
        storage = self._open(writing=False)
        if not isinstance(of, Receipt):
            if seq is None:
                raise InvalidArgument("status() with a key needs the seq of a message", hint=hints.KEY_AND_SEQ)
            return storage.status(encode_key(of), validate.whole("seq", seq, 1, 2**62))
        if seq is not None:
            raise InvalidArgument("a receipt contains the seq: do not pass seqs as well")
        if of.key is not None:
            return storage.status(encode_key(of.key), validate.whole("seq", of.seq, 1, 2**62))
        return self.status_of_keyless(of) or _resolved(of)

    def status_of_keyless(self, receipt: Receipt) -> MessageStatus | None:
        """Return the status of a keyless message, for the command; None: it is resolved, or has a key."""
        return self._open(writing=False).status_of_keyless(*self._place(receipt))

    def _place(self, receipt: Receipt) -> tuple[int, int]:
        shard = validate.whole("shard", receipt.shard, 0, self._storage.shards - 1)
        return shard, validate.whole("id", receipt.id, 1, 2**62)

    def explain(self, key: Key) -> Explanation:
        return self._open(writing=False).explain(encode_key(key))

    def dead_letters(self, key: Key | None, limit: int) -> list[DeadLetter]:
        storage = self._open(writing=False)
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        return storage.dead_letters(_encoded(key), limit)

    def history(self, shard: int, after: int, key: Key | None, limit: int) -> list[HistoryRecord]:
        storage = self._open(writing=False)
        validate.whole("limit", limit, 1, validate.MESSAGES_MAX)
        validate.whole("after", after, 0, 2**62)
        if key is None:
            validate.whole("shard", shard, 0, storage.shards - 1)
        return storage.history(shard, after, _encoded(key), limit)

    def history_end(self, shard: int) -> int:
        """Return the number of the last record ever made, for an export. All records up to it are durable when this returns."""
        return self._open(writing=False).history_end(shard)

    def consumers(self) -> list[ConsumerStatus]:
        return consumers.statuses(self._open(writing=False))

    # ---- operating

    def reject(self, key: Key, seq: int, reason: str, *, force: bool) -> bool:
        storage = self._open(writing=True)
        raw = encode_key(key)
        validate.whole("seq", seq, 1, 2**62)
        return storage.settle(raw, seq, validate.reason(reason), force=bool(force))

    def resolve(self, key: Key, seq: int) -> bool:
        storage = self._open(writing=True)
        return storage.settle(encode_key(key), validate.whole("seq", seq, 1, 2**62), None, force=True)

    def release_consumer(self, name: str, *, force: bool) -> int:
        storage = self._open(writing=True)
        return consumers.release(storage, validate.name("consumer", name), force=bool(force))

    def redrive(self, key: Key | None, seqs: Iterable[int] | None) -> int:
        storage = self._open(writing=True)
        if seqs is not None and key is None:
            raise InvalidArgument("seqs are positions in a key: pass the key as well")
        if seqs is not None and not isinstance(seqs, Iterable):
            raise InvalidArgument("seqs must be a list of seqs")
        wanted = None if seqs is None else [validate.whole("seq", s, 1, 2**62) for s in seqs]
        return storage.redrive(_encoded(key), wanted)

    def hold(self, key: Key, reason: str | None) -> None:
        storage = self._open(writing=True)
        raw = encode_key(key)
        storage.hold(raw, validate.text("reason", reason) or "held by an operator")

    def release(self, key: Key | None) -> bool:
        return self._open(writing=True).end_hold(_encoded(key))

    def purge(self, key: Key | None, *, dead: bool, history: bool) -> int:
        storage = self._open(writing=True)
        return storage.purge(_encoded(key), dead=dead, records=history)

    def purge_history(self, key: Key | None) -> int:
        return self._open(writing=True).forget_history(_encoded(key))

    def forget_history(self, shard: int, upto: int) -> int:
        """Delete a shard's records up to a number, in steps, for an export. Return the number deleted."""
        return self._open(writing=True).forget_history(shard=shard, upto=upto)

    def check(self, *, fix: bool) -> list[Problem]:
        return self._open(writing=fix).check(fix=fix)

    # ---- replication

    def configure_replication(
        self, target: str | os.PathLike[str], mode: Any, *, interval_seconds: float, max_lag_bytes: int, keep_seconds: float,
        key_file: str | os.PathLike[str] | None, token_file: str | os.PathLike[str] | None,
        authority: str | os.PathLike[str] | None, plaintext: bool, timeout_seconds: float,
        verify_seconds: float,
    ) -> ReplicationStatus:  # fmt: skip
        storage = self._open(writing=True)
        from .replication import settings  # imported only if a queue has a replica

        wanted = settings.ShipSettings(
            max(validate.microseconds("interval_seconds", interval_seconds) / MICROSECONDS, 0.01),
            validate.whole("max_lag_bytes", max_lag_bytes, 1 << 20, 1 << 50),
            validate.microseconds("keep_seconds", keep_seconds) / MICROSECONDS,
            settings.file_path("key_file", key_file, hints.KEY_FILE),
            settings.file_path("token_file", token_file, hints.TOKEN_FILE),
            settings.file_path("authority", authority),
            timeout_seconds=validate.microseconds("timeout_seconds", timeout_seconds, minimum=0.001) / MICROSECONDS,
            verify_seconds=validate.microseconds("verify_seconds", verify_seconds, minimum=1.0) / MICROSECONDS,
        )
        settings.configure(storage, target, mode, wanted, plaintext=bool(plaintext))
        found = storage.replication_status()
        assert found is not None
        return found

    def detach(self, *, force: bool) -> bool:
        storage = self._open(writing=True)
        from .replication import settings

        return settings.detach(storage, force=bool(force))

    def replication(self) -> ReplicationStatus | None:
        return self._open(writing=False).replication_status()

    def end_failure_delays(self, keys: Iterable[Key] | None, *, one: bool = False) -> int:
        """End the retry delays that failures caused, of these keys or of all, for a worker. With `one`, end only the earliest.

        Delays that a program requested stay. Return the number of delays ended.
        """
        storage = self._open(writing=True)
        return storage.end_failure_delays(None if keys is None else [encode_key(key) for key in keys], one=one)

    # ---- configuration, estimates, and the program's tables

    def configure(self, changes: dict[str, Any]) -> QueueConfig:
        return self._open(writing=True).configure(effective(changes, stacklevel=4))

    def estimates(self) -> dict[str, str]:
        """Return the learned durations by stage, for a worker."""
        return self._open(writing=False).estimates()

    def set_estimates(self, models: dict[str, str] | None) -> None:
        """Store the learned durations, for a worker; None: delete them."""
        self._open(writing=True).set_estimates(models)

    def app_schema(self, sql: str) -> None:
        storage = self._open(writing=True)
        if not isinstance(sql, str) or not sql.strip():
            raise InvalidArgument("app_schema takes SQL as a str")
        storage.define_app_schema(sql)

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any], key: Key | None) -> Rows:
        return self._open(writing=False).query(sql, params, _encoded(key))


def _resolved(receipt: Receipt) -> MessageStatus:
    from ._findings import MessageStatus

    return MessageStatus(None, receipt.seq, "resolved")


def _encoded(key: Key | None) -> bytes | None:
    return None if key is None else encode_key(key)
