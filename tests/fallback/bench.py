"""A fallback whose broker fails on demand, and whose drain goes step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from fairlead.broker import Store, connect
from fairlead.broker.requests import Call, Fetch, LeaseRef, QueueChange, Receipt, Submission
from fairlead.client.client import Client
from fairlead.fallback.drainer import Drainer
from fairlead.fallback.fallback import Fallback, FallbackOptions
from fairlead.fallback.local_tasks import MakeHandlers
from fairlead.fallback.prober import Prober
from fairlead.model.errors import Unreachable
from fairlead.model.message import Body, Message
from fairlead.model.options import Dependency, Unique
from fairlead.runtime.ids import new_id
from fairlead.spool import Rejection, SpoolLimits

__all__ = ("Bench", "Failing", "submit")


class Failing:
    """A broker that passes everything on, but for enqueues while ``error`` is set."""

    def __init__(self, inner: Store | None = None) -> None:
        self.inner = inner or connect("memory://")
        self.error: Exception | None = None
        self.is_executed = False  # it fails after it has done what it was asked
        self.calls: list[list[str]] = []

    async def enqueue(self, call: Call, submissions: Sequence[Submission]) -> list[Receipt]:
        self.calls.append([each.message.id for each in submissions])
        if self.error is not None and not self.is_executed:
            raise self.error
        receipts = await self.inner.enqueue(call, submissions)
        if self.error is not None:
            raise self.error
        return receipts

    def __getattr__(self, name: str) -> Any:
        if name == "stores":  # it is a whole
            raise AttributeError(name)
        return getattr(self.inner, name)


class Bench:
    """One process: its broker, its fallback, a client and a drainer that somebody drives."""

    def __init__(
        self,
        folder: Path,
        *,
        limits: SpoolLimits | None = None,
        inner: Store | None = None,
        silence: float = 0.2,
        handlers: MakeHandlers | None = None,
        **options: Any,
    ) -> None:
        self.broker = Failing(inner)
        self.folder = folder
        self.fallback = Fallback(
            cast(Store, self.broker),
            FallbackOptions(
                directory=folder,
                limits=limits or SpoolLimits(),
                silence=silence,
                is_kept=False,
                **options,
            ),
            handlers,
        )
        self.client = Client(cast(Store, self.broker), fallback=self.fallback)
        self.now = 1_000.0
        self.drainer = Drainer(self.fallback, clock=lambda: self.now)

    def fail(self, error: Exception | None = None) -> None:
        self.broker.error = error or Unreachable("connection refused")

    async def recover(self) -> None:
        """Bring the broker back, and let the probes find out."""
        self.broker.error = None
        for shard in self.fallback.outages.away():
            store = self.fallback.parts.stores[shard]
            prober = Prober(shard, store, self.fallback.outages, silence=1.0, dice=lambda: 0.0)
            await prober.run()

    async def drain(self) -> None:
        """Make one pass."""
        while await self.drainer.step():
            pass

    async def submit(self, *submissions: Submission) -> list[str]:
        receipts = await self.client.submit_many(submissions)
        return [receipt.durability for receipt in receipts]

    async def configure(self, change: QueueChange) -> None:
        await self.broker.inner.configure(Call(new_id(), 1), [change])

    async def states(self, *ids: str) -> list[str | None]:
        found = await self.broker.inner.find(ids)
        return [None if each is None else str(each.state) for each in found]

    async def fetched(self, count: int = 100, queue: str = "default") -> list[str]:
        """Lend tasks to a worker; their ids in the order of service."""
        reply = await self.broker.inner.exchange(
            Call(new_id(), 1), fetch=Fetch(queues=(queue,), max=count)
        )
        return [lease.message.id for lease in reply.leased]

    def rejected(self) -> list[Rejection]:
        return [Rejection.decode(each.payload) for each in self.fallback.spool.rejected()]

    def close(self) -> None:
        self.fallback.spool.close()


def submit(
    id: str,
    *,
    tenant: str = "acme",
    queue: str = "default",
    level: int = 2,
    delay: float = 0.0,
    deadline: float | None = None,
    depends_on: Sequence[Dependency | str] = (),
    unique: str = "",
    fence: LeaseRef | None = None,
    text: bytes = b"",
    limiters: tuple[str, ...] = (),
) -> Submission:
    """A submission of a task named ``work``; dependencies by text are of handles."""
    body = Body(task="work", arguments=text).encode()
    message = Message(id=id, queue=queue, tenant=tenant, level=level, body=body, limiters=limiters)
    return Submission(
        message=message,
        delay=delay,
        deadline=deadline,
        depends_on=tuple(
            Dependency(each, known=True) if isinstance(each, str) else each for each in depends_on
        ),
        unique=Unique(key=unique) if unique else None,
        fence=fence,
    )
