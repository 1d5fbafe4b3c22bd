"""Time limits and durations of tests: no test can hang a run, and the summary names the parts that grew."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).resolve().parent.parent
GRACE_SECONDS = 60.0
"""How long after its time limit a test is killed if it did not end: it waits in C, or swallows what is raised in it."""

PARTS = {
    "store and unit": ("store unit property conformance net testing", 600),
    "worker": ("worker", 300),
    "power and faults": ("power faults crash multiprocess", 500),
    "replication": ("replication", 300),
    "Spark": ("spark", 500),
    "server": ("server server/sqs server/console remote", 500),
    "command, history and documentation": ("cli history docs", 500),
    "rules of the code": (".", 60),
}
"""Part of the suite: its folders, and the seconds of one core that it may take in `.ci/run`."""
PART_OF = {folder: part for part, (folders, _) in PARTS.items() for folder in folders.split()}
BUDGETS = "STRICTQ_TEST_BUDGETS"
"""The variable with which `.ci/run` asks for the budgets. They are those of its machine."""
QUICK_SECONDS = 400.0
"""The processor time of the quick run on the machine of `.ci/run`."""
SHOWN_MODULES = 12
FAILURE_CHARACTERS = 500
SHOWN_FROM_SECONDS = 120.0
"""A shorter run has no summary of its parts."""
LONG_FIRST = """
    spark/test_source.py spark/test_queue_faults.py spark/test_pipeline.py spark/test_cluster.py docs/test_code_blocks.py
    docs/test_examples.py spark/test_sink_faults.py spark/test_source_faults.py replication/test_objects.py
    spark/test_fleet_stream.py property/test_model.py cli/test_run.py power/test_powercut.py faults/test_faults.py
    spark/test_sink.py spark/test_mistakes.py property/test_recorded_batches.py spark/test_scanning.py
    property/test_small_scope.py worker/test_outage.py unit/test_benchmarks_peers.py testing/test_plugin.py
    store/test_salvage.py cli/test_work.py worker/test_processes.py power/test_living_replica.py
    faults/test_corruption.py spark/test_serving.py spark/test_ordered.py spark/test_queue_to_queue.py spark/test_web_events.py
    spark/test_monitor.py spark/test_batch.py replication/test_confirmed.py replication/test_replica.py
    power/test_replica.py power/test_receiving.py power/test_migrating.py unit/test_benchmarks.py crash/test_suspects.py
    multiprocess/test_stress.py worker/test_stress.py cli/test_frame.py store/test_descriptors.py store/test_disk_full.py
    store/test_foreign.py replication/test_keeper.py history/test_plots.py history/test_export.py
    server/console/test_browser.py server/sqs/test_cases.py server/sqs/test_chaos.py store/test_ranges.py worker/test_worker.py
    docs/test_site.py testing/test_howto.py docs/test_service.py cli/test_demo.py replication/test_cuts.py
    power/test_batches.py power/test_torn_tail.py crash/test_schedule_kill.py crash/test_recorded_batch_kill.py
    docs/test_web_workers.py docs/test_webhooks.py test_timekeeping.py store/test_every_interrupt.py
""".split()  # noqa: SIM905
"""The modules that a parallel run starts with.

If one of them began last, it would keep one process busy while the others wait.
"""


def long_first(items: list[pytest.Item]) -> None:
    """Move the tests of the longest modules to the front, in the order of LONG_FIRST. The others keep theirs."""
    rank = {TESTS / name: n for n, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def expected(processes: int, cores: int, load: float) -> str:
    """Say how long the quick run takes: its processes share the cores with what else runs."""
    share = min(1.0, cores / (processes + load))
    minutes = QUICK_SECONDS / processes / share / 60.0
    return f"the quick run takes about {minutes:.0f} minutes: {processes} processes on {cores} cores, whose load is {load:.1f}"


def limit_seconds(item: pytest.Item) -> float:
    """Return the time limit of a test: its mark's, the command line's, or the one of the configuration."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark is not None else item.config.getoption("timeout") or item.config.getini("timeout"))


