"""The worker: prepare message n+1 while message n is processed. docs/explanation/scheduler.md says how."""

from .job import AsyncJob, Job, Reject, Retry
from .keeper import WorkerEvent
from .worker import Worker, WorkerStats

__all__ = ["AsyncJob", "Job", "Reject", "Retry", "Worker", "WorkerEvent", "WorkerStats"]
