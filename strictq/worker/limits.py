"""The limits of the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen
class Limits:
    """The limits of the scheduler. See Worker. `batch_max` is 0 for handlers of single messages; `batch_per_key`: no limit.

    Attributes:
        prepares_more: lanes that wait for the confirmation of an ack may have prepared results beyond `prepared_max`.
    """

    concurrency: int = 8
    prepares: bool = False
    prepared_max: int = 16
    prepared_bytes_max: int = 64 * 1024 * 1024
    batch: int = 1000
    low_water: int | None = None
    process_timeout: float | Callable[[Any], float | None] | None = None
    prepare_timeout: float | None = None
    batch_max: int = 0
    batch_per_key: int = 0
    batch_wait: float = 0.0
    prepares_more: bool = False
