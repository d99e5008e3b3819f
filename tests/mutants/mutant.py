"""What a mutant is: a guard of the product, where it stands and how it is taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

__all__ = (
    "LUA",
    "MACHINE",
    "MEMORY",
    "SUITE",
    "Guard",
    "Mutant",
    "lua",
    "memory",
    "mutants",
    "quarter",
)

MEMORY = "fairlead/broker/memory/"
LUA = "fairlead/broker/redis/lua/"
SUITE = "tests/broker/conformance/"
MACHINE = "tests/broker/test_machine.py::"  # both brokers side by side: without a parameter


class Mutant(NamedTuple):
    """One place from which a guard is taken out."""

    file: str  # below src
    edits: tuple[tuple[str, str], ...]  # old, new
    where: str = ""  # the broker; its name in the named test's parameters
    test: str = ""  # node id, if another one than the guard's


class Guard(NamedTuple):
    """One guard of the product and the test that stands for it."""

    name: str
    protects: str
    test: str  # node id; where it has other parameters than the broker, * stands for the broker
    mutants: tuple[Mutant, ...]


def memory(file: str, *edits: tuple[str, str]) -> Mutant:
    """A guard of the memory broker."""
    return Mutant(file if "/" in file else MEMORY + file, edits, "memory")


def lua(file: str, *edits: tuple[str, str], test: str = "") -> Mutant:
    """The same guard in the scripts, of which the tests notice it on Valkey."""
    return Mutant(LUA + file, edits, "valkey", test)


def mutants(guard: Guard) -> list[tuple[Mutant, str]]:
    """Each with the node id of the test that must turn red."""
    found = []
    for mutant in guard.mutants:
        test = mutant.test or guard.test
        if "[" not in test and test.startswith(SUITE):
            test += "[*]"
        found.append((mutant, test.replace("*", mutant.where)))
    return found


def quarter(guards: Sequence[Guard], commit: str) -> list[Guard]:
    """The guards that are tried for a commit."""
    turn = int(commit, 16) % 4
    return [guard for guard in guards if crc32(guard.name.encode()) % 4 == turn]
