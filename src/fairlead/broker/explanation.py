"""Why a task is not running: all that keeps it, in sentences that somebody can act on. Pure.

Reasons come with the most decisive one first. An estimate is given only where there is a ground for
it: a moment that is known (a due time, a token of a rate, the end of a cooldown), or the place in
the order divided by the attempts that began in the queue within the last minute, as if all tenants
weighed the same and had work until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fairlead.broker.records import WorkerRecord
from fairlead.broker.standing import MAX_AHEAD, Room, Standing
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.message import Body
from fairlead.model.safe_repr import one_line

_LONGEST = 120  # characters of an error that are repeated
_PASSING = frozenset(("deadline",))  # say something, but keep nothing from running


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps a task from running, or says why it does not have to."""

    code: str
    """Which kind of reason it is, for programs."""
    text: str
    """The reason in one sentence."""
    fields: dict[str, Any] = {}
    """The values that the sentence names."""
    estimate: float | None = None
    """Seconds until it holds no longer, where that can be said."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is not running; or that it is, or was."""

    id: str
    """The id of the task."""
    state: State | None
    """Where it is now; None: it is not known."""
    reasons: tuple[Reason, ...]
    """Why, the most decisive first; at least one."""
    estimate: float | None = None
    """Seconds until a queued task starts, if nothing else happens."""

    @property
    def code(self) -> str:
        """Of the most decisive reason."""
        return self.reasons[0].code

    @property
    def text(self) -> str:
        """Of the most decisive reason."""
        return self.reasons[0].text

    @property
    def fields(self) -> dict[str, Any]:
        """Of the most decisive reason."""
        return self.reasons[0].fields


def explain(id: str, standing: Standing | None, workers: Sequence[WorkerRecord]) -> Explanation:
    """What is to be said of a task that stands like this, while these workers are alive."""
    if standing is None:
        text = "the broker does not know it: it was never accepted, or its retention is over"
        return Explanation(id=id, state=None, reasons=(Reason(code="unknown", text=text),))
    state = standing.record.state
    if state in FINAL:
        reasons = [_final(standing)]
    elif state is State.RUNNING:
        reasons = list(_running(standing, workers))
    else:
        reasons = [*_waits(standing), *_blocked(standing, workers)]
        if state is State.QUEUED:
            reasons += _in_line(standing, workers, clear=not reasons)
        reasons += _deadline(standing)
    # How long the line will be when a task joins it later, nobody knows.
    estimate = _estimate(reasons) if state is State.QUEUED else None
    return Explanation(id=id, state=state, reasons=tuple(reasons), estimate=estimate)


def _estimate(reasons: Sequence[Reason]) -> float | None:
    known = [reason.estimate for reason in reasons if reason.code not in _PASSING]
    if not known or any(each is None for each in known):
        return None
    return max(each for each in known if each is not None)


# -- it is over, or on its way -----------------------------------------------------------------


def _final(standing: Standing) -> Reason:
    record = standing.record
    ago = standing.now - (record.finished_at or standing.now)
    fields: dict[str, Any] = {"finished_at": record.finished_at, "reason": record.reason}
    if record.state is State.COMPLETED:
        return Reason(code="completed", text=f"it completed {_time(ago)} ago", fields=fields)
    why = f" ({record.reason})" if record.reason else ""
    if record.state is State.CANCELLED:
        text = f"it was cancelled{why} {_time(ago)} ago"
        return Reason(code="cancelled", text=text, fields=fields)
    error = _error(standing)
    said = f": {error}" if error else ""
    text = f"it is dead{why} since {_time(ago)}{said}; requeue it when the cause is mended"
    return Reason(code="dead", text=text, fields={**fields, "error": error})


def _running(standing: Standing, workers: Sequence[WorkerRecord]) -> Iterator[Reason]:
    record = standing.record
    worker = next((each for each in workers if each.incarnation == record.incarnation), None)
    who = (
        f"worker {worker.incarnation} on {worker.host}"
        if worker is not None
        else f"worker {record.incarnation}, which was not heard of lately"
    )
    fields: dict[str, Any] = {
        "incarnation": record.incarnation,
        "host": worker.host if worker is not None else None,
        "pid": worker.pid if worker is not None else None,
        "started_at": record.started_at,
    }
    if record.started_at is None:
        text = f"{who} has it in hand, but has not started it yet"
        yield Reason(code="held", text=text, fields=fields)
    else:
        text = f"it runs since {_time(standing.now - record.started_at)}, by {who}"
        yield Reason(code="running", text=text, fields=fields)
    if record.cancelling:
        text = "cancel was asked for, and its worker told"
        yield Reason(code="cancelling", text=text)


