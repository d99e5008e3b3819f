"""Guards of time, numbering and what was declared."""

from __future__ import annotations

from tests.mutants.mutant import Guard

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = ()
