"""What `import strictq` gives, and what it costs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from types import ModuleType

import pytest

import strictq
from strictq._values import errors as _errors
from tests.support.running import PATIENCE_SECONDS

PUBLIC = sorted([*strictq.__all__, "open"])

# The names that design and documentation promise.
PROMISED = [
    *("open", "open_async", "Queue", "AsyncQueue", "QueueConfig", "Message", "Receipt", "Lease", "Transaction"),
    "PendingReceipt",
    *(
        "Delivery",
        "AsyncDelivery",
        "Batch",
        "AsyncBatch",
        "DeadLetter",
        "PeekedMessage",
        "MessageStatus",
        "Explanation",
        "HistoryRecord",
        "KeyDepth",
    ),
    *("ShardStats", "Stats", "DurationEstimate", "Problem", "Event"),
    *("connect", "connect_async", "RemoteQueue", "AsyncRemoteQueue", "RemoteStats", "RedrivePolicy"),
    *("Worker", "WorkerStats", "WorkerEvent", "Job", "Retry", "Defer", "Reject"),
    *("StrictqError", "InvalidArgument", "MessageTooLarge", "ConfigError", "QueueNotFound", "QueueClosed"),
    *("ReadOnlyQueue", "LeaseLost", "QueueFull", "UnknownMessage", "PartialFailure", "ForwardPending", "ForkedProcess"),
    *("Throttled", "ExportError", "ServerRefused", "ServerUnreachable"),
    *("StoreError", "StoreBusy", "StoreFull", "StoreCorrupt", "SchemaMismatch", "OutcomeUnknown", "InvalidBody"),
]
# A handler raises these to tell its worker what to do; nobody catches them.
SIGNALS = {"Retry", "Defer", "Reject"}


def test_all_is_what_there_is() -> None:
    assert len(set(strictq.__all__)) == len(strictq.__all__)
    for name in strictq.__all__:
        assert hasattr(strictq, name), name
    there = {
        name
        for name, value in vars(strictq).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in {"annotations", "TYPE_CHECKING"}
    }
    assert there - {"open"} <= set(strictq.__all__)
    assert set(strictq.__all__) <= set(dir(strictq))


def test_a_star_import_leaves_open_alone() -> None:
    code = "from strictq import *; import builtins; print(open is builtins.open, Queue.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert done.stdout.split() == ["True", "Queue"]


@pytest.mark.parametrize("name", PROMISED)
def test_promised_names(name: str) -> None:
    assert name in PUBLIC


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", strictq.__version__)


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings(name: str) -> None:
    value = getattr(strictq, name)
    if not callable(value):
        return
    assert _own_doc(value), f"strictq.{name} has no docstring"
    if inspect.isclass(value):
        for member, what in vars(value).items():
            if member.startswith("_") or not (inspect.isfunction(what) or isinstance(what, property | classmethod)):
                continue
            doc = getattr(value, member).__doc__ if isinstance(what, classmethod) else what.__doc__
            # Or once where it is defined: a property in its class's docstring, a clock's method in the protocol.
            elsewhere = re.search(rf"\b{member}\b", value.__doc__ or "") or hasattr(strictq.Clock, member)
            assert doc or elsewhere, f"strictq.{name}.{member} has no docstring"


def _own_doc(value: object) -> str | None:
    # A class without one would inherit its base's.
    return vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__


def test_error_tree_is_as_documented() -> None:
    documented: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in (_errors.__doc__ or "").splitlines():
        if match := re.match(r"([│├└─ ]*)([A-Z]\w+)", line):
            depth, name = len(match[1]), match[2]
            if depth == 0 and name != "StrictqError":
                continue
            while stack and stack[-1][0] >= depth:
                stack.pop()
            documented[name] = stack[-1][1] if stack else "Exception"
            stack.append((depth, name))
    actual = {
        name: next(base for base in value.__bases__ if issubclass(base, Exception)).__name__
        for name, value in vars(_errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert documented == actual


@pytest.mark.parametrize("name", [n for n in PUBLIC if isinstance(getattr(strictq, n), type)])
def test_errors_have_one_root(name: str) -> None:
    value = getattr(strictq, name)
    if issubclass(value, BaseException) and name not in SIGNALS:
        assert issubclass(value, strictq.StrictqError)
        assert isinstance(value.transient, bool)
        assert isinstance(value.hint, str)


@pytest.mark.parametrize("name", ["InvalidArgument", "ConfigError"])
def test_wrong_values_are_value_errors_too(name: str) -> None:
    assert issubclass(getattr(strictq, name), ValueError)


def test_import_is_light() -> None:
    heavy = ("click", "rich", "pyspark", "trio", "sqlite3", "pytest", "multiprocessing", "asyncio")
    code = f"import strictq, sys; print(*(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert done.stdout.split() == []


def test_import_leaves_alone_what_few_programs_need() -> None:
    """Each of them takes longer to import than what it would be imported for."""
    late = {"ctypes", "hashlib", "importlib.resources", "logging", "secrets", "shutil", "socket", "tempfile", "uuid", "zipfile"}
    late |= {"strictq._values.findings", "strictq._store.whole.check", "strictq._store.disk.pages"}
    code = "import sys, attrs, apsw; before = set(sys.modules); import strictq; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert late & set(done.stdout.split()) == set()
