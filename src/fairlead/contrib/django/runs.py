"""One attempt of a Django task in a worker: its result so far, its signals, its end."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from fairlead.contrib.django.api import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from fairlead.model.signals import Reject, Retry, Snooze
from fairlead.worker.run.context import Context

UNKNOWN_WORKER = ""  # of attempts before the last, of which the broker keeps only the number
_MOST_TRACE = 16_384  # characters of a traceback, the last ones
_NO_ERRORS = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, Snooze)


class _Run:
    """An attempt, from its start to its end."""

    def __init__(
        self,
        sender: type,
        task: Any,
        max_retries: int,
        ctx: Context,
        args: list[Any],
        kwargs: dict[str, Any],
        said: dict[str, Any],
    ) -> None:
        task = task_as_said(task, said)
        self._sender = sender
        self._is_last = ctx.attempt > max_retries
        self._worker = f"{socket.gethostname()}-{os.getpid()}"
        self._since = time.monotonic()
        began = datetime.now(UTC)
        self._result = TaskResult(
            task=task,
            id=ctx.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=enqueued_at(said, ctx._lease.enqueued_at, began),
            started_at=began,
            last_attempted_at=began,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=task.backend,
            errors=[],
            worker_ids=[*[UNKNOWN_WORKER] * (ctx.attempt - 1), self._worker],
        )
        task_started.send(sender, task_result=self._result)
        front = [TaskContext(task_result=self._result)] if task.takes_context else []
        self.args = [*front, *self._result.args]
        self.kwargs = self._result.kwargs

    def fails_with(self, error: BaseException) -> bool:
        """Whether this is a failure of the task, and not a word to the worker or from it."""
        if isinstance(error, Retry):
            return self._is_last
        return not isinstance(error, _NO_ERRORS)

    def succeeded(self, value: Any) -> dict[str, Any]:
        """Tell of the end; what is stored as the result."""
        self._end(TaskResultStatus.SUCCESSFUL, value)
        return {**self._ended(), "value": value}

    def failed(self, error: BaseException) -> dict[str, Any]:
        """Tell of the end, if no retry follows; what is stored beside the error."""
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        trace = "".join(format_exception(error))[-_MOST_TRACE:]
        self._result.errors.append(TaskError(exception_class_path=path, traceback=trace))
        if self._is_last or isinstance(error, Reject):
            self._end(TaskResultStatus.FAILED, None)
        return {**self._ended(), "error": path, "traceback": trace}

    def _ended(self) -> dict[str, Any]:
        # How long it took, not when: the moments in a result are by the broker's clock.
        return {"seconds": time.monotonic() - self._since, "worker": self._worker}

    def _end(self, status: Any, value: Any) -> None:
        # Its class is frozen for those who read it; Django's own backends write it like this.
        object.__setattr__(self._result, "finished_at", datetime.now(UTC))
        object.__setattr__(self._result, "status", status)
        object.__setattr__(self._result, "_return_value", value)
        task_finished.send(self._sender, task_result=self._result)


def handler_of(sender: type, task: Any, max_retries: int) -> Callable[..., Any]:
    """Return the handler that runs a Django task; ``sender`` is that of its signals."""

    def run(
        ctx: Context, args: list[Any], kwargs: dict[str, Any], said: dict[str, Any]
    ) -> dict[str, Any]:
        close_old_connections()
        try:
            attempt = _Run(sender, task, max_retries, ctx, args, kwargs, said)
            try:
                value = normalize_json(task.func(*attempt.args, **attempt.kwargs))
            except BaseException as error:
                if attempt.fails_with(error):
                    ctx.progress(attempt.failed(error))
                raise
            return attempt.succeeded(value)
        finally:
            close_old_connections()

    async def arun(
        ctx: Context, args: list[Any], kwargs: dict[str, Any], said: dict[str, Any]
    ) -> dict[str, Any]:
        close = sync_to_async(close_old_connections)
        await close()
        try:
            attempt = _Run(sender, task, max_retries, ctx, args, kwargs, said)
            try:
                value = normalize_json(await task.func(*attempt.args, **attempt.kwargs))
            except BaseException as error:
                if attempt.fails_with(error):
                    await ctx.aprogress(attempt.failed(error))
                raise
            return attempt.succeeded(value)
        finally:
            await close()

    return arun if inspect.iscoroutinefunction(task.func) else run


def task_as_said(task: Any, said: dict[str, Any]) -> Any:
    """Return the task with what was said where it was enqueued."""
    after = said.get("run_after")
    return task.using(
        priority=said["priority"],
        queue_name=said["queue_name"],
        run_after=None if after is None else datetime.fromisoformat(after),
        backend=said["backend"],
    )


def enqueued_at(said: dict[str, Any], accepted: float, started: datetime | None) -> datetime:
    """Return when a task was enqueued, by the clock of the machine that did it.

    If that contradicts its start, return when the broker accepted it (unix seconds).
    """
    told = said.get("enqueued_at")  # missing in tasks that an earlier release enqueued
    moment = None if told is None else datetime.fromisoformat(told)
    if moment is None or (started is not None and moment > started):
        return datetime.fromtimestamp(accepted, UTC)
    return moment
