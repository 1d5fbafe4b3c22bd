"""Sending: the part of Queue that producers use."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Final

from . import _validate as validate
from ._config import QueueConfig
from ._errors import InvalidArgument, PartialFailure, StrictqError
from ._keys import Key, encode_key
from ._store import Store, engine
from ._types import Message, Receipt

# Past the constructor's argument handling, which costs as much as all else that is done here for a message.
_receipt = tuple.__new__
_NO_DELAY: Final = Message(b"").delay
"""The default itself: a zero that was given is looked at more closely."""


class Sending:
    """send and send_many."""

    _store: Store
    _turn: count[int]

    def send(
        self,
        body: bytes,
        key: Key | None = None,
        *,
        dedup_id: str | None = None,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        size_hint: float | None = None,
        prepare_seconds: float | None = None,
        process_seconds: float | None = None,
    ) -> Receipt:
        """Append a message to its key's sequence. Durable on return.

        Args:
            body: the content; may be empty.
            key: str, bytes or int. None only where the queue's `keyless` allows it.
            dedup_id: within the dedup window, a second send with this key and id stores nothing.
            delay: seconds before it may be handed out; later messages of its key wait for it.
            ttl: seconds after which it expires if nobody holds it; None: the queue's ttl_seconds.
            headers: str → str.
            size_hint, prepare_seconds, process_seconds: estimates for a worker.
        Returns:
            Its position. `duplicate` is set where the dedup_id was known; then it is the first one's.
        Raises:
            InvalidArgument, MessageTooLarge, QueueFull, StoreBusy, StoreFull: nothing changed.
            OutcomeUnknown: it may have happened; safe to repeat with a dedup_id.
        Source: docs/explanation/guarantees.md
        """
        store = self._store
        store.require_open()
        item, config = self._item(
            Message(
                body, key=key, dedup_id=dedup_id, delay=delay, ttl=ttl, headers=headers, size_hint=size_hint,
                prepare_seconds=prepare_seconds, process_seconds=process_seconds,
            )
        )  # fmt: skip
        ((seq, arrival, duplicate),) = store.send(store.shard_of(item[0]), [item], config)
        return Receipt(key, seq, arrival, duplicate)

    def send_many(self, messages: Iterable[Message]) -> list[Receipt]:
        """Append many messages, in order. Atomic per shard: one transaction for each shard that is touched.

        Returns:
            A receipt for each, in the order given.
        Raises:
            InvalidArgument, MessageTooLarge: one of them can't be sent; nothing changed.
            QueueFull, StoreError: nothing changed (where one shard is concerned).
            PartialFailure: some shards failed; results has a Receipt or an exception for each message.
        """
        self._store.require_open()
        given, items, config = self._items(messages)
        try:
            sent = self._append(items, config)
        except PartialFailure as e:
            results = [r if isinstance(r, StrictqError) else Receipt(key, *r) for key, r in zip(given, e.results, strict=True)]
            raise PartialFailure(str(e), results) from e.__cause__
        return [_receipt(Receipt, (key, seq, i, same)) for key, (seq, i, same) in zip(given, sent, strict=True)]

    def _send_plain(self, messages: list[tuple[Key, bytes]]) -> list[engine.Sent]:
        """For the command: send_many of messages that are a checked key and a body each, at two thirds of its cost.

        Raises:
            As send_many; the results of PartialFailure are (seq, id, duplicate) or exceptions.
        """
        self._store.require_open()
        config = self._store.config
        raws = {key: encode_key(key) for key in {key for key, _ in messages}}
        items: list[engine.Item] = [(raws[key], body, None, None) for key, body in messages]
        engine.require_valid(items, config)
        return self._append(items, config)

    def _append(self, items: list[engine.Item], config: QueueConfig) -> list[engine.Sent]:
        """Append to the shards concerned, one after the other.

        Raises:
            PartialFailure: some failed; results has what came of each message, or an exception.
        """
        store = self._store
        if len(store.shards) == 1:
            return store.send(store.shards[0], items, config) if items else []
        groups: dict[int, list[int]] = {}
        for i, item in enumerate(items):
            groups.setdefault(store.shard_of(item[0]).number, []).append(i)
        results: list[Any] = [None] * len(items)
        failed: StrictqError | None = None
        for number, places in groups.items():
            try:
                sent = store.send(store.shards[number], [items[i] for i in places], config)
            except StrictqError as e:
                failed = e
                for i in places:
                    results[i] = e
                continue
            for i, s in zip(places, sent, strict=True):
                results[i] = s
        if failed is not None:
            if len(groups) == 1:
                raise failed
            raise PartialFailure("some shards did not take their messages", results) from failed
        return results

    def _items(self, messages: Iterable[Message]) -> tuple[list[Key | None], list[engine.Item], QueueConfig]:
        """Messages as the store takes them, their keys as given, and the settings they were checked against."""
        if not isinstance(messages, Iterable):
            found = "a single one" if isinstance(messages, Message) else type(messages).__name__
            raise InvalidArgument(f"send_many takes a list of Message objects, not {found}")
        messages = list(messages)
        config = self._store.config
        try:
            return (*self._check(messages, config), config)
        except InvalidArgument:
            # Another process may have loosened the settings since this one last wrote.
            if not self._store.refresh_config():
                raise
            config = self._store.config
            return (*self._check(messages, config), config)

    def _item(self, message: Message) -> tuple[engine.Item, QueueConfig]:
        _, (item,), config = self._items([message])
        return item, config

    def _check(self, messages: list[Message], config: QueueConfig) -> tuple[list[Key | None], list[engine.Item]]:
        items: list[engine.Item] = []
        try:
            return self._check_into(items, messages, config), items
        except InvalidArgument as e:
            if len(messages) > 1:
                e.args = (f"message {len(items) + 1:,} of {len(messages):,}: {e.args[0]}",)
            raise

    def _check_into(self, items: list[engine.Item], messages: list[Message], config: QueueConfig) -> list[Key | None]:
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
            # Written out, because it runs for every message: no option is set, so there is nothing more to check.
            if (
                m.dedup_id is None
                and m.delay is _NO_DELAY
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
                items.append(validate.item(m, raw, config))
        return given

    def _keyless(self, message: Message, config: QueueConfig) -> bytes:
        if config.keyless == "refuse":
            raise InvalidArgument("a message needs a key", hint="or let it have none: q.configure(keyless='random')")
        if message.dedup_id is not None:
            return engine.keyless_by_hash(validate.name("dedup_id", message.dedup_id))
        lane = next(self._turn) if config.keyless == "round_robin" else random.randrange(config.keyless_lanes)
        return engine.keyless_lane(lane % config.keyless_lanes)
