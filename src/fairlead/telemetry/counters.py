"""What one process has enqueued and run, counted by name for whoever collects metrics.

Nothing is counted until somebody asks for it. There is no telling who chooses the names, so only so
many are told apart: what comes after them is counted under ``other``.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable

import msgspec

MAX_TASKS = 200  # names of tasks that are told apart
MAX_QUEUES = 50
MAX_ROWS = 2_000  # rows by queue, task and outcome
OTHER = "other"

#: Upper ends of the buckets of run times, in seconds; the last bucket has none.
RUN_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0
)  # fmt: skip


class SpoolFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How one process stands to its broker, and what it keeps on disk for it."""

    state: str = "healthy"  # healthy, suspect, spooling or draining
    depth: int = 0  # tasks and outcomes
    bytes: int = 0
    oldest_at: float | None = None  # unix seconds
    rejected: int = 0  # records that the broker refused when they were sent
    fenced: int = 0  # outcomes that came too late, since the process began
    local: int = 0  # tasks that ran in it while the broker was away, since it began


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Figures since a process began; a later one of the same process is never less."""

    submitted: dict[tuple[str, int], int] = {}  # by task and level
    attempts: dict[tuple[str, str, str], int] = {}  # by queue, task and outcome
    runs: dict[str, list[int]] = {}  # by task: how many fell into each bucket and above them
    seconds: dict[str, float] = {}  # by task: all runs together
    fenced: int = 0  # outcomes of the spool that came too late
    spools: tuple[SpoolFigures, ...] = ()  # of each process with a fallback, at this moment


class Counters:
    """Counts for one app in one process. May be used from any thread."""

    def __init__(self) -> None:
        self.on = False
        self._spool: Callable[[], SpoolFigures] | None = None
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._tasks: set[str] = set()
        self._queues: set[str] = set()
        self._submitted: dict[tuple[str, int], int] = {}
        self._attempts: dict[tuple[str, str, str], int] = {}
        self._runs: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def begin(self) -> None:
        """Count from now on."""
        self.on = True

    def observe_spool(self, figures: Callable[[], SpoolFigures]) -> None:
        """Show what this returns beside what is counted."""
        self._spool = figures

    def renew(self) -> None:
        """Count from zero, in a forked child: what the parent did, the parent tells."""
        self._renew()

    def submitted(self, accepted: Iterable[tuple[str, int]]) -> None:
        """Tasks were accepted: the name and the level of each."""
        with self._lock:
            for task, level in accepted:
                key = (_one_of(self._tasks, task, MAX_TASKS), level)
                self._submitted[key] = self._submitted.get(key, 0) + 1

    def attempted(self, queue: str, task: str, outcome: str, seconds: float | None) -> None:
        """An attempt ended; ``seconds`` is None if no handler ran to an end that counts."""
        with self._lock:
            name = _one_of(self._tasks, task, MAX_TASKS)
            key = (_one_of(self._queues, queue, MAX_QUEUES), name, outcome)
            if key not in self._attempts and len(self._attempts) >= MAX_ROWS:
                key = (OTHER, OTHER, outcome)
            self._attempts[key] = self._attempts.get(key, 0) + 1
            if seconds is not None:
                runs = self._runs.get(name)
                if runs is None:
                    runs = self._runs[name] = [0] * (len(RUN_BUCKETS) + 1)
                runs[bisect_left(RUN_BUCKETS, seconds)] += 1
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def counted(self) -> Counted:
        """All of it at this moment."""
        spools = () if self._spool is None else (self._spool(),)
        with self._lock:
            return Counted(
                fenced=sum(each.fenced for each in spools),
                spools=spools,
                submitted=dict(self._submitted),
                attempts=dict(self._attempts),
                runs={name: list(counts) for name, counts in self._runs.items()},
                seconds=dict(self._seconds),
            )


class Totals:
    """Adds up what several processes counted, within the same bounds.

    It remembers which names it tells apart, so that no row becomes part of another later.
    """

    def __init__(self) -> None:
        self._tasks: set[str] = set()
        self._queues: set[str] = set()
        self._rows: set[tuple[str, str, str]] = set()

    def of(self, parts: Iterable[Counted]) -> Counted:
        """The sum of these; the spools of all of them."""
        submitted: dict[tuple[str, int], int] = {}
        attempts: dict[tuple[str, str, str], int] = {}
        runs: dict[str, list[int]] = {}
        seconds: dict[str, float] = {}
        fenced, spools = 0, list[SpoolFigures]()
        for part in parts:
            fenced += part.fenced
            spools += part.spools
            for (task, level), count in part.submitted.items():
                name = _one_of(self._tasks, task, MAX_TASKS)
                submitted[name, level] = submitted.get((name, level), 0) + count
            for (queue, task, outcome), count in part.attempts.items():
                row = self._row(queue, task, outcome)
                attempts[row] = attempts.get(row, 0) + count
            for task, counts in part.runs.items():
                name = _one_of(self._tasks, task, MAX_TASKS)
                before = runs.get(name, [0] * len(counts))
                runs[name] = [a + b for a, b in zip(before, counts, strict=True)]
                seconds[name] = seconds.get(name, 0.0) + part.seconds.get(task, 0.0)
        return Counted(
            submitted=submitted,
            attempts=attempts,
            runs=runs,
            seconds=seconds,
            fenced=fenced,
            spools=tuple(spools),
        )

    def _row(self, queue: str, task: str, outcome: str) -> tuple[str, str, str]:
        row = (
            _one_of(self._queues, queue, MAX_QUEUES),
            _one_of(self._tasks, task, MAX_TASKS),
            outcome,
        )
        if row not in self._rows:
            if len(self._rows) >= MAX_ROWS:
                return (OTHER, OTHER, outcome)
            self._rows.add(row)
        return row


def _one_of(known: set[str], name: str, most: int) -> str:
    """The name itself as long as there is room for it: a row never changes its name again."""
    if name in known:
        return name
    if len(known) >= most:
        return OTHER
    known.add(name)
    return name
