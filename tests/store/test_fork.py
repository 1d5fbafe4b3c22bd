"""Forks while other threads import modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from strictq._platform import fork
from tests.support.running import PATIENCE_SECONDS
from tests.test_layout import PACKAGE, imports, tree

PROGRAM = """
import importlib, os, signal, sys, threading
import strictq
from strictq._platform.fork import LATE

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "socket":
            begun.set()
            threading.Event().wait(1.0)

def receive():
    q.send(b"1", key="k")
    assert q.receive(1, keys=["empty"]) == []

begun = threading.Event()
assert "socket" not in sys.modules, "it is imported when it is needed"
for name in set(LATE) - {"socket"}:
    importlib.import_module(name)
with strictq.open(sys.argv[1]) as q:
    sys.meta_path.insert(0, Slow())
    thread = threading.Thread(target=receive)
    thread.start()
    begun.wait()
    if (child := os.fork()) == 0:
        signal.alarm(30)
        receive()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    thread.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_no_import_begins_in_a_child(tmp_path: Path) -> None:
    """The child would wait for ever for an import that another thread of its parent had begun."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "q"], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_a_fork_waits_for_every_late_import() -> None:
    not_by_an_open_queue = {
        "strictq.__init__", "strictq.worker.schedules", "strictq.app", "strictq.forwarding", "strictq.opening",
        "strictq._store.whole.copies", "strictq.queue._ship", "strictq.queue.configure_replication", "strictq.queue.detach",
        "strictq._store.disk.checksums._extension", "strictq._store.api.migrate", "strictq._store.api.salvage",
    }  # fmt: skip
    known = {*fork.LATE, *fork.LATE_WITH_HOOKS, "concurrent.futures"}
    missing = []
    for path in [*PACKAGE.glob("*.py"), *(PACKAGE / "_store").rglob("*.py")]:
        module = ".".join(("strictq", *path.relative_to(PACKAGE).with_suffix("").parts))
        for function in (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            within = range(function.lineno, (function.end_lineno or function.lineno) + 1)
            if not_by_an_open_queue.isdisjoint({module, f"{module}.{function.name}"}):
                names = {name for line, name in imports(path) if line in within}
                missing += [f"{module}.{function.name}: {name}" for name in names if not {name, name.rpartition(".")[0]} & known]
    assert missing == []
