"""Fairlead: a task queue that shares workers fairly between tenants."""

from __future__ import annotations

from fairlead.app import Fairlead
from fairlead.client import (
    Enqueuing,
    Handle,
    Page,
    ScheduleInfo,
    Schedules,
    Snapshot,
    Task,
    TaskCall,
    TaskInfo,
    TaskRecord,
    WorkerRecord,
)
from fairlead.model.backoff import Backoff
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    DependencyCycle,
    FairleadError,
    Fenced,
    InvalidCron,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NotSerializable,
    OutOfOrder,
    QueueFull,
    Refused,
    Reject,
    ResultGone,
    ResultTimeout,
    Retry,
    ScheduleConflict,
    Signal,
    Snooze,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TooLarge,
    UnknownDependency,
    UnknownPriority,
    UnknownSchedule,
    UnknownTask,
    Unreachable,
)
from fairlead.model.lifecycle import State
from fairlead.model.schedule import Timing
from fairlead.runtime.breaker import Breaker
from fairlead.runtime.correlation import correlation
from fairlead.worker import Context, Raised, Worker, current_context

__all__ = (
    # what programs are made of
    "Fairlead",
    "Context",
    "Task",
    "TaskCall",
    "Handle",
    "State",
    "Backoff",
    "Breaker",
    "Enqueuing",
    "Worker",
    "correlation",
    "current_context",
    # what is told of tasks, queues and workers
    "TaskInfo",
    "TaskRecord",
    "Page",
    "Snapshot",
    "WorkerRecord",
    "Raised",
    "Schedules",
    "ScheduleInfo",
    "Timing",
    # what handlers raise
    "Signal",
    "Retry",
    "Snooze",
    "Reject",
    # errors
    "FairleadError",
    "InvalidInput",
    "InvalidName",
    "InvalidOption",
    "InvalidCron",
    "UnknownPriority",
    "UnknownTask",
    "NotSerializable",
    "TooLarge",
    "DependencyCycle",
    "UnknownDependency",
    "UnknownSchedule",
    "Conflict",
    "ScheduleConflict",
    "BrokerError",
    "Unreachable",
    "Ambiguous",
    "OutOfOrder",
    "Refused",
    "QueueFull",
    "Fenced",
    "TaskError",
    "TaskFailed",
    "TaskCancelled",
    "ResultGone",
    "ResultTimeout",
)
