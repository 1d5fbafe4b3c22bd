"""The pytest plugin, as other projects meet it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import _strictq_pytestplugin
import strictq.testing  # noqa: F401 - here, once: a run in this process drops the modules that it loaded

pytest_plugins = ["pytester"]

ONE_TEST = """
def test_it(strict_queue, strict_clock):
    strict_queue.send(b"1", key="k", delay=60.0)
    assert strict_queue.receive() == []
    strict_clock.advance(60.0)
    (d,) = strict_queue.receive()
    d.ack()
"""


@pytest.fixture(autouse=True)
def ini(pytester: pytest.Pytester) -> None:
    # What the project running these tests has installed is not what they are about.
    pytester.makeini("[pytest]\naddopts = -p no:randomly -p no:cacheprovider -p no:hypothesispytest\nfilterwarnings = error\n")


def passed(result: pytest.RunResult, count: int) -> None:
    assert result.ret == 0, result.outlines + result.errlines
    result.assert_outcomes(passed=count)


def test_it_is_found_by_its_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="strictq")
    assert found.load() is _strictq_pytestplugin


def test_a_queue_and_its_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONE_TEST)
    passed(pytester.runpytest("--strict-markers"), 1)


def test_every_test_has_a_queue_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_it(strict_queue, n):
            assert strict_queue.stats().depth == 0
            strict_queue.send(b"", key="k")
        """
    )
    passed(pytester.runpytest(), 3)
    passed(pytester.runpytest("--strictq-disk"), 3)


def test_memory_or_disk(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_as_told="""
        import os, pytest

        def test_default(strict_queue):
            assert strict_queue.path == ":memory:" or "EXPECT_DISK" in os.environ

        @pytest.mark.strictq(disk=True)
        def test_disk(strict_queue, tmp_path):
            assert os.path.isdir(strict_queue.path)

        @pytest.mark.strictq(disk=False)
        def test_memory(strict_queue):
            assert strict_queue.path == ":memory:"

        def test_a_machine_has_a_disk(strict_queue, strict_machine):
            assert os.path.isdir(strict_queue.path)
            assert strict_machine.open().queue_id == strict_queue.queue_id
        """
    )
    passed(pytester.runpytest(), 4)
    pytester.makepyfile(test_chosen="def test_it(strict_queue):\n    assert strict_queue.path != ':memory:'\n")
    passed(pytester.runpytest("test_chosen.py", "--strictq-disk"), 1)
    pytester.makeini("[pytest]\nstrictq_disk = true\naddopts = -p no:randomly\n")
    passed(pytester.runpytest("test_chosen.py"), 1)


def test_the_marker_configures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import strictq

        pytestmark = pytest.mark.strictq(max_attempts=7, lease_seconds=5.0)

        @pytest.mark.strictq(max_attempts=2, shards=3)
        def test_the_closest_wins(strict_queue):
            assert strict_queue.config.max_attempts == 2
            assert strict_queue.config.lease_seconds == 5.0
            assert strict_queue.shards == 3

        CONFIG = strictq.QueueConfig(max_attempts=3, retry_for_seconds=0.0)

        @pytest.mark.parametrize("where", ["memory", pytest.param("disk", marks=pytest.mark.strictq(disk=True))])
        @pytest.mark.strictq(config=CONFIG, max_attempts=4)
        def test_the_programs_own_settings(strict_queue, where):
            assert strict_queue.config.max_attempts == 4
            assert strict_queue.config.retry_for_seconds == 0.0
            assert strict_queue.config.lease_seconds == 5.0
        """
    )
    passed(pytester.runpytest("--strict-markers"), 3)
    pytester.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.strictq(disk=..., shards=...*"])


def test_a_wrong_marker_says_what_is_wrong(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.strictq(True)
        def test_positional(strict_queue): pass

        @pytest.mark.strictq(max_attemps=2)
        def test_misspelt(strict_queue): pass

        @pytest.mark.strictq(max_attempts=0)
        def test_out_of_range(strict_queue): pass
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        [
            "*@pytest.mark.strictq takes named arguments only, not (True,)*",
            "*unknown setting 'max_attemps' (did you mean max_attempts?)*",
            "*max_attempts must be a whole number*",
        ]
    )


def test_a_failing_assertion_shows_its_message_and_the_users_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from strictq.testing import assert_sent

        def test_it(strict_queue):
            strict_queue.send(b"payed", key="order-7")
            assert_sent(strict_queue, "order-7", [b"paid"])
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            '>*assert_sent(strict_queue, "order-7", *',
            "E*key 'order-7': expected 1 message in its lane, found 1 message, 1 with another body",
            "E*1*ready*b'paid'*b'payed'*<--",
        ]
    )
    assert "strictq/testing/asserts.py" not in result.stdout.str()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_tests_with_anyios_plugin(pytester: pytest.Pytester, backend: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        from strictq.testing import assert_settled, drain_async, run_until_idle_async

        pytestmark = pytest.mark.anyio

        @pytest.fixture
        def anyio_backend():
            return {backend!r}

        async def test_receive(strict_queue_async, strict_queue, strict_clock):
            strict_queue.send(b"1", key="k", delay=60.0)
            assert await strict_queue_async.receive() == []
            strict_clock.advance(60.0)
            for d in await strict_queue_async.receive(wait=1.0):
                async with d:
                    assert d.body == b"1"
            assert_settled(strict_queue_async)

        async def test_drain(strict_queue_async):
            async def handle(job):
                seen.append(job.body)

            seen = []
            await strict_queue_async.send(b"1", key="k", delay=3600.0)
            await drain_async(strict_queue_async, handle)
            assert seen == [b"1"]
        """
    )
    passed(pytester.runpytest(), 2)


