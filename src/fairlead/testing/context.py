"""A context for calling a handler directly, without a worker and without a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.broker.requests import LeaseRef, Write
from fairlead.model.argument_packing import pack, unpack
from fairlead.model.lifecycle import State
from fairlead.model.log_lines import LogLine, packed_line
from fairlead.model.message import Leased, Message
from fairlead.model.names import DEFAULT_QUEUE, DEFAULT_TENANT
from fairlead.runtime.ids import new_id
from fairlead.runtime.portal import portal
from fairlead.worker.app_services import AppServices
from fairlead.worker.run.context import Context
from fairlead.worker.run.lifespan import Lifespan
from fairlead.worker.run.log_buffer import fields_of
from fairlead.worker.run.results import Ended, Results

if TYPE_CHECKING:
    from fairlead.app import Fairlead


class _Writes:
    """Takes what a handler writes, and answers with it."""

    limit = 10.0  # seconds
    incarnation = "test"

    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.xcom: dict[str, Any] = {}
        self._checkpoint: bytes | None = None

    async def write(self, write: Write, limit: float | None = None) -> None:
        """Keep it."""
        if write.kind == "checkpoint":
            self._checkpoint = write.value
        else:
            self.xcom[write.key] = unpack(write.value)

    async def report(self, write: Write) -> bool:
        """Keep it."""
        self.progress.append(unpack(write.value))
        return True

    async def pull(self, tenant: str, key: str) -> bytes | None:
        """Return what is kept under a key."""
        return pack(self.xcom[key], key) if key in self.xcom else None

    async def checkpoint(self, id: str) -> bytes | None:
        """Return what was saved last."""
        return self._checkpoint


class _Given(Lifespan):
    """Resources that a test hands in, instead of those that a worker opens."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self._given = given

    def of(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, Any]:
        """What the test handed in, on every loop."""
        return self._given


class _Unfenced:
    """Enqueues what a handler does, though there is no lease that the broker could check."""

    def __init__(self, app: Fairlead) -> None:
        self._app = app

    def limit(self, calls: Iterable[object]) -> float:
        """Return how many seconds these calls have."""
        return self._app._clients.limit

    async def one(self, call: Any, fence: LeaseRef) -> Any:
        """Enqueue a call; its handle."""
        (handle,) = await self._app.aenqueue_many([call])
        return handle

    async def many(self, calls: Iterable[Any], fence: LeaseRef) -> list[Any]:
        """Enqueue calls that may depend on each other; their handles."""
        return await self._app.aenqueue_many(calls)


class RecordingContext(Context):
    """A ``Context`` that keeps what the handler reports and leaves for others."""

    __slots__ = ("_kept", "_logged")

    _kept: _Writes
    _logged: list[LogLine]

    @property
    def logged(self) -> list[LogLine]:
        """What the handler kept with ``ctx.log("text")``, in order; fields as plain data."""
        return self._logged

    @property
    def reported(self) -> list[Any]:
        """What the handler said with ``progress``, in order, as plain data."""
        return self._kept.progress

    @property
    def left(self) -> dict[str, Any]:
        """What is under the keys of ``xcom``, as plain data; a test may put values there."""
        return self._kept.xcom

    def _keep_line(self, text: str, fields: Mapping[str, Any]) -> None:
        packed = packed_line(time.time(), self.attempt, text, fields_of(fields))
        self._logged.append(msgspec.convert(unpack(packed), LogLine, builtin_types=(bytes,)))

    def cancel(self) -> None:
        """Ask the handler to stop: ``cancelled`` is true from now on."""
        self._cancelled = True


def new_context(
    app: Fairlead,
    task: str,
    *,
    id: str | None = None,
    attempt: int = 1,
    tenant: str = DEFAULT_TENANT,
    queue: str = DEFAULT_QUEUE,
    headers: Mapping[str, str] | None = None,
    correlation_id: str = "",
    resources: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    xcom: Mapping[str, Any] | None = None,
) -> RecordingContext:
    """Return a context as a handler of this task would see it; see ``Kit.context``."""
    writes = _Writes()
    writes.xcom.update(xcom or {})
    message = Message(id=id or new_id(), queue=queue, tenant=tenant, body=b"")
    context = RecordingContext(
        Leased(message=message, token=1, attempt=attempt),
        task,
        writes,
        portal.loop,  # where sync handlers may wait for it, and async ones too
        correlation_id=correlation_id,
        headers=dict(headers or {}),
        services=AppServices(
            enqueuer=_Unfenced(app),
            lifespan=_Given(dict(resources or {})),
            limit=app._clients.limit,
        ),
    )
    context._kept, context._logged = writes, []
    ended = {
        f"{number:032x}": Ended(task=name, state=State.COMPLETED, result=pack(value, name))
        for number, (name, value) in enumerate((results or {}).items(), 1)
    }
    context._results = Results(tenant, ended)
    return context
