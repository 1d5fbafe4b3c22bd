"""The worker: prepares message n+1 of a key while message n is processed. See docs/explanation/scheduler.md."""

from .._values.findings import WorkerEvent
from .breaker import Breaker
from .job import AsyncJob, Defer, Job, Reject, Retry
from .worker import Worker, WorkerStats

__all__ = ["AsyncJob", "Breaker", "Defer", "Job", "Reject", "Retry", "Worker", "WorkerEvent", "WorkerStats"]
