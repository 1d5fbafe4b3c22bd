"""Rolling records out to Parquet: each once, none missing, whatever is killed and whatever lies in the directory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strictq
from strictq import ExportError, HistoryRecord, InvalidArgument, Message, Queue, QueueConfig
from strictq.history import Exported, _files, export_history
from tests.support.queues import shard_file
from tests.support.running import PATIENCE_SECONDS, ROOT

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIXED: list[str | bytes | int] = ["a", "7", 7, b"7", -1, "ü", b"\x00\xff", 10**30]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def make(queue_path: str) -> Iterator[Callable[..., Queue]]:
    opened: list[Queue] = []

    def open_it(*, shards: int | None = None, **settings: Any) -> Queue:
        config = QueueConfig(**{"history": "records", **settings})
        opened.append(strictq.open(queue_path, shards=shards, durability="process", config=config))
        return opened[-1]

    yield open_it
    for q in opened:
        q.close()


def live(q: Queue, count: int, keys: list[Any] | None = None) -> None:
    """Send so many messages and end all that are ready, some by other ways than an ack."""
    keys = keys or list(range(10))
    q.send_many([Message(b"%d" % n, key=keys[n % len(keys)]) for n in range(count)])
    while ds := q.receive(100):
        for n, d in enumerate(ds):
            if n % 11 == 10:
                d.reject("no")
            else:
                d.ack()


def records(q: Queue) -> list[HistoryRecord]:
    """All that the queue has."""
    found: list[HistoryRecord] = []
    for shard in range(q.shards):
        found += q.history(shard=shard, limit=100_000)
    return found


def rows(out: Path) -> list[dict[str, Any]]:
    """What is in the files, read file by file, in the order of their names."""
    return [row for file in sorted(out.iterdir()) for row in pq.ParquetFile(file).read().to_pylist()]


def numbers(out: Path) -> Counter[tuple[int, int]]:
    return Counter((row["shard"], row["n"]) for row in rows(out))


def ranges(out: Path) -> list[tuple[int, int, int]]:
    """(shard, first, last) as the names say."""
    return [(int(f.stem.split("-")[2]), int(f.stem.split("-")[3]), int(f.stem.split("-")[4])) for f in sorted(out.iterdir())]


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


# ---- what is written


def test_every_column_of_every_record(make: Callable[..., Queue], out: Path) -> None:
    q = make(history="bodies", keyless="random", shards=2)
    q.send(b"hinted", "a", size_hint=2.5)
    q.send(b"", None)
    q.receive(1)[0].nack(0.0)
    live(q, 200, MIXED)
    done = export_history(q, out)
    expected = {(r.shard, r.n): r for r in records(q)}
    assert (done.records, done.missing, done.forgotten) == (202, 0, 0)
    found = rows(out)
    assert len(found) == 202
    for row in found:
        r = expected.pop((row["shard"], row["n"]))
        for name in ("seq", "id", "attempts", "prepare_seconds", "process_seconds", "size", "size_hint", "outcome", "body"):
            assert row[name] == getattr(r, name), name
        for name in ("enqueued_at", "first_attempt_at", "done_at"):
            seconds = getattr(r, name)
            assert row[name] == (None if seconds is None else EPOCH + timedelta(seconds=seconds)), name
    assert not expected
    keys = {(row["key"], row["key_type"]) for row in found}
    assert keys == {
        *(("a", "str"), ("7", "str"), ("7", "int"), ("Nw==", "bytes"), ("-1", "int"), ("ü", "str")),
        *(("AP8=", "bytes"), (str(10**30), "int"), (None, None)),
    }


def test_measured_durations_and_ends_without_an_attempt(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    q.send(b"", "k")
    strictq.Worker(q, lambda job: None, prepare=lambda job: None).run(drain=True)
    live(q, 1)
    q.send(b"", "gone")
    q.purge("gone")
    (measured, *_) = records(q)
    export_history(q, out)
    q.close()
    assert None not in (durations := (measured.prepare_seconds, measured.process_seconds))
    assert [(r["prepare_seconds"], r["process_seconds"]) for r in rows(out)] == [durations, (None, None), (None, None)]
    assert [r["first_attempt_at"] is None for r in rows(out)] == [False, False, True]


def test_bodies_only_where_wanted(make: Callable[..., Queue], out: Path, tmp_path: Path) -> None:
    q = make(history="bodies")
    live(q, 3)
    export_history(q, out)
    export_history(q, tmp_path / "bare", bodies=False)
    assert [r["body"] for r in rows(out)] == [b"0", b"1", b"2"]
    assert [r["body"] for r in rows(tmp_path / "bare")] == [None] * 3
    assert pq.read_schema(next(out.iterdir())).equals(pq.read_schema(next((tmp_path / "bare").iterdir())))


def test_large_bodies_end_a_file(make: Callable[..., Queue], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strictq.history._run.FILE_BYTES", 100_000)
    monkeypatch.setattr("strictq.history._run.CHUNK", 4)
    monkeypatch.setattr(_files, "ROW_GROUP_BYTES", 30_000)
    q = make(history="bodies")
    q.send_many([Message(os.urandom(10_000), key="k") for _ in range(30)])
    q.ack_many(q.receive(30))
    export_history(q, out)
    assert [(first, last) for _, first, last in ranges(out)] == [(1, 12), (13, 24), (25, 30)]
    assert [r["body"] for r in rows(out)] == [r.body for r in records(q)]
    assert pq.ParquetFile(min(out.iterdir())).num_row_groups == 3


def test_only_the_owner_may_read_them(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    live(q, 1)
    export_history(q, out)
    assert out.stat().st_mode & 0o777 == 0o700
    assert [f.stat().st_mode & 0o777 for f in out.iterdir()] == [0o600]


# ---- going on


def test_a_repeated_run_goes_on(make: Callable[..., Queue], out: Path) -> None:
    q = make(shards=3)
    for count in (0, 50, 0, 1, 200):
        live(q, count)
        assert export_history(q, out, file_records=40).records == count
    assert numbers(out) == Counter((r.shard, r.n) for r in records(q))
    for shard in range(3):
        of = sorted((first, last) for s, first, last in ranges(out) if s == shard)
        assert [first for first, _ in of] == [1, *(last + 1 for _, last in of[:-1])]
        assert all(last - first < 40 for first, last in of)


def test_nothing_new_makes_no_file(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    assert export_history(q, out) == Exported(0, (), 0, 0, {0: 0})
    assert list(out.iterdir()) == []


def test_what_ends_meanwhile_is_left_for_the_next_run(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    live(q, 30)
    assert export_history(q, out, file_records=10, on_progress=lambda *_: live(q, 5)).records == 30
    assert export_history(q, out).records == 15


def test_progress(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    live(q, 25)
    seen: list[tuple[int, int]] = []
    export_history(q, out, file_records=10, on_progress=lambda *at: seen.append(at))
    assert seen == [(10, 25), (20, 25), (25, 25)]


def test_forgetting_what_is_in_files(make: Callable[..., Queue], out: Path) -> None:
    q = make(shards=2)
    live(q, 100)
    everything = Counter((r.shard, r.n) for r in records(q))
    done = export_history(q, out, forget=True, file_records=30)
    assert (done.records, done.forgotten) == (100, 100)
    assert records(q) == []
    live(q, 10)
    assert export_history(q, out).records == 10
    everything += Counter((r.shard, r.n) for r in records(q))
    assert numbers(out) == everything
    assert export_history(q, out, forget=True).forgotten == 10, "in files since the run before"


def test_what_the_queue_removed_before_is_counted(make: Callable[..., Queue], out: Path) -> None:
    q = make(history_records_max=100)
    live(q, 50)
    export_history(q, out)
    live(q, 400)
    done = export_history(q, out)
    assert done.records + done.missing == 400
    assert done.missing == 300
    assert ranges(out)[-1] == (0, 51, 450)
    live(q, 1)
    assert export_history(q, out).records == 1


def test_a_first_export_begins_where_the_records_do(make: Callable[..., Queue], out: Path) -> None:
    q = make(history_records_max=10)
    for _ in range(20):
        live(q, 10)
    done = export_history(q, out)
    assert (done.records, done.missing, ranges(out)) == (10, 0, [(0, 191, 200)])


def test_the_oldest_and_the_newest_files_may_go(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    live(q, 50)
    export_history(q, out, file_records=10)
    files = sorted(out.iterdir())
    files[0].unlink()
    files[-1].unlink()
    assert export_history(q, out).records == 10
    assert numbers(out) == Counter((0, n) for n in range(11, 51))


def test_read_only_is_enough_unless_it_forgets(make: Callable[..., Queue], queue_path: str, out: Path) -> None:
    live(make(), 5)
    with strictq.open(queue_path, read_only=True) as q:
        with pytest.raises(strictq.ReadOnlyQueue):
            export_history(q, out, forget=True)
        assert export_history(q, out).records == 5


def test_a_queue_in_memory(out: Path) -> None:
    with strictq.open(":memory:", config=QueueConfig(history="records")) as q:
        live(q, 5)
        assert export_history(q, out, forget=True).records == 5
        assert records(q) == []


# ---- crashes

KILLED = """
import os, signal, sys
import strictq
from strictq.history import _files, export_history
place, at, forget = sys.argv[3], int(sys.argv[4]), sys.argv[5] == "forget"
count = 0
def step(name, function):
    def wrapped(*args, **kwargs):
        global count
        if name == place:
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapped
os.fsync, os.rename = step("fsync", os.fsync), step("rename", os.rename)
_files.files.sync_directory = step("sync_directory", _files.files.sync_directory)
with strictq.open(sys.argv[1], create=False) as q:
    operate = type(q._storage.operate)
    operate.forget_history = step("forget", operate.forget_history)
    q.history = step("page", q.history)
    export_history(q, sys.argv[2], file_records=20, forget=forget)
