"""Enqueueing, and what comes back: tasks, calls and handles, and the clients behind them.

A call goes from ``task.py`` over ``template.py`` (``call.py``, if it has options of its own) and
``client.py`` to the broker, and comes back as what ``handle.py`` has. Begin with ``task.py``.
"""

from fairlead.broker.explanation import Explanation, Reason
from fairlead.broker.records import Snapshot, TaskRecord, WorkerRecord
from fairlead.broker.requests import Receipt
from fairlead.broker.stats import Histogram, QueueStats, Stats, TenantStats
from fairlead.client.batch import FencedEnqueuer, aenqueue_calls, enqueue_calls
from fairlead.client.call import BoundTask, CallOptions, TaskCall, call_of
from fairlead.client.catalog import KnownTask, check_arguments, known_tasks
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.declaration import TaskOptions, declared
from fairlead.client.errors import error_of, raise_for
from fairlead.client.event_info import EventInfo
from fairlead.client.event_stream import EventStream
from fairlead.client.flow import Flow, Part
from fairlead.client.flow_handle import FlowHandle, FlowInfo
from fairlead.client.handle import Handle
from fairlead.client.limits import limiter_change, queue_change, tenant_change
from fairlead.client.middleware import Enqueuing
from fairlead.client.schedule_spec import ScheduleInfo
from fairlead.client.schedules import Schedules
from fairlead.client.task import AsyncTask, NamedSender, Sender, SyncTask, Task
from fairlead.client.task_info import TaskInfo
from fairlead.client.task_pages import TaskPage
from fairlead.client.task_reader import PageSelection

__all__ = (
    "AsyncTask",
    "CallOptions",
    "FencedEnqueuer",
    "Client",
    "Clients",
    "Enqueuing",
    "EventInfo",
    "EventStream",
    "Explanation",
    "Flow",
    "FlowHandle",
    "FlowInfo",
    "Handle",
    "Histogram",
    "BoundTask",
    "KnownTask",
    "NamedSender",
    "PageSelection",
    "Part",
    "QueueStats",
    "Reason",
    "Receipt",
    "ScheduleInfo",
    "Schedules",
    "Sender",
    "Snapshot",
    "Stats",
    "SyncTask",
    "Task",
    "TaskCall",
    "TaskInfo",
    "TaskOptions",
    "TaskPage",
    "TaskRecord",
    "TenantStats",
    "WorkerRecord",
    "aenqueue_calls",
    "call_of",
    "check_arguments",
    "declared",
    "enqueue_calls",
    "error_of",
    "known_tasks",
    "limiter_change",
    "queue_change",
    "raise_for",
    "tenant_change",
)
