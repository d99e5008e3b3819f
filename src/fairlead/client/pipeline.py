"""Tasks that declare what they depend on: the last one is enqueued, and brings those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from fairlead.broker.verbs import Receipt, Submission
from fairlead.client.call import CallOptions, Kind, TaskCall
from fairlead.client.clients import Clients
from fairlead.client.handle import Handle
from fairlead.client.ledger_handle import LedgerHandle
from fairlead.client.outbox import awrite_tasks, write_tasks
from fairlead.client.receipts import raise_for
from fairlead.model.registry import Registry, TaskSpec

__all__ = ("asend_pipeline", "send_pipeline", "upstream_calls")


def upstream_calls(registry: Registry, last: Kind) -> list[TaskCall[Any]]:
    """Return a call of each task that this one depends on by declared ids, however far before it.

    They belong to the tenant of the last one. One that cannot be called without arguments is left
    out: it has to be there already, like an id that no task declares.
    """
    by_id = {spec.options.id: spec for spec in registry if spec.options.id is not UNSET}
    said: CallOptions = {}
    if last.options.tenant is not UNSET:
        said["tenant"] = last.options.tenant
    calls: list[TaskCall[Any]] = []
    seen = {last.spec.name}
    todo = list(_declared(last.spec))
    while todo:
        spec = by_id.get(todo.pop())
        if spec is None or spec.name in seen:
            continue
        seen.add(spec.name)
        if spec.positions[0] == 0 and spec.positions[1] >= 0:
            calls.append(TaskCall(Kind(spec, last.priorities).using(said), (), {}))
            todo += _declared(spec)
    return calls


def send_pipeline(
    clients: Clients, registry: Registry, last: TaskCall[Any], kind: Kind
) -> Handle[Any]:
    """Enqueue a call and all that it depends on by declaration, from sync code; its handle."""
    calls, submissions = _prepared(registry, last, kind)
    if kind.tx is not None:
        return _last(clients, calls, submissions, write_tasks(clients, kind.tx, submissions), kind)
    receipts = clients.sync(
        lambda client: client.submit_many(submissions, kind.enqueue_timeout, kind.durability)
    )
    return _last(clients, calls, submissions, receipts, kind)


async def asend_pipeline(
    clients: Clients, registry: Registry, last: TaskCall[Any], kind: Kind
) -> Handle[Any]:
    """Enqueue a call and all that it depends on by declaration; its handle."""
    calls, submissions = _prepared(registry, last, kind)
    if kind.tx is not None:
        receipts = await awrite_tasks(clients, kind.tx, submissions)
    else:
        limit, client = kind.enqueue_timeout, clients.current()
        receipts = await client.submit_many(submissions, limit, kind.durability)
    return _last(clients, calls, submissions, receipts, kind)


def _prepared(
    registry: Registry, last: TaskCall[Any], kind: Kind
) -> tuple[list[TaskCall[Any]], list[Submission]]:
    calls = [*upstream_calls(registry, kind), last]
    return calls, [call.submission() for call in calls]


def _declared(spec: TaskSpec) -> Sequence[Any]:
    return () if spec.options.depends_on is UNSET else spec.options.depends_on


def _last(
    clients: Clients,
    calls: list[TaskCall[Any]],
    submissions: list[Submission],
    receipts: Sequence[Receipt],
    kind: Kind,
) -> Handle[Any]:
    """The handle of the last call; raises what kept one of them from being there."""
    for receipt, submission in zip(receipts, submissions, strict=True):
        # One that was enqueued with arguments before is the one that is meant.
        if receipt.code != "conflict" or submission is submissions[-1]:
            raise_for(receipt, submission)
    handle = Handle if kind.tx is None else LedgerHandle
    return calls[-1].accepted(clients, receipts[-1], submissions[-1], handle)
