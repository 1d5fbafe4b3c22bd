"""Sending: check messages, and append them shard by shard."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from typing import Any, TypeVar

import attrs

from .._client import validate
from .._platform.lazy import LazyList
from .._platform.observe import around
from .._store.api import Item, Sent, Storage, require_valid
from .._values import hints
from .._values.config import QueueConfig
from .._values.errors import InvalidArgument, NotConfirmed, PartialFailure, QueueFull, StrictqError, Throttled, refused_keys
from .._values.keys import Key, decode_key, encode_key, keyless_by_hash, keyless_lane
from .._values.types import Body, Message, Receipt

# Bypasses the constructor's argument handling, which would double the cost of a message here.
_receipt = tuple.__new__
T = TypeVar("T")


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

    __slots__ = ("_observers", "_storage", "_turn", "_wall")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._observers = storage.observers
        self._wall = storage.clock.wall
        self._turn = count(random.randrange(1 << 16))

    @property
    def config(self) -> QueueConfig:
        """The settings that messages are checked against."""
        return self._storage.config

    def send(self, message: Message) -> Receipt:
        """Append a message. See Queue.send."""
        return self.send_one(message.body, message.key, validate.given_of(message))

    def send_one(self, body: Body, key: Key | None, given: validate.Given) -> Receipt:
        """Append a message with these options, without a Message object. See Queue.send."""
        if self._observers.sending:
            with around(self._observers.sending, 1) as more:
                return self._send_one(body, key, validate.with_headers(given, merged(more)))
        return self._send_one(body, key, given)

    def _send_one(self, body: Body, key: Key | None, given: validate.Given) -> Receipt:
        storage = self._storage
        storage.require_open()
        if type(key) is str and type(body) is bytes and given == validate.PLAIN and given[1] is not False:
            item: Item = (encode_key(key), body, None, None)
            config = None  # the store checks its size
        else:
            item, config = self._checked(body, key, given)
        shard, (seq, arrival, earlier) = storage.send_one(item, config)
        return _receipt(Receipt, (key if earlier is None else decode_key(earlier), seq, arrival, earlier is not None, shard))

    def send_many(self, messages: Iterable[Message]) -> Receipts:
        """Append many messages, in order. See Queue.send_many."""
        if self._observers.sending:
            listed = _listed(messages)
            with around(self._observers.sending, len(listed)) as more:
                headers = merged(more)
                return self._send_many([with_headers(message, headers) for message in listed])
        return self._send_many(messages)

    def _send_many(self, messages: Iterable[Message]) -> Receipts:
        self._storage.require_open()
        given, items, config = self._items(messages)
        owners = self._owners(items)
        try:
            sent = self._append(items, owners, config)
        except PartialFailure as e:
            results = [
                r if isinstance(r, StrictqError) else _receipt_of(key, r, owners.get(item[0], 0))
                for key, item, r in zip(given, items, e.results, strict=True)
            ]
            raise PartialFailure(e.args[0], results) from e.__cause__
        return Receipts(given, sent, [owners.get(item[0], 0) for item in items] if owners else None)

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

        Args:
            owners: the shard of each key, 0 if it is missing. Those of keys that have moved are changed.
        Raises:
            PartialFailure: some shards failed; results has each message's outcome, or an exception.
        """
        storage = self._storage
        refusal: StrictqError | None = None
        if not owners:
            try:
                return storage.send(0, items, config, owners) if items else []
            except (QueueFull, Throttled) as e:
                if not refused_keys(e):
                    raise
                refusal = e
        groups: dict[int, list[int]] = {}
        for i, item in enumerate(items):
            groups.setdefault(owners.get(item[0], 0), []).append(i)
        results: list[Any] = [None] * len(items)
        failed: StrictqError | None = None
        try:
            with storage.confirmed_together():
                for shard, places in groups.items():
                    left = places
                    while left:
                        left, error = self._append_some(shard, items, left, results, config, owners, refusal)
                        failed, refusal = error or failed, None
        except NotConfirmed as e:
            failed, results = e, [r if isinstance(r, StrictqError) else e for r in results]
        if failed is not None:
            if all(r is failed for r in results):
                raise failed
            raise PartialFailure("some of the messages were refused", results) from failed
        return results

    def _append_some(
        self,
        shard: int,
        items: list[Item],
        places: list[int],
        results: list[Any],
        config: QueueConfig,
        owners: dict[bytes, int],
        refusal: StrictqError | None,
    ) -> tuple[list[int], StrictqError | None]:
        """Append messages to a shard. Return those to try again, without the refused ones of a tenant or of a key, and the error.

        Args:
            places: where the messages are in `items`, and their outcomes in `results`.
            refusal: what an attempt raised that was made already. None: there was none.
        """
        refused: Mapping[bytes, StrictqError] = {}
        sent: Sequence[Any] = ()
        error: StrictqError | None = None
        try:
            if refusal is not None:
                raise refusal
            sent = self._storage.send(shard, [items[i] for i in places], config, owners)
        except PartialFailure as e:  # ranges of its keys have moved
            sent, error = e.results, e
            for i, result in zip(places, sent, strict=True):
                results[i] = result
            return [], error
        except (QueueFull, Throttled) as e:
            refused, error = refused_keys(e), e
        except StrictqError as e:
            error = e
        if error is not None:
            sent = [refused.get(items[i][0]) if refused else error for i in places]
        again: list[int] = []
        for i, result in zip(places, sent, strict=True):
            if result is None:
                again.append(i)
            else:
                results[i] = result
        return again, error

    def _items(self, messages: Iterable[Message]) -> tuple[list[Key | None], list[Item], QueueConfig]:
        """Return messages in the store's form, their keys as given, and the settings they were checked against."""
        checked, config = self._with_settings(partial(self._check, _listed(messages)))
        return (*checked, config)

    def _with_settings(self, check: Callable[[QueueConfig], T]) -> tuple[T, QueueConfig]:
        """Return the result of a check, and the settings that it used."""
        config = self._storage.config
        try:
            return check(config), config
        except InvalidArgument:
            # Another process may have relaxed the settings since this one last wrote.
            if not self._storage.refresh_settings():
                raise
            config = self._storage.config
            return check(config), config

    def item(self, message: Message) -> Item:
        """Return a message in the storage's form.

        Raises:
            InvalidArgument, MessageTooLarge: the message is invalid.
        """
        given = validate.given_of(message)
        if self._observers.sending:
            with around(self._observers.sending, 1) as more:
                return self._checked(message.body, message.key, validate.with_headers(given, merged(more)))[0]
        return self._checked(message.body, message.key, given)[0]

    def due_now(self, message: Message, item: Item) -> Item:
        """Return a checked message in the storage's form as of now.

        The delay until its `at` has become shorter since the check.
        """
        key, body, options, times = item
        if message.at is None or options is None:
            return item
        return key, body, options._replace(delay=validate.remaining(message.at, self._storage.clock.wall())), times

    def _checked(self, body: Body, key: Key | None, given: validate.Given) -> tuple[Item, QueueConfig]:
        """Return a message in the storage's form, and the settings that it was checked against."""

        def check(config: QueueConfig) -> Item:
            raw = self._keyless(body, given[0], config) if key is None else encode_key(key)
            return validate.item(body, given, raw, config, self._wall)

        return self._with_settings(check)

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
                raw = self._keyless(m.body, m.dedup_id, config)
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
                items.append(validate.item(m.body, validate.given_of(m), raw, config, self._wall))
        return given

    def _keyless(self, body: Body, dedup_id: Any, config: QueueConfig) -> bytes:
        if config.keyless == "refuse":
            raise InvalidArgument("a message needs a key", hint=hints.LET_KEYLESS)
        if dedup_id is not None:
            return keyless_by_hash(validate.dedup_id(dedup_id, validate.body_bytes(body)))
        lane = next(self._turn) if config.keyless == "round_robin" else random.randrange(config.keyless_lanes)
        return keyless_lane(lane % config.keyless_lanes)


def _listed(messages: Iterable[Message]) -> list[Message]:
    if not isinstance(messages, Iterable):
        found = "a single one" if isinstance(messages, Message) else type(messages).__name__
        raise InvalidArgument(f"send_many takes a list of Message objects, not {found}")
    return list(messages)


def merged(headers: Iterable[Mapping[str, str] | None]) -> dict[str, str]:
    """Return the headers of several observers as one dict."""
    return {name: value for each in headers if each for name, value in each.items()}


def with_headers(message: Message, more: Mapping[str, str]) -> Message:
    """Return the message with further headers, except those that it sets itself."""
    if not more or not isinstance(message, Message) or not isinstance(message.headers, Mapping | None):
        return message  # the message's validation reports what is invalid
    return attrs.evolve(message, headers={**more, **(message.headers or {})})
