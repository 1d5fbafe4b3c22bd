"""The endpoint behaves as AWS documents, and as others recorded it: each case over both protocols, in memory and on disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from strictq.testing import sqs_endpoint
from tests.server.sqs.cases import CASES
from tests.server.sqs.playing import JSON, QUERY, Endpoint, play

REAL_SECONDS = 0.1
"""Steps that wait less than this wait for another thread, and not for the queue's time."""


@pytest.mark.parametrize("protocol", [JSON, pytest.param(QUERY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["memory", "disk"])
def test_cases(protocol: str, on_disk: bool, tmp_path: Path) -> None:
    with sqs_endpoint(tmp_path if on_disk else None) as server:

        def tick(seconds: float) -> None:
            if seconds < REAL_SECONDS:
                time.sleep(seconds)
            else:
                server.clock.advance(seconds)

        with Endpoint(server.url, protocol, tick) as endpoint:
            found = [(case.name, case.source, play(case, endpoint)) for case in CASES if case.only in ("", protocol)]
    assert not [each for each in found if each[-1]]