# -- what it waits for by itself ---------------------------------------------------------------


def _waits(standing: Standing) -> Iterator[Reason]:
    record = standing.record
    if record.state is State.DEFERRED:
        yield _parents(standing)
    elif record.state in (State.SCHEDULED, State.RETRYING):
        left = max(0.0, (record.due_at or standing.now) - standing.now)
        when = f"due in {_time(left)}" if left else "due now, and queued with the next fetch"
        error = _error(standing) if record.state is State.RETRYING else ""
        code, text = "scheduled", f"it is {when}"
        if record.state is State.RETRYING:
            code, text = "retrying", f"attempt {record.attempts + 1} is {when}, after {error}"
        fields = {"due_at": record.due_at, "attempts": record.attempts, "error": error}
        yield Reason(code=code, text=text, fields=fields, estimate=left)


def _parents(standing: Standing) -> Reason:
    waits, total = standing.waits_for, len(standing.record.waiting_for)
    fields = {
        "waits_for": {each.id: each.state and each.state.value for each in waits},
        "count": total,
    }
    if not waits and standing.record.flow:
        return Reason(code="flow", text="its flow is being laid out", fields=fields)
    if not waits:
        text = "it waits for tasks whose ends are being told"
        return Reason(code="waits", text=text, fields=fields)
    first = min(waits, key=lambda each: (each.state is None, each.state not in FINAL))
    more = f" and {total - 1:,} more" if total > 1 else ""
    state = "not known here" if first.state is None else first.state.value
    return Reason(code="waits", text=f"it waits for {first.id} ({state}){more}", fields=fields)


# -- what stands in its way --------------------------------------------------------------------


def _blocked(standing: Standing, workers: Sequence[WorkerRecord]) -> Iterator[Reason]:
    message = standing.record.message
    queue, tenant = message.queue, message.tenant
    if standing.queue_paused:
        text = f"queue {queue!r} is paused; resume it"
        yield Reason(code="queue_paused", text=text, fields={"queue": queue})
    if standing.tenant_paused:
        text = f"tenant {tenant!r} is paused; resume it"
        yield Reason(code="tenant_paused", text=text, fields={"tenant": tenant})
    named = sum(queue in worker.queues for worker in workers)
    serving = _serving(standing, workers)
    if not named:
        text = f"no live worker serves queue {queue!r}; start one"
        yield Reason(code="no_worker", text=text, fields={"queue": queue, "workers": len(workers)})
    elif not serving:
        text = "all workers of its queue are quiet: they take nothing new; start another one"
        yield Reason(code="workers_quiet", text=text, fields={"queue": queue, "workers": named})
    else:
        yield from _routing(standing, serving)
    for room in standing.rooms:
        if room.closed:
            yield _closed(room, standing.now)


