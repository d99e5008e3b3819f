"""A broker, a registry and workers on them: what the tests of the worker start from."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fairlead.broker import Caller
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import Alter, Altered, QueueChange, Receipt, Submission
from fairlead.model.argument_packing import pack_arguments, unpack
from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, Message, Trace
from fairlead.model.options import Options
from fairlead.model.registry import Registry, TaskSpec
from fairlead.worker.run.context import Context
from fairlead.worker.worker import Worker

__all__ = ("AT_ONCE", "NOW", "Crowd", "Rig", "until")

H = TypeVar("H", bound=Callable[..., Any])

NOW = 1_800_000_000.0  # where a test clock starts
AT_ONCE = Backoff(initial=0.0)

_ids = itertools.count(1)


class Crowd:
    """How many handlers are inside at a time, and how many were at most; from any thread."""

    def __init__(self, expected: int) -> None:
        self.most = 0
        self.complete = threading.Event()  # as many as expected were inside together
        self._expected = expected
        self._inside = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
            if self._inside >= self._expected:
                self.complete.set()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1


class Rig:
    """One broker and the tasks that its workers know."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self.registry = Registry()
        self._caller = Caller("client")

    def task(
        self,
        *,
        name: str | None = None,
        policy: RetryPolicy | None = None,
        version: int = 1,
        **options: Any,
    ) -> Callable[[H], H]:
        """Register a handler."""

        def register(handler: H) -> H:
            spec = TaskSpec(
                name or handler.__name__,
                handler,
                options=Options(**options),
                policy=policy or RetryPolicy(backoff=AT_ONCE),
                version=version,
                context_type=Context,
            )
            self.registry.add(spec)
            return handler

        return register

    def worker(self, incarnation: str = "w1", **options: Any) -> Worker:
        options.setdefault("dice", lambda: 0.5)
        options.setdefault("patience", 0.05)
        return Worker(self.broker, self.registry, incarnation=incarnation, **options)

    async def enqueue(
        self,
        task: str,
        *args: Any,
        id: str | None = None,
        tenant: str = "a",
        queue: str = "default",
        body: bytes | None = None,
        version: int = 1,
        task_version: int = 1,
        max_retries: int | None = None,
        timeout: float | None = None,
        retention: float | None = None,
        correlation: str = "",
        delay: float = 0.0,
        **kwargs: Any,
    ) -> str:
        """Enqueue one call of a task; its id."""
        made = Body(
            task=task,
            arguments=pack_arguments(args, kwargs),
            task_version=task_version,
            max_retries=max_retries,
            timeout=timeout,
            retention=retention,
        )
        message = Message(
            version=version,
            id=id or f"t{next(_ids)}",
            queue=queue,
            tenant=tenant,
            body=made.encode() if body is None else body,
            trace=Trace(correlation_id=correlation).encode() if correlation else b"",
        )
        (receipt,) = await self.submit(Submission(message=message, delay=delay))
        assert receipt.code == "accepted", receipt
        return message.id

    async def submit(self, *submissions: Submission) -> list[Receipt]:
        return await self._caller.call(lambda call: self.broker.enqueue(call, submissions))

    async def cancel(self, id: str) -> Altered:
        order = Alter(id=id, action="cancel")
        (answer,) = await self._caller.call(lambda call: self.broker.alter(call, [order]))
        return answer

    async def pause(self, queue: str) -> None:
        change = QueueChange(queue=queue, paused=True)
        await self._caller.call(lambda call: self.broker.configure(call, [change]))

    async def find(self, id: str) -> TaskRecord:
        (record,) = await self.broker.find([id])
        assert record is not None, f"{id} is unknown"
        return record

    async def state(self, id: str) -> State:
        return (await self.find(id)).state

    async def result(self, id: str) -> Any:
        """What a completed task returned."""
        record = await self.find(id)
        assert record.state is State.COMPLETED, record
        return None if record.result is None else unpack(record.result)

    async def finished(self, id: str, state: State = State.COMPLETED) -> TaskRecord:
        """Wait until a task is in a state, and read it."""

        async def there() -> bool:
            return await self.state(id) is state

        await until(there)
        return await self.find(id)


async def until(holds: Callable[[], bool | Awaitable[bool]], timeout: float = 10.0) -> None:
    """Wait for something that other tasks or threads bring about."""
    async with asyncio.timeout(timeout):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.001)
