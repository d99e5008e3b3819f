"""A task that was accepted: its state, its result, and a way to cancel it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import (
    Any,
    Generic,
    Literal,
    TypeVar,
    cast,
    get_type_hints,
)

from msgspec import Struct

from fairlead.broker.explanation import Explanation, explain
from fairlead.broker.records import Parts, TaskRecord
from fairlead.broker.repeats import Limit, repeated
from fairlead.broker.requests import Alter, Receipt, Submission
from fairlead.client.client import Client
from fairlead.client.clients import Clients
from fairlead.client.errors import HANDLE, telling
from fairlead.client.task_info import TaskInfo, info_of
from fairlead.model.argument_packing import Unstorable, unpack_as
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    InvalidInput,
    ResultGone,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    Unreachable,
)
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.log_lines import LogLines, read_log
from fairlead.model.names import DEFAULT_TENANT
from fairlead.model.options import Duration, seconds
from fairlead.model.outbox_state import OutboxState
from fairlead.model.registry import TaskSpec
from fairlead.model.result_refs import Output

R = TypeVar("R", covariant=True)
T = TypeVar("T")


# Not watched by the garbage collector: a handle leads to no handle, and there are many at once.
@telling(HANDLE)
class Handle(Unstorable, Struct, Generic[R], eq=False, gc=False):
    """Stands for one task. Holds its id, not its content; may be made anew from the id."""

    _clients: Clients
    id: str
    """The id of the task."""
    tenant: str
    """Whose task it is; empty: not known, until the task was read."""
    _returns: Any = Any
    task: str = ""
    """The name of its task; empty for a handle that was made from an id."""
    duplicate: bool = False
    """True: the task was there before, and this is it."""
    durability: Literal["committed", "spooled"] = "committed"
    """What the broker promised when it accepted the task."""

    @property
    def is_accepted(self) -> bool:
        """Whether the broker has accepted the task: if it does not know it later, it forgot it."""
        return True

    @property
    def output(self) -> R:
        """What the task returns, to be used as an argument of another one that depends on it."""
        return cast(R, self._output(known=True))

    @property
    def state(self) -> State | OutboxState:
        """Where the task is now, from sync code; see ``astate``.

        Refused on the thread of a running event loop, which would stand still meanwhile, as all
        that asks the broker here and has a form with an ``a`` in front.
        """
        return self._clients.blocking(self._state, "handle.state")

    async def astate(self) -> State | OutboxState:
        """Return where the task is now. Raises ``ResultGone`` if it is forgotten.

        An ``OutboxState`` only where it was enqueued in a transaction, and the broker has it not.
        """
        return await self._state(self._clients.current())

    def info(self, *, arguments: bool = False) -> TaskInfo:
        """Return all that is known of the task, from sync code; see ``ainfo``.

        Args:
            arguments: True adds what the task was called with. Default: False.
        """
        return self._clients.blocking(
            lambda client: self._info(client, arguments=arguments), "handle.info"
        )

    async def ainfo(self, *, arguments: bool = False) -> TaskInfo:
        """Return state, attempts, last error with its traceback, progress and times, for people.

        With ``arguments`` also what it was called with. Raises ``ResultGone`` if the task is
        forgotten.

        Args:
            arguments: True adds what the task was called with. Default: False.
        """
        return await self._info(self._clients.current(), arguments=arguments)

    def logs(self) -> LogLines:
        """Return the lines that its handlers kept with it, from sync code; see ``alogs``."""
        return self._clients.blocking(self._logs, "handle.logs")

    async def alogs(self) -> LogLines:
        """Return the lines that handlers of the task kept with ``ctx.log("text")``, oldest first.

        Those of a running attempt are there within a second. Raises ``ResultGone`` if the task is
        forgotten.
        """
        return await self._logs(self._clients.current())

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the task from sync code; see ``aresult``.

        Refused on the thread of a running event loop, which would stand still until then; with a
        timeout of 0, which only looks, it is allowed there too.

        Args:
            timeout: How long to wait, a duration; 0 does not wait. Default: no limit.
        """
        limit = wait_limit(timeout)
        refuse_to_block(limit, f"task {self.id!r}")
        return self._clients.sync_wait(lambda client: self._result(client, limit))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the task and return what it returned.

        Raises ``TaskFailed``, ``TaskCancelled``, ``ResultGone`` if the broker no longer knows the
        task, and ``ResultTimeout`` after ``timeout``; the task itself goes on. A broker that cannot
        be reached is asked again until then. A timeout of 0 only looks.

        Args:
            timeout: How long to wait, a duration; 0 does not wait. Default: no limit.
        """
        return await self._result(self._clients.current(), wait_limit(timeout))

    def explain(self) -> Explanation:
        """Return why the task is not running, from sync code; see ``aexplain``."""
        return self._clients.blocking(
            lambda client: explained(client, self.id, self.tenant), "handle.explain"
        )

    async def aexplain(self) -> Explanation:
        """Return all that keeps the task from running, the most decisive reason first; two reads.

        A task that is forgotten is explained, too: its code is ``unknown``.
        """
        return await explained(self._clients.current(), self.id, self.tenant)

    def cancel(self) -> bool:
        """Cancel the task from sync code; see ``acancel``."""
        return self._clients.blocking(lambda client: self._alter(client, "cancel"), "handle.cancel")

    async def acancel(self) -> bool:
        """Cancel the task, or ask for it if it runs; False if it has finished or is unknown."""
        return await self._alter(self._clients.current(), "cancel")

    def requeue(self) -> bool:
        """Put a dead task back to work from sync code; see ``arequeue``."""
        return self._clients.blocking(
            lambda client: self._alter(client, "requeue"), "handle.requeue"
        )

    async def arequeue(self) -> bool:
        """Put a dead task back to work, with all its attempts; False if it is not dead."""
        return await self._alter(self._clients.current(), "requeue")

    def delete(self) -> bool:
        """Forget a finished task from sync code; see ``adelete``."""
        return self._clients.blocking(lambda client: self._alter(client, "delete"), "handle.delete")

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
        return info_of(record, client.priorities, arguments=arguments)

    async def _logs(self, client: Client) -> LogLines:
        return read_log((await self._record(client, "log")).log, client.codecs)

    async def _record(self, client: Client, parts: Parts = "info") -> TaskRecord:
        record = await client.reader.one(self.id, parts)
        if record is None or not self._belongs_to(record.message.tenant):
            raise ResultGone(self.id)
        return record

    async def _result(self, client: Client, limit: float | None) -> R:
        if limit == 0.0:
            record = await self._record(client, "result")
            if record.state not in FINAL:
                raise ResultTimeout(self.id, limit)
            return self._outcome(record)
        final = await until_answered(self.id, limit, lambda: self._final(client))
        return self._outcome(final)

    async def _final(self, client: Client) -> TaskRecord:
        while True:
            if await client.waiter.wait(self.id) is State.CANCELLED:
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
        return cast(R, unpack_as(self._returns, record.result, "the result"))

    async def _alter(self, client: Client, action: Literal["cancel", "requeue", "delete"]) -> bool:
        order = Alter(id=self.id, action=action, tenant=self.tenant or None)
        (answer,) = await client.alter([order])
        return answer.code in ("done", "requested")

    def __repr__(self) -> str:
        parts = [self.task, self.id, f"tenant={self.tenant!r}" if self.tenant else ""]
        return f"<{type(self).__name__} {' '.join(part for part in parts if part)}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("task", self.task), ("id", self.id), ("tenant", self.tenant)]

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Handle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


def handle_for(
    clients: Clients,
    spec: TaskSpec,
    receipt: Receipt,
    submission: Submission,
    kind: Callable[..., Handle[Any]] = Handle,
) -> Handle[Any]:
    """Return the handle, of some kind, of the task that was accepted, or that stands for it."""
    if receipt.durability == "spooled":
        # Here: it is a handle itself.
        from fairlead.client.spooled_handle import SpooledHandle

        kind = SpooledHandle
    return kind(
        clients,
        receipt.id,
        submission.message.tenant,
        returned(spec.handler),
        spec.name,
        receipt.code == "duplicate",
        receipt.durability,
    )


@lru_cache(maxsize=1024)
def returned(handler: Callable[..., Any]) -> Any:
    """Return the type that the function says it returns; Any if it does not say."""
    # Not at registration: annotations may name things that the module defines further down.
    try:
        return get_type_hints(handler).get("return", Any)
    except (NameError, TypeError):  # names under TYPE_CHECKING only, or no plain function
        return Any


async def explained(client: Client, id: str, tenant: str) -> Explanation:
    """What there is to say of a task of this tenant; of any, if that is empty."""
    standing = await client.store.standing(id)
    if standing is not None and tenant not in ("", standing.record.message.tenant):
        standing = None
    return explain(id, standing, await client.store.workers())


def wait_limit(timeout: Duration | None) -> float | None:
    """Return a caller's timeout in seconds; None: no limit."""
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and timeout < 0:
        return 0.0  # what is left of a longer wait may come out negative
    return seconds("timeout", timeout)


def refuse_to_block(limit: float | None, what: str) -> None:
    """Raise where a wait would keep the loop of this thread from ever ending; looking is fine."""
    if limit == 0.0:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(
        f"result() of {what} would block the event loop that runs in this "
        "thread; in async code use: await handle.aresult()"
    )


async def until_answered(id: str, limit: float | None, read: Callable[[], Awaitable[T]]) -> T:
    """Read, and again after whatever passes by itself.

    The time is the caller's: an outage, a server that loads its data or has no replica ends it no
    sooner than a task that takes long.
    """
    lost: BrokerError | None = None

    async def ask() -> T:
        try:
            return await read()
        except Ambiguous as error:  # a read is in no doubt, in which it would be repeated for ever
            raise Unreachable(str(error)) from error

    def failed(error: BrokerError) -> None:
        nonlocal lost
        lost = error

    try:
        async with asyncio.timeout(limit):
            try:
                return await ask()
            except BrokerError as error:
                first = error
            return await repeated(lambda _: ask(), Limit(math.inf), after=first, failed=failed)
    except TimeoutError:
        raise ResultTimeout(id, limit or 0.0) from lost
