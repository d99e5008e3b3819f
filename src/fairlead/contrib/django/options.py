"""OPTIONS of a backend in the setting TASKS, and the app that they stand for."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fairlead.app import Fairlead
from fairlead.model.errors import InvalidInput

VARIABLE = "FAIRLEAD_DJANGO_BACKEND"  # tells processes of a worker which backend of TASKS is meant

_lock = threading.Lock()
_made: dict[tuple[str | None, str | None], Fairlead] = {}  # by broker and ledger


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``OPTIONS`` may say."""

    APP: str | None = None  # module:name of an app of yours
    URL: str | None = None  # of the broker, for an app of the backend's own; None: as configured
    LEDGER: str | None = None  # the same for the ledger
    ON_COMMIT: bool | Literal["ledger"] = True  # wait for the transaction; "ledger": be part of it
    DATABASE: str = "default"  # whose transaction
    TENANT: str | None = None  # a tenant, or module:function that is called with task, args, kwargs
    TASK: dict[str, Any] = {}  # options of @app.task for all tasks: max_retries, timeout, ...
    MODULES: list[str] = []  # that workers import, besides ``tasks`` of each installed app


def read_options(options: Mapping[str, Any]) -> BackendOptions:
    """Check OPTIONS. Raises InvalidInput that names what is wrong."""
    try:
        found = msgspec.convert(dict(options), BackendOptions)
    except msgspec.ValidationError as error:
        known = ", ".join(BackendOptions.__struct_fields__)
        raise InvalidInput(f"OPTIONS of TASKS: {error} (there are: {known})") from None
    if found.APP is not None and (found.URL is not None or found.LEDGER is not None):
        raise InvalidInput("OPTIONS of TASKS: APP names an app, which has its own URL and LEDGER")
    return found


def queue_of(options: BackendOptions) -> Fairlead:
    """Return the app that OPTIONS stand for: the same one in all threads of a process."""
    if options.APP is not None:
        found: object = pkgutil.resolve_name(options.APP)
        if not isinstance(found, Fairlead):
            raise InvalidInput(f"APP {options.APP} of TASKS is no Fairlead app")
        return found
    key = options.URL, options.LEDGER
    with _lock:
        if key not in _made:
            _made[key] = Fairlead(options.URL, ledger=options.LEDGER)
        return _made[key]
