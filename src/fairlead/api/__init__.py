"""The HTTP API: one table of routes, one way in for all of them.

Nothing is imported here: the libraries of the server are optional, and tokens do without them.
"""

from __future__ import annotations

__all__ = ()
