"""strictq's pytest plugin: the fixtures strict_queue, strict_queue_async, strict_clock and strict_machine.

pytest loads this module in every project that has strictq installed. So it lies outside the package, and imports it only in
a fixture: whoever does not use the fixtures pays nothing, and whoever measures the coverage of strictq sees all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from strictq import AsyncQueue, Queue
    from strictq.testing import FakeClock, Machine

FIXTURES = ("strict_clock", "strict_machine", "strict_queue", "strict_queue_async")
MARKER = (
    "strictq(disk=..., shards=..., durability=..., **settings): how the fixture strict_queue is opened; "
    "settings are those of strictq.QueueConfig"
)


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


def _is_fixture(value: object) -> bool:
    return type(value).__name__ == "FixtureFunctionDefinition" or hasattr(value, "_pytestfixturefunction")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Warn of fixtures that another plugin has, too."""
    if hasattr(session.config, "workerinput"):
        return  # under xdist, the main process says it
    for name, other in _clashes(session.config.pluginmanager):
        session.config.issue_config_time_warning(
            pytest.PytestConfigWarning(
                f"the fixture {name!r} is defined by two plugins, strictq and {other}, and a test gets the one that was loaded "
                f"last. Switch one of them off: -p no:strictq (then make a fixture of your own from strictq.testing.open, under "
                f"another name), or -p no:{other}"
            ),
            stacklevel=2,
        )


def _clashes(manager: pytest.PytestPluginManager) -> Iterator[tuple[str, str]]:
    for other, plugin in manager.list_name_plugin():
        file = str(getattr(plugin, "__file__", "") or "")
        if plugin is None or file == __file__ or not file or file.endswith("conftest.py"):
            continue  # a conftest.py overrides a fixture on purpose
        for name in FIXTURES:
            if _is_fixture(vars(plugin).get(name)):
                yield name, other


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