"""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("place", "at", "forget"),
    [
        ("page", 4, "forget"), ("fsync", 2, "forget"), ("rename", 1, "forget"), ("rename", 3, "forget"),
        ("sync_directory", 3, "forget"), ("forget", 2, "forget"), ("forget", 4, "forget"),
        ("page", 4, "keep"), ("rename", 3, "keep"),
    ],
)  # fmt: skip
def test_killed_at_any_step(make: Callable[..., Queue], queue_path: str, out: Path, place: str, at: int, forget: str) -> None:
    """kill -9 between two files, before one has its name, before that is synced, before its records are forgotten."""
    q = make(shards=2)
    live(q, 100)
    expected = Counter((r.shard, r.n) for r in records(q))
    q.close()
    killed = run(KILLED, queue_path, out, place, at, forget)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    q = strictq.open(queue_path)
    live(q, 10)
    expected += Counter((r.shard, r.n) for r in records(q) if (r.shard, r.n) not in expected)
    export_history(q, out, file_records=20, forget=forget == "forget")
    left = records(q)
    q.close()
    assert numbers(out) == expected
    assert len(expected) == 110
    assert [f.name for f in out.iterdir() if not f.name.startswith("history-")] == []
    assert (left == []) == (forget == "forget")


def test_killed_again_and_again(make: Callable[..., Queue], queue_path: str, out: Path) -> None:
    q = make()
    live(q, 100)
    expected = Counter((r.shard, r.n) for r in records(q))
    q.close()
    codes = [run(KILLED, queue_path, out, "rename", 2, "forget").returncode for _ in range(6)]
    assert codes == [-signal.SIGKILL] * 4 + [0] * 2, "each run but the last ones makes one file and dies at its second"
    assert numbers(out) == expected


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_full_disk_leaves_nothing_half_done(
    make: Callable[..., Queue], out: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    q = make()
    live(q, 10)

    sync = os.fsync

    def full(what: Any, *_: object) -> None:
        # The queue's own WAL is synced first; only the file's sync is to fail.
        if step == "fsync" and os.fstat(what).st_ino not in {file.stat().st_ino for file in out.iterdir()}:
            return sync(what)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(ExportError, match="No space left") as e:
            export_history(q, out, forget=True)
    assert e.value.transient
    assert list(out.iterdir()) == []
    assert len(records(q)) == 10
    assert export_history(q, out).records == 10


def test_the_records_are_durable_before_their_file_is(
    make: Callable[..., Queue], queue_path: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take a record whose number is in a file: the number would be given again."""
    q = make()
    live(q, 3)
    steps: list[str] = []
    wal = os.stat(f"{shard_file(queue_path)}-wal").st_ino
    sync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (os.fstat(fd).st_ino == wal and steps.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "rename", lambda *a: (steps.append("rename"), rename(*a)))
    export_history(q, out)
    assert steps == ["sync", "rename"]