def test_async_tests_without_any_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio

        def test_it(strict_queue_async):
            async def main():
                async with strict_queue_async as q:
                    await q.send(b"1", key="k")
                    assert len(await q.receive()) == 1

            asyncio.run(main())
        """
    )
    passed(pytester.runpytest("-p", "no:anyio"), 1)


def test_under_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(8))
        @pytest.mark.strictq(disk=True)
        def test_it(strict_queue, n):
            assert strict_queue.stats().depth == 0
            strict_queue.send(b"", key="k")
        """
    )
    passed(pytester.runpytest_subprocess("-n", "2"), 8)


# ---- projects that do not use it


def test_loading_it_imports_nothing_of_strictq(pytester: pytest.Pytester) -> None:
    """Whoever measures the coverage of strictq would miss what was loaded before. In a process of its own: here it is loaded."""
    pytester.makepyfile(
        """
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("strictq")
            loaded = [name for name in sys.modules if name.partition(".")[0] in ("strictq", "apsw", "attrs", "anyio.to_thread")]
            assert loaded == []
        """
    )
    passed(pytester.runpytest_subprocess("-p", "no:anyio"), 1)


NEW_MODULES = """
import sys, pytest
before = set(sys.modules)
import _strictq_pytestplugin
print(*set(sys.modules) - before)
"""
WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
import strictq.testing
strictq.testing.open().close()
print("asyncio" in sys.modules)
"""


def run(code: str) -> str:
    place = Path(_strictq_pytestplugin.__file__).parent
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, cwd=place)
    return done.stdout.strip()


def test_the_module_itself_imports_pytest_and_the_standard_library_only() -> None:
    assert run(NEW_MODULES) == "_strictq_pytestplugin"


def test_importing_strictq_testing_needs_neither_pytest_nor_asyncio() -> None:
    assert run(WITHOUT_PYTEST) == "False"


def test_switched_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONE_TEST)
    result = pytester.runpytest("-p", "no:strictq")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'strict_queue' not found*"])


# ---- names


OTHER = """
import pytest

@pytest.fixture
def strict_queue():
    return "the other plugin's"
"""


def test_a_conftest_may_override_it_and_build_on_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def strict_queue(strict_queue):
            strict_queue.app_schema("CREATE TABLE IF NOT EXISTS app_t (n INTEGER) STRICT")
            return strict_queue
        """
    )
    pytester.makepyfile("def test_it(strict_queue):\n    assert strict_queue.query('SELECT * FROM app_t') == []\n")
    passed(pytester.runpytest(), 1)


