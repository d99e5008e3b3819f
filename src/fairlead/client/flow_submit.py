"""A flow on its way to the broker: parts that nobody sees, one commit, then the laying out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from fairlead.broker import Caller, Store
from fairlead.broker.flows import MAX_FLOW, FlowOrder, Staged
from fairlead.broker.repeats import Limit
from fairlead.broker.requests import MAX_STEP, Receipt, Submission
from fairlead.client.flow import Flow, Parts, plan_of
from fairlead.client.flow_chunks import flow_parts
from fairlead.client.middleware import AroundEnqueue, through
from fairlead.client.submit_path import dated
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    InvalidInput,
    InvalidOption,
    QueueFull,
    Refused,
    TooLarge,
    UnknownDependency,
)
from fairlead.model.names import check_key, check_tenant, scoped_id
from fairlead.model.options import Dependency
from fairlead.model.registry import Registry
from fairlead.runtime.ids import new_id

_TRIES = 3  # if somebody else writes a flow of the same chosen id
_GIVING_UP = 1.0  # seconds to remove what was written of a flow that cannot be

_log = logging.getLogger(__name__)


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that was checked in full; nothing of it is written yet."""

    id: str
    tenant: str
    name: str
    calls: list[Any]  # each behind those it waits for
    submissions: list[Submission]
    last: list[int]  # places of the calls that nothing in the flow waits for


def drafted(
    flow: Parts, registry: Registry, *, id: str | None, tenant: str | None, name: str
) -> Draft:
    """Check a flow, its calls and their options. A cycle is refused with its path."""
    own: dict[str, Submission] = {}

    def named(call: Any) -> list[str]:
        own[call.id] = _submission(call, registry)
        return [dependency.id for dependency in own[call.id].depends_on]

    plan = plan_of(Flow(flow), named)
    if len(plan.calls) > MAX_FLOW:
        raise TooLarge("the flow", len(plan.calls), MAX_FLOW, "tasks")
    submissions = [
        _waiting(call, own[each], [plan.calls[id] for id in plan.waits[each]])
        for each, call in plan.calls.items()
    ]
    whose, last = _tenant(submissions, tenant), set(plan.last)
    return Draft(
        id=new_id() if id is None else _chosen(scoped_id(whose, id), plan.calls),
        tenant=whose,
        name=check_key("name of a flow", name) if name else "",
        calls=list(plan.calls.values()),
        submissions=list(dated(submissions)),
        last=[place for place, each in enumerate(plan.calls) if each in last],
    )


def _chosen(id: str, calls: Mapping[str, Any]) -> str:
    if id in calls:  # whoever waits for one of them could not say for which
        raise InvalidInput(f"id {id!r} is that of a call of the flow; give the flow another one")
    return id


def _submission(call: Any, registry: Registry) -> Submission:
    call.check_registered(registry)
    try:
        submission: Submission = call.submission()
    except InvalidInput as error:
        error.add_note(f"in {call!r}; nothing of the flow was enqueued")
        raise
    if submission.unique is not None:
        raise InvalidOption("unique", submission.unique.key, "left out in a flow; give it an id")
    return submission


def _waiting(call: Any, submission: Submission, after: Sequence[Any]) -> Submission:
    """The submission with what the flow says besides what its own options say."""
    if not after:
        return submission
    if call.spec.takes_context or submission.uses_results:  # its body names whose results it reads
        made: Submission = call.submission(after=after)
        return made
    inside = {each.id: Dependency(each.id) for each in after}
    outside = (each for each in submission.depends_on if each.id not in inside)
    return msgspec.structs.replace(submission, depends_on=(*inside.values(), *outside))


def _tenant(submissions: Sequence[Submission], tenant: str | None) -> str:
    if tenant is not None:
        return check_tenant(tenant)
    names = sorted({submission.message.tenant for submission in submissions})
    if len(names) > 1:
        raise InvalidInput(
            f"the calls of the flow belong to {len(names)} tenants, among them {names[0]!r} and "
            f"{names[1]!r}; say whose flow it is: tenant=..."
        )
    return names[0]


# -- sending ----------------------------------------------------------------------------------