# ---- what lies in the directory


def exported(make: Callable[..., Queue], out: Path) -> Queue:
    q = make()
    live(q, 50)
    export_history(q, out, file_records=10)
    return q


def test_what_a_killed_export_left_is_removed(make: Callable[..., Queue], out: Path) -> None:
    q = exported(make, out)
    (out / ".export-0123456789ab.tmp").write_bytes(b"PAR1 half")
    (out / "_SUCCESS").write_bytes(b"")
    live(q, 1)
    assert export_history(q, out).records == 1
    assert [f.name for f in out.iterdir() if not f.name.startswith("history-")] == ["_SUCCESS"]


def rename(change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda out: (file := min(out.iterdir())).rename(out / change(file.name))


def truncate(out: Path) -> None:
    os.truncate(max(out.iterdir()), 100)


def link(out: Path) -> None:
    file = min(out.iterdir())
    file.rename(out.parent / "elsewhere")
    file.symlink_to(out.parent / "elsewhere")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda out: (out / "notes.txt").write_text("mine"), "not a file of an export"),
        (lambda out: (out / "key=7").mkdir(), "not a file of an export"),
        (link, "not a file of an export"),
        (lambda out: sorted(out.iterdir())[2].unlink(), "records 21 to 30 of shard 0 are missing"),
        (truncate, "is damaged"),
        (lambda out: max(out.iterdir()).write_bytes(b""), "is damaged"),
        (rename(lambda name: name.replace("-0000-", "-0001-")), "other records than its name indicates"),
        (rename(lambda name: name.replace("0001-", "0000-", 1)), "other records than its name indicates"),
        (rename(lambda name: f"history-{'0' * 32}{name[40:]}"), "an export of another queue"),
    ],
)
def test_what_does_not_belong_there_is_refused(
    make: Callable[..., Queue], out: Path, harm: Callable[[Path], object], said: str
) -> None:
    q = exported(make, out)
    harm(out)
    before = sorted(f.name for f in out.iterdir())
    live(q, 5)
    with pytest.raises(ExportError, match=said) as e:
        export_history(q, out, forget=True)
    assert e.value.hint
    assert str(out) in e.value.path
    assert sorted(f.name for f in out.iterdir()) == before
    assert len(records(q)) == 55


