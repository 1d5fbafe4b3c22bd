"""Can Spark's Python processes do their work? Looked at before the first of them starts.

Where they can't, Spark starts them again and again, fails after minutes or not at all, and names what is missing in the middle
of a traceback, if at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from .. import _hints as hints
from .._errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("strictq", "apsw", "attrs", "anyio", "pyarrow", "numpy")
"""What a process of Spark's imports of this package and for it; Spark itself brings pyspark."""
WAIT_SECONDS: Final = 30.0
PROBE: Final = (
    "import sys; from importlib.util import find_spec; "
    "print('strictq', *sys.version_info[:2], *(n for n in sys.argv[1:] if getattr(find_spec(n), 'origin', None) is None))"
)
"""A folder that has the name of a package, in the directory where the program runs, is found, too; but it has no origin."""
_fit: Final[set[tuple[str, ...]]] = set()


def require_interpreter(spark: SparkSession, *, local_only: bool = False) -> None:
    """Start the interpreter that Spark's Python processes will be, once in a program, and see what it has.

    It takes what a bare interpreter takes to start, and no Spark job. On the machines of a cluster nobody looks.

    Args:
        local_only: leave it where executors are other machines': the driver's need not have what they have.
    Raises:
        ConfigError: it is not there, is of another version, or lacks a package; nothing changed.
    """
    context: Any = getattr(spark, "_sc", None)
    if context is None or (local_only and not str(context.master).startswith("local")):
        return  # without a context it is Spark Connect: the processes are its server's
    program, path = str(context.pythonExec), _python_path(context)
    if (program, path) in _fit:
        return
    answer = _ask(program, path)
    if answer is None:
        return
    version, missing = tuple(map(int, answer[1:3])), answer[3:]
    if version != sys.version_info[:2]:
        raise ConfigError(
            f"Spark's Python processes run {program!r}, which is Python {version[0]}.{version[1]}, and this program is "
            f"{sys.version_info[0]}.{sys.version_info[1]}",
            hint=hints.SAME_INTERPRETER,
        )
    if missing:
        raise ConfigError(
            f"Spark's Python processes run {program!r}, which does not have {', '.join(missing)}",
            hint=hints.INSTALL_THERE,
        )
    _fit.add((program, path))


def _python_path(context: Any) -> str:
    """PYTHONPATH as Spark gives it to its processes: files that were added to the session come first."""
    from pyspark import SparkFiles

    added = [os.path.join(SparkFiles.getRootDirectory(), name) for name in context._python_includes or ()]
    return os.pathsep.join(filter(None, [*added, context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]))


def _ask(program: str, path: str) -> list[str] | None:
    """What the interpreter says of itself; None: it was too slow, or says something else, so nobody can tell.

    Raises:
        ConfigError: it can't be started.
    """
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        # As Spark does it, by PATH and without a shell.
        done = subprocess.run(  # noqa: S603
            [program, "-c", PROBE, *NEEDED], env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_SECONDS
        )
    except OSError as e:
        raise ConfigError(
            f"Spark's Python processes can't be started: {program!r}: {e.strerror or e}", hint=hints.SAME_INTERPRETER
        ) from e
    except subprocess.TimeoutExpired:
        return None
    words = done.stdout.decode(errors="replace").split()
    return words if done.returncode == 0 and len(words) >= 3 and words[0] == "strictq" else None
