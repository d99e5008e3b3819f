"""Letters of several shards under one row of numbers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from fairlead.broker.requests import Mail

_MOST = 1_000  # incarnations whose letters are numbered here


class Box:
    """The letters of one incarnation, numbered anew: each shard has numbers of its own."""

    def __init__(self) -> None:
        self._last = 0
        self._numbers: dict[tuple[str, int], int] = {}  # (shard, its number) -> ours, unconfirmed
        self._confirmed: dict[str, int] = {}  # by shard: its last number that was confirmed

    def confirm(self, after: int) -> None:
        """Take note that letters up to this number of ours were read."""
        for (shard, number), ours in list(self._numbers.items()):
            if ours <= after:
                del self._numbers[shard, number]
                self._confirmed[shard] = max(number, self._confirmed.get(shard, 0))

    def after(self, shard: str) -> int:
        return self._confirmed.get(shard, 0)

    def number(self, shard: str, letters: Sequence[Mail]) -> list[Mail]:
        """The letters with our numbers; one that comes again has the one it had."""
        found = []
        for letter in letters:
            key = shard, letter.number
            if key not in self._numbers:
                self._last += 1
                self._numbers[key] = self._last
            found.append(msgspec.structs.replace(letter, number=self._numbers[key]))
        return sorted(found, key=lambda letter: letter.number)


class Mailboxes:
    """The boxes of those who asked last."""

    def __init__(self) -> None:
        self._boxes: dict[str, Box] = {}
        self._lock = threading.Lock()  # loops of several threads may ask

    def of(self, incarnation: str) -> Box:
        """Return the box of an incarnation; that of the one who has not asked longest may go."""
        with self._lock:
            box = self._boxes[incarnation] = self._boxes.pop(incarnation, Box())
            while len(self._boxes) > _MOST:
                del self._boxes[next(iter(self._boxes))]
        return box