def test_another_queues_directory_is_refused(make: Callable[..., Queue], out: Path) -> None:
    exported(make, out)
    with strictq.open(":memory:", config=QueueConfig(history="records")) as other:
        live(other, 5)
        with pytest.raises(ExportError, match="another queue"):
            export_history(other, out)


def test_files_that_overlap_are_refused(make: Callable[..., Queue], out: Path, tmp_path: Path) -> None:
    q = exported(make, out)
    export_history(q, tmp_path / "other", file_records=15)
    (tmp_path / "other" / sorted(f.name for f in (tmp_path / "other").iterdir())[1]).rename(out / "x")
    name = sorted(f.name for f in (tmp_path / "other").iterdir())[0]
    (out / "x").rename(out / name.replace("000000000001-000000000015", "000000000016-000000000030"))
    with pytest.raises(ExportError, match="have the same records"):
        export_history(q, out)


def test_a_shard_that_the_queue_does_not_have(make: Callable[..., Queue], out: Path, tmp_path: Path) -> None:
    q = exported(make, out)
    part = _files.export_files(out, q.queue_id)[0][0]
    with _files.UnfinishedFile(out) as file:
        file.add(pq.read_table(part.path).to_batches()[0])
        file.publish(q.queue_id, 7, 1, 10, 10)
    with pytest.raises(ExportError, match="a shard that the queue does not have"):
        export_history(q, out)