FORMS = {
    "a function": OTHER,
    "a name": OTHER.replace("fixture\ndef strict_queue", 'fixture(name="strict_queue")\ndef _q'),
    "a name of ours": OTHER.replace("fixture\ndef strict_queue", 'fixture(name="strict_queue")\ndef strict_clock'),
    "an object": """
import pytest

class Plugin:
    __slots__ = ()

    @pytest.fixture
    def strict_queue(self): return 1

def pytest_configure(config):
    config.pluginmanager.register(Plugin(), "other_plugin_object")
""",
    "an object without a name": """
import pytest

class Base:
    @property
    def broken(self): raise ValueError

    @pytest.fixture(name="strict_queue")
    def _q(self): return 1

class Plugin(Base): pass

def pytest_configure(config):
    config.pluginmanager.register(Plugin())
""",
    "a class": """
import pytest

class Plugin:
    @pytest.fixture
    def strict_queue(): return 1  # as a static method

def pytest_configure(config):
    config.pluginmanager.register(Plugin, "other_plugin_class")
""",
}
IS_CALLED = {
    "an object": "other_plugin_object",
    "an object without a name": "an object of other_plugin.Plugin",
    "a class": "other_plugin_class",
}
"""The plugin of each form, where it is not other_plugin."""


@pytest.mark.in_turn
@pytest.mark.parametrize("form", FORMS)
def test_two_plugins_with_the_same_fixture_are_reported(pytester: pytest.Pytester, form: str) -> None:
    """And the tests go on, though warnings are errors here."""
    pytester.makepyfile(other_plugin=FORMS[form])
    pytester.syspathinsert()
    pytester.makepyfile("def test_it(strict_queue): pass\n")
    result = pytester.runpytest("-p", "other_plugin", "-q", "-p", "no:xdist")
    passed(result, 1)
    other = IS_CALLED.get(form, "other_plugin")
    result.stdout.fnmatch_lines(
        [
            "=* strictq =*",
            f"the fixture 'strict_queue' is defined by two plugins, strictq and {other}, and *: -p no:strictq (*",
        ]
    )
    assert result.stdout.str().count("is defined by two plugins") == 1
    assert ("-p no:other_plugin" in result.stdout.str()) is ("without a name" not in form)


@pytest.mark.parametrize("options", [["-p", "no:xdist"], ["-n", "2"]], ids=["in one process", "under xdist"])
def test_a_plugin_that_a_test_module_loads_is_reported(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile(other_plugin=OTHER)
    pytester.syspathinsert()
    pytester.makepyfile("pytest_plugins = ['other_plugin']\n\ndef test_it(strict_queue): pass\n")
    result = pytester.runpytest_subprocess(*options)
    passed(result, 1)
    assert result.stdout.str().count("is defined by two plugins, strictq and other_plugin,") == 1


NO_CLASH = {
    "a conftest's": ("conftest", OTHER),
    "a conftest's, by name": ("conftest", FORMS["a name"]),
    "a conftest's, from elsewhere": ("conftest", "from shared import strict_queue\n"),
    "a test module's": ("test_it", OTHER + "\ndef test_it(strict_queue): pass\n"),
    "another name": ("other_plugin", OTHER.replace("fixture\ndef", 'fixture(name="queue")\ndef')),
    "no fixture": ("other_plugin", "def strict_queue(): pass\n\nstrict_clock = None\n"),
    "this plugin's": ("other_plugin", "from _strictq_pytestplugin import strict_queue\n"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("case", NO_CLASH)
def test_what_is_no_clash_is_not_reported(pytester: pytest.Pytester, case: str) -> None:
    files = {"test_it": "def test_it(strict_queue): pass\n", "other_plugin": "", "shared": OTHER}
    name, text = NO_CLASH[case]
    pytester.makepyfile(**files | {name: text})
    pytester.syspathinsert()
    result = pytester.runpytest("-p", "other_plugin", "test_it.py")
    passed(result, 1)
    assert "two plugins" not in result.stdout.str()


@pytest.mark.parametrize(
    ("off", "gets"), [("strictq", 'strict_queue == "the other plugin\'s"'), ("other_plugin", "strict_queue.path == ':memory:'")]
)
def test_switching_one_of_two_off_leaves_the_other(pytester: pytest.Pytester, off: str, gets: str) -> None:
    pytester.makepyfile(other_plugin=OTHER)
    pytester.syspathinsert()
    pytester.makepyfile(f"def test_it(strict_queue):\n    assert {gets}\n")
    plugins = [] if off == "other_plugin" else ["-p", "other_plugin"]
    passed(pytester.runpytest(*plugins, "-p", f"no:{off}"), 1)


def test_a_fixture_of_ones_own_under_another_name(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from strictq import testing

        @pytest.fixture
        def orders():
            with testing.open(max_attempts=2) as q:
                yield q
        """
    )
    pytester.makepyfile("def test_it(orders):\n    assert orders.config.max_attempts == 2\n")
    passed(pytester.runpytest("-p", "no:strictq"), 1)
