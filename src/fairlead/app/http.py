"""Joins an app with the HTTP API, whose libraries not every program has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.app.missing import missing_extra
from fairlead.client import Clients
from fairlead.model.options import Priorities
from fairlead.model.registry import Registry

if TYPE_CHECKING:
    from fairlead.api.server import Server
    from fairlead.api.settings import ApiSettings

__all__ = ("asgi_of",)


def asgi_of(
    clients: Clients, registry: Registry, priorities: Priorities, settings: ApiSettings | None
) -> Server:
    """The API of an app; an error that says what to install where something is missing."""
    try:
        from fairlead.api.kinds import Kinds
        from fairlead.api.server import Server
        from fairlead.api.service import Service
    except ModuleNotFoundError as error:
        raise missing_extra("server", error) from None
    return Server(Service(clients, settings, Kinds(registry, priorities)))
