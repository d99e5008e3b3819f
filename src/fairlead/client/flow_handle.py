"""A flow that was accepted: its state, how far it is, and a way to cancel or retry it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from fairlead.broker.flows import FlowOrder, FlowRecord
from fairlead.client.call import TaskCall
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.handle import Handle, refuse_to_block, until_answered, wait_limit
from fairlead.client.task_info import TaskInfo, info_of
from fairlead.model.errors import (
    FlowCancelled,
    FlowFailed,
    InvalidInput,
    ResultGone,
    ResultTimeout,
)
from fairlead.model.lifecycle import State
from fairlead.model.options import Duration
from fairlead.model.outbox_state import OutboxState

R = TypeVar("R", covariant=True)
S = TypeVar("S")

_PAGE = 100  # members that are looked at in one call
_PAUSE = 0.1  # seconds before a flow that runs again is waited for again
_SHOWN = 100  # failed members that are listed
_NO_FLOW = "its id or tenant may be another one; what has ended is kept for its retention only"


class FlowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a flow is. Times are the broker's."""

    id: str
    """The id of the flow."""
    tenant: str
    """Whose flow it is."""
    name: str
    """The name that it was given; empty: none."""
    state: State
    """Running, completed, dead or cancelled."""
    total: int
    """How many tasks it has."""
    completed: int
    """How many of them are completed."""
    dead: int
    """How many of them are dead."""
    cancelled: int
    """How many of them are cancelled."""
    progress: float
    """The part of its tasks that have ended, 0 to 1."""
    committed_at: float
    """Unix seconds when all of it was accepted."""
    finished_at: float | None
    """Unix seconds when the last of it ended; None: it has not."""


