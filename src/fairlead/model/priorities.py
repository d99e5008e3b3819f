"""What an app calls its priorities, and the level that each of them stands for."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from fairlead.model.errors import InvalidOption, UnknownPriority
from fairlead.model.message import LEVEL_NAMES, LEVELS

Priority = str | int

#: What each level is called whatever the app calls it, by its number: for those who read its level
#: somewhere and know nothing of its labels.
LEVEL_LABELS = tuple(f"level-{level}" for level in range(len(LEVEL_NAMES)))

_NORMAL = LEVELS.index("normal")

#: By how many different numbers there are, the levels that are taken if no label decides.
_USUAL = {1: (2,), 2: (1, 3), 3: (1, 2, 3), 4: (0, 1, 2, 3)}


class Priorities:
    """The names and numbers of priorities, each mapped onto one of eight levels.

    ``names`` says for each further name or number which of critical, high, normal and low it stands
    for; or it gives each label a number, and the smaller goes first. Raises ``InvalidOption`` for
    anything else, and for more than eight different numbers.
    """

    def __init__(self, names: Mapping[Any, str | int] | None = None) -> None:
        said: dict[Priority, object] = {**(names or {})}  # labels are names or numbers
        self._shown = list(LEVEL_NAMES)
        self._known: dict[Priority, int] = {name: level for level, name in enumerate(LEVELS)}
        self.default = _NORMAL  # of tasks that say nothing
        for name in said:
            if name in LEVEL_LABELS:
                rule = "another name: this one stands for a level in every app"
                raise InvalidOption(f"priorities[{name!r}]", said[name], rule)
        if any(type(value) is int for value in said.values()):
            self._number(said)
            return
        for name, level in said.items():
            if level not in LEVELS:
                rule = f"one of {', '.join(LEVELS)}, or a whole number for each of them"
                raise InvalidOption(f"priorities[{name!r}]", level, rule)
            self._known[name] = LEVELS.index(str(level))

    def _number(self, numbers: dict[Priority, object]) -> None:
        found = levels_of(numbers)
        levels = sorted(set(found.values()))
        if len(levels) > len(LEVELS):  # the four names would stand between the labels
            self._known = {}
            self.default = levels[len(levels) // 2]
        self._known |= found
        self.default = self._known.get("normal", self.default)
        for label in reversed(numbers):  # of several that share a level, the first is shown
            self._shown[found[label]] = str(label)

    def level(self, priority: object) -> int:
        """Return the level of a name or number; raise ``UnknownPriority`` for another."""
        if isinstance(priority, str | int) and not isinstance(priority, bool):
            level = self._known.get(priority)
            if level is not None:
                return level
            if priority in LEVEL_LABELS:
                return LEVEL_LABELS.index(str(priority))
        raise UnknownPriority(priority, tuple(self._known))

    def name(self, level: int) -> str:
        """Return what the app calls a level: its label, else the name that the level has."""
        return self._shown[level]


#: The priorities of an app that names none, and of those who know no app.
DEFAULT = Priorities()


def levels_of(numbers: object) -> dict[Priority, int]:
    """Return the level of each label and of each number: the smaller, the earlier.

    Labels of one number share a level. Up to four numbers take the first four levels; labels that
    are names of these keep theirs, as far as the order allows. Raises ``InvalidOption`` for more
    different numbers than levels.
    """
    if not isinstance(numbers, Mapping):
        raise InvalidOption("priorities", numbers, "a number for each label")
    for label, number in numbers.items():
        if not isinstance(label, str):
            rule = "a text, where priorities have numbers, as in {'p1': 1, 'p2': 2}"
            raise InvalidOption("label", label, rule)
        if type(number) is not int:
            raise InvalidOption(f"priorities[{label!r}]", number, "a whole number for a label")
    ranks = sorted(set(numbers.values()))
    if not ranks:
        return {}
    if len(ranks) > len(LEVEL_NAMES):
        rule = (
            f"at most {len(LEVEL_NAMES)} different numbers: "
            "give labels that may share a level the same number"
        )
        raise InvalidOption("priorities", f"{len(ranks)} different numbers", rule)
    most = len(LEVELS) if len(ranks) <= len(LEVELS) else len(LEVEL_NAMES)
    # What is critical starves the rest, so it takes as many numbers as levels, or the name itself.
    first = 0 if len(ranks) == most or LEVELS[0] in numbers else 1
    usual = _USUAL.get(len(ranks), tuple(range(first, first + len(ranks))))

    def fit(levels: tuple[int, ...]) -> tuple[int, bool]:
        at = dict(zip(ranks, levels, strict=True))
        kept = sum(LEVEL_NAMES[at[number]] == label for label, number in numbers.items())
        return kept, levels == usual

    best = max(combinations(range(first, most), len(ranks)), key=fit)
    level = dict(zip(ranks, best, strict=True))
    return {**level, **{label: level[number] for label, number in numbers.items()}}