@attrs.define(eq=False)
class HardLimit:
    """Kill this process if a test did not end some time after its limit, with the stacks of all threads on stderr.

    pytest-timeout raises in the test, which its finally blocks and fixtures survive; that is the first limit. It can do
    nothing about a call that waits in C, and it stops its clock when a test fails, so that a teardown has no limit. Under
    xdist, the test that killed its process is reported as failed, and another process runs the others.
    """

    stderr: int = attrs.field(factory=lambda: os.dup(2))
    ends: float = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.ends = time.monotonic() + limit_seconds(item) + GRACE_SECONDS
        self._arm()
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """Set the clock again: pytest stops it when a test fails."""
        if self.ends:
            self._arm()

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(max(1.0, self.ends - time.monotonic()), exit=True, file=self.stderr)


class ByModule(LoadFileScheduling):
    """Runs the tests of a module in one process. A test whose process ended is not run again: it would end the next one, too."""

    def remove_node(self, node: WorkerController) -> str | None:
        units = list(self.assigned_work[node].values())
        ended = next((test for unit in units for test, done in unit.items() if not done), None)
        for unit in units:
            if ended in unit:
                unit[ended] = True
        super().remove_node(node)
        return ended


@attrs.define(eq=False)
class Times:
    """The running tests, and the duration of each part of the suite."""

    running: dict[str, float] = attrs.field(factory=dict)
    modules: defaultdict[str, float] = attrs.field(factory=lambda: defaultdict(float))
    failed: list[str] = attrs.field(factory=list)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> ByModule | None:
        return ByModule(config, log) if config.option.dist == "loadfile" else None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.modules[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed.append(f"{report.nodeid}: {report.longrepr if crash is None else crash.message}")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        config = session.config
        if config.option.markexpr == "not slow" and config.args_source == pytest.Config.ArgsSource.TESTPATHS:
            terminal: Any = config.pluginmanager.getplugin("terminalreporter")
            terminal.write_line(
                expected(int(config.getoption("numprocesses", None) or 1), os.cpu_count() or 1, os.getloadavg()[0])
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self.modules.values()) >= SHOWN_FROM_SECONDS:
            terminalreporter.section("time in tests, of all processes together")
            for line in self.table():
                terminalreporter.line(line)

    def watch(self) -> None:
        """Report what runs if the whole run is terminated from outside."""
        signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        print("\n\nTerminated. These tests were running:", file=sys.stderr)
        now = time.monotonic()
        for nodeid, since in self.running.items():
            print(f"  {nodeid}, for {now - since:.0f} s", file=sys.stderr)
        print(f"{len(self.failed)} had failed:", file=sys.stderr)
        for failure in self.failed:
            print(f"  {failure[:FAILURE_CHARACTERS]}", file=sys.stderr)
        print("\n".join(self.table()), file=sys.stderr, flush=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def table(self) -> Iterator[str]:
        """Return the lines of the summary."""
        spent: defaultdict[str, float] = defaultdict(float)
        for module, seconds in self.modules.items():
            folder = Path(module).parts[1:-1]
            spent[PART_OF.get(folder[0] if folder else ".", "other")] += seconds
        judged = BUDGETS in os.environ
        yield f"{'part':<36}{'seconds':>8}" + (f"{'budget':>8}" if judged else "")
        for part, (_, budget) in PARTS.items():
            if part in spent:
                over = "  OVER ITS BUDGET" if spent[part] > budget else ""
                yield f"{part:<36}{spent[part]:>8.0f}" + (f"{budget:>8}{over}" if judged else "")
        longest = sorted(self.modules.items(), key=lambda item: -item[1])[:SHOWN_MODULES]
        yield "longest modules: " + ", ".join(f"{module.removeprefix('tests/')} {seconds:.0f}" for module, seconds in longest)


def install(config: pytest.Config) -> None:
    """Limit the time of every test of a session, and record the durations of the suite's parts."""
    if not config.option.usepdb:
        config.pluginmanager.register(HardLimit())
    if not hasattr(config, "workerinput"):
        times = Times()
        config.pluginmanager.register(times)
        if config.getoption("numprocesses", None):
            times.watch()  # otherwise SIGTERM is the tests' own
