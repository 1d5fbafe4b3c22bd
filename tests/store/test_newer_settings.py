"""Settings that a newer version stored: they are ignored, and kept in every file. Obsolete ones are dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strictq import ConfigError, QueueConfig
from tests.support.internals import tamper
from tests.support.queues import Opener


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use default settings, with which the stored ones are compared."""
    monkeypatch.setattr("tests.support.queues.AT_ONCE", {})


NEWER = {"retry_politely": True, "shards_of": {"a": [1, 2.5, None]}}


STORED = {
    "queue.db": ("queue", "config", "1"),
    "shard-0000.db": ("meta", "value", "name = 'config'"),
    "shard-0001.db": ("meta", "value", "name = 'config'"),
}


def stored_settings(disk: Opener) -> list[dict[str, Any]]:
    """Return the configuration stored in queue.db and in each shard."""
    found = [
        tamper(Path(disk.path) / name, f"SELECT {column} FROM {table} WHERE {which}")
        for name, (table, column, which) in STORED.items()
    ]
    return [json.loads(text) for ((text,),) in found]


def with_newer_settings(disk: Opener) -> None:
    """Make a queue whose configuration a newer version of strictq wrote."""
    disk(shards=2, max_attempts=3).close()
    newer = json.dumps(stored_settings(disk)[0] | NEWER)
    for name, (table, column, which) in STORED.items():
        tamper(Path(disk.path) / name, f"UPDATE {table} SET {column} = '{newer}' WHERE {which}")


def test_settings_of_a_newer_version_are_ignored_and_kept(disk: Opener) -> None:
    with_newer_settings(disk)
    with disk(max_attempts=3) as q:
        assert q.config == QueueConfig(max_attempts=3)
        assert "retry_politely" not in repr(q.config)
        q.configure(lease_seconds=5.0)
        q.send(b"", "k")
        with pytest.raises(ConfigError, match="unknown setting"):
            q.configure(retry_politely=False)
    for stored in stored_settings(disk):
        assert stored == stored | NEWER
        assert (stored["lease_seconds"], stored["max_attempts"]) == (5.0, 3)
    assert disk().check() == []


def test_settings_of_a_newer_version_outlive_an_update_at_open(disk: Opener) -> None:
    with_newer_settings(disk)
    disk.open(config=QueueConfig(max_attempts=4), on_config_mismatch="update").close()
    assert all(stored == stored | NEWER and stored["max_attempts"] == 4 for stored in stored_settings(disk))


def test_a_stored_obsolete_setting_is_read_without_a_warning_and_never_written_again(disk: Opener) -> None:
    disk.open(config=QueueConfig(max_attempts=9)).close()
    tamper(Path(disk.path) / "queue.db", "UPDATE queue SET config = json_set(config, '$.hot_lanes', json('false'), '$.newer', 1)")
    with disk() as q:
        assert q.config == QueueConfig(max_attempts=9)
        assert "hot_lanes" not in q.config.given
        q.configure(max_attempts=10)
    ((text,),) = tamper(Path(disk.path) / "queue.db", "SELECT config FROM queue")
    stored = json.loads(text)
    assert "hot_lanes" not in stored
    assert stored["newer"] == 1
