"""What a worker imports: ``fairlead worker fairlead.contrib.django.worker:app``."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

import django
from django.utils.module_loading import autodiscover_modules

from fairlead.app import Fairlead
from fairlead.contrib.django.options import VARIABLE
from fairlead.model.errors import InvalidInput

if TYPE_CHECKING:
    app: Fairlead


def _app() -> Fairlead:
    django.setup()
    from fairlead.contrib.django.api import task_backends
    from fairlead.contrib.django.backend import FairleadBackend

    alias = os.environ.get(VARIABLE, "default")
    backend = task_backends[alias]
    if not isinstance(backend, FairleadBackend):
        raise InvalidInput(
            f"backend {alias!r} of TASKS is {type(backend).__name__}, not Fairlead's"
        )
    autodiscover_modules("tasks")
    for name in backend.settings.MODULES:
        import_module(name)
    return backend.queue


def __getattr__(name: str) -> object:
    # When a worker asks for it: to import a module should not set Django up.
    if name == "app":
        try:
            app = globals()["app"] = _app()
        except AttributeError as error:  # of the program: there is such a name here
            raise ImportError(f"AttributeError: {error}") from error
        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
