"""Schedules: what is enqueued at which times, with the next five runs of each."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.api.auth.access import require
from fairlead.api.http.problems import Conflicting, Full, Invalid, NotFound
from fairlead.api.http.route import Reply, Request, Route
from fairlead.api.next_runs import NextRuns
from fairlead.api.submissions import Accepted, NewTask, accepted, submission_of
from fairlead.api.views.paging import Cursor, Limit, about, named_page
from fairlead.api.views.tasks import Payload
from fairlead.api.views.timestamps import moment
from fairlead.broker.schedules import ScheduleOrder, ScheduleRecord
from fairlead.broker.schedules import submission_of as scheduled
from fairlead.client.schedule_changes import carry_out, over, replacement, revise, same_times
from fairlead.client.schedule_spec import info_of, rule_of, spec_of, template_for
from fairlead.model.errors import InvalidInput
from fairlead.model.names import check_schedule
from fairlead.model.schedule import ScheduleSpec, Timing, TimingOptions, next_slot
from fairlead.runtime.ids import new_id

_WHEN = ("every", "at", "tz", "gap", "fold", "missed", "max_missed", "start", "end")
_Moment = datetime | float | int


class SchedulePut(NewTask, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule: one of ``cron``, ``every`` and ``at``, and the task that it enqueues."""

    cron: Annotated[str, Meta(max_length=500)] | None = None
    every: float | int | str | UnsetType = UNSET  # seconds, or text such as "5m"; at least 1
    at: _Moment | UnsetType = UNSET  # once: RFC 3339, or unix seconds
    tz: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET  # of the expression; default UTC
    gap: Literal["skip", "after"] | UnsetType = UNSET  # times that the clocks leave out
    fold: Literal["first", "second", "both"] | UnsetType = UNSET  # times that they show twice
    missed: Literal["skip", "latest", "all"] | UnsetType = UNSET  # when no worker was there
    max_missed: int | UnsetType = UNSET
    start: _Moment | UnsetType = UNSET  # no run before
    end: _Moment | UnsetType = UNSET  # no run after


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, and when it comes next."""

    name: str
    task: str
    queue: str
    tenant: str
    cron: str | None = None
    every: Annotated[float | None, about("Seconds.")] = None
    at: Annotated[datetime | None, about("Once.")] = None
    tz: str = "UTC"
    gap: str = ""
    fold: str = ""
    missed: str = ""
    max_missed: int = 0
    start: datetime | None = None
    end: datetime | None = None
    paused: bool
    next_runs: Annotated[
        list[datetime], about("The next five; of one that is paused those it would have.")
    ] = []
    last_run_at: Annotated[datetime | None, about("The last slot that was fired.")] = None
    changed_at: datetime
    declared: Annotated[bool, about("By a program, rather than made at run time.")]
    revision: int
    payload: Annotated[Payload | None, about("Arguments; with the scope payload.")] = None
    problem: Annotated[str, about("Why it cannot be read here.")] = ""


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules by name."""

    now: datetime
    schedules: list[ScheduleView]
    cursor: str | None = None


class SchedulesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which schedules."""

    tenant: Annotated[str, about("Only those that enqueue for this tenant.")] | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


# -- reads -------------------------------------------------------------------------------------


async def _list(request: Request) -> SchedulePage:
    query: SchedulesQuery = request.query
    tenant = request.tenant(query.tenant)
    now = await request.client.now()
    found = {
        record.name: record
        for record in await request.client.store.schedules()
        if tenant is None or _tenant_of(record) == tenant
    }
    page, cursor = named_page(found, query.limit, query.cursor)
    runs = NextRuns()
    return SchedulePage(
        now=moment(now),
        schedules=[_view(request, record, now, runs) for _, record in page],
        cursor=cursor,
    )


async def _get(request: Request) -> ScheduleView:
    return _view(request, await _record(request), await request.client.now())


async def _record(request: Request) -> ScheduleRecord:
    """The schedule of the path. Raises ``NotFound``, also for one of another tenant."""
    name = check_schedule(request.path["name"])
    found = await request.client.store.schedules([name])
    if not found:
        raise _unknown(name)
    return _checked(request, found[0])


def _checked(request: Request, record: ScheduleRecord) -> ScheduleRecord:
    if _is_anothers(request, record):
        raise _unknown(record.name)
    return record


def _is_anothers(request: Request, record: ScheduleRecord) -> bool:
    own = request.access.tenant
    return own is not None and _tenant_of(record) != own


def _tenant_of(record: ScheduleRecord) -> str | None:
    """Whose tasks it enqueues; None if it cannot be read here."""
    try:
        return spec_of(record).template.tenant
    except InvalidInput:
        return None


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r}", field="name", value=name)


def _taken(name: str) -> Conflicting:
    """Names are for all tenants together: one that is taken cannot be hidden, but whose it is."""
    return Conflicting(
        "the name is taken", field="name", value=name, rule="a name that nobody has yet"
    )


def _view(
    request: Request, record: ScheduleRecord, now: float, runs: NextRuns | None = None
) -> ScheduleView:
    info = info_of(record, request.client.codecs)
    times: dict[str, Any] = {}
    if info.timing is not None:
        found = (runs or NextRuns()).of(info.timing, record, now)
        times = {**_times(info.timing), "next_runs": [moment(each) for each in found]}
    payload = None
    if request.access.may("payload") and not info.problem:
        hide = request.service.redaction.hide
        payload = Payload(args=hide(list(info.args)), kwargs=hide(info.kwargs))
    return ScheduleView(
        name=info.name,
        task=info.task,
        queue=info.queue,
        tenant=info.tenant,
        paused=info.paused,
        last_run_at=moment(info.last_slot),
        changed_at=moment(info.changed_at),
        declared=info.declared,
        revision=info.revision,
        payload=payload,
        problem=info.problem,
        **times,
    )


def _times(timing: Timing) -> dict[str, Any]:
    return {
        "cron": timing.expression if timing.kind == "cron" else None,
        "every": timing.every if timing.kind == "interval" else None,
        "at": moment(timing.at) if timing.kind == "once" else None,
        "tz": timing.tz,
        "gap": timing.gap,
        "fold": timing.fold,
        "missed": timing.missed,
        "max_missed": timing.max_missed,
        "start": moment(timing.start),
        "end": moment(timing.end),
    }


# -- changes -----------------------------------------------------------------------------------


async def _put(request: Request) -> Reply:
    require(request.access, "submit")  # it enqueues, again and again
    name = check_schedule(request.path["name"])
    body: SchedulePut = request.body
    rule = _rule(body)
    submission = await submission_of(request, body)
    spec = ScheduleSpec(timing=rule, template=template_for(body.task, submission))
    new = not await request.client.store.schedules([name])
    if new:
        await _create(request, name, spec)
    else:
        await _replace(request, name, spec)
    template = spec.template
    await request.note(
        "schedule.create" if new else "schedule.replace",
        name,
        task=template.task,
        queue=template.queue,
        tenant=template.tenant,
    )
    view = _view(request, await _record(request), await request.client.now())
    return Reply(value=view, status=201 if new else 200)


def _rule(body: SchedulePut) -> Timing:
    given = [name for name in ("cron", "every", "at") if getattr(body, name) not in (None, UNSET)]
    if len(given) != 1:
        raise Invalid(
            f"given are {' and '.join(given) or 'none'}",
            field="cron",
            value=body.cron,
            rule="one of cron, every and at",
        )
    when = {name: value for name in _WHEN if (value := getattr(body, name)) is not UNSET}
    try:
        return rule_of(body.cron, TimingOptions(**when))  # type: ignore[typeddict-item]
    except InvalidInput as error:
        if type(error) is InvalidInput:  # others name the field themselves
            raise _never(error, body) from None
        raise


def _never(error: InvalidInput, body: SchedulePut) -> Invalid:
    """The problem with times of which none comes."""
    at = body.at is not UNSET
    value = body.at if at else None if body.end is UNSET else body.end
    return Invalid(
        str(error), field="at" if at else "end", value=value, rule="a time that is yet to come"
    )


async def _create(request: Request, name: str, spec: ScheduleSpec) -> None:
    next_at = next_slot(spec.timing, await request.client.now())
    if next_at is None:
        raise _never(over(name, spec.timing), request.body)
    order = ScheduleOrder(
        name=name,
        action="create",
        queue=spec.template.queue,
        spec=spec.encode(),
        next_at=next_at,
    )
    await carry_out(request.client, order)


async def _replace(request: Request, name: str, spec: ScheduleSpec) -> None:
    async def put(record: ScheduleRecord) -> ScheduleOrder:
        if _is_anothers(request, record):
            raise _taken(name)
        old = spec_of(record)
        order = await replacement(request.client, record, old, spec)
        if order.next_at is None and not same_times(old.timing, spec.timing):
            raise _never(over(name, spec.timing), request.body)
        return order

    await revise(request.client, name, put)


async def _delete(request: Request) -> None:
    name = (await _record(request)).name

    async def delete(record: ScheduleRecord) -> ScheduleOrder:
        # With its revision: it is this one that goes, or none.
        _checked(request, record)
        return ScheduleOrder(name=name, action="delete", revision=record.revision)

    await revise(request.client, name, delete)
    await request.note("schedule.delete", name)


async def _pause(request: Request) -> ScheduleView:
    name = (await _record(request)).name

    async def pause(record: ScheduleRecord) -> ScheduleOrder:
        _checked(request, record)
        return ScheduleOrder(name=name, action="pause", revision=record.revision)

    await revise(request.client, name, pause)
    await request.note("schedule.pause", name)
    return await _get(request)


async def _resume(request: Request) -> ScheduleView:
    name = (await _record(request)).name

    async def resume(record: ScheduleRecord) -> ScheduleOrder:
        timing = spec_of(_checked(request, record)).timing
        next_at = next_slot(timing, await request.client.now())
        return ScheduleOrder(name=name, action="resume", next_at=next_at, revision=record.revision)

    await revise(request.client, name, resume)
    await request.note("schedule.resume", name)
    return await _get(request)


async def _run(request: Request) -> Accepted:
    require(request.access, "submit")
    record = await _record(request)
    submission = scheduled(record.name, spec_of(record), new_id())
    value = accepted(await request.client.submit(submission), submission)
    await request.note("schedule.run", record.name, id=value.id)
    return value


_ONE = "/schedules/{name}"

ROUTES = (
    Route(
        method="GET",
        path="/schedules",
        handler=_list,
        scope="read",
        summary="List schedules by name, with the next five runs of each.",
        query=SchedulesQuery,
    ),
    Route(
        method="GET",
        path=_ONE,
        handler=_get,
        scope="read",
        summary="Show one schedule.",
        problems=(NotFound,),
    ),
    Route(
        method="PUT",
        path=_ONE,
        handler=_put,
        scope="manage",
        summary="Create or replace a schedule; takes the scope submit as well.",
        body=SchedulePut,
        answer=ScheduleView,
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="DELETE",
        path=_ONE,
        handler=_delete,
        scope="manage",
        summary="Forget a schedule; its tasks stay.",
        status=204,
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/pause",
        handler=_pause,
        scope="manage",
        summary="Fire no more slots until it is resumed.",
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/resume",
        handler=_resume,
        scope="manage",
        summary="Go on with the next slot; those that passed are not made up for.",
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/run",
        handler=_run,
        scope="manage",
        summary="Enqueue its task at once, beside its slots; takes the scope submit as well.",
        status=201,
        problems=(NotFound, Full),
    ),
)
