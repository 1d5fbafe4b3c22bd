"""Python processes for Spark, forked from one that has imported what they need: `python -u -m tests.support.warm ADDRESS`.

Spark starts a Python process for each stream and for each kind of planning. In each of them, the imports of pyspark, pyarrow and
strictq take 0.7 s of processor time. In sessions of the tests, PYSPARK_PYTHON names a small program instead. It asks the warm
process for a fork, lends it its standard files, passes signals on, and ends as the fork ends. Without a warm process, and for
commands other than `-m`, it becomes the interpreter.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NoReturn

from tests.support.running import PATIENCE_SECONDS

PYTHON = "STRICTQ_TEST_PYTHON"
"""The variable that names the small program, for drivers that tests start."""
STARTED_BY = "STRICTQ_TEST_STARTED_BY"
"""The variable with the process id of the small program, which is the child of Spark's JVM."""
MODULES = """
    pyarrow.compute pyspark.worker pyspark.sql.streaming.datasource
    pyspark.sql.worker.commit_data_source_write pyspark.sql.worker.create_data_source pyspark.sql.worker.lookup_data_sources
    pyspark.sql.worker.data_source_pushdown_filters pyspark.sql.worker.plan_data_source_read
    pyspark.sql.worker.write_into_data_source strictq.spark.datasource strictq.spark.sink strictq.spark.source
""".split()  # noqa: SIM905
PROGRAM = """#!{python} -IS
import _signal, _socket, marshal, os, sys

warm = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
try:
    if sys.argv[1] != "-m":
        raise OSError
    warm.connect({address!r})
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
wanted = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd(), os.getpid()))
files = b"".join(file.to_bytes(4, sys.byteorder) for file in range(3))
rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
sent = warm.sendmsg([len(wanted).to_bytes(4, "little"), wanted], rights)
assert sent == 4 + len(wanted)
pid = int.from_bytes(warm.recv(4), "little")
for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM):
    _signal.signal(number, lambda number, _: os.kill(pid, number))
code = int.from_bytes(warm.recv(4), "little", signed=True)
if code < 0:
    if code != -_signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def warm_python(place: Path) -> Iterator[str]:
    """Run a warm process. Yield the path of the small program, which replaces the interpreter."""
    address, program = place / "warm", place / "python"
    program.write_text(PROGRAM.format(python=sys.executable, address=str(address)))
    program.chmod(0o700)
    command = [sys.executable, "-u", "-m", __name__, str(address)]
    root = Path(__file__).resolve().parents[2]
    process = Popen(command, cwd=root, stdin=PIPE, stdout=PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it listens
        yield str(program)
    finally:
        process.stdin.close()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


def import_modules() -> None:
    """Import what Spark's processes need, but for the modules that they run."""
    for module in MODULES:
        importlib.import_module(module)


def main(address: str) -> None:
    """Fork a process for each program that asks, until the tests end."""
    import_modules()
    gc.freeze()  # Spark's processes collect after each task
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(128)
        print("listening", flush=True)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            asking, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _attend(asking)
            asking.close()


def _attend(asking: socket.socket) -> NoReturn:
    """Fork the process that was asked for, and report how it ends."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, files, _, _ = socket.recv_fds(asking, 4, 3)
        wanted = b""
        while len(wanted) < int.from_bytes(size, "little"):
            wanted += asking.recv(int.from_bytes(size, "little") - len(wanted))
        pid = os.fork()
        if pid == 0:
            asking.close()
            _run(files, *marshal.loads(wanted))
        for file in files:
            os.close(file)
        asking.sendall(pid.to_bytes(4, "little"))
        _, status = os.waitpid(pid, 0)
        asking.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
    finally:
        os._exit(0)


def _run(files: Sequence[int], words: list[str], variables: dict[str, str], place: str, started_by: int) -> NoReturn:
    """Become `python -m WORDS`."""
    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        os.chdir(place)
        os.environ.clear()
        os.environ.update(variables | {STARTED_BY: str(started_by)})
        sys.path[:0] = [p for p in variables.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
