"""Runs tasks: one file for each role of a worker."""

from __future__ import annotations

from fairlead.worker.channel import SlotPlan
from fairlead.worker.context import Context, XCom, current_context
from fairlead.worker.extras import AroundRun, Extras
from fairlead.worker.hooks import Hook, HookRunner
from fairlead.worker.lifespan import Lifespan
from fairlead.worker.local import LocalHandlers
from fairlead.worker.results import Results
from fairlead.worker.runner import Raised
from fairlead.worker.setup import slot_plan_of
from fairlead.worker.worker import Worker

__all__ = (
    "AroundRun",
    "Context",
    "Extras",
    "Hook",
    "HookRunner",
    "Lifespan",
    "LocalHandlers",
    "Raised",
    "Results",
    "SlotPlan",
    "Worker",
    "XCom",
    "current_context",
    "slot_plan_of",
)
