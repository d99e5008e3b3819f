"""One task: submit it, look at it, wait for its result, act on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from fairlead.api.http.input import text_of
from fairlead.api.http.problems import (
    BodyTooLarge,
    Conflicting,
    Full,
    Invalid,
    NotFound,
    SpoolAway,
    SpoolOverflow,
)
from fairlead.api.http.route import Reply, Request, Route
from fairlead.api.submissions import (
    Accepted,
    NewTask,
    accepted,
    check_dependencies,
    durability_of,
    submission_of,
)
from fairlead.api.task_lookup import found_task, task_id, told_to_caller
from fairlead.api.views.explanation import reasons_for_tenant
from fairlead.api.views.paging import about
from fairlead.api.views.tasks import (
    ErrorView,
    Payload,
    TaskView,
    payload_of,
    result_of,
    view_of,
)
from fairlead.broker.explanation import explain
from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import Alter
from fairlead.model.lifecycle import FINAL, State

T = TypeVar("T")

_LEAST = 0.1  # seconds that are left for the last call
_LARGE = 128 * 1024  # bytes of arguments and result
LONGEST_WAIT = 60.0  # seconds of one long poll

_Orders = Literal["cancel", "requeue", "run", "delete", "prioritize"]


class Whose(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose task it is: needed for ids that were chosen, unless the token belongs to a tenant."""

    tenant: str | None = None


