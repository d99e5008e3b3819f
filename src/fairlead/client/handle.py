"""A task that was accepted: its state, its result, and a way to cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast

from fairlead.broker.verbs import Alter
from fairlead.broker.views import Parts, TaskRecord
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.explaining import Explaining
from fairlead.client.habits import HANDLE, no_attribute
from fairlead.client.info import TaskInfo, info_of
from fairlead.client.patience import limit_of, refuse_to_block, until_answered
from fairlead.model.errors import (
    ResultGone,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
)
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.names import DEFAULT_TENANT
from fairlead.model.options import Duration
from fairlead.model.outbox_state import OutboxState
from fairlead.model.outputs import Output
from fairlead.model.values import convert, unpack

__all__ = ("Handle",)

R = TypeVar("R", covariant=True)


class Handle(Explaining, Generic[R]):
    """Stands for one task. Holds its id, not its content; may be made anew from the id."""

    __slots__ = ("_clients", "_returns", "duplicate", "durability", "id", "task", "tenant")

    def __init__(
        self,
        clients: Clients,
        id: str,
        tenant: str,
        *,
        returns: Any = Any,
        task: str = "",
        duplicate: bool = False,
        durability: Literal["committed", "spooled"] = "committed",
    ) -> None:
        self.id = id
        self.tenant = tenant  # empty: not known, until the task was read
        self.task = task  # the name of its task; empty for a handle that was made from an id
        self.duplicate = duplicate  # the task was there before, and this is it
        self.durability = durability  # what the broker promised when it accepted the task
        self._clients = clients
        self._returns = returns

    @property
    def is_accepted(self) -> bool:
        """Whether the broker has accepted the task: if it does not know it later, it forgot it."""
        return True

    @property
    def output(self) -> Any:
        """What the task returns, to be used as an argument of another one that depends on it."""
        return self._output(known=True)

    @property
    def state(self) -> State | OutboxState:
        """Where the task is now, from sync code; see ``astate``.

        On the thread of a running event loop, which stands still for the trip to the broker, it
        logs a warning that says what to do.
        """
        return self._clients.sync(self._state, "await handle.astate()")

    async def astate(self) -> State | OutboxState:
        """Where the task is now. Raises ``ResultGone`` if it is forgotten.

        An ``OutboxState`` only where it was enqueued in a transaction, and the broker has it not.
        """
        return await self._state(self._clients.current())

    def info(self, *, arguments: bool = False) -> TaskInfo:
        """All that is known of the task, from sync code; see ``ainfo``."""
        return self._clients.sync(
            lambda client: self._info(client, arguments=arguments), "await handle.ainfo()"
        )

    async def ainfo(self, *, arguments: bool = False) -> TaskInfo:
        """State, attempts, last error with its traceback, progress and times, for people.

        With ``arguments`` also what it was called with. Raises ``ResultGone`` if the task is
        forgotten.
        """
        return await self._info(self._clients.current(), arguments=arguments)

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the task from sync code; see ``aresult``.

        Refused on the thread of a running event loop, which would stand still until then; with a
        timeout of 0, which only looks, it is allowed there too.
        """
        limit = limit_of(timeout)
        refuse_to_block(limit, f"task {self.id!r}")
        return self._clients.sync_wait(lambda client: self._result(client, limit))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the task and return what it returned.

        Raises ``TaskFailed``, ``TaskCancelled``, ``ResultGone`` if the broker no longer knows the
        task, and ``ResultTimeout`` after ``timeout``; the task itself goes on. A broker that cannot
        be reached is asked again until then. A timeout of 0 only looks.
        """
        return await self._result(self._clients.current(), limit_of(timeout))

    def cancel(self) -> bool:
        """Cancel the task from sync code; see ``acancel``."""
        return self._clients.sync(lambda client: self._alter(client, "cancel"))

    async def acancel(self) -> bool:
        """Cancel the task, or ask for it if it runs; False if it has finished or is unknown."""
        return await self._alter(self._clients.current(), "cancel")

    def requeue(self) -> bool:
        """Put a dead task back to work from sync code; see ``arequeue``."""
        return self._clients.sync(lambda client: self._alter(client, "requeue"))

    async def arequeue(self) -> bool:
        """Put a dead task back to work, with all its attempts; False if it is not dead."""
        return await self._alter(self._clients.current(), "requeue")

    def delete(self) -> bool:
        """Forget a finished task from sync code; see ``adelete``."""
        return self._clients.sync(lambda client: self._alter(client, "delete"))

    async def adelete(self) -> bool:
        """Forget a finished task and its result; False if it is not finished or unknown."""
        return await self._alter(self._clients.current(), "delete")

    def _output(self, *, known: bool) -> Output:
        return Output(self.id, task=self.task, tenant=self.tenant or DEFAULT_TENANT, known=known)

    def _belongs_to(self, tenant: str) -> bool:
        """Return whether the task is the one that is meant; without a tenant any is."""
        self.tenant = self.tenant or tenant
        return self.tenant == tenant

    async def _state(self, client: Client) -> State | OutboxState:
        return (await self._record(client)).state

    async def _info(self, client: Client, *, arguments: bool = False) -> TaskInfo:
        record = await self._record(client, "all" if arguments else "info")
        return info_of(record, arguments=arguments)

    async def _record(self, client: Client, parts: Parts = "info") -> TaskRecord:
        record = await client.find_one(self.id, parts)
        if record is None or not self._belongs_to(record.message.tenant):
            raise ResultGone(self.id)
        return record

    async def _result(self, client: Client, limit: float | None) -> R:
        if limit == 0.0:
            record = await self._record(client, "result")
            if record.state not in FINAL:
                raise ResultTimeout(self.id, limit)
            return self._outcome(record)
        return await until_answered(self.id, limit, lambda: self._ended(client))

    async def _ended(self, client: Client) -> R:
        return self._outcome(await self._final(client))

    async def _final(self, client: Client) -> TaskRecord:
        while True:
            if await client.wait_final(self.id) is State.CANCELLED:
                raise TaskCancelled(self.id)
            record = await self._record(client, "result")
            if record.state in FINAL:  # it may have been put back from the dead meanwhile
                return record

    def _outcome(self, record: TaskRecord) -> R:
        if record.state is State.CANCELLED:
            raise TaskCancelled(self.id)
        if record.state is State.DEAD:
            error = record.error
            text = f"{error.type}: {error.message}" if error is not None else ""
            raise TaskFailed(self.id, record.reason, text)
        value = None if record.result is None else unpack(record.result)
        return cast(R, convert(value, self._returns, "the result"))

    async def _alter(self, client: Client, action: Literal["cancel", "requeue", "delete"]) -> bool:
        order = Alter(id=self.id, action=action, tenant=self.tenant or None)
        (answer,) = await client.alter([order])
        return answer.code in ("done", "requested")

    def __repr__(self) -> str:
        parts = [self.task, self.id, f"tenant={self.tenant!r}" if self.tenant else ""]
        return f"<{type(self).__name__} {' '.join(part for part in parts if part)}>"

    if not TYPE_CHECKING:  # a checker would take it for any attribute

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute(self, name, HANDLE)

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Handle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)
