"""Sending: check messages, and append them shard by shard."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import count, repeat
from typing import Any

from . import _hints as hints
from . import _validate as validate
from ._config import QueueConfig
from ._errors import InvalidArgument, NotConfirmed, PartialFailure, StrictqError
from ._keys import Key, decode_key, encode_key, keyless_by_hash, keyless_lane
from ._lazy import LazyList
from ._store.api import Item, Sent, Storage, require_valid
from ._types import Body, Message, Receipt

# Bypasses the constructor's argument handling, which would double the cost of a message here.
_receipt = tuple.__new__


def _receipt_of(key: Key | None, sent: Sent, shard: int) -> Receipt:
    seq, arrival, earlier = sent
    return _receipt(Receipt, (key if earlier is None else decode_key(earlier), seq, arrival, earlier is not None, shard))


class Receipts(LazyList[Receipt]):
    """The receipts of one call, in the order of its messages."""

    __slots__ = ("_keys", "_sent", "_shards")

    def __init__(self, keys: Sequence[Key | None], sent: Sequence[Sent], shards: Sequence[int] | None) -> None:
        """Hold what the receipts need. `shards` has the shard of each message; None: all are in shard 0."""
        self._elements = None
        self._keys = keys
        self._sent = sent
        self._shards = shards

    def _count(self) -> int:
        return len(self._sent)

    def _make(self) -> list[Receipt]:
        shards = repeat(0, len(self._sent)) if self._shards is None else self._shards
        made = [
            _receipt(Receipt, (key, seq, i, False, shard)) if earlier is None else _receipt_of(key, (seq, i, earlier), shard)
            for key, (seq, i, earlier), shard in zip(self._keys, self._sent, shards, strict=True)
        ]
        self._keys, self._sent, self._shards = (), (), None
        return made


class Sending:
    """The send operations for queues, transactions and the command."""

    __slots__ = ("_storage", "_turn")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._turn = count(random.randrange(1 << 16))

    @property
    def config(self) -> QueueConfig:
        """The settings that messages are checked against."""
        return self._storage.config

    def send(self, message: Message) -> Receipt:
        """Append a message. See Queue.send."""
        self._storage.require_open()
        item, config = self._checked(message)
        shard, sent = self._storage.send_one(item, config)
        return _receipt_of(message.key, sent, shard)

    def send_body(self, body: Body, key: Key | None) -> Receipt:
        """Append a message without options, at half of send's cost up to the storage's call."""
        storage = self._storage
        config = storage.config
        if type(key) is not str or type(body) is not bytes or len(body) > config.max_body_bytes:
            return self.send(Message(body, key=key))
        shard, (seq, arrival, _) = storage.send_one((encode_key(key), body, None, None), config)
        return _receipt(Receipt, (key, seq, arrival, False, shard))

    def send_many(self, messages: Iterable[Message]) -> Receipts:
        """Append many messages, in order. See Queue.send_many."""
        self._storage.require_open()
        given, items, config = self._items(messages)
        owners = self._owners(items)
        try:
            sent = self._append(items, owners, config)
        except PartialFailure as e:
            results = [
                r if isinstance(r, StrictqError) else _receipt_of(key, r, owners[item[0]])
                for key, item, r in zip(given, items, e.results, strict=True)
            ]
            raise PartialFailure(str(e), results) from e.__cause__
        return Receipts(given, sent, [owners[item[0]] for item in items] if owners else None)

    def send_plain(self, messages: list[tuple[Key, bytes]]) -> Sequence[Sent]:
        """Append messages of a checked key and a body each, at two thirds of send_many's cost. For the command.

        Raises:
            As send_many. The results of a PartialFailure are in the storage's form, or exceptions.
        """
        self._storage.require_open()
        config = self._storage.config
        raws = {key: encode_key(key) for key in {key for key, _ in messages}}
        items: list[Item] = [(raws[key], body, None, None) for key, body in messages]
        require_valid(items, config)
        return self._append(items, self._owners(items), config)

    def _owners(self, items: list[Item]) -> dict[bytes, int]:
        """Return the shard of each key, hashed once per key; empty if the queue has only one shard."""
        storage = self._storage
        return {} if storage.shards == 1 else {raw: storage.shard_of(raw) for raw in {item[0] for item in items}}

    def _append(self, items: list[Item], owners: dict[bytes, int], config: QueueConfig) -> Sequence[Sent]:
        """Append to the shards involved, one after the other.

        Raises:
            PartialFailure: some shards failed; results has each message's outcome, or an exception.
        """
        storage = self._storage
        if not owners:
            return storage.send(0, items, config) if items else []
        groups: dict[int, list[int]] = {}
        for i, item in enumerate(items):
            groups.setdefault(owners[item[0]], []).append(i)
        results: list[Any] = [None] * len(items)
        failed: StrictqError | None = None
        try:
            with storage.confirmed_together():
                for shard, places in groups.items():
                    try:
                        sent: Sequence[Any] = storage.send(shard, [items[i] for i in places], config)
                    except StrictqError as e:
                        failed, sent = e, [e] * len(places)
                    for i, s in zip(places, sent, strict=True):
                        results[i] = s
        except NotConfirmed as e:
            failed, results = e, [r if isinstance(r, StrictqError) else e for r in results]
        if failed is not None:
            if all(r is failed for r in results):
                raise failed
            raise PartialFailure("some shards rejected their messages", results) from failed
        return results

    def _items(self, messages: Iterable[Message]) -> tuple[list[Key | None], list[Item], QueueConfig]:
        """Return messages in the store's form, their keys as given, and the settings they were checked against."""
        if not isinstance(messages, Iterable):
            found = "a single one" if isinstance(messages, Message) else type(messages).__name__
            raise InvalidArgument(f"send_many takes a list of Message objects, not {found}")
        return self._items_of(list(messages))

    def _items_of(self, messages: list[Message]) -> tuple[list[Key | None], list[Item], QueueConfig]:
        config = self._storage.config
        try:
            return (*self._check(messages, config), config)
        except InvalidArgument:
            # Another process may have relaxed the settings since this one last wrote.
            if not self._storage.refresh_settings():
                raise
            config = self._storage.config
            return (*self._check(messages, config), config)

    def item(self, message: Message) -> Item:
        """Return a message in the storage's form.

        Raises:
            InvalidArgument, MessageTooLarge: the message is invalid.
        """
        return self._checked(message)[0]

    def due_now(self, message: Message, item: Item) -> Item:
        """Return a checked message in the storage's form as of now.

        The delay until its `at` has become shorter since the check.
        """
        key, body, options, times = item
        if message.at is None or options is None:
            return item
        return key, body, options._replace(delay=validate.remaining(message.at, self._storage.clock.wall())), times

    def _checked(self, message: Message) -> tuple[Item, QueueConfig]:
        _, (item,), config = self._items_of([message])
        return item, config

    def _check(self, messages: list[Message], config: QueueConfig) -> tuple[list[Key | None], list[Item]]:
        items: list[Item] = []
        try:
            return self._check_into(items, messages, config), items
        except InvalidArgument as e:
            if len(messages) > 1:
                e.args = (f"message {len(items) + 1:,} of {len(messages):,}: {e.args[0]}",)
            raise

    def _check_into(self, items: list[Item], messages: list[Message], config: QueueConfig) -> list[Key | None]:
        known: dict[str, bytes] = {}
        given: list[Key | None] = []
        longest = config.max_body_bytes
        for m in messages:
            if not isinstance(m, Message):
                raise InvalidArgument(f"send_many takes Message objects, not {type(m).__name__}")
            key = m.key
            if type(key) is str:
                raw = known.get(key)
                if raw is None:
                    raw = known[key] = encode_key(key)
            elif key is None:
                raw = self._keyless(m, config)
            else:
                raw = encode_key(key)
            given.append(key)
            # Inlined, because it runs for every message. No option is set, so there is nothing more to check.
            if (
                m.dedup_id is None
                and type(m.delay) is float
                and not m.delay
                and m.at is None
                and m.ttl is None
                and m.headers is None
                and m.size_hint is None
                and m.prepare_seconds is None
                and m.process_seconds is None
                and type(body := m.body) is bytes
                and len(body) <= longest
            ):
                items.append((raw, body, None, None))
            else:
                items.append(validate.item(m, raw, config, self._storage.clock.wall))
        return given

    def _keyless(self, message: Message, config: QueueConfig) -> bytes:
        if config.keyless == "refuse":
            raise InvalidArgument("a message needs a key", hint=hints.LET_KEYLESS)
        if message.dedup_id is not None:
            return keyless_by_hash(validate.dedup_id(message.dedup_id, validate.body_bytes(message.body)))
        lane = next(self._turn) if config.keyless == "round_robin" else random.randrange(config.keyless_lanes)
        return keyless_lane(lane % config.keyless_lanes)
