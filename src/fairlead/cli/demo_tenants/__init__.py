"""The tenants of ``fairlead up --demo``: an app with tasks of all kinds, and who enqueues them."""

from __future__ import annotations

__all__ = ()
