"""Take every figure in every round, peer after peer, so that a noisy moment meets all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.peers.catalog import FAIRLEAD
from benchmarks.peers.installation import Installed
from benchmarks.peers.measures import Measure, Sizes, spread
from benchmarks.peers.processes import Failure, Processes
from benchmarks.peers.server import Server
from benchmarks.peers.trial import Trial

__all__ = ("Cell", "Results", "measure", "row_name")


class Cell(NamedTuple):
    """A figure over all rounds."""

    median: float
    spread: float | None  # as a part of the median; None for a single round


class Results:
    """Figures by row, by what they measure and by round; a round may lack one."""

    def __init__(self) -> None:
        self.rounds: dict[str, dict[str, list[float | None]]] = {}
        self.troubles: list[str] = []

    def add(self, row: str, key: str, value: float | None) -> None:
        """Add the figure of the next round."""
        self.rounds.setdefault(row, {}).setdefault(key, []).append(value)

    def cell(self, row: str, key: str) -> Cell | None:
        """Return a figure, None if no round has it."""
        return _cell(self.rounds.get(row, {}).get(key, []))

    def ratio(self, row: str, key: str, other: str, other_key: str | None = None) -> Cell | None:
        """Return how many times the other's figure it is, each to that of its own round."""
        mine = self.rounds.get(row, {}).get(key, [])
        theirs = self.rounds.get(other, {}).get(other_key or key, [])
        pairs = zip(mine, theirs, strict=False)
        return _cell([None if one is None or not two else one / two for one, two in pairs])


def measure(
    peers: Sequence[Installed],
    measures: Sequence[Measure],
    sizes: Sizes,
    server: Server,
    processes: Processes,
    say: Callable[[str], None],
) -> Results:
    """Measure all; what fails is told of, and leaves its figure out."""
    results = Results()
    for number in range(sizes.rounds):
        # Another peer begins in each round: none is always measured after the same other.
        turn = number % len(peers)
        for each in measures:
            for installed in [*peers[turn:], *peers[:turn]]:
                if not each.applies_to(installed.peer):
                    continue
                more = each.tenants if installed.peer is FAIRLEAD else ()
                for tenants in (1, *more):
                    row = row_name(installed.peer.name, tenants)
                    say(f"round {number + 1} of {sizes.rounds}: {each.name}, {row}")
                    _take(installed, each, sizes, server, processes, tenants, results)
    return results


def row_name(peer: str, tenants: int = 1) -> str:
    """Return the name of a row: that of the peer, and how many tenants there are if many."""
    return peer if tenants == 1 else f"{peer}, {tenants:,} tenants"


def _take(
    installed: Installed,
    measure: Measure,
    sizes: Sizes,
    server: Server,
    processes: Processes,
    tenants: int,
    results: Results,
) -> None:
    row = row_name(installed.peer.name, tenants)
    try:
        with Trial(installed, server, processes, tenants=tenants) as trial:
            values: Sequence[float | None] = measure.take(trial, sizes)
    except Failure as failure:
        values = [None] * len(measure.figures)
        results.troubles.append(f"{row}, {measure.name}: {failure}")
    for figure, value in zip(measure.figures, values, strict=True):
        results.add(row, figure.key, value)


def _cell(values: Sequence[float | None]) -> Cell | None:
    found = [value for value in values if value is not None]
    if not found:
        return None
    return Cell(statistics.median(found), spread(found) if len(found) > 1 else None)
