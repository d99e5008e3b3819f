"""Every metric that Fairlead exports: its name, kind, labels and meaning. Nothing else is exported.

``docs/reference/metrics.md`` is checked against this table, and so are the alert rules and the
dashboard in ``deploy/``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: Who exports it. ``broker``: the API, which reads it from the broker; all API processes of one say
#: the same. ``process``: whoever did it, be it an API, a worker or a program; add them up.
#: ``worker``: ``fairlead worker --metrics-port``, for all its child processes together.
Where = Literal["broker", "process", "worker"]

#: What is read for a scrape, each on its own: one that fails leaves the others standing.
PARTS = ("snapshot", "stats", "workers", "tenants", "ledger")


class Metric(NamedTuple):
    """One metric: what it is called and what it means."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    where: Where
    help: str


def _queue_counter(what: str, help: str) -> Metric:
    return Metric(f"fairlead_tasks_{what}_total", "counter", ("queue",), "broker", help)


METRICS: tuple[Metric, ...] = (
    # -- of the broker ---------------------------------------------------------------------------
    Metric("fairlead_broker_up", "gauge", (), "broker", "1 if the broker answered this scrape."),
    Metric(
        "fairlead_scrape_success", "gauge", ("part",), "broker",
        "1 if this part was read; if not, its metrics are left out.",
    ),
    Metric(
        "fairlead_scrape_seconds", "gauge", (), "broker",
        "How long it took to read the broker. A scrape may be answered from one that is 1 s old.",
    ),
    Metric(
        "fairlead_queue_depth", "gauge", ("queue", "state"), "broker",
        "Tasks of a queue by state, finished ones that are still kept among them.",
    ),
    Metric(
        "fairlead_queue_oldest_seconds", "gauge", ("queue",), "broker",
        "For how long the longest-waiting queued task could have run; 0 if none waits. Where more"
        " than 50 tenants wait, of 50 of them.",
    ),
    Metric("fairlead_queue_paused", "gauge", ("queue",), "broker", "1 if the queue is paused."),
    _queue_counter("enqueued", "Tasks that were accepted, whatever became of them."),
    _queue_counter("started", "Attempts that began."),
    _queue_counter("completed", "Tasks that completed."),
    _queue_counter(
        "failed", "Attempts that ended with an error, out of time, or with their process."
    ),
    _queue_counter("retried", "Failed attempts after which the task is tried again."),
    _queue_counter("dead", "Tasks that became dead letters."),
    _queue_counter("cancelled", "Tasks that were cancelled."),
    _queue_counter(
        "fenced", "Outcomes that came too late and changed nothing: another worker had the task."
    ),
    _queue_counter("dropped", "Dead letters that were forgotten early, for want of room."),
    Metric(
        "fairlead_task_wait_seconds", "histogram", ("queue",), "broker",
        "From when a task could run (accepted, due, released) until an attempt began.",
    ),
    Metric(
        "fairlead_task_run_seconds", "histogram", ("queue",), "broker",
        "From the start of an attempt to its outcome, as workers measured it.",
    ),
    Metric(
        "fairlead_task_release_seconds", "histogram", ("queue",), "broker",
        "From the end of the last task that a task depended on until it was queued.",
    ),
    Metric(
        "fairlead_workers", "gauge", ("state",), "broker",
        "Worker processes heard of in the last 15 s: working, quiet (by a signal) or paused (by an"
        " order), which fetch no more, stopping, stopped, or other (of another release).",
    ),
    Metric("fairlead_slots", "gauge", (), "broker", "Tasks that all workers can run at a time."),
    Metric("fairlead_slots_used", "gauge", (), "broker", "Tasks that the workers run now."),
    Metric(
        "fairlead_limiter_used", "gauge", ("limiter",), "broker", "Tasks that run under a limiter."
    ),
    Metric(
        "fairlead_limiter_waiting", "gauge", ("limiter",), "broker",
        "Tenants whose next task waits for room in a limiter, in all queues.",
    ),
    Metric(
        "fairlead_breaker_state", "gauge", ("limiter", "state"), "broker",
        "1 for the state that the breaker of a limiter is in: closed, open or half_open.",
    ),
    Metric(
        "fairlead_breaker_failures", "gauge", ("limiter",), "broker",
        "Failures in a row under a limiter that has a breaker.",
    ),
    Metric(
        "fairlead_fairness_index", "gauge", ("queue",), "broker",
        "Jain's index of the attempts that tenants got for their weights in this hour and the one"
        " before: 1 is fair, 1/n is all to one. Of tenants with tasks queued now, if they are two"
        " or more.",
    ),
    Metric(
        "fairlead_tenants_waiting", "gauge", ("queue",), "broker",
        "Tenants that have tasks queued now, up to 1,000.",
    ),
    Metric(
        "fairlead_tenant_longest_wait_seconds", "gauge", ("rank", "queue", "tenant"), "broker",
        "The longest that a task of a tenant waited in this hour and the one before, of the ten"
        " tenants that waited longest. Which ones is told only if the API was started to tell.",
    ),
    Metric(
        "fairlead_tenant_queued_tasks", "gauge", ("rank", "queue", "tenant"), "broker",
        "Tasks that the same ten tenants have queued now.",
    ),
    Metric(
        "taskqueue_queue_depth", "gauge", ("priority",), "broker",
        "Tasks that are queued, in all queues, by priority: critical, high, normal and low, and"
        " level-4 to level-7 of apps with more than four priorities, if there are any. At most"
        " 10 s old, of up to 1,000 tenants in each of the ten queues with most tasks queued; what"
        " is queued beyond these, or came since, is other. What is due later is not in it.",
    ),
    Metric(
        "taskqueue_active_workers", "gauge", (), "broker",
        "Worker processes heard of in the last 15 s, in whatever state.",
    ),
    Metric("taskqueue_dlq_size", "gauge", (), "broker", "Dead letters in all queues."),
    Metric(
        "fairlead_ledger_due", "gauge", (), "broker",
        "Tasks of the ledger that are due and not sent to the broker yet, counted to 10,000. Left"
        " out, as the next two, without a ledger.",
    ),
    Metric(
        "fairlead_ledger_oldest_seconds", "gauge", (), "broker",
        "For how long the first of them has been due; 0 if none is.",
    ),
    Metric(
        "fairlead_recorder_lag_seconds", "gauge", (), "broker",
        "How old the last event is that the ledger has, of the shard that is furthest behind; 0 if"
        " it has all of them.",
    ),
    # -- of each process -------------------------------------------------------------------------
    Metric("fairlead_build_info", "gauge", ("version",), "process", "1; the release that runs."),
    Metric(
        "fairlead_attempts_total", "counter", ("queue", "task", "outcome"), "process",
        "Attempts that ended in this process: completed, retried, dead, cancelled, snoozed,"
        " released (handed back unharmed) or lost (another worker has the task).",
    ),
    Metric(
        "taskqueue_tasks_submitted_total", "counter", ("type", "priority"), "process",
        "Tasks that this process enqueued and the broker accepted, by task and by priority"
        " (critical, high, normal, low). Duplicates do not count.",
    ),
    Metric(
        "taskqueue_tasks_completed_total", "counter", ("type", "status"), "process",
        "Attempts that ran to an end in this process, by task and by status: completed, failed (it"
        " is tried again), dead_letter or cancelled.",
    ),
    Metric(
        "taskqueue_task_duration_seconds", "histogram", ("type",), "process",
        "How long these attempts ran, by task.",
    ),
    Metric(
        "fairlead_broker_state", "gauge", ("state",), "process",
        "Processes by how they stand to their broker: healthy, suspect (a call failed), spooling"
        " (it is away, tasks are kept on disk) or draining (they are being sent). Left out, as the"
        " next six, without a fallback.",
    ),
    Metric(
        "fairlead_spool_depth", "gauge", (), "process",
        "Tasks and outcomes that are kept on disk until the broker has them.",
    ),
    Metric("fairlead_spool_bytes", "gauge", (), "process", "What they take on disk."),
    Metric(
        "fairlead_spool_oldest_seconds", "gauge", (), "process",
        "How long ago the oldest of them was written; 0 if there is none.",
    ),
    Metric(
        "fairlead_spool_rejected", "gauge", (), "process",
        "Records that the broker refused when they were sent, kept to be looked at with `fairlead"
        " spool list`.",
    ),
    Metric(
        "fairlead_spool_local_total", "counter", (), "process",
        "Tasks that ended in this process while the broker was away, with `fallback=\"local\"`.",
    ),
    Metric(
        "fairlead_outcomes_fenced_total", "counter", (), "process",
        "Outcomes from the spool that came too late and changed nothing: another worker had the"
        " task.",
    ),
    # -- of a worker -----------------------------------------------------------------------------
    Metric(
        "fairlead_worker_children", "gauge", ("state",), "worker",
        "Child processes: starting, working, failing (no answer from the broker), hanging (the loop"
        " stands still) or silent (it does not fetch).",
    ),
    Metric(
        "fairlead_worker_children_wanted", "gauge", (), "worker", "Child processes there should be."
    ),
    Metric(
        "fairlead_worker_child_starts_total", "counter", (), "worker",
        "Child processes that were started, the first ones and those that took a place.",
    ),
    Metric("fairlead_worker_quiet", "gauge", (), "worker", "1 if the worker fetches no more."),
    Metric("fairlead_worker_running", "gauge", (), "worker", "Attempts that run now."),
    Metric("fairlead_worker_held", "gauge", (), "worker", "Tasks that were lent and not started."),
    Metric(
        "fairlead_worker_unsent", "gauge", (), "worker",
        "Outcomes that the broker has not answered for.",
    ),
    Metric(
        "fairlead_worker_abandoned", "gauge", (), "worker",
        "Handlers that go on although they were told to end.",
    ),
    Metric(
        "fairlead_worker_settled_total", "counter", (), "worker",
        "Outcomes that the broker applied.",
    ),
    Metric(
        "fairlead_worker_fenced_total", "counter", (), "worker",
        "Outcomes that did not count: another worker had the task.",
    ),
    Metric(
        "fairlead_worker_loop_lag_seconds", "gauge", (), "worker",
        "How late the event loop last came round, in the slowest child.",
    ),
    Metric(
        "fairlead_worker_broker_failing_seconds", "gauge", (), "worker",
        "For how long the broker has not answered the child that is cut off longest; 0: it does.",
    ),
)  # fmt: skip
