"""Guards of the embedded server and the choice of a broker."""

from __future__ import annotations

from tests.mutants.mutant import Guard

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = ()
