"""Flows: the graph of their tasks with states, and orders about a flow as a whole."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fairlead.api.http.problems import BrokerAway, Conflicting, Forbidden, NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.task_lookup import stored_id
from fairlead.api.views.paging import about
from fairlead.api.views.timestamps import moment
from fairlead.broker.flows import MAX_MEMBERS, FlowMember, FlowOrder, FlowRecord
from fairlead.broker.records import TaskRecord
from fairlead.model.lifecycle import State
from fairlead.model.message import task_name

_MOST_NODES = 1_000
_MOST_CHECKED = 20_000  # members that are looked at before an order of a tenant


class FlowNode(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a flow."""

    id: str
    name: Annotated[str, about("Of its task; empty if it is not known any more.")] = ""
    queue: str = ""
    state: Annotated[
        State | None, about("Null: it is no task yet, or was forgotten or deleted since.")
    ] = None
    more_edges: Annotated[bool, about("It depends on more tasks than the 50 that are told.")] = (
        False
    )


class FlowEdge(
    msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}
):
    """One task that another one waits for."""

    source: Annotated[str, about("The task that goes before; it may be none of this flow.")]
    target: str


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, and a page of its graph: nodes in the order they were written, and their edges."""

    id: str
    name: str
    tenant: str
    state: Annotated[State, about("running, completed, dead or cancelled")]
    total: Annotated[int, about("Tasks.")]
    laid_out: Annotated[int, about("Of these, those that are tasks by now.")]
    completed: int
    dead: int
    cancelled: int
    progress: Annotated[float, about("The part of them that has ended, 0 to 1.")]
    committed_at: datetime
    finished_at: datetime | None = None
    nodes: list[FlowNode]
    edges: Annotated[list[FlowEdge], about("That lead to the nodes of this page.")]
    hidden: Annotated[
        bool, about("Tasks of other tenants are among them, which the token is not told of.")
    ] = False
    cursor: Annotated[int | None, about("Where the next page begins; null: this is the last.")] = (
        None
    )


class FlowQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose flow, and which part of its graph."""

    tenant: Annotated[str, about("Needed for ids that were chosen.")] | None = None
    cursor: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Meta(ge=0, le=_MOST_NODES, description="Nodes; 0: none of them.")] = (
        _MOST_NODES
    )


class FlowOwner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose flow it is."""

    tenant: Annotated[str, about("Needed for ids that were chosen.")] | None = None


class FlowAltered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an order."""

    id: str
    changed: Annotated[bool, about("False: there was nothing to do.")]
    state: State


async def _get(request: Request) -> FlowView:
    query: FlowQuery = request.query
    record = await _flow(request, query.tenant)
    members: list[FlowMember] = []
    while len(members) < query.limit:
        start, most = query.cursor + len(members), query.limit - len(members)
        part = await request.client.store.graph(
            record.id, start=start, limit=min(most, MAX_MEMBERS)
        )
        if not part:
            break
        members += part
    tasks = await request.client.find([member.id for member in members])
    shown = [
        (member, task)
        for member, task in zip(members, tasks, strict=True)
        if _is_visible(request, member.id, task)
    ]
    hidden = len(shown) < len(members)
    visible = {member.id for member, _ in shown}
    reached = query.cursor + len(members)
    return FlowView(
        id=record.id,
        name=record.name,
        tenant=record.tenant,
        state=record.state,
        total=record.total,
        laid_out=record.laid_out,
        completed=record.completed,
        dead=record.dead,
        cancelled=record.cancelled,
        progress=(record.completed + record.dead + record.cancelled) / max(record.total, 1),
        committed_at=moment(record.committed_at),
        finished_at=moment(record.finished_at),
        nodes=[_node(member, task) for member, task in shown],
        edges=await _edges(request, [member for member, _ in shown], visible),
        hidden=hidden,
        cursor=reached if members and reached < record.total else None,
    )


def _is_visible(request: Request, id: str, task: TaskRecord | None) -> bool:
    """Whether the caller may know of a member; a flow may have tasks of several tenants."""
    own = request.access.tenant
    if own is None:
        return True
    if task is None:  # not yet or no longer a task: a chosen id says whose it is
        return ":" not in id or id.startswith(f"{own}:")
    return task.message.tenant == own


