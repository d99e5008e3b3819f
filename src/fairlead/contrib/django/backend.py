"""The backend: ``TASKS = {"default": {"BACKEND": "fairlead.contrib.django.FairleadBackend"}}``."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from django.core import checks
from django.db import connections, transaction

from fairlead.app import Fairlead
from fairlead.client import Sender
from fairlead.contrib.django.api import (
    BaseTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from fairlead.contrib.django.options import BackendOptions, queue_of, read_options
from fairlead.contrib.django.results import result_of
from fairlead.contrib.django.runs import handler_of
from fairlead.model.errors import InvalidInput, UnknownTask
from fairlead.model.names import DEFAULT_TENANT
from fairlead.model.priorities import LEVEL_LABELS


class FairleadBackend(BaseTaskBackend):
    """Enqueues Django's tasks with Fairlead, and finds their results.

    Django makes one for each thread; the app behind them is one in a process.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @cached_property
    def settings(self) -> BackendOptions:
        """What OPTIONS say."""
        return read_options(self.options)

    @property
    def queue(self) -> Fairlead:
        """The app behind this backend."""
        return queue_of(self.settings)

    def validate_task(self, task: Any) -> None:
        """Check a task, and register it: Django calls this for each one that it makes."""
        super().validate_task(task)
        self._sender(task)

    def _sender(self, task: Any) -> Sender[..., Any]:
        queue, path = self.queue, task.module_path
        try:
            return queue.registered(path)
        except UnknownTask:
            options: dict[str, Any] = {"max_retries": 0, **self.settings.TASK}
            handler = handler_of(type(self), task, options["max_retries"])
            queue.task(name=path, queue=task.queue_name, **options)(handler)
            return queue.registered(path)

    # -- enqueueing ----------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task, or have that done when the transaction commits; its result so far."""
        self.validate_task(task)
        given, named = normalize_json(list(args)), normalize_json(dict(kwargs))
        _check_call(task, given, named)
        sender = self._sender(task).using(
            queue=task.queue_name,
            priority=_priority(task.priority),
            tenant=self._tenant(task, given, named),
        )
        if task.run_after is not None:
            sender = sender.using(at=task.run_after)
        said = _said(task, self.alias)
        call = sender.call(given, named, said)
        result = TaskResult(
            task=task,
            id=call.id,
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=given,
            kwargs=named,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

        database = self.settings.DATABASE
        by_ledger = self.settings.ON_COMMIT == "ledger"

        def send() -> None:
            moment = datetime.now(UTC)
            said["enqueued_at"] = moment.isoformat()  # the call is packed now, not before
            self.queue.enqueue_many([call], **({"tx": database} if by_ledger else {}))
            object.__setattr__(result, "enqueued_at", moment)
            task_enqueued.send(type(self), task_result=result)

        waits = self.settings.ON_COMMIT and not by_ledger
        if waits and connections[database].in_atomic_block:
            transaction.on_commit(send, using=database)
        else:
            send()
        return result

    def _tenant(self, task: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
        said = self.settings.TENANT
        if said is None:
            return DEFAULT_TENANT
        return str(pkgutil.resolve_name(said)(task, args, kwargs)) if ":" in said else said

    # -- results -------------------------------------------------------------------------------

    def get_result(self, result_id: Any) -> Any:
        """Return what became of a task; TaskResultDoesNotExist if it is not known any more."""
        id = str(result_id)
        record = self.queue._clients.sync(lambda client: client.reader.one(id, "all"))
        result = None if record is None else result_of(record)
        if result is None:
            raise TaskResultDoesNotExist(id)
        return result

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """Tell `manage.py check` what is wrong with OPTIONS."""
        try:
            read_options(self.options)
        except InvalidInput as error:
            return [checks.Error(str(error), id="fairlead.E001")]
        return []


def _check_call(task: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuse arguments that the function would not take, before anything is written."""
    front = [None] if task.takes_context else []
    try:
        inspect.signature(task.func).bind(*front, *args, **kwargs)
    except TypeError as error:
        raise InvalidInput(
            f"task {task.module_path!r} cannot be called like this: {error}"
        ) from None


def _said(task: Any, alias: str) -> dict[str, Any]:
    after = task.run_after
    return {
        "priority": task.priority,
        "queue_name": task.queue_name,
        "run_after": None if after is None else after.isoformat(),
        "backend": alias,
    }


def _priority(number: int) -> str:
    """The level that stands for one of Django's priorities, from -100 to 100."""
    level = 0 if number > 50 else 1 if number > 0 else 2 if number == 0 else 3
    return LEVEL_LABELS[level]
