"""Real processes on one shard of format 3 under kill -9: see `tests/support/lane_kills.py`.

STRICTQ_LANE_KILL_SECONDS=60 makes the campaign that long.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("STRICTQ_LANE_KILL_SECONDS", "0"))


@pytest.mark.timeout(240 + 2 * SECONDS)
def test_no_message_is_lost_doubled_or_reordered(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    # In a process of its own, because it forks: this one may have threads.
    command = [sys.executable, "-m", "tests.support.lane_kills", str(SECONDS or 4.0), str(seed)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["wrong"] == [], (seed, report)
    assert report["fell"] == 0, (seed, done.stderr)
    assert report["kills"] > 0, report
    assert report["sent"] > 0, report