async def _edges(request: Request, members: list[FlowMember], visible: set[str]) -> list[FlowEdge]:
    edges = [FlowEdge(source=id, target=each.id) for each in members for id in each.depends_on]
    if request.access.tenant is None:
        return edges
    # What lies outside of the page may be a task of another tenant.
    others = list({edge.source for edge in edges} - visible)
    found = await request.client.find(others)
    allowed = visible | {
        id for id, task in zip(others, found, strict=True) if _is_visible(request, id, task)
    }
    return [edge for edge in edges if edge.source in allowed]


def _node(member: FlowMember, task: TaskRecord | None) -> FlowNode:
    if task is None:
        return FlowNode(id=member.id, more_edges=member.more)
    return FlowNode(
        id=member.id,
        name=task_name(task.message.body),
        queue=task.message.queue,
        state=task.state,
        more_edges=member.more,
    )


async def _flow(request: Request, asked: str | None) -> FlowRecord:
    """The flow of the path. Raises ``NotFound``, also for one of another tenant."""
    unknown = NotFound("there is no such flow", field="id", value=request.path["id"])
    try:
        id = stored_id(request, request.path["id"], asked)
    except NotFound:
        raise unknown from None
    try:  # the orders have more time in all, but a broker that is away is told soon
        async with asyncio.timeout(request.service.settings.patience):
            record = await request.client.flow(id)
    except TimeoutError:
        raise BrokerAway("the broker did not answer in time", retry_after=2.0) from None
    tenant = request.tenant(asked)
    if record is None or (tenant is not None and record.tenant != tenant):
        raise unknown
    return record


# -- orders ------------------------------------------------------------------------------------


async def _cancel(request: Request) -> FlowAltered:
    return await _alter(request, "cancel")


async def _retry(request: Request) -> FlowAltered:
    return await _alter(request, "retry")


async def _alter(request: Request, action: Literal["cancel", "retry"]) -> FlowAltered:
    query: FlowOwner = request.query
    record = await _flow(request, query.tenant)
    if request.access.tenant is not None:
        await _check_members(request, record, request.access.tenant)
    order = FlowOrder(flow=record.id, action=action, tenant=record.tenant)
    changed = await request.client.alter_flow(order)
    if changed:
        await request.note(f"flow.{action}", record.id, tenant=record.tenant)
    after = await request.client.flow(record.id)
    return FlowAltered(
        id=record.id, changed=changed, state=record.state if after is None else after.state
    )


async def _check_members(request: Request, record: FlowRecord, own: str) -> None:
    """Refuse an order of a tenant that would reach tasks of another one.

    Members never change their tenant, and none is added: what holds before the order holds for it.
    """
    if record.laid_out < record.total:
        raise Conflicting("the flow is still being laid out; try again", ids=(record.id,))
    if record.total > _MOST_CHECKED:
        raise Forbidden(
            f"the flow has {record.total:,} tasks: too many to look whose they are",
            field="tenant",
            rule=f"at most {_MOST_CHECKED:,} tasks, or a token that is not bound to a tenant",
        )
    start = 0
    while ids := await request.client.store.members(record.id, start=start, limit=MAX_MEMBERS):
        start += len(ids)
        for task in await request.client.find(ids):
            if task is not None and task.message.tenant != own:
                raise Forbidden(
                    "the flow has tasks of other tenants",
                    field="tenant",
                    rule="a token that is not bound to a tenant",
                )


ROUTES = (
    Route(
        method="GET",
        path="/flows/{id}",
        handler=_get,
        scope="read",
        summary="Show a flow: how far it is, its tasks and what they wait for.",
        query=FlowQuery,
        problems=(NotFound,),
    ),
    Route(
        method="POST",
        path="/flows/{id}/cancel",
        handler=_cancel,
        scope="manage",
        summary="Cancel what waits of a flow, and ask what runs to stop.",
        query=FlowOwner,
        problems=(NotFound, Conflicting),
        patience=20.0,
    ),
    Route(
        method="POST",
        path="/flows/{id}/retry",
        handler=_retry,
        scope="manage",
        summary="Put what failed of a flow back to work, and what ended because of it.",
        query=FlowOwner,
        problems=(NotFound, Conflicting),
        patience=20.0,
    ),
)
