"""Configuration: what is stored must agree, and a change is seen by everybody at the next write."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import anyio
import pytest

import strictq
import strictq.testing
from strictq import ConfigError, QueueConfig
from strictq.testing import FakeClock
from tests.support.injection import refuse_writes
from tests.support.queues import Opener, fill, keys_by_shard, seqs


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the defaults, so their queues have them."""
    monkeypatch.setattr("tests.support.queues.AT_ONCE", {})


def test_defaults_are_stored(make: Opener) -> None:
    assert make.open().config == QueueConfig()


def test_configuration_is_stored(disk: Opener) -> None:
    q = disk.open(shards=2, config=QueueConfig(lease_seconds=7.0, on_poison="hold", ttl_seconds=60.0))
    config, identity = q.config, q.queue_id
    q.close()
    q = disk()
    assert q.config == config == QueueConfig(lease_seconds=7.0, on_poison="hold", ttl_seconds=60.0)
    assert (q.shards, q.queue_id, q.durability) == (2, identity, "process")


def test_same_configuration_given_again_agrees(disk: Opener) -> None:
    disk(shards=2, lease_seconds=7.0).close()
    assert disk(shards=2, lease_seconds=7.0).config.lease_seconds == 7.0


def test_an_operators_change_outlives_the_programs_next_start(disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    with disk(max_attempts=3) as q:
        q.configure(max_attempts=7)
    with disk(max_attempts=3, lease_seconds=30.0) as q:
        assert q.config.max_attempts == 7
        q.send(b"", "k")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("strictq", "WARNING")
    assert "max_attempts 7 stored and 3 given" in record.getMessage()
    assert "lease_seconds" not in record.getMessage()
    assert disk().config == QueueConfig(max_attempts=7)


def test_only_the_settings_given_are_compared(disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    with disk(max_attempts=3) as q:
        q.configure(lease_seconds=60.0, on_poison="hold", max_depth=9)
    for config in (QueueConfig(), QueueConfig(max_attempts=3), QueueConfig(max_depth=9).evolve(on_poison="hold")):
        for choice in ("warn", "error", "update"):
            with disk.open(config=config, on_config_mismatch=choice) as q:
                assert q.config == QueueConfig(max_attempts=3, lease_seconds=60.0, on_poison="hold", max_depth=9)
    assert caplog.records == []


def test_a_default_that_was_given_is_compared_too(disk: Opener) -> None:
    disk(max_attempts=9).close()
    for config in (QueueConfig(max_attempts=5), QueueConfig().evolve(max_attempts=5), copy.copy(QueueConfig(max_attempts=5))):
        with pytest.raises(ConfigError, match="max_attempts 9 stored and 5 given"):
            disk.open(config=config, on_config_mismatch="error")


def test_a_mismatch_is_an_error_where_asked_for(disk: Opener) -> None:
    q = disk(lease_seconds=7.0, max_attempts=2)
    with pytest.raises(ConfigError, match=r"lease_seconds 7\.0 stored and 8\.0 given; nothing was changed"):
        disk.open(config=QueueConfig(lease_seconds=8.0), on_config_mismatch="error")
    q.send(b"", "k")
    assert q.config == QueueConfig(lease_seconds=7.0, max_attempts=2)


def test_a_mismatch_is_stored_where_asked_for(disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    other = disk(shards=2, lease_seconds=7.0, max_attempts=2)
    wanted = QueueConfig(lease_seconds=8.0, max_attempts=5)
    with disk.open(config=wanted, on_config_mismatch="update") as q:
        assert q.config == wanted
    other.send(b"", "k")
    assert other.config == wanted
    other.configure(on_poison="hold")
    with disk.open(config=wanted, on_config_mismatch="update") as q:
        assert q.config == wanted.evolve(on_poison="hold")
    assert caplog.records == []


def test_an_update_that_contradicts_what_is_stored_changes_nothing(disk: Opener) -> None:
    disk(on_poison="hold").close()
    with pytest.raises(ConfigError, match="never applies"):
        disk.open(config=QueueConfig(max_attempts=None), on_config_mismatch="update")
    with disk() as q:
        assert q.config == QueueConfig(on_poison="hold")
        q.send(b"", "k")


def test_an_update_reaches_the_shards_that_can_be_reached(disk: Opener) -> None:
    keys = keys_by_shard(2)
    disk(shards=2).close()
    (Path(disk.path) / "shard-0000.db").write_bytes(b"damaged" * 1000)
    with disk.open(config=QueueConfig(max_attempts=2), on_config_mismatch="update") as q:
        q.send(b"", keys[1])
        assert q.config.max_attempts == 2


def test_a_read_only_object_takes_what_is_stored(disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    disk(max_attempts=2).close()
    looker = disk.open(read_only=True, durability=None, config=QueueConfig(max_attempts=3))
    assert looker.config.max_attempts == 2
    assert len(caplog.records) == 1
    with pytest.raises(strictq.InvalidArgument, match="read_only"):
        disk.open(read_only=True, durability=None, config=QueueConfig(max_attempts=3), on_config_mismatch="update")


def test_awaited_opening_takes_the_same_choice(disk: Opener) -> None:
    disk(max_attempts=2).close()

    async def run() -> None:
        config = QueueConfig(max_attempts=3)
        async with strictq.open_async(disk.path, config=config, on_config_mismatch="update", clock=disk.clock) as q:
            assert q.config.max_attempts == 3
        with pytest.raises(ConfigError):
            async with strictq.open_async(disk.path, config=config.evolve(max_attempts=4), on_config_mismatch="error"):
                pass

    anyio.run(run)


def test_queues_of_tests_refuse_settings_that_are_stored_otherwise(disk: Opener) -> None:
    with strictq.testing.open(disk.path, clock=disk.clock, max_attempts=2) as q:
        q.configure(lease_seconds=5.0)
    strictq.testing.open(disk.path, clock=disk.clock, max_attempts=2).close()
    with pytest.raises(ConfigError):
        strictq.testing.open(disk.path, clock=disk.clock, max_attempts=3)


def test_a_config_knows_what_it_was_given() -> None:
    config = QueueConfig(max_attempts=5)
    assert config.given == {"max_attempts"}
    assert QueueConfig().given == set()
    assert config.evolve(lease_seconds=30.0).given == {"max_attempts", "lease_seconds"}
    for same in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.evolve()):
        assert same == config
        assert same.given == config.given
    assert config == QueueConfig()
    assert hash(config) == hash(QueueConfig())
    assert repr(config) == repr(QueueConfig())


def test_other_number_of_shards_at_reopen_is_refused(disk: Opener) -> None:
    disk(shards=2).close()
    with pytest.raises(ConfigError):
        disk(shards=3)
    assert disk().shards == 2


def test_weaker_durability_at_reopen_is_refused(disk: Opener) -> None:
    disk.open(durability="full").close()
    with pytest.raises(ConfigError):
        disk.open(durability="process")
    q = disk.open(durability=None)
    assert q.durability == "full"


def test_stronger_durability_at_reopen_is_welcome(disk: Opener) -> None:
    disk.open(durability="process").close()
    q = disk.open(durability="full")
    assert q.durability == "full"
    q.send(b"", "k")


def test_durability_is_full_by_default(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue") as q:
        assert (q.durability, q.shards) == ("full", 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"shards": 0},
        {"shards": 257},
        {"shards": -1},
        {"shards": True},
        {"shards": 1.5},
        {"shards": "2"},
        {"durability": "none"},
        {"durability": 1},
        {"config": {"lease_seconds": 5.0}},
        {"on_config_mismatch": "ignore"},
        {"on_config_mismatch": None},
    ],
    ids=repr,
)
def test_bad_options_of_open_leave_nothing_behind(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises((ConfigError, strictq.InvalidArgument)):
        strictq.open(tmp_path / "queue", **bad)
    assert not (tmp_path / "queue" / "queue.db").exists()


@pytest.mark.parametrize(
    "bad",
    [
        {"lease_seconds": 0.0},
        {"lease_seconds": -1.0},
        {"lease_seconds": float("nan")},
        {"lease_seconds": float("inf")},
        {"lease_seconds": 1e300},
        {"lease_seconds": True},
        {"lease_seconds": "30"},
        {"lease_seconds": None},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"max_attempts": None, "on_poison": "hold"},
        {"on_poison": "ignore"},
        {"retry_delay_seconds": 1000.0},
        {"retry_backoff": 0.5},
        {"retry_backoff": float("nan")},
        {"retry_delay_seconds": 10.0, "retry_delay_max_seconds": 5.0},
        {"dedup_window_seconds": 0.0},
        {"ttl_seconds": 0.0},
        {"on_expire": "keep"},
        {"keyless": "maybe"},
        {"keyless_lanes": 0},
        {"max_depth": 0},
        {"max_body_bytes": 0},
        {"max_body_bytes": 2**31},
        {"idle_lane_seconds": -1.0},
    ],
    ids=repr,
)
def test_configuration_that_cannot_work(make: Opener, bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        QueueConfig(**bad)  # type: ignore[arg-type]
    q = make.open()
    with pytest.raises(ConfigError):
        q.configure(**bad)
    assert q.config == QueueConfig()


def test_configure_returns_and_stores_the_change(disk: Opener) -> None:
    q = disk.open(config=QueueConfig(lease_seconds=7.0))
    assert q.configure(max_attempts=9) == QueueConfig(lease_seconds=7.0, max_attempts=9)
    assert q.config.max_attempts == 9
    q.close()
    assert disk().config == QueueConfig(lease_seconds=7.0, max_attempts=9)


def test_configure_something_unknown(make: Opener) -> None:
    q = make()
    with pytest.raises(ConfigError, match="lease_second"):
        q.configure(lease_second=5.0)


def test_contradiction_with_what_is_stored(make: Opener) -> None:
    q = make.open(config=QueueConfig(on_poison="hold"))
    with pytest.raises(ConfigError):
        q.configure(max_attempts=None)
    assert q.config == QueueConfig(on_poison="hold")


def test_change_is_seen_by_another_object_at_its_next_write(disk: Opener) -> None:
    one, two = disk(shards=2), disk()
    two.send(b"x" * 100, "k")
    one.configure(max_body_bytes=10)
    with pytest.raises(strictq.MessageTooLarge):
        two.send(b"x" * 100, "k")
    assert two.config.max_body_bytes == 10
    one.configure(max_body_bytes=1_000)
    assert two.send(b"x" * 100, "k").seq == 2


def test_changed_lease_is_seen_by_another_objects_receive(disk: Opener, clock: FakeClock) -> None:
    one, two = disk(), disk()
    fill(two, "k", 1)
    one.configure(lease_seconds=500.0)
    two.receive()
    clock.advance(499.0)
    assert one.receive() == []
    clock.advance(2.0)
    assert seqs(one.receive()) == [1]


def test_changed_poison_policy_is_seen_by_another_objects_nack(disk: Opener) -> None:
    one, two = disk(), disk()
    two.send(b"", "k")
    (d,) = two.receive()
    one.configure(max_attempts=1, retry_for_seconds=0.0, on_poison="drop")
    d.nack()
    assert one.status("k", 1).state == "resolved"


def test_opening_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(strictq.QueueNotFound):
        strictq.open(tmp_path / "absent", create=False)
    with pytest.raises(strictq.QueueNotFound):
        strictq.open(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()


def test_read_only_object_looks_and_does_not_touch(disk: Opener) -> None:
    q = disk()
    fill(q, "k", 2)
    looker = disk.open(read_only=True, durability=None)
    assert seqs(looker.peek("k")) == [1, 2]
    assert looker.stats().depth == 2
    assert looker.explain("k").state == "ready"
    for call in (
        lambda: looker.send(b"", "k"),
        looker.receive,
        lambda: looker.hold("k"),
        looker.purge,
        lambda: looker.configure(lease_seconds=5.0),
        lambda: looker.app_schema("CREATE TABLE app_t (x)"),
    ):
        with pytest.raises(strictq.ReadOnlyQueue):
            call()
    assert q.stats().depth == 2


def test_memory_queues_are_private_to_their_object(clock: FakeClock) -> None:
    with strictq.open(":memory:", clock=clock) as one, strictq.open(":memory:", clock=clock) as two:
        one.send(b"", "k")
        assert two.receive() == []
        assert one.queue_id != two.queue_id


def test_files_are_private_to_their_owner(tmp_path: Path) -> None:
    with strictq.open(tmp_path / "queue", shards=2) as q:
        q.send(b"", "k")
        assert (tmp_path / "queue").stat().st_mode & 0o777 == 0o700
        for file in (tmp_path / "queue").iterdir():
            if file.is_file():
                assert file.stat().st_mode & 0o077 == 0, file.name


def test_relative_path_does_not_follow_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with strictq.open("queue") as q:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        q.send(b"", "k")
        q.receive()[0].ack()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_configure_gives_every_shard_that_can_be_reached_its_copy(disk: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    q, other = disk(shards=3), disk()
    keys = keys_by_shard(3)
    with monkeypatch.context() as patch, pytest.raises(strictq.OutcomeUnknown, match="it is stored"):
        refuse_writes(patch, lambda shard: strictq.StoreBusy("another process writes", shard=0) if shard == 0 else None)
        q.configure(max_attempts=2)
    other.send(b"", keys[2])
    assert other.config.max_attempts == 2
    other.close()
    q.configure(max_attempts=2)  # the repetition that the error asks for
    with disk() as third:
        third.send(b"", keys[0])
        assert third.config.max_attempts == 2


def test_configure_inside_a_transaction_changes_nothing(disk: Opener) -> None:
    q = disk()
    with q.transaction(key="k") as tx:
        assert tx.key_state is None
        with pytest.raises(strictq.InvalidArgument, match="inside a transaction"):
            q.configure(max_attempts=2)
    q.close()
    assert disk().config.max_attempts == QueueConfig().max_attempts


OBSOLETE = "the setting hot_lanes has no effect any more"


def test_an_obsolete_setting_warns_the_caller_and_does_nothing(disk: Opener) -> None:
    q = disk.open(config=QueueConfig(lease_seconds=7.0))
    with pytest.warns(DeprecationWarning, match=OBSOLETE) as made:
        config = QueueConfig(hot_lanes=False, max_attempts=9)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=OBSOLETE) as changed:
        evolved = QueueConfig().evolve(hot_lanes="any value", max_attempts=9)
    with pytest.warns(DeprecationWarning, match=OBSOLETE) as stored:
        assert q.configure(hot_lanes=True, max_attempts=9) == QueueConfig(lease_seconds=7.0, max_attempts=9)
    assert [warning.filename for found in (made, changed, stored) for warning in found] == [__file__] * 3
    assert config == evolved == QueueConfig(max_attempts=9)
    assert config.given == evolved.given == {"max_attempts"}
    assert "hot_lanes" not in config.to_json()


def test_an_obsolete_setting_does_not_hide_an_unknown_one(disk: Opener) -> None:
    q = disk()
    with pytest.raises(ConfigError, match="'hot_lane'") as found:
        q.configure(hot_lanes=True, hot_lane=True)
    assert "hot_lanes" not in found.value.hint


def test_awaited_configure_warns_of_an_obsolete_setting(disk: Opener) -> None:
    async def run() -> None:
        async with strictq.open_async(disk.path, clock=disk.clock) as q:
            with pytest.warns(DeprecationWarning, match=OBSOLETE):
                assert await q.configure(hot_lanes=True) == QueueConfig()

    anyio.run(run)
