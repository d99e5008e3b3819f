"""While the broker is away: tasks and outcomes are kept in a spool, and sent when it is back.

Joins ``fairlead.broker`` and ``fairlead.spool``. What is decided is decided in
``fairlead.model.outage``.
"""

from fairlead.fallback.fallback import Fallback, FallbackOptions
from fairlead.fallback.local import Finished, Handlers, MakeHandlers
from fairlead.fallback.outcomes import Outcomes
from fairlead.fallback.submitter import Submitter

__all__ = (
    "Fallback",
    "FallbackOptions",
    "Finished",
    "Handlers",
    "MakeHandlers",
    "Outcomes",
    "Submitter",
)
