"""dedup_scope="queue": a dedup id is unique over all keys."""

from __future__ import annotations

from typing import Any

import pytest

from strictq import ConfigError, Message, Receipt
from strictq.testing import FakeClock
from tests.support.queues import Opener

pytestmark = [
    pytest.mark.one_shard('dedup_scope="queue" needs it'),
    pytest.mark.own_messages("arrival numbers are consecutive"),
]

WIDE: dict[str, Any] = {"dedup_scope": "queue", "dedup_window_seconds": 60.0, "keyless": "random"}


def test_an_id_that_another_key_used_stores_nothing(make: Opener, clock: FakeClock) -> None:
    q = make(**WIDE)
    first = q.send(b"1", key="a", dedup_id="x")
    assert q.send(b"2", key=7, dedup_id="x") == first._replace(duplicate=True)
    assert q.send(b"3", dedup_id="x") == first._replace(duplicate=True)
    assert q.send_many([Message(b"4", key="b", dedup_id="x"), Message(b"5", key="b", dedup_id="y")]) == [
        first._replace(duplicate=True), Receipt("b", 1, first.id + 1),
    ]  # fmt: skip
    assert [(d.key, d.body) for d in q.receive(10)] == [("a", b"1"), ("b", b"5")]

    clock.advance(61.0)
    assert not q.send(b"6", key="c", dedup_id="x").duplicate
    assert q.check() == []


def test_a_keyless_message_keeps_its_id_for_every_key(make: Opener) -> None:
    q = make(**WIDE)
    first = q.send(b"1", dedup_id="x")
    delayed = q.send(b"2", dedup_id="y", delay=9.0)
    assert q.send(b"3", key="a", dedup_id="x") == first._replace(duplicate=True)
    assert q.send(b"4", key="a", dedup_id="y") == delayed._replace(duplicate=True)
    assert q.stats().depth == 2


def test_sends_of_transactions_count_too(make: Opener) -> None:
    q = make(**WIDE)
    first = q.send(b"1", key="a", dedup_id="x")
    with q.transaction(key="b") as tx:
        repeated = tx.send(b"2", key="b", dedup_id="x")
        new = tx.send(b"3", key="b", dedup_id="z")
    assert repeated.receipt == first._replace(duplicate=True)
    assert new.receipt is not None
    assert q.send(b"4", key="a", dedup_id="z") == new.receipt._replace(duplicate=True)


def test_a_purge_of_the_key_forgets_its_ids(make: Opener) -> None:
    q = make(**WIDE)
    for key, purged in (("a", "a"), ("b", None)):
        assert not q.send(b"1", key=key, dedup_id="x").duplicate
        assert q.purge(purged) == 1
    assert not q.send(b"2", key="c", dedup_id="x").duplicate
    assert q.send(b"3", key="a", dedup_id="x").key == "c"
    assert q.check() == []


def test_the_scope_can_change(disk: Opener) -> None:
    q = disk()
    for key in ("a", "b"):
        assert not q.send(b"1", key=key, dedup_id="x").duplicate
    q.configure(dedup_scope="queue")
    assert q.send(b"2", key="a", dedup_id="x").duplicate  # of the key, from before
    assert not q.send(b"3", key="c", dedup_id="x").duplicate  # the older ids were not unique in the queue
    assert q.send(b"4", key="d", dedup_id="x").key == "c"
    q.configure(dedup_scope="key")
    assert not q.send(b"5", key="d", dedup_id="x").duplicate
    assert q.check() == []


def test_several_shards_cannot_have_it(make: Opener) -> None:
    with pytest.raises(ConfigError, match="needs a queue of one shard, and this one has 2") as caught:
        make(shards=2, **WIDE)
    assert "shards=1" in caught.value.hint
    q = make(shards=2)
    with pytest.raises(ConfigError, match="nothing was changed"):
        q.configure(dedup_scope="queue")
    assert q.config.dedup_scope == "key"
