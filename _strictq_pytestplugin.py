"""strictq's pytest plugin: the fixtures strict_queue, strict_queue_async, strict_clock and strict_machine.

pytest loads this module in every project that has strictq installed. So it lies outside the package, and imports it only in
a fixture: whoever does not use the fixtures pays nothing, and whoever measures the coverage of strictq sees all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from strictq import AsyncQueue, Queue
    from strictq.testing import FakeClock, Machine

FIXTURES = ("strict_clock", "strict_machine", "strict_queue", "strict_queue_async")
MARKER = (
    "strictq(disk=..., shards=..., durability=..., config=..., **settings): how the fixture strict_queue is opened; "
    "config is a strictq.QueueConfig, settings are single settings of one"
)
TOLD = pytest.StashKey[set[str]]()
"""What the terminal is told of fixtures that another plugin has, too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """--strictq-disk and strictq_disk."""
    group = parser.getgroup("strictq")
    group.addoption(
        "--strictq-disk",
        action="store_true",
        default=None,
        help="open the queues of the fixture strict_queue on disk, not in memory",
    )
    parser.addini("strictq_disk", "the same as --strictq-disk, for every run", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


def _clashes(manager: pytest.PytestPluginManager) -> Iterator[str]:
    """What is said of each fixture of this plugin that another one has as well."""
    ours = globals()
    for other, plugin in manager.list_name_plugin():
        if plugin is None or getattr(plugin, "__dict__", None) is ours or other.endswith("conftest.py"):
            continue  # a conftest.py overrides a fixture on purpose
        for name, value in _fixtures(plugin):
            if name in FIXTURES and value is not ours[name]:
                yield _told(name, other, plugin)


def _fixtures(plugin: object) -> Iterator[tuple[str, object]]:
    """Those that pytest finds in a plugin, which is a module, a class or any object, by the names that tests use."""
    spaces = (plugin,) if isinstance(plugin, ModuleType) else (plugin if isinstance(plugin, type) else type(plugin)).__mro__
    for space in spaces:
        for attribute, value in list(vars(space).items()):  # and not by getattr, which runs properties
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
    if other == str(id(plugin)):  # pytest's name for an object that was registered without one: no option can tell it
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
    """Under xdist: a test module's pytest_plugins are loaded in the workers alone, so each worker tells the main process."""
    node.config.stash.setdefault(TOLD, set()).update(getattr(node, "workeroutput", {}).get("strictq", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """See which fixtures another plugin has, too: now that test modules have loaded theirs."""
    found = set(_clashes(session.config.pluginmanager))
    session.config.stash.setdefault(TOLD, set()).update(found)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["strictq"] = sorted(found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell of such fixtures. Not as a warning: where warnings are errors, it would end the run before the first test."""
    if told := config.stash.get(TOLD, set()):
        terminalreporter.section("strictq", yellow=True)
        for text in sorted(told):
            terminalreporter.write_line(text, yellow=True)


@pytest.fixture
def strict_clock() -> FakeClock:
    """The time of this test's queues: it stands still until the test moves it, with strict_clock.advance(seconds)."""
    from strictq.testing import FakeClock

    return FakeClock()


@pytest.fixture
def strict_machine(strict_clock: FakeClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A pretended machine, whose processes open queues on disk, crash, and open them again; it can be rebooted."""
    from strictq.testing import Machine

    machine = Machine(tmp_path_factory.mktemp("strictq"), strict_clock)
    yield machine
    machine.close()


@pytest.fixture
def strict_queue(request: pytest.FixtureRequest, strict_clock: FakeClock) -> Iterator[Queue]:
    """A new, empty queue with the test's own time: in memory; on disk with --strictq-disk, with the marker strictq(disk=True),
    or where the test uses strict_machine.

    @pytest.mark.strictq(max_attempts=2, shards=4) configures it.
    """
    from strictq import testing

    given: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("strictq"))):  # the closest one last: it wins
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
    """strict_queue with awaited verbs, open already, for asyncio and trio alike. Not an async fixture: any plugin will do."""
    from strictq.testing import awaited

    return awaited(strict_queue)
