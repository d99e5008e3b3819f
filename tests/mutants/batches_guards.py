"""Guards of budgets of calls in bytes and steps."""

from __future__ import annotations

from tests.mutants.mutant import Guard

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = ()
