"""The worker: prepare message n+1 while message n is processed. docs/explanation/scheduler.md says how."""

from .events import WorkerEvent
from .job import AsyncJob, Job, Reject, Retry
from .worker import Worker, WorkerStats

__all__ = ["AsyncJob", "Job", "Reject", "Retry", "Worker", "WorkerEvent", "WorkerStats"]
