"""Workers' estimates of durations, learned from an export."""

from __future__ import annotations

import os
from typing import Final

from .._platform.extras import need
from .._values.durations import Model
from .._values.stats import DurationEstimate
from ..queue import Queue

LEARNED_MAX: Final = 10_000
"""An estimate depends on the newest few hundred durations only."""


def store_estimates(queue: Queue, out: str | os.PathLike[str]) -> dict[str, DurationEstimate]:
    """Learn the durations of handlers from an export, and store them as the queue's estimates.

    Learns the newest 10,000 measured durations of each stage in the order in which the messages finished, as a worker does. A
    worker that starts later continues from there. A running worker does not read them, and overwrites them with its own, so stop
    it first. Stages without measurements keep their estimates.

    Args:
        out: the directory of an export, of this or another queue.
    Returns:
        The stored estimates by stage ("prepare", "process"), as shown by `q.stats()`.
    Raises:
        ExportError: the export cannot be read; nothing was changed.
        MissingExtra: pyarrow is not installed; nothing was changed.
        ReadOnlyQueue: nothing was changed.
    Source: docs/howto/history.md
    """
    need("pyarrow", "history")
    from ._summaries import STAGES, Export

    queue._storage.require_open(writing=True)
    export = Export(out)
    models: dict[str, Model] = {}
    for stage in STAGES:
        table = export.measured(stage).sort_by("done_at")
        newest = table.slice(max(0, table.num_rows - LEARNED_MAX))
        for size, seconds in zip(newest["size"].to_pylist(), newest["seconds"].to_pylist(), strict=True):
            models.setdefault(stage, Model()).learn(size, seconds)
    queue._storage.set_estimates({stage: model.to_json() for stage, model in models.items()})
    return {stage: model.snapshot() for stage, model in models.items()}
