"""What an app offers for flows: many tasks that depend on each other, enqueued as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import UNSET

from fairlead.broker.verbs import Receipt
from fairlead.client.batch import limit_of
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.flow import Flow, Parts, calls_in
from fairlead.client.flow_handle import FlowHandle
from fairlead.client.flow_sending import Draft, drafted
from fairlead.client.handle import Handle
from fairlead.client.info import info_of
from fairlead.client.ledger_handle import LedgerFlowHandle, LedgerHandle
from fairlead.client.named import look_up, look_up_now
from fairlead.client.outbox import awrite_flow, write_flow
from fairlead.client.transactions import Connection, transaction_of
from fairlead.model.durations import Duration
from fairlead.model.errors import Conflict
from fairlead.model.names import DEFAULT_TENANT, check_tenant, full_id
from fairlead.model.registry import Registry

__all__ = ("Flowing",)

_PAGE = 100  # members that are read in one call


class Flowing:
    """The part of an app that is about flows."""

    _clients: Clients
    _registry: Registry

    def enqueue_flow(
        self,
        flow: Parts,
        *,
        id: str | None = None,
        tenant: str | None = None,
        name: str = "",
        timeout: Duration | None = None,
        tx: Connection = UNSET,
    ) -> FlowHandle:
        """Enqueue a flow from sync code; see ``aenqueue_flow``."""
        flow = Flow(flow)
        look_up_now(self._clients, calls_in(flow))
        draft = drafted(flow, self._registry, id=id, tenant=tenant, name=name)
        if tx is not UNSET:
            receipts = write_flow(self._clients, transaction_of(tx), draft)
            return _written(self._clients, draft, receipts)
        limit = limit_of(draft.calls, timeout)
        return self._clients.sync(lambda client: self._submit_flow(client, draft, limit))

    async def aenqueue_flow(
        self,
        flow: Parts,
        *,
        id: str | None = None,
        tenant: str | None = None,
        name: str = "",
        timeout: Duration | None = None,
        tx: Connection = UNSET,
    ) -> FlowHandle:
        """Enqueue calls that depend on each other as one unit: all of them or none.

        ``await app.aenqueue_flow(extract.call() >> [clean.call(), enrich.call()] >> load.call())``

        It is checked in full before anything is written: a cycle, options, arguments, and room in
        its queues for all of it. Nothing of it runs before the last task is there. With an ``id``
        of your own, belonging to the tenant, the same flow enqueued again is recognized. ``tenant``
        must be given only where the calls belong to several. ``timeout`` is for writing all of it;
        without one the shortest ``enqueue_timeout`` of its calls is, or that of the app.

        With ``tx`` it is written in that transaction, up to 64 MiB of it, and exists if and only if
        that commits; room in its queues is looked for when a manager sends it to the broker.
        """
        flow = Flow(flow)
        await look_up(self._clients.current(), calls_in(flow))
        draft = drafted(flow, self._registry, id=id, tenant=tenant, name=name)
        if tx is not UNSET:
            receipts = await awrite_flow(self._clients, transaction_of(tx), draft)
            return _written(self._clients, draft, receipts)
        limit = limit_of(draft.calls, timeout)
        return await self._submit_flow(self._clients.current(), draft, limit)

    def flow(self, id: str, tenant: str = DEFAULT_TENANT) -> FlowHandle:
        """A handle for a flow that was enqueued before, by its id."""
        kind = FlowHandle if self._clients.ledger_url is None else LedgerFlowHandle
        return kind(self._clients, full_id(check_tenant(tenant), id), tenant)

    async def _submit_flow(self, client: Client, draft: Draft, limit: float | None) -> FlowHandle:
        fresh = await client.submit_flow(draft, limit)
        ids = [call.id for call in draft.calls] if fresh else await _stored(client, draft)
        code: Literal["accepted", "duplicate"] = "accepted" if fresh else "duplicate"
        receipts = [Receipt(id=id, code=code) for id in ids]
        return _handle_of(self._clients, draft, receipts, FlowHandle, Handle)


def _written(clients: Clients, draft: Draft, receipts: Sequence[Receipt]) -> FlowHandle:
    """The handle of a flow that was written in a transaction."""
    member = partial(LedgerHandle, flow=draft.id)
    return _handle_of(clients, draft, receipts, LedgerFlowHandle, member)


def _handle_of(
    clients: Clients,
    draft: Draft,
    receipts: Sequence[Receipt],
    kind: type[FlowHandle],
    member: Callable[..., Handle[Any]],
) -> FlowHandle:
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
    while part := await client.members(draft.id, len(ids), _PAGE):
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
