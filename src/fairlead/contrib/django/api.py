"""Django's tasks: those of Django 6, or of the package ``django-tasks`` for Django 5.2."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

_IS_OWN = find_spec("django.tasks") is not None
_PACKAGE = "django.tasks" if _IS_OWN else "django_tasks"


def _from(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


task_backends: Any = _from(_PACKAGE, "task_backends")
BaseTaskBackend: Any = _from(f"{_PACKAGE}.backends.base", "BaseTaskBackend")
Task: Any = _from(f"{_PACKAGE}.base", "Task")
TaskContext: Any = _from(f"{_PACKAGE}.base", "TaskContext")
TaskError: Any = _from(f"{_PACKAGE}.base", "TaskError")
TaskResult: Any = _from(f"{_PACKAGE}.base", "TaskResult")
TaskResultStatus: Any = _from(f"{_PACKAGE}.base", "TaskResultStatus")
TaskResultDoesNotExist: Any = _from(f"{_PACKAGE}.exceptions", "TaskResultDoesNotExist")
task_enqueued: Any = _from(f"{_PACKAGE}.signals", "task_enqueued")
task_started: Any = _from(f"{_PACKAGE}.signals", "task_started")
task_finished: Any = _from(f"{_PACKAGE}.signals", "task_finished")
normalize_json: Any = _from(
    "django.utils.json" if _IS_OWN else "django_tasks.utils", "normalize_json"
)
