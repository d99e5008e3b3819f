"""Guards of retention and quotas of tenants."""

from __future__ import annotations

from tests.mutants.mutant import Guard

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = ()
