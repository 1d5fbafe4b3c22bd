"""The files in which workers report the progress of their handlers."""

from __future__ import annotations

from pathlib import Path

import strictq
from strictq._store.whole import worker_reports
from strictq._store.whole.worker_reports import RunningHandlers


def test_a_report_has_room_for_the_longest_text(tmp_path: Path) -> None:
    longest = {(2**15, 2**62 - 1, 2**62 - 1 - n): (1 / 3, ("\x00", "é", "\U0001f600", '"')[n] * 140, 1e10 / 3) for n in range(4)}
    with strictq.open(tmp_path / "q") as q:
        notice = q._storage.notice(RunningHandlers)
        notice.put(RunningHandlers(longest))
        (file,) = (tmp_path / "q").glob("progress-*")
        assert file.stat().st_size == 4 * worker_reports.SLOT_BYTES
        for attempt, found in longest.items():
            assert q._storage._store.consumers.progress(attempt) == found
        notice.put(RunningHandlers(dict(list(longest.items())[:1])))
        assert [q._storage._store.consumers.progress(attempt) is not None for attempt in longest] == [True, False, False, False]
        with file.open("r+b") as opened:
            opened.write(b"[1,")  # a slot that is just being written
        assert q._storage._store.consumers.progress(next(iter(longest))) is None
        many = {(0, n, 1): (0.5, "", 1.0) for n in range(worker_reports.HANDLERS_MAX + 1)}
        notice.put(RunningHandlers(many))
        assert q._storage._store.consumers.progress((0, worker_reports.HANDLERS_MAX - 1, 1)) == (0.5, "", 1.0)
        assert q._storage._store.consumers.progress((0, worker_reports.HANDLERS_MAX, 1)) is None
        notice.remove()
        assert not list((tmp_path / "q").glob("progress-*"))
