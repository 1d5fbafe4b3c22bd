"""Segments that are hashed with a secret: whoever can write to the target can't make one up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest

import strictq
from strictq import ConfigError, InvalidArgument, ReplicaGap
from strictq.replication.directory import DirectoryTarget
from strictq.replication.keys import key_id, read_key
from strictq.replication.restoring import look, points_of, restore
from strictq.replication.segment import HASH_BYTES, decode, encode
from tests.support.queues import Opener
from tests.support.shipping import ship_once

SECRET = b"correct horse battery staple"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    return file


@pytest.fixture
def shipped(disk: Opener, target: Path, secret: Path) -> Path:
    """A queue with two messages, whose segments have a key."""
    q = disk()
    q.send(b"1", key="k")
    q.configure_replication(target, interval_seconds=3600, key_file=secret)
    q.close()
    with disk() as again:
        again.send(b"2", key="k")
    return Path(disk.path)


def ready(path: Path) -> int:
    with strictq.open(path, read_only=True) as q:
        assert q.check() == []
        return q.stats().ready


def test_white_space_around_a_secret_counts_for_nothing(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "same").write_bytes(SECRET)
    (tmp_path / "other").write_bytes(SECRET + b"!")
    assert read_key(secret) == read_key(tmp_path / "same") != read_key(tmp_path / "other")
    assert len(key_id(read_key(secret))) == 16
    assert SECRET not in read_key(secret)


@pytest.mark.parametrize("content", [None, b"", b"short", b" " * 100, b"x" * 70_000])
def test_secrets_that_are_refused(disk: Opener, tmp_path: Path, target: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    with disk() as q:
        with pytest.raises(ConfigError, match="key file"):
            q.configure_replication(target, key_file=tmp_path / "bad")
        assert q.replication() is None
    assert not target.exists()


@pytest.mark.parametrize("odd", ["", 5, b"path"])
def test_what_is_no_path_is_no_key_file(disk: Opener, target: Path, odd: object) -> None:
    with disk() as q, pytest.raises(InvalidArgument, match="key_file"):
        q.configure_replication(target, key_file=odd)  # type: ignore[arg-type]


def test_a_secret_in_the_target_protects_nothing(disk: Opener, target: Path) -> None:
    target.mkdir()
    (target / "secret").write_bytes(SECRET)
    with disk() as q, pytest.raises(InvalidArgument, match="is inside the target"):
        q.configure_replication(target, key_file=target / "secret")
    assert os.listdir(target) == ["secret"]


def test_a_queue_is_restored_with_its_key(shipped: Path, target: Path, secret: Path, tmp_path: Path) -> None:
    strictq.restore(target, tmp_path / "r", key_file=secret)
    assert ready(tmp_path / "r") == 2
    assert look(target).points == len(points_of(target)) >= 2  # what it holds can be seen without the key
    for file in target.iterdir():
        assert SECRET not in file.read_bytes()


@pytest.mark.parametrize("other", [True, False])
def test_without_the_key_nothing_is_restored(shipped: Path, target: Path, tmp_path: Path, other: bool) -> None:
    (tmp_path / "other").write_bytes(SECRET[::-1])
    with pytest.raises(InvalidArgument, match="with another key" if other else "with a key"):
        restore(target, tmp_path / "r", key_file=tmp_path / "other" if other else None)
    assert not (tmp_path / "r").exists()


def test_a_segment_that_was_made_without_the_secret_is_not_believed(
    shipped: Path, target: Path, secret: Path, tmp_path: Path
) -> None:
    """Hashed anew by somebody who can write to the target: without a key, with a key of his own, and as a whole chain."""
    last = max(target.glob("*.seg"))
    whole = last.read_bytes()
    n = int(last.stem, 16)
    header, parts = decode(whole, n, read_key(secret))
    pages = [page for _, images in parts for page in images]
    forged = attrs.evolve(header, wall=header.wall + 1)
    for made in (encode(forged, pages), encode(forged, pages, b"k" * 32), encode(header, pages)[:-HASH_BYTES] + bytes(32)):
        last.write_bytes(made)
        with pytest.raises(ReplicaGap, match="its hash is wrong"):
            restore(target, tmp_path / "r", key_file=secret)
    identity = json.loads((target / "replica.json").read_bytes())
    del identity["key_id"]
    (target / "replica.json").write_text(json.dumps(identity), encoding="utf-8")
    with pytest.raises(InvalidArgument, match="without a key"):
        restore(target, tmp_path / "r", key_file=secret)
    assert not (tmp_path / "r").exists()


def test_a_target_keeps_its_key(shipped: Path, disk: Opener, target: Path, secret: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(SECRET[::-1])
    with disk() as q:
        for wrong in (None, tmp_path / "other"):
            with pytest.raises(InvalidArgument, match="key"):
                q.configure_replication(target, key_file=wrong)
        q.configure_replication(target, key_file=secret)
        q.configure_replication(tmp_path / "t2", key_file=tmp_path / "other")
    restore(tmp_path / "t2", tmp_path / "r", key_file=tmp_path / "other")
    assert ready(tmp_path / "r") == 2


def test_the_next_shipper_goes_on_in_a_chain_with_a_key(disk: Opener, target: Path, secret: Path) -> None:
    q = disk()
    key = read_key(secret)
    for n in range(3):
        q.send(b"%d" % n, key="k")
        shipper = ship_once(q, target, key=key)
        assert shipper.done.wholes == (n == 0)
    assert DirectoryTarget(target, key).numbers() == [0, 1, 2]
