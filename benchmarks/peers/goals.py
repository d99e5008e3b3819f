"""What Fairlead is meant to reach beside its peers, and whether it did in this run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.peers.catalog import FAIRLEAD
from benchmarks.peers.measures import Figure
from benchmarks.peers.rounds import Cell, Results, row_name

__all__ = ("GOALS", "Best", "Goal", "Judged", "best", "judge")

_OWN = FAIRLEAD.name


@dataclass(frozen=True)
class Goal:
    """A figure of a row of Fairlead, alone or as a multiple of another."""

    title: str
    key: str
    sign: Literal["≥", ">", "≤", "<"]
    aim: float
    other: str | None = None  # row
    row: str = _OWN
    other_key: str | None = None  # if it is another figure

    def holds(self, value: float) -> bool:
        """Whether a value is good enough."""
        return {
            "≥": value >= self.aim,
            ">": value > self.aim,
            "≤": value <= self.aim,
            "<": value < self.aim,
        }[self.sign]


GOALS = (
    Goal("processing, as a multiple of BullMQ", "processing", "≥", 5.0, "bullmq"),
    Goal("1,000 tenants, as a part of one", "processing", "≥", 0.6, _OWN, row_name(_OWN, 1_000)),
    Goal("10,000 tenants, as a part of one", "processing", "≥", 0.6, _OWN, row_name(_OWN, 10_000)),
    Goal("2 processes, as a multiple of 1", "processing-2", ">", 1.0, _OWN, other_key="processing"),
    Goal("idle latency p50, as a part of Sidekiq's", "p50", "<", 1.0, "sidekiq"),
    Goal("idle latency p99, as a part of Sidekiq's", "p99", "<", 1.0, "sidekiq"),
    Goal("one by one, sync, as a multiple of Sidekiq", "sync", ">", 1.0, "sidekiq"),
    Goal("50 callers, as a multiple of BullMQ", "callers", "≥", 4.0, "bullmq"),
    Goal("bulk, as a multiple of Sidekiq", "bulk", "≥", 1.5, "sidekiq"),
    Goal("bytes of a waiting task", "bytes", "≤", 320.0),
)


@dataclass(frozen=True)
class Judged:
    """A goal and what became of it; without a figure it was not measured."""

    goal: Goal
    found: Cell | None

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.found is None:
            return "not measured"
        return "met" if self.goal.holds(self.found.median) else "missed"


@dataclass(frozen=True)
class Best:
    """Fairlead beside the peer that is best in a figure."""

    figure: Figure
    own: Cell
    peer: str
    cell: Cell
    ratio: Cell


def judge(results: Results, figures: Sequence[Figure]) -> list[Judged]:
    """Return every goal of what was to be measured, with its figure."""
    judged = []
    keys = {figure.key for figure in figures}
    for goal in GOALS:
        if goal.key not in keys or (goal.other_key or goal.key) not in keys:
            continue
        if goal.other is None:
            found = results.cell(goal.row, goal.key)
        else:
            found = results.ratio(goal.row, goal.key, goal.other, goal.other_key)
        judged.append(Judged(goal, found))
    return judged


def best(results: Results, figures: Sequence[Figure]) -> list[Best]:
    """Return Fairlead beside the best peer in each figure that both have."""
    found = []
    for figure in figures:
        own = results.cell(_OWN, figure.key)
        cells = {
            row: cell
            for row in results.rounds
            if not row.startswith(_OWN) and (cell := results.cell(row, figure.key)) is not None
        }
        if own is None or not cells:
            continue
        choose = min if figure.less_is_better else max
        peer = choose(cells, key=lambda row: cells[row].median)
        ratio = results.ratio(_OWN, figure.key, peer)
        if ratio is not None:
            found.append(Best(figure, own, peer, cells[peer], ratio))
    return found