def _serving(standing: Standing, workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    """The workers that fetch from its queue."""
    queue = standing.record.message.queue
    return [each for each in workers if queue in each.queues and not each.details.get("quiet")]


def _routing(standing: Standing, serving: Sequence[WorkerRecord]) -> Iterator[Reason]:
    try:
        body = Body.decode(standing.record.message.body)
    except InvalidInput:  # written by a later release, or by hand: its worker will say so
        return
    fields = {"task": body.task, "version": body.task_version, "workers": len(serving)}
    knowing = [worker for worker in serving if body.task in worker.tasks]
    if not knowing:
        serve = "1 worker serves" if len(serving) == 1 else f"{len(serving)} workers serve"
        text = (
            f"{serve} its queue, but none knows task {body.task!r}; "
            "start one whose app registers it"
        )
        yield Reason(code="unknown_task", text=text, fields=fields)
    elif all(_version(worker, body.task) < body.task_version for worker in knowing):
        text = (
            f"no worker of its queue knows version {body.task_version} of task {body.task!r}; "
            "deploy the newer one"
        )
        yield Reason(code="unknown_version", text=text, fields=fields)


def _version(worker: WorkerRecord, task: str) -> int:
    versions = worker.details.get("versions")
    return int(versions.get(task, 1)) if isinstance(versions, dict) else 1


def _closed(room: Room, now: float) -> Reason:
    fields = msgspec.structs.asdict(room)
    name = f"{room.kind} {room.name!r}"
    behind = "" if room.needed else ", which a task before it needs"
    if room.open_until is not None:
        left = room.open_until - now
        text = f"the breaker of {name}{behind} is open for another {_time(left)}"
        return Reason(code="breaker_open", text=text, fields=fields, estimate=left)
    if room.circuit == "half_open" and room.probing >= room.probes:
        text = f"the breaker of {name}{behind} is half open, and {room.probing} probes run"
        return Reason(code="breaker_half_open", text=text, fields=fields)
    if room.concurrency is not None and room.used >= room.concurrency:
        text = f"{name}{behind} is at {room.used}/{room.concurrency}"
        return Reason(code=f"{room.kind}_full", text=text, fields=fields)
    left = (room.next_at or now) - now
    text = f"the rate of {name}{behind} has its next token in {_time(left)}"
    return Reason(code=f"{room.kind}_rate", text=text, fields=fields, estimate=left)


# -- its place in the order --------------------------------------------------------------------


def _in_line(
    standing: Standing, workers: Sequence[WorkerRecord], *, clear: bool
) -> Iterator[Reason]:
    tenants, tasks = standing.tenants_ahead, standing.tasks_ahead
    place = tenants + tasks * max(standing.tenants_ready, 1)
    pace = standing.started_last_minute / 60.0
    estimate = place / pace if pace and tasks < MAX_AHEAD else None
    if estimate is not None:
        estimate = max(estimate, *(_by_rate(room, standing) for room in standing.rooms), 0.0)
    if tenants:
        text = f"{_many(tenants, 'tenant')} of {standing.tenants_ready:,} are served before its own"
        fields = {"tenants_ahead": tenants, "tenants_ready": standing.tenants_ready}
        yield Reason(code="tenants_ahead", text=text, fields=fields, estimate=estimate)
    if tasks:
        least = "at least " if tasks >= MAX_AHEAD else ""
        text = f"{least}{_many(tasks, 'task')} of its own tenant go before it"
        fields = {"tasks_ahead": tasks}
        yield Reason(code="tasks_ahead", text=text, fields=fields, estimate=estimate)
    serving = _serving(standing, workers)
    slots, running = sum(w.concurrency for w in serving), sum(w.running for w in serving)
    if serving and running >= slots:
        text = f"all {slots:,} slots of {_many(len(serving), 'worker')} are busy"
        fields = {"slots": slots, "running": running}
        # The pace is what these slots did lately. Of a single next end it says nothing.
        ends = estimate if place else None
        yield Reason(code="workers_busy", text=text, fields=fields, estimate=ends)
    elif not tenants and not tasks and clear:
        text = "nothing stands in its way: the next worker that is free takes it"
        yield Reason(code="next", text=text, estimate=0.0)


def _by_rate(room: Room, standing: Standing) -> float:
    """Seconds until a rate has let those pass that go before it; 0 if it has nothing to say."""
    if room.rate is None or not room.needed:
        return 0.0
    ahead = standing.tasks_ahead + (standing.tenants_ahead if room.kind == "queue" else 0)
    if room.next_at is not None:
        return room.next_at - standing.now + ahead / room.rate
    return max(0, ahead + 1 - room.burst) / room.rate  # at best, all of its burst is there


def _deadline(standing: Standing) -> Iterator[Reason]:
    at = standing.record.deadline_at
    if at is not None:
        left = max(0.0, at - standing.now)
        text = f"its deadline passes in {_time(left)}: then it is dead, unless it has started"
        yield Reason(code="deadline", text=text, fields={"deadline_at": at}, estimate=left)


# -- words -------------------------------------------------------------------------------------


def _error(standing: Standing) -> str:
    error = standing.record.error
    if error is not None:
        return one_line(f"{error.type}: {error.message}", _LONGEST)
    return standing.record.reason or "no error"


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _time(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    if seconds < 1.0:
        return f"{seconds * 1000:.0f} ms"
    for length, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
