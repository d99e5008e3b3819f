"""The routes below /api/v1, a file for each noun; ``fairlead.api.table`` gathers them."""

from __future__ import annotations

__all__ = ()
