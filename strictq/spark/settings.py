"""Settings of a Spark session that make small batches cheap."""

from __future__ import annotations

from typing import Final, NamedTuple


class Setting(NamedTuple):
    """One setting of a Spark session.

    Attributes:
        name: the name for `SparkSession.builder.config`.
        value: the recommended value.
        why: its effect and its cost.
    """

    name: str
    value: str
    why: str


_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

SETTINGS: Final = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "Spark talks to its Python processes over Unix sockets instead of TCP: less time for each micro-batch, and no port. "
        "It must be set before the session starts.",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        _CHECKPOINTS,
        "Checkpoints on a local disk are written through Hadoop's FileSystem, which starts fewer processes for each file than "
        "its FileContext does. For a checkpoint on an object store leave it out.",
    ),
)


def session_options() -> dict[str, str]:
    """Return settings that make micro-batches cheap, for `SparkSession.builder.config(map=...)`.

    Both are optional and change no result. `SETTINGS` of this module has the effect and the cost of each.

    Returns:
        A new dict of names and values.
    Source: docs/howto/spark.md
    """
    return {setting.name: setting.value for setting in SETTINGS}
