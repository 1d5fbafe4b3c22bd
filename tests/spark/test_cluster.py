"""Queues on a local cluster: executors of their own, which reach a queue through a block server and never touch its files."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests.support.cluster_scenarios import SCENARIOS
from tests.support.sparks import run_driver

TIMEOUT_SECONDS = 900


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """How the selected scenarios ended, one after the other on one cluster: None, or an error."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or newer, and there is no java on this machine")
    selected = [item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module]
    wanted = {item.callspec.params["name"] for item in selected if hasattr(item, "callspec")}
    place, home = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("s")  # a short name: Spark's sockets lie in it
    names = [name for name in SCENARIOS if name in wanted]  # each by itself, in one order always
    code, said = run_driver(place, home, "cluster", place, *names, seconds=TIMEOUT_SECONDS)
    told = [json.loads(line) for line in (place / "outcomes").read_text().splitlines()] if (place / "outcomes").exists() else []
    found = {line["name"]: line["error"] for line in told}
    died = f"the driver ended with {code}:\n{said}"
    return {name: found.get(name, died) for name in names}


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "a_stream", "a_stream_of_some_columns", "a_stream_with_tls", "tables", "a_batch_write", "from_one_queue_to_another",
        "a_pipeline_needs_no_server", "large_bodies", "a_message_that_was_rejected", "the_server_is_killed_in_every_batch",
        "the_server_is_killed_under_a_table_and_a_sink", "another_server_takes_the_place", "an_executor_is_killed",
        "a_wrong_token_and_nobody_there", "the_token_is_nowhere", "without_a_server_executors_touch_the_files",
    ],
)  # fmt: skip
def test_on_a_cluster(outcomes: dict[str, str | None], name: str) -> None:
    assert outcomes[name] is None, outcomes[name]


def test_every_scenario_is_run() -> None:
    (names,) = (mark.args[1] for mark in test_on_a_cluster.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert sorted(names) == sorted(SCENARIOS)
