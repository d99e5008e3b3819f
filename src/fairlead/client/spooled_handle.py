"""A handle for a task that went into the spool, because the broker was away.

What is in the spool of this process is known here; what other processes have in theirs is not.
"""

from __future__ import annotations

import asyncio
from typing import Literal, TypeVar, cast

from fairlead.broker.records import TaskRecord
from fairlead.client.client import Client
from fairlead.client.handle import Handle
from fairlead.client.task_info import TaskInfo
from fairlead.model.errors import Refused, ResultGone, ResultTimeout
from fairlead.model.ledger_errors import TaskRefused
from fairlead.model.lifecycle import State
from fairlead.model.outbox_state import OutboxState

R = TypeVar("R", covariant=True)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between two looks at the spool


class SpooledHandle(Handle[R], eq=False, gc=False):
    """Stands for a task that the broker may not know yet."""

    @property
    def is_accepted(self) -> bool:
        """Whether the broker has the task for sure: if it is unknown later, it was forgotten."""
        return not self._is_spooled and self._refusal is None

    @property
    def output(self) -> R:
        """What the task returns, to be used as an argument of another one that depends on it."""
        return cast(R, self._output(known=self.is_accepted))

    @property
    def _is_spooled(self) -> bool:
        fallback = self._clients.fallback
        return fallback is not None and fallback.is_spooled(self.id)

    @property
    def _refusal(self) -> str | None:
        fallback = self._clients.fallback
        return None if fallback is None else fallback.ids.refused(self.id)

    @property
    def _end_here(self) -> TaskRecord | None:
        """How it ended in this process, while the broker, which has not heard of it, is away."""
        fallback = self._clients.fallback
        return None if fallback is None else fallback.local.outcomes.find(self.id)

    async def _state(self, client: Client) -> State | OutboxState:
        if (end := self._end_here) is not None:
            return end.state
        if self._is_spooled:
            return OutboxState.SPOOLED
        if self._refusal is not None:
            return OutboxState.REFUSED
        holder = self._holder()
        return await super()._state(client) if holder is None else await holder._state(client)

    async def _info(self, client: Client, *, arguments: bool = False) -> TaskInfo:
        if self._is_spooled:
            raise ResultGone(self.id, "it is in the spool, and is sent there when it is back")
        holder = self._followed()
        if holder is not None:
            return await holder._info(client, arguments=arguments)
        return await super()._info(client, arguments=arguments)

    async def _result(self, client: Client, limit: float | None) -> R:
        if limit != 0.0:
            return await super()._result(client, limit)
        if (end := self._end_here) is not None:
            return self._outcome(end)
        if self._is_spooled:
            raise ResultTimeout(self.id, limit)
        holder = self._followed()
        if holder is not None:
            return await holder._result(client, limit)
        return await super()._result(client, limit)

    async def _final(self, client: Client) -> TaskRecord:
        """Wait until it has ended here, or the broker has it; then for the end there."""
        pause = _FIRST_PAUSE
        while self._is_spooled:
            if (end := self._end_here) is not None:
                return end
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        holder = self._followed()
        return await super()._final(client) if holder is None else await holder._final(client)

    async def _alter(self, client: Client, action: Literal["cancel", "requeue", "delete"]) -> bool:
        if self._is_spooled:
            raise Refused(
                "spooled", f"task {self.id!r} is in the spool; {action} it once the broker has it"
            )
        holder = self._holder()
        if holder is not None:
            return await holder._alter(client, action)
        return await super()._alter(client, action)

    def _followed(self) -> Handle[R] | None:
        """The handle of the task that stands for this one. Raises if the broker refused it."""
        why = self._refusal
        if why is not None:
            raise TaskRefused(self.id, why, was="spooled")
        return self._holder()

    def _holder(self) -> Handle[R] | None:
        fallback = self._clients.fallback
        holder = None if fallback is None else fallback.ids.holder(self.id)
        if holder is None:
            return None
        return Handle(
            self._clients,
            holder,
            self.tenant,
            self._returns,
            self.task,
            duplicate=True,
        )