async def send(
    store: Store, caller: Caller, around: Sequence[AroundEnqueue], draft: Draft, limit: Limit | None
) -> bool:
    """Write a flow and commit it, with the middleware around each of its calls.

    False if a flow of this id exists already. Once it is committed the broker goes on with it by
    itself; laying it out from here only makes it sooner.
    """
    fresh = True

    async def write(submissions: Sequence[Submission]) -> list[Receipt]:
        nonlocal fresh
        fresh = await _write(store, caller, draft, submissions, limit)
        return [Receipt(id=each.message.id, code="accepted") for each in submissions]

    if around:
        await through(around, draft.submissions, write)
    else:
        await write(draft.submissions)
    if fresh:
        try:
            await lay_out(store, draft.id)
        except BrokerError:  # it is committed: any worker goes on
            _log.info("flow committed, but not yet laid out", extra={"flow": draft.id})
    return fresh


async def _write(
    store: Store,
    caller: Caller,
    draft: Draft,
    submissions: Sequence[Submission],
    limit: Limit | None,
) -> bool:
    staged = Staged(code="unknown")
    for _ in range(_TRIES):
        staged = await _stage(store, caller, draft, submissions, limit)
        if staged.code == "staged":
            staged = await _commit(store, caller, draft, limit)
        if staged.code != "unknown" or not _is_chosen(draft.id):
            break  # or somebody else who writes this flow began anew, and so do we
    if staged.code == "duplicate":
        return False
    _raise_for(staged, draft)
    return True


async def _stage(
    store: Store,
    caller: Caller,
    draft: Draft,
    submissions: Sequence[Submission],
    limit: Limit | None,
) -> Staged:
    staged = Staged(code="staged")
    try:
        for part in flow_parts(draft.id, draft.tenant, draft.name, submissions):
            staged = await caller.call(partial(store.stage, part=part), limit)
            if staged.code != "staged":
                break
    except BaseException:
        if not _is_chosen(draft.id):  # else somebody else may be writing it as well
            await _give_up(store, caller, draft.id)
        raise
    return staged


def _is_chosen(id: str) -> bool:
    return ":" in id


async def _give_up(store: Store, caller: Caller, id: str) -> None:
    """Remove what was written, so that its room is free at once; otherwise that takes ten minutes.

    Whatever went wrong before goes wrong again, as a rule, and nobody wants to wait for that.
    """
    order = FlowOrder(flow=id, action="cancel")
    limit = Limit(asyncio.get_running_loop().time() + _GIVING_UP)
    with contextlib.suppress(BrokerError):
        await caller.call(partial(store.alter_flow, order=order), limit)


async def _commit(store: Store, caller: Caller, draft: Draft, limit: Limit | None) -> Staged:
    try:
        return await caller.call(partial(store.commit, flow=draft.id), limit)
    except Ambiguous as error:
        error.add_note(
            f"Flow {draft.id!r} of tenant {draft.tenant!r} may have been committed; its state "
            "(app.flow) tells. To enqueue it again is safe with an id of your own, id=...; "
            "otherwise it makes another flow."
        )
        raise


async def lay_out(store: Store, id: str) -> None:
    """Go on with a flow until all its members are tasks, and the first of them may begin."""
    more = False
    while True:
        (record,) = await store.flows([id])
        if record is None or record.laid_out >= record.total:
            break
        for _ in range(math.ceil((record.total - record.laid_out) / MAX_STEP)):
            more = (await store.deliver()).more
    if more:
        await store.deliver()


def _raise_for(staged: Staged, draft: Draft) -> None:
    match staged.code:
        case "staged" | "committed":
            return
        case "queue_full":
            raise QueueFull(staged.detail, staged.limit)
        case "tenant_full" | "tenant_bytes":
            messages = (each.message for each in draft.submissions)
            tenants = {each.tenant for each in messages if each.queue == staged.detail}
            whose = tenants.pop() if len(tenants) == 1 else None  # of several, any may be
            settings = {"tenant_full": "max_tenant_waiting", "tenant_bytes": "max_tenant_bytes"}
            raise QueueFull(staged.detail, staged.limit, whose, setting=settings[staged.code])
        case "known":
            raise Conflict(staged.detail)
        case "unknown_dependency":
            raise UnknownDependency(draft.id, staged.detail)
        case "closed":
            raise Refused("closed", f"the broker is closed; flow {draft.id!r} was not accepted")
        case _:
            raise Refused(
                "abandoned",
                f"flow {draft.id!r} was not committed in time and is removed ({staged.code}); "
                "nothing of it will run: enqueue it again",
            )
