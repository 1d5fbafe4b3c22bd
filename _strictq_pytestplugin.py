"""strictq's pytest plugin: the fixtures strict_queue, strict_queue_async, strict_clock, strict_machine and sqs_endpoint.

pytest loads this module in every project that has strictq installed. It is therefore outside the package and imports it only
in fixtures, so that projects without the fixtures pay nothing, and a measurement of strictq's coverage includes its imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from strictq import AsyncQueue, Queue
    from strictq.testing import FakeClock, Machine, SqsEndpoint

FIXTURES = ("sqs_endpoint", "strict_clock", "strict_machine", "strict_queue", "strict_queue_async")
MARKER = (
    "strictq(disk=..., shards=..., durability=..., config=..., **settings): how the fixture strict_queue is opened; "
    "config is a strictq.QueueConfig, settings are single settings of one"
)
TOLD = pytest.StashKey[set[str]]()
"""Reports of fixtures that another plugin defines as well, for the terminal."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --strictq-disk and strictq_disk."""
    group = parser.getgroup("strictq")
    group.addoption(
        "--strictq-disk",
        action="store_true",
        default=None,
        help="open the queues of the fixture strict_queue on disk, not in memory",
    )
    parser.addini("strictq_disk", "the same as --strictq-disk, for every run", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def _clashes(manager: pytest.PytestPluginManager) -> Iterator[str]:
    """Yield a report of each fixture of this plugin that another plugin defines as well."""
    ours = globals()
    for other, plugin in manager.list_name_plugin():
        if plugin is None or getattr(plugin, "__dict__", None) is ours or other.endswith("conftest.py"):
            continue  # a conftest.py overrides a fixture on purpose
        for name, value in _fixtures(plugin):
            if name in FIXTURES and value is not ours[name]:
                yield _told(name, other, plugin)


def _fixtures(plugin: object) -> Iterator[tuple[str, object]]:
    """Yield the fixtures that pytest finds in a plugin (a module, a class or any object), with the names that tests use."""
    spaces = (plugin,) if isinstance(plugin, ModuleType) else (plugin if isinstance(plugin, type) else type(plugin)).__mro__
    for space in spaces:
        for attribute, value in list(vars(space).items()):  # not getattr, which runs properties
            if type(value).__name__ == "FixtureFunctionDefinition":
                marker = getattr(value, "_fixture_function_marker", None)
            elif isinstance(value, FunctionType):  # pytest before 8.4
                marker = vars(value).get("_pytestfixturefunction")
            else:
                continue
            if marker is not None:
                yield marker.name or attribute, value


def _told(name: str, other: str, plugin: object) -> str:
    off = "-p no:strictq (then make a fixture of your own from strictq.testing.open, under another name)"
    if other == str(id(plugin)):  # pytest's name for an object registered without one, which no option accepts
        other = f"an object of {type(plugin).__module__}.{type(plugin).__qualname__}"
        switch = f"Switch strictq's off: {off}"
    else:
        switch = f"Switch one of them off: {off}, or -p no:{other}"
    return (
        f"the fixture {name!r} is defined by two plugins, strictq and {other}, and a test gets the one that was loaded last. "
        f"{switch}"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the reports of an xdist worker, because only workers load a test module's pytest_plugins."""
    node.config.stash.setdefault(TOLD, set()).update(getattr(node, "workeroutput", {}).get("strictq", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Find fixtures that another plugin defines as well. At the end, because test modules load plugins during the run."""
    found = set(_clashes(session.config.pluginmanager))
    session.config.stash.setdefault(TOLD, set()).update(found)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["strictq"] = sorted(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the reports. A warning would end the run before the first test where warnings are errors."""
    if told := config.stash.get(TOLD, set()):
        terminalreporter.section("strictq", yellow=True)
        for text in sorted(told):
            terminalreporter.write_line(text, yellow=True)


@pytest.fixture
def strict_clock() -> FakeClock:
    """Provide the clock of this test's queues. It moves only by strict_clock.advance(seconds)."""
    from strictq.testing import FakeClock

    return FakeClock()


@pytest.fixture
def strict_machine(strict_clock: FakeClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Provide a simulated machine, whose processes open queues on disk, crash and reopen them. It can be rebooted."""
    from strictq.testing import Machine

    machine = Machine(tmp_path_factory.mktemp("strictq"), strict_clock)
    yield machine
    machine.close()


@pytest.fixture
def strict_queue(request: pytest.FixtureRequest, strict_clock: FakeClock) -> Iterator[Queue]:
    """Provide a new, empty queue with the test's clock.

    It is in memory, or on disk with --strictq-disk, with the marker strictq(disk=True) or if the test uses strict_machine.
    @pytest.mark.strictq(max_attempts=2, shards=4) configures it.
    """
    from strictq import testing

    given: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("strictq"))):  # the closest marker last, because it takes precedence
        if mark.args:
            raise pytest.UsageError(f"@pytest.mark.strictq takes named arguments only, not {mark.args!r}")
        given.update(mark.kwargs)
    chosen = request.config.getoption("--strictq-disk") or request.config.getini("strictq_disk")
    on_disk = given.pop("disk", chosen)
    if on_disk or "strict_machine" in request.fixturenames:
        machine: Machine = request.getfixturevalue("strict_machine")
        yield machine.open(**given)
        return
    with testing.open(clock=strict_clock, **given) as q:
        yield q


@pytest.fixture
def strict_queue_async(strict_queue: Queue) -> AsyncQueue:
    """Provide strict_queue as an open AsyncQueue, for asyncio and trio. It is no async fixture, so any async plugin works."""
    from strictq.testing import awaited

    return awaited(strict_queue)


@pytest.fixture(scope="session")
def _strictq_sqs_server() -> Iterator[SqsEndpoint]:
    from strictq.testing import sqs_endpoint

    with sqs_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def sqs_endpoint(_strictq_sqs_server: SqsEndpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsEndpoint]:
    """Provide an SQS endpoint without queues: `.url`, `.client` (boto3), `.clock.advance(seconds)`, `.create_queue()`.

    The environment is set so that clients which the test's program makes use it, too. Its queues are in memory. One server
    serves all tests of a process, one after the other.
    """
    for name, value in _strictq_sqs_server.environment.items():
        monkeypatch.setenv(name, value)
    yield _strictq_sqs_server
    _strictq_sqs_server.reset()
