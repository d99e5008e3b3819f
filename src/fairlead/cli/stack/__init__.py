"""What ``fairlead up`` runs: servers in a folder, and processes that end when it does."""

from __future__ import annotations

__all__ = ()
