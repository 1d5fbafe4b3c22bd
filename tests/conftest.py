"""What every test stands on: a clock that stands still, queues in memory and on disk, and one Spark session."""

from __future__ import annotations

import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import attrs
import pytest

from strictq import Queue
from strictq.testing import FakeClock, SqsEndpoint, sqs_endpoint
from tests.support import timekeeping
from tests.support.injection import receive_waits_for_busy_shards
from tests.support.queues import KINDS, Kind, Opener
from tests.support.running import fast_directory
from tests.support.second_process import SecondProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW_PLACES = frozenset(
    """
    conformance crash docs faults history multiprocess power replication spark
    cli/test_demo.py cli/test_frame.py cli/test_run.py cli/test_work.py property/test_model.py property/test_recorded_batches.py
    property/test_small_scope.py
    store/test_busy.py store/test_descriptors.py store/test_disk_full.py store/test_foreign.py store/test_salvage.py
    store/test_every_interrupt.py store/test_traps.py testing/test_howto.py testing/test_plugin.py
    unit/test_benchmarks.py unit/test_benchmarks_peers.py unit/test_checker.py
    test_timekeeping.py worker/test_limits.py worker/test_outage.py worker/test_processes.py worker/test_stress.py
    """.split()  # noqa: SIM905
)
"""Folders and modules whose tests start many processes, cut power, wait or need Java. `-m "not slow"` takes of these the marked
`smoke` alone."""


def pytest_configure(config: pytest.Config) -> None:
    timekeeping.install(config)


def has_second_process(item: pytest.Item) -> bool:
    """Return whether a test runs on a kind of queue to which a second process writes."""
    kind = item.callspec.params.get("make") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    return isinstance(kind, Kind) and kind.second_process


TURN = "STRICTQ_TURN"
"""`.ci/run` sets it to another number with each commit. Of cases that take turns, only those whose turn it is are then run."""
SHARES = 3
"""The number of turns of the kinds of queue to which a second process writes, and of cases with the mark `in_turn`."""


def waiting(items: list[pytest.Item], turn: int) -> list[pytest.Item]:
    """Return the cases whose turn is another one. Of a function with the mark `in_turn`, at least one case runs in each turn."""
    later = [item for item in items if has_second_process(item) and crc32(item.nodeid.encode()) % SHARES != turn % SHARES]
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        if item.get_closest_marker("in_turn") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for group in cases.values():
        turns = min(SHARES, len(group))
        later += [item for n, item in enumerate(group) if n % turns != turn % turns]
    return later


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what the quick run leaves out, leave out what waits for its turn, and begin with the modules that take long."""
    items[:] = [item for item in items if not (item.get_closest_marker("no_second_process") and has_second_process(item))]
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here)
        if not SLOW_PLACES.isdisjoint((place.parts[0], place.as_posix())) and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.slow)
    if turn := os.environ.get(TURN):
        later = set(waiting(items, int(turn)))
        config.hook.pytest_deselected(items=list(later))
        items[:] = [item for item in items if item not in later]
    yield
    timekeeping.long_first(items)


# Started in the background by a shell, a process ignores SIGINT, and so does every process that it starts: the tests that
# interrupt programs would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _spark_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let Spark start quickly, here and in programs that tests start, and import the compiled modules of pyspark."""
    from tests.support.sparks import make_home, set_java_options

    if "SPARK_HOME" not in os.environ:
        place = tmp_path_factory.getbasetemp()
        home = make_home((place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "h")
        if home is not None:
            os.environ["SPARK_HOME"] = str(home)
    set_java_options()


@pytest.fixture
def clock() -> FakeClock:
    """Time that moves only when the test says so."""
    return FakeClock()


@pytest.fixture(scope="session")
def second_process() -> Iterator[SecondProcess]:
    """The process that writes between the calls of tests. It starts when a test needs it, and is shared by all of them."""
    process = SecondProcess()
    yield process
    process.end()


@pytest.fixture(
    params=[pytest.param(kind, id=kind.name, marks=pytest.mark.slow if kind.second_process else ()) for kind in KINDS]
)
def make(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: FakeClock,
    second_process: SecondProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Opener]:
    """Opens the queue of this test, on each kind of queue.

    Each kind is one line of `KINDS`: add a line there for another way to store messages. `Opener.open` applies the attributes.

    These marks, each with the reason, change the kinds for a test whose assertions they would otherwise break:

    - `one_shard`: the test asserts an order across keys, the exact content of a batch, or the number of a shard. New queues
      have one shard.
    - `own_messages`: the test counts messages of the whole queue, or receives in another thread. The second process sends none,
      and writes to a table of its own.
    - `no_second_process`: what the test asserts does not depend on shards, and it has many cases. It runs on the other kinds.
    """
    kind: Kind = request.param
    if request.node.get_closest_marker("one_shard") is not None:
        kind = attrs.evolve(kind, shards=1)
    if request.node.get_closest_marker("own_messages") is not None:
        kind = attrs.evolve(kind, foreign_messages=False)
    if kind.shards > 1:
        receive_waits_for_busy_shards(monkeypatch)
    with ExitStack() as stack:
        place = ":memory:"
        if not kind.in_memory:
            synced = kind.durability == "full"
            place = str((stack.enter_context(fast_directory(tmp_path)) if synced else tmp_path) / "queue")
        opener = Opener(place, clock, kind, second_process if kind.second_process else None)
        stack.callback(opener.close)
        yield opener


@pytest.fixture
def disk(tmp_path: Path, clock: FakeClock) -> Iterator[Opener]:
    """Opens the queue of this test on disk, as often as wanted."""
    opener = Opener(str(tmp_path / "queue"), clock)
    yield opener
    opener.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if the machine has one."""
    with fast_directory(tmp_path) as directory:
        yield directory


@pytest.fixture
def q(make: Opener) -> Queue:
    """A queue with the default configuration, of each kind."""
    return make()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[SqsEndpoint]:
    """An SQS endpoint of this process, whose credentials are in the environment."""
    with sqs_endpoint() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session, with strictq registered: two cores, two tries at a task, two shuffle partitions, the fast settings.

    Under xdist, one in each worker. Spark's expressions are interpreted here and in the drivers that tests start. The pages of
    the documentation and the examples compile them, as Spark does by default.
    """
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or newer, and there is no java on this machine")
    from pyspark.sql import SparkSession

    import strictq.spark
    from tests.support.sparks import INTERPRETED, environment, settings
    from tests.support.warm import PYTHON, warm_python

    place = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch, warm_python(place) as python:
        patch.setenv(PYTHON, python)
        for name, value in environment(place).items():
            patch.setenv(name, value)
        builder = SparkSession.builder.appName("strictq tests").master("local[2,2]").config(map=settings(place) | INTERPRETED)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        strictq.spark.register(session)
        yield session
        session.stop()


@pytest.fixture
def queue_path(tmp_path: Path) -> str:
    """Where the queue of this test is, or will be."""
    return str(tmp_path / "test.strictq")
