"""The tables, in Markdown, and the same figures as one JSON object."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.catalog import FAIRLEAD
from benchmarks.peers.goals import best, judge
from benchmarks.peers.installation import Installed, Missing
from benchmarks.peers.measures import Figure
from benchmarks.peers.rounds import Cell, Results

__all__ = ("Report", "describe")

_NONE = "-"  # the peer has no such thing, or it failed, which is told below


@dataclass(frozen=True)
class Report:
    """All that is to be shown."""

    results: Results
    figures: Sequence[Figure]
    peers: Sequence[Installed]
    missing: Sequence[Missing]
    machine: dict[str, Any]

    def tables(self) -> str:
        """Return the tables and what there is to say of them."""
        parts = [self._opening(), self._figures(), self._best(), self._goals(), self._notes()]
        return "\n\n".join(part for part in parts if part)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, the figures of each round too."""
        return {
            "machine": self.machine,
            "versions": {each.peer.name: each.version for each in self.peers},
            "missing": {each.peer.name: each.why for each in self.missing},
            "rounds": self.results.rounds,
            "rows": {
                row: {key: _as_dict(self.results.cell(row, key)) for key in found}
                for row, found in self.results.rounds.items()
            },
            "best": [
                {"figure": each.figure.key, "peer": each.peer, "ratio": _as_dict(each.ratio)}
                for each in best(self.results, self.figures)
            ],
            "goals": [
                {
                    "name": each.goal.title,
                    "sign": each.goal.sign,
                    "aim": each.goal.aim,
                    "value": _as_dict(each.found),
                    "verdict": each.verdict,
                }
                for each in judge(self.results, self.figures)
            ],
            "troubles": self.results.troubles,
        }

    def _opening(self) -> str:
        about = self.machine
        return (
            f"{about['date']}, {about['server']}, Python {about['python']}, {about['cpus']} CPUs, "
            f"rounds: {about['rounds']}, load of the machine {about['load_before']:.1f} before and "
            f"{about['load_after']:.1f} after."
        )

    def _figures(self) -> str:
        heads = ("", "version", "slots", *(figure.title for figure in self.figures))
        rows = []
        for each in self.peers:
            same = [row for row in self.results.rounds if _is_of(row, each.peer.name)]
            for row in same or [each.peer.name]:
                title = row.replace(each.peer.name, each.peer.title, 1)
                own = row == each.peer.name
                about = (each.version.split(",")[0].split()[-1], str(each.peer.slots))
                cells = [
                    _shown(self.results.cell(row, figure.key), figure) for figure in self.figures
                ]
                rows.append((title, *(about if own else ("", "")), *cells))
        for gone in self.missing:
            blank = (_NONE,) * len(self.figures)
            rows.append((gone.peer.title, "not here", _NONE, *blank))
        return _table(heads, rows)

    def _best(self) -> str:
        rows = []
        for each in best(self.results, self.figures):
            title = next(one.peer.title for one in self.peers if one.peer.name == each.peer)
            own, other = _shown(each.own, each.figure), _shown(each.cell, each.figure)
            rows.append((each.figure.title, own, f"{title}: {other}", _plain(each.ratio)))
        heads = ("", FAIRLEAD.title, "best peer", "Fairlead / best")
        return _table(heads, rows) if rows else ""

    def _goals(self) -> str:
        gone = {each.peer.name: each.peer.title for each in self.missing}
        rows = []
        for each in judge(self.results, self.figures):
            goal, found = each.goal, "" if each.found is None else _plain(each.found)
            why = f": {gone[goal.other]} is not here" if goal.other in gone else ""
            rows.append((goal.title, found, f"{goal.sign} {goal.aim:g}", f"{each.verdict}{why}"))
        return _table(("goal", "figure", "aim", ""), rows) if rows else ""

    def _notes(self) -> str:
        lines = [
            f"- {each.peer.title}: {each.version}; {each.peer.settings}" for each in self.peers
        ]
        lines += [f"- {each.peer.title} is not here: {each.why}" for each in self.missing]
        lines += [f"- failed: {trouble}" for trouble in self.results.troubles]
        return "\n".join(lines)


def describe(
    *, server: str, rounds: int, date: str, load: tuple[float, float], cpus: int
) -> dict[str, Any]:
    """Return what there is to know of the machine and the run."""
    return {
        "date": date,
        "server": server,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": cpus,
        "rounds": rounds,
        "load_before": load[0],
        "load_after": load[1],
    }


def _is_of(row: str, peer: str) -> bool:
    return row == peer or row.startswith(f"{peer},")


def _shown(cell: Cell | None, figure: Figure) -> str:
    if cell is None:
        return _NONE
    return f"{cell.median:,.{figure.digits}f}{_spread(cell)}"


def _plain(cell: Cell) -> str:
    digits = 0 if cell.median >= 100 else 2
    return f"{cell.median:,.{digits}f}{_spread(cell)}"


def _spread(cell: Cell) -> str:
    return "" if cell.spread is None else f" ±{cell.spread * 100:.0f} %"


def _as_dict(cell: Cell | None) -> dict[str, float | None] | None:
    return None if cell is None else {"median": cell.median, "spread": cell.spread}


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are as wide as what is in them."""
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    padded = [
        [text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines
    ]
    padded.insert(1, ["-" * max(width, 3) for width in widths])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
