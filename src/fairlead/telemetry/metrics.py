"""Metrics for Prometheus: figures put under their names, and the text that is scraped.

``export(app)`` is for programs with a metrics endpoint of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

from fairlead.model.message import LEVEL_NAMES
from fairlead.model.outage import BrokerState
from fairlead.telemetry.counters import OTHER, RUN_BUCKETS, Counted, Counters
from fairlead.telemetry.metrics_table import METRICS, Metric
from fairlead.telemetry.optional_packages import needed

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

#: How an attempt can end, and its ``status``; those without one ran to no end.
OUTCOMES: Mapping[str, str] = {
    "completed": "completed",
    "retried": "failed",
    "dead": "dead_letter",
    "cancelled": "cancelled",
    "snoozed": "",
    "released": "",
    "lost": "",
}

BROKER_STATES: tuple[str, ...] = get_args(BrokerState)

_BY_NAME = {metric.name: metric for metric in METRICS}


class Labels:
    """Which names are told apart: the first so many, for as long as they are there."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """The label of each of these names, which are all that there are now.

        A name keeps its label for as long as it is there: a counter must not move from one row to
        another. What is beyond the bound is ``other``.
        """
        there = sorted(names)
        self._known.intersection_update(there)
        for name in there:
            if len(self._known) >= self._most:
                break
            self._known.add(name)
        return {name: name if name in self._known else OTHER for name in there}


class Exposition:
    """What one scrape shows. Rows of the same name and labels become one."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], tuple[list[int], float]]] = {}
        self._ends: dict[str, Sequence[float]] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        """Show a counter or a gauge; several rows are added up."""
        rows = self._values.setdefault(name, {})
        key = _key(_BY_NAME[name], labels)
        rows[key] = rows.get(key, 0) + value

    def largest(self, name: str, value: float, **labels: str) -> None:
        """Show a gauge that cannot be added up: of several rows the largest."""
        rows = self._values.setdefault(name, {})
        key = _key(_BY_NAME[name], labels)
        rows[key] = max(rows.get(key, value), value)

    def histogram(
        self, name: str, ends: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """Show a histogram: how many fell into each bucket and above them, and their sum."""
        rows = self._histograms.setdefault(name, {})
        key = _key(_BY_NAME[name], labels)
        before, seconds = rows.get(key, ([0] * len(counts), 0.0))
        added = [a + b for a, b in zip(before, counts, strict=True)]
        rows[key] = (added, seconds + total)
        self._ends[name] = ends

    def collect(self) -> Iterator[Any]:
        """The families of prometheus-client, in the order of the table."""
        with needed("prometheus-client", "server"):
            from prometheus_client.core import (
                CounterMetricFamily,
                GaugeMetricFamily,
                HistogramMetricFamily,
            )
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for metric in METRICS:
            if metric.name in self._values:
                family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
                for key, value in self._values[metric.name].items():
                    family.add_metric(key, value)
                yield family
            elif metric.name in self._histograms:
                shown = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for key, (counts, total) in self._histograms[metric.name].items():
                    shown.add_metric(key, _buckets(self._ends[metric.name], counts), total)
                yield shown


def text_of(accept: str, *shown: Exposition) -> tuple[bytes, str]:
    """The text that Prometheus reads, in the format that it asks for, and its content type.

    Of several expositions each must show metrics of its own.
    """
    with needed("prometheus-client", "server"):
        from prometheus_client.exposition import choose_encoder
    encode, kind = choose_encoder(accept)
    return encode(cast("Any", _Joined(shown))), kind


def add_counted(exposition: Exposition, counted: Counted) -> None:
    """Show what a process, or several together, enqueued and ran."""
    from importlib.metadata import version  # here: it takes long to load

    exposition.add("fairlead_build_info", 1, version=version("fairlead"))
    for (task, level), count in counted.submitted.items():
        priority = LEVEL_NAMES[level] if level < len(LEVEL_NAMES) else OTHER
        exposition.add("taskqueue_tasks_submitted_total", count, type=task, priority=priority)
    for (queue, task, outcome), count in counted.attempts.items():
        exposition.add("fairlead_attempts_total", count, queue=queue, task=task, outcome=outcome)
        if status := OUTCOMES.get(outcome, ""):
            exposition.add("taskqueue_tasks_completed_total", count, type=task, status=status)
    for task, counts in counted.runs.items():
        exposition.histogram(
            "taskqueue_task_duration_seconds", RUN_BUCKETS, counts, counted.seconds[task], type=task
        )
    _add_spools(exposition, counted)
    if counted.spools or counted.fenced:
        exposition.add("fairlead_outcomes_fenced_total", counted.fenced)


def _add_spools(exposition: Exposition, counted: Counted) -> None:
    """Show how the processes that have a fallback stand to their broker; without any, nothing."""
    if not counted.spools:
        return
    now = time.time()
    for state in BROKER_STATES:
        standing = sum(each.state == state for each in counted.spools)
        exposition.add("fairlead_broker_state", standing, state=state)
    for each in counted.spools:
        exposition.add("fairlead_spool_depth", each.depth)
        exposition.add("fairlead_spool_bytes", each.bytes)
        age = 0.0 if each.oldest_at is None else max(now - each.oldest_at, 0.0)
        exposition.largest("fairlead_spool_oldest_seconds", age)
        exposition.add("fairlead_spool_rejected", each.rejected)
        exposition.add("fairlead_spool_local_total", each.local)


class Counting(Protocol):
    """An app: it counts what it enqueues and runs in this process, if it is asked to."""

    @property
    def counters(self) -> Counters: ...


def export(app: Counting, registry: CollectorRegistry | None = None) -> None:
    """Have an app count what it enqueues and runs in this process, and show it to Prometheus.

    ``registry`` is one of prometheus-client, without it the default one. So the program's own
    endpoint shows it, or that of ``prometheus_client.start_http_server``. What happened before
    the call was not counted. A second call for the same registry is refused by prometheus-client.
    """
    with needed("prometheus-client", "server"):
        from prometheus_client import REGISTRY
    app.counters.begin()
    (REGISTRY if registry is None else registry).register(cast("Any", _Collector(app.counters)))


class _Joined:
    """Several expositions, as prometheus-client asks for them."""

    def __init__(self, shown: Sequence[Exposition]) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Any]:
        """The families of all."""
        return chain.from_iterable(each.collect() for each in self._shown)


class _Collector:
    """What an app counted, as prometheus-client asks for it."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Any]:
        """The figures of this moment."""
        exposition = Exposition()
        add_counted(exposition, self._counters.counted())
        return exposition.collect()

    def describe(self) -> Iterator[Any]:
        """The names only, so that a registry notices when something has them already."""
        with needed("prometheus-client", "server"):
            from prometheus_client.core import Metric as Family
        for metric in METRICS:
            if metric.where == "process":
                yield Family(metric.name.removesuffix("_total"), metric.help, metric.kind)


def _key(metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
    if tuple(labels) != metric.labels:
        raise ValueError(f"{metric.name} has labels {metric.labels}, not {tuple(labels)}")
    return tuple(labels.values())


def _buckets(ends: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Each bucket with all below it, as Prometheus counts; the last one holds all."""
    names = [*(repr(float(end)) for end in ends), "+Inf"]
    return [(name, float(below)) for name, below in zip(names, accumulate(counts), strict=True)]
