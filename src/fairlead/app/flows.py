"""Methods of ``Fairlead`` for flows: many tasks that depend on each other, enqueued as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from msgspec import UNSET

from fairlead.client import Receipt
from fairlead.client.batch import limit_of
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.flow import Flow, Part, Parts, calls_in
from fairlead.client.flow_handle import FlowHandle
from fairlead.client.flow_submit import Draft, drafted
from fairlead.client.handle import Handle
from fairlead.client.ledger_handle import LedgerFlowHandle, LedgerHandle
from fairlead.client.named_call import look_up, look_up_now
from fairlead.client.outbox import awrite_flow, write_flow
from fairlead.client.task_info import info_of
from fairlead.client.transactions import Connection, transaction_of
from fairlead.model.durations import Duration
from fairlead.model.errors import Conflict
from fairlead.model.names import DEFAULT_TENANT, check_tenant, full_id

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead

R = TypeVar("R")

_PAGE = 100  # members that are read in one call


@overload
def enqueue_flow(
    app: Fairlead,
    flow: Part[R],
    *,
    id: str | None = None,
    tenant: str | None = None,
    name: str = "",
    timeout: Duration | None = None,
    tx: Connection = UNSET,
) -> FlowHandle[R]: ...
@overload
def enqueue_flow(
    app: Fairlead,
    flow: Iterable[Parts],
    *,
    id: str | None = None,
    tenant: str | None = None,
    name: str = "",
    timeout: Duration | None = None,
    tx: Connection = UNSET,
) -> FlowHandle[Any]: ...
def enqueue_flow(
    app: Fairlead,
    flow: Parts,
    *,
    id: str | None = None,
    tenant: str | None = None,
    name: str = "",
    timeout: Duration | None = None,
    tx: Connection = UNSET,
) -> FlowHandle[Any]:
    """Enqueue calls that depend on each other as one unit from sync code: all of them or none.

    It is checked in full before anything is written, and nothing of it runs before the last task is
    there; see ``aenqueue_flow``.

    Args:
        id: An id of your own, which belongs to the tenant. Default: a new one.
        tenant: Needed only where the calls belong to several. Default: that of the calls.
        name: What people know the flow by. Default: none.
        timeout: How long writing it may take, a duration. Default: as its calls or the app say.
        tx: Your connection, session or Django alias: it is written there. Default: none.
    """
    whole: Flow[Any] = Flow(flow)
    look_up_now(app._clients, calls_in(whole))
    draft = drafted(whole, app._registry, id=id, tenant=tenant, name=name)
    if tx is not UNSET:
        receipts = write_flow(app._clients, transaction_of(tx), draft)
        return _written(app._clients, draft, receipts)
    limit = limit_of(draft.calls, timeout)
    return app._clients.sync(lambda client: _submit_flow(app._clients, client, draft, limit))


@overload
async def aenqueue_flow(
    app: Fairlead,
    flow: Part[R],
    *,
    id: str | None = None,
    tenant: str | None = None,
    name: str = "",
    timeout: Duration | None = None,
    tx: Connection = UNSET,
) -> FlowHandle[R]: ...
@overload
async def aenqueue_flow(
    app: Fairlead,
    flow: Iterable[Parts],
    *,
    id: str | None = None,
    tenant: str | None = None,
    name: str = "",
    timeout: Duration | None = None,
    tx: Connection = UNSET,
) -> FlowHandle[Any]: ...
async def aenqueue_flow(
    app: Fairlead,
    flow: Parts,
    *,
    id: str | None = None,
    tenant: str | None = None,
    name: str = "",
    timeout: Duration | None = None,
    tx: Connection = UNSET,
) -> FlowHandle[Any]:
    """Enqueue calls that depend on each other as one unit: all of them or none.

    ``await app.aenqueue_flow(extract.call() >> [clean.call(), enrich.call()] >> load.call())``

    It is checked in full before anything is written: a cycle, options, arguments, and room in
    its queues for all of it. Nothing of it runs before the last task is there. With an ``id``
    of your own the same flow enqueued again is recognized.

    With ``tx`` it is written in that transaction, up to 64 MiB of it, and exists if and only if
    that commits; room in its queues is looked for when a manager sends it to the broker.

    Args:
        id: An id of your own, which belongs to the tenant. Default: a new one.
        tenant: Needed only where the calls belong to several. Default: that of the calls.
        name: What people know the flow by. Default: none.
        timeout: How long writing it may take, a duration. Default: as its calls or the app say.
        tx: Your connection, session or Django alias: it is written there. Default: none.
    """
    whole: Flow[Any] = Flow(flow)
    await look_up(app._clients.current(), calls_in(whole))
    draft = drafted(whole, app._registry, id=id, tenant=tenant, name=name)
    if tx is not UNSET:
        receipts = await awrite_flow(app._clients, transaction_of(tx), draft)
        return _written(app._clients, draft, receipts)
    limit = limit_of(draft.calls, timeout)
    return await _submit_flow(app._clients, app._clients.current(), draft, limit)


def flow(app: Fairlead, id: str, tenant: str = DEFAULT_TENANT) -> FlowHandle[Any]:
    """Return a handle for a flow that was enqueued before, by its id.

    Args:
        tenant: The tenant that the flow belongs to. Default: "default".
    """
    kind = FlowHandle if app._clients.ledger_url is None else LedgerFlowHandle
    return kind(app._clients, full_id(check_tenant(tenant), id), tenant)


async def _submit_flow(
    clients: Clients, client: Client, draft: Draft, limit: float | None
) -> FlowHandle[Any]:
    fresh = await client.submit_flow(draft, limit)
    ids = [call.id for call in draft.calls] if fresh else await _stored(client, draft)
    code: Literal["accepted", "duplicate"] = "accepted" if fresh else "duplicate"
    receipts = [Receipt(id=id, code=code) for id in ids]
    return _handle_of(clients, draft, receipts, FlowHandle, Handle)


def _written(clients: Clients, draft: Draft, receipts: Sequence[Receipt]) -> FlowHandle[Any]:
    """The handle of a flow that was written in a transaction."""
    member = partial(LedgerHandle, _flow=draft.id)
    return _handle_of(clients, draft, receipts, LedgerFlowHandle, member)


def _handle_of(
    clients: Clients,
    draft: Draft,
    receipts: Sequence[Receipt],
    kind: type[FlowHandle[Any]],
    member: Callable[..., Handle[Any]],
) -> FlowHandle[Any]:
    handles = [
        call.accepted(clients, receipt, submission, member)
        for call, receipt, submission in zip(draft.calls, receipts, draft.submissions, strict=True)
    ]
    return kind(
        clients,
        draft.id,
        draft.tenant,
        handles=list(zip(draft.calls, handles, strict=True)),
        last=[handles[place] for place in draft.last],
        duplicate=receipts[0].code == "duplicate",
    )


async def _stored(client: Client, draft: Draft) -> list[str]:
    """The ids of the tasks of the flow that was there before, which stand for those of this one."""
    ids: list[str] = []
    while part := await client.store.members(draft.id, start=len(ids), limit=_PAGE):
        ids += part
    if len(ids) != len(draft.calls):
        raise Conflict(draft.id)
    for start in range(0, len(ids), _PAGE):
        calls = draft.calls[start : start + _PAGE]
        for call, record in zip(calls, await client.find(ids[start : start + _PAGE]), strict=True):
            name = "" if record is None else info_of(record).task  # none if it was cancelled
            if name and name != call.spec.name:
                raise Conflict(draft.id)
    return ids
