"""Servers that come with Fairlead and start by themselves: ``valkey`` and ``postgres``."""

from __future__ import annotations

__all__ = ()
