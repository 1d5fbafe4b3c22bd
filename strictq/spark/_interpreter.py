"""Check that Spark's Python processes can run strictq, before the first of them starts.

If they can't, Spark restarts them repeatedly, fails after minutes or never, and names the missing package in the middle
of a traceback, if at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from .._values import hints
from .._values.errors import ConfigError, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("strictq", "apsw", "attrs", "anyio", "pyarrow", "numpy")
"""The packages that Spark's processes import for strictq. Spark itself provides pyspark."""
WAIT_SECONDS: Final = 30.0
PROBE: Final = (
    "import sys; from importlib.util import find_spec; "
    "print('strictq', *sys.version_info[:2], *(n for n in sys.argv[1:] if getattr(find_spec(n), 'origin', None) is None))"
)
"""A directory with a package's name, in the working directory, is found as well, but it has no origin."""
_fit: Final[set[tuple[str, ...]]] = set()


def require_session(spark: object) -> None:
    """Refuse what is not a Spark session, classic or of Spark Connect.

    Raises:
        InvalidArgument: such as a SparkContext, or a builder.
    """
    if not hasattr(spark, "dataSource"):
        raise InvalidArgument(f"spark must be a SparkSession, not {type(spark).__name__}", hint=hints.GIVE_SESSION)


def require_interpreter(spark: SparkSession, *, local_only: bool = False) -> None:
    """Start the interpreter of Spark's Python processes, once per program, and check its version and packages.

    This takes as long as starting a bare interpreter, and no Spark job. The machines of a cluster are not checked.

    Args:
        local_only: skip the check if executors are on other machines, whose packages may differ from the driver's.
    Raises:
        ConfigError: it is missing, has another version, or lacks a package; nothing was changed.
    """
    if is_connect(spark):
        return  # its server starts the processes
    context: Any = spark.sparkContext
    if local_only and not str(context.master).startswith("local"):
        return
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


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect, which has no context and no JVM in this program."""
    return getattr(spark, "_sc", None) is None


def _python_path(context: Any) -> str:
    """Return the PYTHONPATH that Spark passes to its processes. Files added to the session come first."""
    from pyspark import SparkFiles

    added = [os.path.join(SparkFiles.getRootDirectory(), name) for name in context._python_includes or ()]
    return os.pathsep.join(filter(None, [*added, context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]))


def _ask(program: str, path: str) -> list[str] | None:
    """Return the interpreter's report; None: it was too slow, or printed something else, so the check is skipped.

    Raises:
        ConfigError: it can't be started.
    """
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        # Started like Spark does: found in PATH, without a shell.
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
