"""What a process tells of its fallback to those who collect metrics."""

from __future__ import annotations

from fairlead.fallback.fallback import Fallback
from fairlead.telemetry.counters import SpoolFigures

__all__ = ("figures_of",)


def figures_of(fallback: Fallback) -> SpoolFigures:
    """Return how the process stands to its broker, and what it keeps on disk, at this moment."""
    stats = fallback.spool.stats()
    return SpoolFigures(
        state=fallback.state,
        depth=stats.depth,
        bytes=stats.bytes,
        oldest_at=stats.oldest_at,
        rejected=stats.rejected,
        fenced=fallback.outcomes.fenced + fallback.local.ends.fenced,
        local=fallback.local.ran,
    )
