"""Enqueueing, and what comes back: clients, tasks, calls and handles."""

from __future__ import annotations

from fairlead.broker.explaining import Explanation, Reason
from fairlead.broker.stats import Histogram, QueueStats, Stats, TenantStats
from fairlead.broker.verbs import Receipt, Submission
from fairlead.broker.views import Page, Snapshot, TaskRecord, WorkerRecord
from fairlead.client.batch import Children, limit_of, submissions_of
from fairlead.client.call import CallOptions, Kind, TaskCall
from fairlead.client.changes import (
    LimiterSettings,
    QueueSettings,
    TenantSettings,
    limiter_change,
    queue_change,
    tenant_change,
)
from fairlead.client.client import Client, PageSelection
from fairlead.client.clients import Clients
from fairlead.client.declaration import TaskOptions, declared
from fairlead.client.enqueuing import AroundEnqueue, Enqueuing
from fairlead.client.flow import Flow, Part
from fairlead.client.flow_handle import FlowHandle, FlowInfo
from fairlead.client.flowing import Flowing
from fairlead.client.handle import Handle
from fairlead.client.info import TaskInfo
from fairlead.client.operating import Operating
from fairlead.client.receipts import error_of, raise_for
from fairlead.client.scheduled import ScheduleInfo
from fairlead.client.scheduling import Schedules, Scheduling
from fairlead.client.task import AsyncTask, Sender, SyncTask, Task, handles_of

__all__ = (
    "AroundEnqueue",
    "AsyncTask",
    "CallOptions",
    "Children",
    "Client",
    "Clients",
    "Enqueuing",
    "Explanation",
    "Flow",
    "FlowHandle",
    "FlowInfo",
    "Flowing",
    "Handle",
    "Histogram",
    "Kind",
    "LimiterSettings",
    "Operating",
    "Page",
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
    "Stats",
    "Submission",
    "SyncTask",
    "Task",
    "TaskCall",
    "TaskInfo",
    "TaskOptions",
    "TaskRecord",
    "TenantSettings",
    "TenantStats",
    "WorkerRecord",
    "declared",
    "error_of",
    "handles_of",
    "limit_of",
    "limiter_change",
    "queue_change",
    "raise_for",
    "submissions_of",
    "tenant_change",
)