class Wait(Whose, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many seconds to wait for the end of the task."""

    wait: float = 0.0


class ResultView(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended; while it has not, its state and nothing else."""

    id: str
    state: State
    result: Any = None
    error: ErrorView | None = None
    reason: str = ""


class ReasonView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps a task from running."""

    code: str
    text: str
    fields: dict[str, Any] = {}
    estimate: float | None = None  # seconds until it holds no longer, where that can be said


class ExplanationView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is not running; the most decisive reason comes first."""

    id: str
    state: State | None
    reasons: list[ReasonView]
    estimate: float | None = None  # queued: seconds until it starts, if nothing else happens


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order: ``requested`` if the task runs, and its worker was told."""

    id: str
    code: Literal["done", "requested"]
    state: State | None = None


class TaskPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be changed of a task that waits."""

    priority: Annotated[str | int, about("Of the app, or critical, high, normal, low.")]


async def submit(request: Request) -> Reply:
    """Enqueue one task."""
    key = text_of(request.headers, b"idempotency-key")
    if key is not None and len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    clock = asyncio.get_running_loop().time
    until = clock() + request.client.limit  # in all, so that a doubt is told with its id
    submission = await submission_of(request, request.body, id=key)
    if submission.depends_on:
        await check_dependencies(request, submission)
    receipt = await request.client.submit(
        submission, max(until - clock(), _LEAST), durability_of(request.body)
    )
    value = accepted(receipt, submission)
    if value.durability == "spooled":
        return Reply(value=value, status=202)
    return Reply(value=value, status=200 if value.duplicate else 201)


async def show(request: Request) -> TaskView:
    """All that is known of a task."""
    payload = request.access.may("payload")
    found = await found_task(request, "all" if payload else "info")
    (record,) = await told_to_caller(request, [found])
    redaction, named = request.service.redaction, request.client.priorities
    return await _beside(record, lambda: view_of(record, redaction, named, payload=payload))


async def payload(request: Request) -> Payload:
    """The arguments of a task, in full."""
    record, redaction = await found_task(request, "all"), request.service.redaction
    found = await _beside(record, lambda: payload_of(record, redaction))
    if found is None:
        raise NotFound("the arguments of this task are gone", field="id")
    return found


async def result(request: Request) -> Reply:
    """The result of a task, once it has ended."""
    wait = request.query.wait
    if not 0.0 <= wait <= LONGEST_WAIT:
        raise Invalid(
            "wait is out of range",
            field="wait",
            value=wait,
            rule=f"seconds from 0 to {LONGEST_WAIT:g}",
        )
    record = await found_task(request, "result", patience=request.service.settings.patience)
    if record.state not in FINAL and wait:
        await _until_final(request, record.message.id, wait)
        await request.service.authorize_again(request.headers, request.access)
        record = await found_task(request, "result", patience=request.service.settings.patience)
    if record.state not in FINAL:
        return Reply(
            value=ResultView(id=record.message.id, state=record.state),
            status=202,
            headers={"retry-after": "1"},
        )
    error, ended, redaction = record.error, record, request.service.redaction
    value = await _beside(ended, lambda: result_of(ended, redaction))
    view = ResultView(
        id=record.message.id,
        state=record.state,
        result=msgspec.Raw(value),
        error=None if error is None else ErrorView(type=error.type, message=error.message),
        reason=record.reason,
    )
    return Reply(value=view)


async def _beside(record: TaskRecord, make: Callable[[], T]) -> T:
    """What is made of a task; beside the loop if it is large, because others have requests too."""
    if len(record.message.body) + len(record.result or b"") > _LARGE:
        return await asyncio.to_thread(make)
    return make()


async def _until_final(request: Request, id: str, wait: float) -> None:
    """Wait for the end of a task, of the time, of this server, or of the caller's patience."""
    waits = [
        asyncio.ensure_future(request.client.waiter.wait(id)),
        asyncio.ensure_future(request.service.drained.wait()),
    ]
    if request.gone is not None:
        waits.append(asyncio.ensure_future(request.gone()))
    try:
        await asyncio.wait(waits, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        for each in waits:
            with suppress(asyncio.CancelledError):
                await each


async def explanation(request: Request) -> ExplanationView:
    """Why a task is not running."""
    id = task_id(request)
    standing = await request.client.store.standing(id)
    own = request.tenant(request.query.tenant)
    if standing is None or (own is not None and standing.record.message.tenant != own):
        raise NotFound("there is no such task", field="id", value=request.path["id"])
    found = explain(id, standing, await request.client.store.workers())
    told = list(found.reasons)
    if request.access.tenant is not None:
        parents = await request.client.find([waits.id for waits in standing.waits_for])
        siblings = [each.message.id for each in parents if each and each.message.tenant == own]
        told = reasons_for_tenant(told, siblings)
    reasons = [
        ReasonView(code=each.code, text=each.text, fields=each.fields, estimate=each.estimate)
        for each in told
    ]
    return ExplanationView(
        id=standing.record.message.id, state=found.state, reasons=reasons, estimate=found.estimate
    )


async def cancel(request: Request) -> Ordered:
    """Cancel a task, or ask for it if it runs."""
    return await _order(request, "cancel")


async def retry(request: Request) -> Ordered:
    """Put a dead task back to work."""
    return await _order(request, "requeue")


async def run(request: Request) -> Ordered:
    """Make a scheduled or retrying task due now."""
    return await _order(request, "run")


async def delete(request: Request) -> None:
    """Forget a finished task."""
    await _order(request, "delete")


async def change(request: Request) -> Ordered:
    """Change the priority of a task that waits."""
    level = request.client.priorities.level(request.body.priority)
    return await _order(request, "prioritize", level=level)


async def _order(request: Request, action: _Orders, level: int | None = None) -> Ordered:
    record = await found_task(request, "info")  # of the right tenant, or there is none
    message = record.message
    order = Alter(id=message.id, action=action, tenant=message.tenant, level=level)
    (answer,) = await request.client.alter([order])
    if answer.code == "unknown":
        raise NotFound("there is no such task", field="id", value=request.path["id"])
    if answer.code == "unchanged":
        state = answer.state or record.state
        raise Conflicting(
            f"the task is {state}: it cannot be changed like this",
            field="state",
            value=state,
            ids=(message.id,),
        )
    await request.note(f"task.{action}", message.id, tenant=message.tenant)
    code: Literal["done", "requested"] = "requested" if answer.code == "requested" else "done"
    return Ordered(id=message.id, code=code, state=answer.state)


_ONE = "/tasks/{id}"

ROUTES = (
    Route(
        method="POST",
        path="/tasks",
        handler=submit,
        scope="submit",
        summary="Submit a task. The header Idempotency-Key is its id; a repetition answers 200.",
        body=NewTask,
        answer=Accepted,
        status=201,
        also={
            200: "It is there already: this id, or this unique key.",
            202: "The broker is away: it is on the disk of this server, and sent from there.",
        },
        headers={"Idempotency-Key": "The id of the task: a repetition makes no second one."},
        problems=(Conflicting, BodyTooLarge, Full, SpoolOverflow, SpoolAway),
        spools=True,
    ),
    Route(
        method="GET",
        path=_ONE,
        handler=show,
        scope="read",
        summary="All that is known of a task; payload and result with the scope payload.",
        query=Whose,
        problems=(NotFound,),
    ),
    Route(
        method="GET",
        path=f"{_ONE}/payload",
        handler=payload,
        scope="payload",
        summary="The arguments of a task, in full.",
        query=Whose,
        problems=(NotFound,),
    ),
    Route(
        method="GET",
        path=f"{_ONE}/result",
        handler=result,
        scope="payload",
        summary="How a task ended; waits up to 60 seconds for it. 202: it has not ended yet.",
        query=Wait,
        answer=ResultView,
        also={202: "It has not ended yet."},
        problems=(NotFound,),
        patience=None,
    ),
    Route(
        method="GET",
        path=f"{_ONE}/explain",
        handler=explanation,
        scope="read",
        summary="Why a task is not running, the most decisive reason first.",
        query=Whose,
        problems=(NotFound,),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/cancel",
        handler=cancel,
        scope="manage",
        summary="Cancel a task, or ask for it if it runs.",
        query=Whose,
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/retry",
        handler=retry,
        scope="manage",
        summary="Put a dead task back to work, with all its attempts.",
        query=Whose,
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/run",
        handler=run,
        scope="manage",
        summary="Make a scheduled or retrying task due now.",
        query=Whose,
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="PATCH",
        path=_ONE,
        handler=change,
        scope="manage",
        summary="Change the priority of a task that waits.",
        query=Whose,
        body=TaskPatch,
        problems=(NotFound, Conflicting),
    ),
    Route(
        method="DELETE",
        path=_ONE,
        handler=delete,
        scope="manage",
        summary="Forget a finished task and its result.",
        query=Whose,
        problems=(NotFound, Conflicting),
    ),
)
