"""While the broker is away: tasks and outcomes are kept in a spool, and sent when it is back.

Joins ``fairlead.broker`` and ``fairlead.spool``; ``fallback`` puts the parts together. What is
decided is decided in ``fairlead.model.outage``.
"""

from __future__ import annotations

__all__ = ()
