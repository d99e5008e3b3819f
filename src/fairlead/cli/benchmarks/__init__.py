"""What ``fairlead bench`` measures. Tests use the same functions."""

from __future__ import annotations

__all__ = ()
