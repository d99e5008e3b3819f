"""Joins an app with a queue manager, which only some processes run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.manager.janitor import KEEP

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.ledger.ledger import Ledger
    from fairlead.manager.manager import Manager

__all__ = ("ledger_of", "manager_of")


def manager_of(app: Fairlead, *, keep: float = KEEP) -> Manager:
    """A manager of the app's broker and ledger, for the running loop.

    ``keep`` is for how many seconds rows are kept whose task has ended.
    """
    from fairlead.manager.manager import Manager

    clients = app._clients
    return Manager(clients.store, clients.ledger, keep=keep, limit=clients.limit)


def ledger_of(app: Fairlead) -> Ledger:
    """The ledger of an app, for the running loop; an error that says how to name it if none is."""
    return app._clients.ledger
