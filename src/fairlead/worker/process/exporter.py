"""The metrics of a worker: what its supervisor sees of all children, added up."""

from __future__ import annotations

from collections import Counter

from fairlead.telemetry.counters import Totals
from fairlead.telemetry.metrics import Exposition, add_counted
from fairlead.worker.process.status import STATES, status_of
from fairlead.worker.process.supervisor import Supervisor


class Exporter:
    """Shows a worker to Prometheus. What children did that have ended is not forgotten."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._totals = Totals()

    def show(self) -> Exposition:
        """The worker at this moment."""
        supervisor, shown = self._supervisor, Exposition()
        past, children = supervisor.ended, supervisor.children
        add_counted(shown, self._totals.of([past.counted, *(child.counted for child in children)]))
        shown.add("fairlead_worker_children_wanted", supervisor.wanted)
        shown.add("fairlead_worker_child_starts_total", past.starts)
        shown.add("fairlead_worker_quiet", supervisor.is_quiet)
        states = [status_of(child) for child in children]
        counted = Counter(status.state for status in states)
        for state in STATES:
            shown.add("fairlead_worker_children", counted[state], state=state)
        shown.add("fairlead_worker_running", sum(status.running for status in states))
        shown.add("fairlead_worker_held", sum(status.held for status in states))
        now = [child.counters for child in children]
        for name in ("unsent", "abandoned"):
            shown.add(f"fairlead_worker_{name}", sum(each[name] for each in now))
        for name in ("settled", "fenced"):
            before = past.counters[name]
            shown.add(f"fairlead_worker_{name}_total", before + sum(each[name] for each in now))
        lag = max((status.lag for status in states), default=0.0)
        shown.add("fairlead_worker_loop_lag_seconds", lag)
        failing = max((status.failing for status in states), default=0.0)
        shown.add("fairlead_worker_broker_failing_seconds", failing)
        return shown
