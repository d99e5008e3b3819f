"""Fairlead: a task queue that shares workers fairly between tenants."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fairlead.app import Fairlead, create_queue
from fairlead.client import (
    Enqueuing,
    EventInfo,
    EventStream,
    Explanation,
    Flow,
    FlowHandle,
    FlowInfo,
    Handle,
    Histogram,
    KnownTask,
    Page,
    QueueStats,
    Reason,
    ScheduleInfo,
    Schedules,
    Snapshot,
    Stats,
    Task,
    TaskCall,
    TaskInfo,
    TaskRecord,
    TenantStats,
    WorkerRecord,
)
from fairlead.model.backoff import Backoff
from fairlead.model.custom_types import register_type
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    DependencyCycle,
    FairleadError,
    Fenced,
    FlowCancelled,
    FlowFailed,
    InvalidArgument,
    InvalidCron,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NotSerializable,
    OutOfOrder,
    QueueFull,
    QueueInUse,
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
from fairlead.model.ledger_errors import (
    LedgerAmbiguous,
    LedgerError,
    LedgerRefused,
    LedgerUnreachable,
    LostLeadership,
    TaskRefused,
)
from fairlead.model.lifecycle import State
from fairlead.model.outbox_state import OutboxState
from fairlead.model.outputs import Output
from fairlead.model.schedule import Timing
from fairlead.model.spool_errors import SpoolFailed, SpoolFull
from fairlead.runtime.breaker import Breaker
from fairlead.runtime.correlation import correlation
from fairlead.worker.context import Context, current_context
from fairlead.worker.results import Results

if TYPE_CHECKING:
    from fairlead.worker.runner import Raised
    from fairlead.worker.worker import Worker

__all__ = (
    # what programs are made of
    "Fairlead",
    "create_queue",
    "Context",
    "Task",
    "TaskCall",
    "Handle",
    "Flow",
    "FlowHandle",
    "Output",
    "Results",
    "State",
    "OutboxState",
    "Backoff",
    "Breaker",
    "Enqueuing",
    "Worker",
    "correlation",
    "current_context",
    "register_type",
    # what is told of tasks, queues and workers
    "TaskInfo",
    "EventInfo",
    "EventStream",
    "FlowInfo",
    "TaskRecord",
    "Page",
    "Snapshot",
    "Stats",
    "QueueStats",
    "TenantStats",
    "Histogram",
    "Explanation",
    "Reason",
    "WorkerRecord",
    "KnownTask",
    "Raised",
    "Schedules",
    "ScheduleInfo",
    "Timing",
    # what handlers raise
    "Signal",
    "Retry",
    "Snooze",
    "Reject",
    # errors of the ledger
    "LedgerError",
    "LedgerAmbiguous",
    "LedgerRefused",
    "LedgerUnreachable",
    "LostLeadership",
    # errors of the spool
    "SpoolFailed",
    "SpoolFull",
    # errors
    "FairleadError",
    "InvalidInput",
    "InvalidName",
    "InvalidOption",
    "InvalidArgument",
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
    "QueueInUse",
    "Fenced",
    "TaskError",
    "TaskFailed",
    "TaskCancelled",
    "TaskRefused",
    "FlowFailed",
    "FlowCancelled",
    "ResultGone",
    "ResultTimeout",
)

#: What only programs that run tasks need, and where it is: others do not wait for it to load.
_LATER = {"Raised": "fairlead.worker.runner", "Worker": "fairlead.worker.worker"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
