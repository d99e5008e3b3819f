"""What runs right now, for log lines: whoever runs something says so here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Told(Protocol):
    """Something that runs and can say what it is."""

    def fields(self) -> dict[str, object]:
        """What every line says that is logged meanwhile."""
        ...


#: Set while an attempt runs, in its task or its thread.
running: ContextVar[Told | None] = ContextVar("fairlead_context", default=None)
