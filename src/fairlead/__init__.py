"""Fairlead: a task queue that shares workers fairly between tenants.

Begin with ``Fairlead``, which ``app.facade`` has. ``client`` enqueues, ``broker`` keeps, ``worker``
runs; docs/internals/walk.md follows one task through them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        QueueStats,
        Reason,
        ScheduleInfo,
        Schedules,
        Snapshot,
        Stats,
        Task,
        TaskCall,
        TaskInfo,
        TaskPage,
        TenantStats,
        WorkerRecord,
    )
    from fairlead.model.backoff import Backoff
    from fairlead.model.codecs import Codec, CodecError, ZlibCodec
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
        ResultGone,
        ResultTimeout,
        ScheduleConflict,
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
    from fairlead.model.log_lines import LogLine, LogLines
    from fairlead.model.outbox_state import OutboxState
    from fairlead.model.result_refs import Output
    from fairlead.model.schedule import Timing
    from fairlead.model.signals import Reject, Retry, Signal, Snooze
    from fairlead.model.spool_errors import SpoolFailed, SpoolFull
    from fairlead.runtime.correlation import correlation
    from fairlead.runtime.task_breaker import Breaker
    from fairlead.worker.run.context import Context, current_context
    from fairlead.worker.run.results import Results
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
    "Codec",
    "ZlibCodec",
    "Enqueuing",
    "Worker",
    "correlation",
    "current_context",
    "register_type",
    # what is told of tasks, queues and workers
    "TaskInfo",
    "LogLine",
    "LogLines",
    "EventInfo",
    "EventStream",
    "FlowInfo",
    "TaskPage",
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
    "CodecError",
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

#: Where each name is defined; what is not here is one of ``fairlead.model.errors``. A name is
#: loaded when it is first used, so that nobody waits for a part that the program does not need;
#: the command line is the one that notices.
_PLACES: dict[str, tuple[str, ...]] = {
    "fairlead.app": ("Fairlead", "create_queue"),
    "fairlead.client": (
        "Enqueuing",
        "EventInfo",
        "EventStream",
        "Explanation",
        "Flow",
        "FlowHandle",
        "FlowInfo",
        "Handle",
        "Histogram",
        "KnownTask",
        "QueueStats",
        "Reason",
        "ScheduleInfo",
        "Schedules",
        "Snapshot",
        "Stats",
        "Task",
        "TaskCall",
        "TaskInfo",
        "TaskPage",
        "TenantStats",
        "WorkerRecord",
    ),
    "fairlead.model.backoff": ("Backoff",),
    "fairlead.model.codecs": ("Codec", "CodecError", "ZlibCodec"),
    "fairlead.model.custom_types": ("register_type",),
    "fairlead.model.ledger_errors": (
        "LedgerAmbiguous",
        "LedgerError",
        "LedgerRefused",
        "LedgerUnreachable",
        "LostLeadership",
        "TaskRefused",
    ),
    "fairlead.model.lifecycle": ("State",),
    "fairlead.model.log_lines": ("LogLine", "LogLines"),
    "fairlead.model.outbox_state": ("OutboxState",),
    "fairlead.model.result_refs": ("Output",),
    "fairlead.model.schedule": ("Timing",),
    "fairlead.model.signals": ("Reject", "Retry", "Signal", "Snooze"),
    "fairlead.model.spool_errors": ("SpoolFailed", "SpoolFull"),
    "fairlead.runtime.task_breaker": ("Breaker",),
    "fairlead.runtime.correlation": ("correlation",),
    "fairlead.worker.run.context": ("Context", "current_context"),
    "fairlead.worker.run.results": ("Results",),
    "fairlead.worker.runner": ("Raised",),
    "fairlead.worker.worker": ("Worker",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES.get(name, "fairlead.model.errors")), name)
    globals()[name] = found  # it is not asked for again
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
