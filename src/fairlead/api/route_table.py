"""The table of routes and mounts: whatever the API answers stands here."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

from fairlead.api import routes
from fairlead.api.http.mount import Mount
from fairlead.api.http.route import Route

BASE = "/api/v1"

#: Modules that have MOUNTS.
_MOUNTED = (
    "fairlead.api.live", "fairlead.api.metrics", "fairlead.api.page", "fairlead.api.auth.sign_in",
)  # fmt: skip


def _routes() -> tuple[Route, ...]:
    names = sorted(found.name for found in pkgutil.iter_modules(routes.__path__))
    modules = [importlib.import_module(f"{routes.__name__}.{name}") for name in names]
    return tuple(route for module in modules for route in getattr(module, "ROUTES", ()))


def _mounts() -> tuple[Mount, ...]:
    modules = [importlib.import_module(name) for name in _MOUNTED if importlib.util.find_spec(name)]
    return tuple(mount for module in modules for mount in module.MOUNTS)


ROUTES: tuple[Route, ...] = _routes()
MOUNTS: tuple[Mount, ...] = _mounts()
