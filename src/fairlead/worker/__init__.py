"""Runs tasks: one file for each role of a worker."""

from __future__ import annotations

from fairlead.worker.context import Context, XCom, current_context
from fairlead.worker.runner import Raised
from fairlead.worker.worker import Worker

__all__ = ("Context", "Raised", "Worker", "XCom", "current_context")