@pytest.mark.parametrize("again", [3, 10, 30])
def test_a_queue_that_went_back_is_refused(queue_path: str, out: Path, tmp_path: Path, again: int) -> None:
    """Restored from a copy, it gives numbers again that are in files already, to messages with the same keys, seqs and ids."""
    settings: dict[str, Any] = {"durability": "process", "config": QueueConfig(history="records")}
    with strictq.open(queue_path, **settings) as q:
        live(q, 5)
    for file in sorted(Path(queue_path).iterdir()):
        (tmp_path / "copy").mkdir(exist_ok=True, mode=0o700)
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    with strictq.open(queue_path) as q:
        live(q, 10)
        export_history(q, out)
    with strictq.open(tmp_path / "copy") as q:
        live(q, again)
        with pytest.raises(ExportError, match="is older than"):
            export_history(q, out)


def test_two_exports_at_once_are_refused(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    live(q, 30)
    refused: list[BaseException] = []

    def other(*_: object) -> None:
        with pytest.raises(ExportError, match="another export is writing") as e:
            export_history(q, out)
        refused.append(e.value)

    export_history(q, out, on_progress=other)
    assert [getattr(e, "transient", None) for e in refused] == [True]
    assert len(numbers(out)) == 30


@pytest.mark.parametrize("where", [".", "inside", "inside/deeper"])
def test_not_into_the_queue_itself(make: Callable[..., Queue], queue_path: str, where: str) -> None:
    with pytest.raises(InvalidArgument, match="inside the queue's own directory"):
        export_history(make(), Path(queue_path) / where)


def test_bad_arguments(make: Callable[..., Queue], out: Path) -> None:
    q = make()
    with pytest.raises(InvalidArgument, match="file_records"):
        export_history(q, out, file_records=0)
    out.write_text("a file")
    with pytest.raises(ExportError, match="not a directory"):
        export_history(q, out)
    with pytest.raises(ExportError, match="can't be written"):
        export_history(q, out / "below")


def test_without_pyarrow_the_extra_is_named(queue_path: str, out: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import strictq, strictq.history;"
        "strictq.history.export_history(strictq.open(':memory:'), 'x')"
    )
    done = run(code)
    assert done.returncode != 0
    assert 'MissingExtra: this needs pyarrow (pip install "strictq[history]")' in done.stderr


def test_neither_pyspark_nor_strictq_spark_is_needed(queue_path: str, out: Path) -> None:
    """None in sys.modules makes an import fail as if nothing were there."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'strictq.spark'))); import strictq;"
        "from strictq.history import export_history;"
        "q = strictq.open(sys.argv[1], config=strictq.QueueConfig(history='records'));"
        "q.send(b'', key='k'); q.receive()[0].ack(); print(export_history(q, sys.argv[2]).records)"
    )
    done = run(code, queue_path, out)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert numbers(out) == Counter({(0, 1): 1})


def test_importing_the_package_imports_no_extra() -> None:
    done = run("import strictq.history, sys; print(*{'pyarrow', 'numpy', 'pyspark', 'matplotlib'} & set(sys.modules))")
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_errors_and_outputs_are_columns(make: Callable[..., Queue], out: Path) -> None:
    q = make(shards=1, retry_delay_seconds=0.0)
    q.send_many([Message(b"", key="k"), Message(b"", key="k")])
    (d,) = q.receive(1)
    with pytest.raises(ValueError, match="no paper"), d:
        raise ValueError("no paper")
    q.receive(1)[0].nack(reason="still none", output="the printer says: none")
    q.ack_many(q.receive())
    (first, _) = q.history()
    (file,) = export_history(q, out).files
    rows = pq.read_table(file).select(["errors", "output"]).to_pylist()
    assert rows[1] == {"errors": None, "output": None}
    assert rows[0]["output"] == "the printer says: none"
    assert [(e["attempt"], e["error"], e["traceback"]) for e in rows[0]["errors"]] == [
        (1, "ValueError: no paper", first.errors[0].traceback),
        (2, "still none", None),
    ]
    assert rows[0]["errors"][0]["at"] == EPOCH + timedelta(microseconds=round(first.errors[0].at * 1e6))
