"""Handles of what was enqueued in a transaction: they ask the ledger while the broker is unaware.

The broker is asked first: what it knows counts. Only then the ledger is, over connections of the
app's own, so that they see what was committed and not what a caller's transaction still holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from fairlead.broker.flows import FlowOrder
from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import Alter
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.flow_handle import FlowHandle, FlowInfo
from fairlead.client.handle import Handle
from fairlead.client.spooled_handle import SpooledHandle
from fairlead.client.task_info import TaskInfo, info_in_ledger
from fairlead.ledger.rows import Standing
from fairlead.model.errors import (
    FlowCancelled,
    InvalidInput,
    Refused,
    ResultGone,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
)
from fairlead.model.ledger_errors import LedgerError, TaskRefused
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.outbox_state import OutboxState

if TYPE_CHECKING:
    from fairlead.ledger.ledger import Ledger

R = TypeVar("R", covariant=True)
T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds between two looks at the ledger
_UNSENT = ("pending", "claimed")


class LedgerHandle(Handle[R], eq=False, gc=False):
    """Stands for a task that the broker may not know yet."""

    _flow: str = ""  # its members have no rows of their own before the broker has them
    _is_seen: bool = False  # it was committed: it is gone if neither side knows it

    @property
    def is_accepted(self) -> bool:
        """Whether the task was there for sure: if it is unknown later, it was forgotten."""
        return self._is_seen

    @property
    def output(self) -> R:
        """What the task returns, to be used as an argument of another one that depends on it."""
        return cast(R, self._output(known=self._is_seen))

    async def _state(self, client: Client) -> State | OutboxState:
        try:
            return (await self._record(client)).state
        except ResultGone as gone:
            return early_state(await self._standing(gone))

    async def _info(self, client: Client, *, arguments: bool = False) -> TaskInfo:
        try:
            return await super()._info(client, arguments=arguments)
        except ResultGone as gone:
            row = await ledger_of(self._clients, self.id).task(id=self.id)
            if row is not None and self._belongs_to(row.tenant):
                state = early_state(Standing(row.state))
                return info_in_ledger(row, state, client.priorities)
            if await self._standing(gone) is not None:
                raise ResultGone(self.id, "its flow is yet to be sent there") from None
        raise ResultGone(self.id, "the transaction that enqueued it is not committed")

    async def _result(self, client: Client, limit: float | None) -> R:
        if limit != 0.0:
            return await super()._result(client, limit)
        try:
            return await super()._result(client, limit)
        except ResultGone as gone:
            holder = self._followed(await self._standing(gone))
        if holder is None:
            raise ResultTimeout(self.id, limit)
        return await holder._result(client, limit)

    async def _final(self, client: Client) -> TaskRecord:
        """Wait for the commit and the push, then for the end at the broker."""

        async def ask() -> TaskRecord | None:
            try:
                return await super(LedgerHandle, self)._final(client)
            except ResultGone as gone:
                holder = self._followed(await self._standing(gone))
            return None if holder is None else await holder._final(client)

        return await until_known(ask)

    async def _standing(self, gone: ResultGone) -> Standing | None:
        """What the ledger has; None while nothing is committed. Raises ``gone`` if it was there."""
        ledger = ledger_of(self._clients, self.id)
        await self._find_tenant(ledger)
        standing = await ledger.task_standing(id=self.id, tenant=self.tenant)
        if standing is None and self._flow:
            standing = await ledger.flow_standing(id=self._flow, tenant=self.tenant)
            if standing is not None and standing.state == "running":
                standing = Standing("pending")  # the broker has yet to lay it out
            elif standing is not None and standing.state in (State.COMPLETED, State.DEAD):
                raise gone  # how the flow ended does not tell how this one did
        if standing is None and self._is_seen:
            raise gone
        self._is_seen = self._is_seen or standing is not None
        return standing

    async def _find_tenant(self, ledger: Ledger) -> None:
        """Learn from the ledger whose the task is, where that was not said."""
        row = None if self.tenant else await ledger.task(id=self.id)
        if row is not None:
            self.tenant = row.tenant

    def _followed(self, standing: Standing | None) -> Handle[R] | None:
        """The handle of the task that stands for this one; None if it has to be waited for.

        Raises what the ledger knows of its end.
        """
        if standing is None or standing.state not in (*FINAL, "refused"):
            return None
        if standing.state == "refused":
            holder = standing.stands_for
            if standing.reason.startswith("duplicate") and holder not in ("", self.id):
                return LedgerHandle(
                    self._clients,
                    holder,
                    self.tenant,
                    self._returns,
                    self.task,
                    duplicate=True,
                    _is_seen=True,
                )
            raise TaskRefused(self.id, standing.reason, holder)
        if standing.state == State.CANCELLED:
            raise TaskCancelled(self.id)
        if standing.state == State.DEAD:
            error = f"{standing.error_type}: {standing.error}" if standing.error_type else ""
            raise TaskFailed(self.id, standing.reason, error)
        raise ResultGone(
            self.id, "the ledger says that it is completed; results are not kept there"
        )

    async def _alter(self, client: Client, action: Literal["cancel", "requeue", "delete"]) -> bool:
        order = Alter(id=self.id, action=action, tenant=self.tenant or None)

        async def at_broker() -> bool | None:
            (answer,) = await client.alter([order])
            return None if answer.code == "unknown" else answer.code in ("done", "requested")

        if action != "cancel":
            return bool(await at_broker())

        async def in_ledger() -> tuple[int | None, Standing | None]:
            ledger = ledger_of(self._clients, self.id)
            await self._find_tenant(ledger)
            pushes = await ledger.cancel_pending(id=self.id, tenant=self.tenant)
            return pushes, await ledger.task_standing(id=self.id, tenant=self.tenant)

        return await cancelled(self.id, client, at_broker, in_ledger)


class LedgerFlowHandle(FlowHandle[Any]):
    """Stands for a flow that the broker may not know yet."""

    __slots__ = ()

    async def _state(self, client: Client) -> State | OutboxState:
        try:
            return (await self._record(client)).state
        except ResultGone:
            return early_state(await self._standing())

    async def _info(self, client: Client) -> FlowInfo:
        try:
            return await super()._info(client)
        except ResultGone:
            state = early_state(await self._standing())
        raise ResultGone(self.id, f"it is {state}, and how far it is only the broker can tell")

    async def _result(self, client: Client, limit: float | None) -> Any:
        try:
            return await super()._result(client, limit)
        except ResultGone:
            if limit != 0.0:  # it was waited for: a member is forgotten
                raise
            self._check_standing(await self._standing())
            raise ResultTimeout(self.id, limit) from None

    async def _ended(self, client: Client) -> None:
        async def ask() -> Literal[True] | None:
            try:
                await super(LedgerFlowHandle, self)._ended(client)
            except ResultGone:
                self._check_standing(await self._standing())
                return None
            return True

        await until_known(ask)

    async def _standing(self) -> Standing | None:
        ledger = ledger_of(self._clients, self.id)
        return await ledger.flow_standing(id=self.id, tenant=self.tenant)

    def _check_standing(self, standing: Standing | None) -> None:
        """Raise what the ledger knows of the end of the flow."""
        if standing is None or standing.state not in (*FINAL, "refused"):
            return
        if standing.state == "refused":
            raise TaskRefused(self.id, standing.reason)
        if standing.state == State.CANCELLED:
            total = len(self._handles)
            raise FlowCancelled(self.id, total, total)
        raise ResultGone(self.id, f"the ledger says that it is {standing.state}")

    async def _alter(self, client: Client, action: Literal["cancel", "retry"]) -> bool:
        async def at_broker() -> bool | None:
            if await client.flow(self.id) is None:
                return None
            order = FlowOrder(flow=self.id, action=action, tenant=self.tenant)
            return await client.alter_flow(order)

        if action != "cancel":
            return bool(await at_broker())

        async def in_ledger() -> tuple[int | None, Standing | None]:
            ledger = ledger_of(self._clients, self.id)
            pushes = await ledger.cancel_pending_flow(id=self.id, tenant=self.tenant)
            return pushes, await self._standing()

        return await cancelled(self.id, client, at_broker, in_ledger)


# -- what both do ---------------------------------------------------------------------------------


def handle_of(clients: Clients, id: str, tenant: str) -> Handle[Any]:
    """Return a handle for an id: one that asks the ledger or the spool too, if there is one."""
    fallback = clients.fallback
    if fallback is not None and (clients.ledger_url is None or fallback.is_spooled(id)):
        return SpooledHandle(clients, id, tenant)
    if clients.ledger_url is None:
        return Handle(clients, id, tenant)
    return LedgerHandle(clients, id, tenant, _is_seen=True)


def ledger_of(clients: Clients, id: str) -> Ledger:
    """Return the ledger of the app; InvalidInput if it has none."""
    if clients.ledger_url is None:
        raise InvalidInput(
            f"the broker does not know {id!r}, which was enqueued in a transaction, and this app "
            'has no ledger to look it up: Fairlead(..., ledger="postgresql://...")'
        )
    return clients.ledger


def early_state(standing: Standing | None) -> State | OutboxState:
    """Return the state of what the broker does not know, from what the ledger says."""
    if standing is None:
        return OutboxState.UNCOMMITTED
    if standing.state in _UNSENT:
        return OutboxState.PENDING
    return OutboxState.REFUSED if standing.state == "refused" else State(standing.state)


async def until_known(ask: Callable[[], Awaitable[T | None]]) -> T:
    """Ask, with growing pauses, until there is an answer. Callers limit the time."""
    pause = _FIRST_PAUSE
    while True:
        try:
            answer = await ask()
        except LedgerError as error:
            if not error.passes:
                raise
            answer = None
        if answer is not None:
            return answer
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def cancelled(
    id: str,
    client: Client,
    at_broker: Callable[[], Awaitable[bool | None]],
    in_ledger: Callable[[], Awaitable[tuple[int | None, Standing | None]]],
) -> bool:
    """Cancel at the broker, or in the ledger what was not sent there.

    What a manager is just sending is neither here nor there: wait until it has arrived.
    """

    async def ask() -> bool | None:
        done = await at_broker()
        if done is not None:
            return done
        pushes, standing = await in_ledger()
        if pushes is not None:
            if pushes:  # a manager that died may have sent it before
                await at_broker()
            return True
        if standing is None or standing.state in (*FINAL, "refused"):
            return False
        return None

    try:
        async with asyncio.timeout(client.limit):
            return await until_known(ask)
    except TimeoutError:
        raise Refused(
            "claimed", f"{id!r} is being sent to the broker; cancel it again in a while"
        ) from None