class FlowHandle(Generic[R]):
    """Stands for one flow. May be made anew from its id: ``app.flow(id)``."""

    __slots__ = ("_clients", "_handles", "_last", "duplicate", "id", "tenant")

    def __init__(
        self,
        clients: Clients,
        id: str,
        tenant: str,
        *,
        handles: Sequence[tuple[Any, Handle[Any]]] = (),
        last: Sequence[Handle[Any]] = (),
        duplicate: bool = False,
    ) -> None:
        self.id = id
        """The id of the flow."""
        self.tenant = tenant
        """Whose flow it is."""
        self.duplicate = duplicate
        """True: the flow was there before, and this is it."""
        self._clients = clients
        self._handles = {call.id: handle for call, handle in handles}
        self._last = last

    def __getitem__(self, call: TaskCall[S]) -> Handle[S]:
        """The handle of the task that was made of a call of this flow."""
        handle = self._handles.get(getattr(call, "id", ""))
        if handle is None:
            raise KeyError(f"{call!r} is not a call that this flow was made of")
        return handle

    @property
    def handles(self) -> list[Handle[Any]]:
        """The tasks of the flow, each behind those it waits for; none if it was found by its id."""
        return list(self._handles.values())

    @property
    def state(self) -> State | OutboxState:
        """Where the flow is, from sync code: running, completed, dead or cancelled."""
        return self._clients.blocking(self._state, "flow.state")

    async def astate(self) -> State | OutboxState:
        """Return where the flow is: running, completed, dead or cancelled.

        Raises ``ResultGone`` if it is forgotten. An ``OutboxState`` only where it was enqueued in a
        transaction, and the broker has it not.
        """
        return await self._state(self._clients.current())

    def info(self) -> FlowInfo:
        """Return how many of its tasks have ended, and how, from sync code."""
        return self._clients.blocking(self._info, "flow.info")

    async def ainfo(self) -> FlowInfo:
        """Return how many of its tasks have ended, and how; ``ResultGone`` if it is forgotten."""
        return await self._info(self._clients.current())

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the whole flow and return what its last task returned; for sync code.

        A list, if several of its tasks are last. Raises what ``aresult`` raises.

        Args:
            timeout: How long to wait, a duration; 0 does not wait. Default: no limit.
        """
        limit = wait_limit(timeout)
        refuse_to_block(limit, f"flow {self.id!r}")
        return self._clients.sync_wait(lambda client: self._result(client, limit))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the whole flow and return what its last task returned.

        A list, if several of its tasks are last. Raises ``FlowFailed`` if a task is dead,
        ``FlowCancelled``, ``ResultGone`` and, after ``timeout``, ``ResultTimeout``.

        Args:
            timeout: How long to wait, a duration; 0 does not wait. Default: no limit.
        """
        return await self._result(self._clients.current(), wait_limit(timeout))

    def failed(self) -> list[TaskInfo]:
        """Return the tasks that are dead, at most 100, from sync code."""
        return self._clients.blocking(self._failed, "flow.failed")

    async def afailed(self) -> list[TaskInfo]:
        """Return the tasks that are dead, at most 100: first those that failed by themselves."""
        return await self._failed(self._clients.current())

    def cancel(self) -> bool:
        """Cancel what waits and stop what runs, from sync code; False if all had ended."""
        return self._clients.blocking(lambda client: self._alter(client, "cancel"), "flow.cancel")

    async def acancel(self) -> bool:
        """Cancel what waits and ask what runs to stop; False if there was nothing to do."""
        return await self._alter(self._clients.current(), "cancel")

    def retry(self) -> bool:
        """Put what failed back to work, from sync code; False if nothing had failed."""
        return self._clients.blocking(lambda client: self._alter(client, "retry"), "flow.retry")

    async def aretry(self) -> bool:
        """Put what failed back to work, and what ended because of it; False if nothing had."""
        return await self._alter(self._clients.current(), "retry")

    async def _record(self, client: Client) -> FlowRecord:
        record = await client.flow(self.id)
        if record is None or record.tenant != self.tenant:
            raise ResultGone(self.id, _NO_FLOW, what="flow")
        return record

    async def _state(self, client: Client) -> State | OutboxState:
        return (await self._record(client)).state

    async def _info(self, client: Client) -> FlowInfo:
        record = await self._record(client)
        ended = record.completed + record.dead + record.cancelled
        return FlowInfo(
            id=record.id,
            tenant=record.tenant,
            name=record.name,
            state=record.state,
            total=record.total,
            completed=record.completed,
            dead=record.dead,
            cancelled=record.cancelled,
            progress=ended / record.total,
            committed_at=record.committed_at,
            finished_at=record.finished_at,
        )

    async def _result(self, client: Client, limit: float | None) -> R:
        if not self._last:
            raise InvalidInput(
                f"flow {self.id!r} was found by its id, which does not tell the tasks that come "
                "last; wait for one of them: app.handle(id)"
            )
        if limit == 0.0:
            await self._check(client, await self._record(client))
            return await self._results(client)
        return await until_answered(self.id, limit, lambda: self._after_end(client))

    async def _after_end(self, client: Client) -> R:
        await self._ended(client)
        return await self._results(client)

    async def _results(self, client: Client) -> R:
        results = await asyncio.gather(*(handle._result(client, 0.0) for handle in self._last))
        found: Any = results[0] if len(results) == 1 else list(results)
        return cast(R, found)

    async def _ended(self, client: Client) -> None:
        """Wait for the end; raises if that is no success."""
        while True:
            await client.waiter.wait(self.id)
            record = await self._record(client)
            if record.state is not State.RUNNING:
                return await self._check(client, record)
            await asyncio.sleep(_PAUSE)  # it was retried meanwhile

    async def _check(self, client: Client, record: FlowRecord) -> None:
        if record.state is State.RUNNING:
            raise ResultTimeout(self.id, 0.0)
        if record.state is State.DEAD:
            first = await self._failed(client, 1)
            reason = "".join(f"{each.task} ({each.id}): {each.reason}" for each in first)
            raise FlowFailed(self.id, record.dead, record.total, reason)
        if record.state is State.CANCELLED:
            raise FlowCancelled(self.id, record.cancelled, record.total)

    async def _failed(self, client: Client, most: int = _SHOWN) -> list[TaskInfo]:
        await self._record(client)
        own: list[TaskInfo] = []
        others: list[TaskInfo] = []  # for the sake of another
        start = 0
        while len(own) < most and (
            ids := await client.store.members(self.id, start=start, limit=_PAGE)
        ):
            start += len(ids)
            for record in await client.find(ids):
                if record is not None and record.state is State.DEAD:
                    followed = record.reason.startswith("dependency_failed")
                    (others if followed else own).append(info_of(record, client.priorities))
        return (own + others)[:most]

    async def _alter(self, client: Client, action: Literal["cancel", "retry"]) -> bool:
        return await client.alter_flow(FlowOrder(flow=self.id, action=action, tenant=self.tenant))

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id} tenant={self.tenant!r}>"

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, FlowHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)
