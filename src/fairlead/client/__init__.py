"""Enqueueing, and what comes back: clients, tasks, calls and handles."""

from __future__ import annotations

from fairlead.broker.explaining import Explanation, Reason
from fairlead.broker.stats import Histogram, QueueStats, Stats, TenantStats
from fairlead.broker.verbs import Receipt, Submission
from fairlead.broker.views import Snapshot, TaskRecord, WorkerRecord
from fairlead.client.attempts import Attempt, StateChange
from fairlead.client.batch import Children, aenqueue_calls, enqueue_calls, limit_of, prepared
from fairlead.client.call import CallOptions, Kind, TaskCall
from fairlead.client.catalog import KnownTask, check_arguments, known_tasks
from fairlead.client.changes import (
    LimiterSettings,
    QueueSettings,
    TenantSettings,
    limiter_change,
    queue_change,
    tenant_change,
)
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.declaration import TaskOptions, declared
from fairlead.client.enqueuing import AroundEnqueue, Enqueuing
from fairlead.client.event_info import EventInfo
from fairlead.client.event_stream import EventStream
from fairlead.client.flow import Flow, Part
from fairlead.client.flow_handle import FlowHandle, FlowInfo
from fairlead.client.flowing import Flowing
from fairlead.client.handle import Handle
from fairlead.client.history import HistoryPage, HistoryTask, TaskHistory
from fairlead.client.info import TaskInfo
from fairlead.client.ledger_handle import LedgerFlowHandle, LedgerHandle
from fairlead.client.named import NamedSender
from fairlead.client.operating import Operating
from fairlead.client.page_selection import PageSelection
from fairlead.client.receipts import error_of, raise_for
from fairlead.client.scheduled import ScheduleInfo
from fairlead.client.scheduling import Schedules, Scheduling
from fairlead.client.task import AsyncTask, Sender, SyncTask, Task, handles_of
from fairlead.client.task_pages import TaskPage

__all__ = (
    "AroundEnqueue",
    "AsyncTask",
    "Attempt",
    "CallOptions",
    "Children",
    "Client",
    "Clients",
    "Enqueuing",
    "EventInfo",
    "EventStream",
    "Explanation",
    "Flow",
    "FlowHandle",
    "FlowInfo",
    "Flowing",
    "Handle",
    "LedgerFlowHandle",
    "LedgerHandle",
    "Histogram",
    "HistoryPage",
    "HistoryTask",
    "Kind",
    "KnownTask",
    "LimiterSettings",
    "NamedSender",
    "Operating",
    "PageSelection",
    "Part",
    "QueueStats",
    "QueueSettings",
    "Reason",
    "Receipt",
    "ScheduleInfo",
    "Schedules",
    "Scheduling",
    "Sender",
    "Snapshot",
    "StateChange",
    "Stats",
    "Submission",
    "SyncTask",
    "Task",
    "TaskCall",
    "TaskHistory",
    "TaskInfo",
    "TaskOptions",
    "TaskPage",
    "TaskRecord",
    "TenantSettings",
    "TenantStats",
    "WorkerRecord",
    "aenqueue_calls",
    "check_arguments",
    "declared",
    "enqueue_calls",
    "error_of",
    "handles_of",
    "known_tasks",
    "limit_of",
    "limiter_change",
    "prepared",
    "queue_change",
    "raise_for",
    "tenant_change",
)
