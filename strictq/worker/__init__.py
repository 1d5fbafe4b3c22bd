"""The worker: prepare message n+1 while message n is processed. docs/explanation/scheduler.md says how."""

from .._findings import WorkerEvent
from .breaker import Breaker
from .job import AsyncJob, Defer, Job, Reject, Retry
from .worker import Worker, WorkerStats

__all__ = ["AsyncJob", "Breaker", "Defer", "Job", "Reject", "Retry", "Worker", "WorkerEvent", "WorkerStats"]
