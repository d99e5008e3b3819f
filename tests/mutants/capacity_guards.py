"""Guards of what a worker may lease and for how long."""

from __future__ import annotations

from tests.mutants.mutant import Guard

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = ()
