"""Joins an app with a queue manager, which only some processes run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.model.durations import Duration
from fairlead.model.options import seconds

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.ledger.ledger import Ledger
    from fairlead.manager.manager import Manager

__all__ = ("ledger_of", "manager_of")


def manager_of(app: Fairlead, keep: Duration) -> Manager:
    """A manager of the app's broker and ledger, for the running loop; see ``Fairlead.manager``."""
    from fairlead.manager.manager import Manager

    clients, kept = app._clients, seconds("keep", keep, least=60.0)
    return Manager(clients.store, clients.ledger, keep=kept, limit=clients.limit)


def ledger_of(app: Fairlead) -> Ledger:
    """The ledger of an app, for the running loop; an error that says how to name it if none is."""
    return app._clients.ledger
