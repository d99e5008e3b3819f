"""The HTTP API and the queue manager of an app, whose libraries not every program has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput
from fairlead.model.options import seconds

if TYPE_CHECKING:
    from fairlead.api.http.server import Server
    from fairlead.api.settings import ApiSettings
    from fairlead.app.facade import Fairlead
    from fairlead.ledger.ledger import Ledger
    from fairlead.manager.manager import Manager


def asgi(app: Fairlead, settings: ApiSettings | None = None) -> Server:
    """Return the HTTP API of this app, to be mounted into an ASGI application or run by a server.

    Needs ``pip install "fairlead[server]"``.

    Args:
        settings: Who is let in. Default: only callers with tokens that use a name of this machine.
    """
    try:
        from fairlead.api.http.server import Server
        from fairlead.api.known_tasks import KnownTasks
        from fairlead.api.service import Service
    except ModuleNotFoundError as error:
        raise missing_extra("server", error) from None
    clients = app._clients
    kinds = KnownTasks(app._registry, app._priorities, clients.codecs)
    return Server(Service(clients, settings, kinds))


def manager(app: Fairlead, *, keep: Duration = "30d") -> Manager:
    """Return a queue manager: ``async with app.manager(): ...``. Needs a ledger.

    As with ``fairlead manager`` there may be several: one leads.

    Args:
        keep: How long rows are kept after their task has ended, a duration. Default: "30d".
    """
    from fairlead.manager.manager import Manager

    clients, kept = app._clients, seconds("keep", keep, least=60.0)
    return Manager(clients.store, clients.ledger, keep=kept, limit=clients.limit)


def ledger_of(app: Fairlead) -> Ledger:
    """Return the ledger of an app, for the running loop; an app without one raises InvalidInput."""
    return app._clients.ledger


def missing_extra(extra: str, error: ModuleNotFoundError) -> Exception:
    """Return the error to raise: which library is missing, and how to install it."""
    name = (error.name or "").partition(".")[0]
    if name == "fairlead":
        return error
    return InvalidInput(f'{name} is not installed; install it: pip install "fairlead[{extra}]"')
