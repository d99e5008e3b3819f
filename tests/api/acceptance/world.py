"""Two tenants with something of everything, and a server that both have tokens for.

All that belongs to the first one carries a mark that stands nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from fairlead import Fairlead
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import Call, Fetch
from tests.api.app import Api
from tests.support.clock import SetClock
from tests.support.store import NOW

__all__ = ("MARK", "OTHER", "OWNER", "World", "opened_world")

MARK = "zq7x"
OWNER = f"{MARK}-tenant"
OTHER = "bee"
_FAILS = "fails"


class World:
    """A server in this process, its app, and the names of what is there by tenant."""

    def __init__(self, api: Api, store: MemoryBroker, clock: SetClock) -> None:
        self.api, self.app, self.store, self.clock = api, api.app, store, clock
        self.names: dict[str, dict[str, str]] = {}

        @self.app.task(name="work")
        async def work(*args: Any, **kwargs: Any) -> Any:
            return {"given": list(args), **kwargs}

        @self.app.task(name=_FAILS, max_retries=0)
        async def fails(text: str) -> None:
            raise ValueError(text)

        self.work, self.fails = work, fails

    async def populate(self, *tenants: str) -> None:
        """Give each tenant one of each, under names that begin with the mark or its own name."""
        for tenant in (OWNER, OTHER):  # workers are there for all
            await self._beat(f"{_prefix(tenant)}-worker", [])
        await self.app.aconfigure_limiter("shared", concurrency=100, failures=50)
        for tenant in tenants:
            await self._end_some(tenant, _prefix(tenant))
        await self.app.drain()
        for tenant in tenants:
            await self._begin_some(tenant, _prefix(tenant))

    async def _end_some(self, tenant: str, prefix: str) -> None:
        queue = f"{prefix}-queue"
        await self.app.aconfigure_tenant(tenant, weight=2.0, concurrency=50)
        work = self.work.using(tenant=tenant, queue=queue)
        done = await work.using(id=f"{prefix}-done").aenqueue(f"{prefix} in", key=f"{prefix} kw")
        failing = self.fails.using(tenant=tenant, queue=queue)
        dead = await failing.using(id=f"{prefix}-dead").aenqueue(f"{prefix} error")
        gone = await failing.using(id=f"{prefix}-gone").aenqueue(f"{prefix} error")
        self.names[tenant] = {
            "tenant": tenant,
            "queue": queue,
            "done": done.id,
            "dead": dead.id,
            "gone": gone.id,
            "limiter": "shared",
        }

    async def _begin_some(self, tenant: str, prefix: str) -> None:
        app, queue = self.app, f"{prefix}-queue"
        work = self.work.using(tenant=tenant, queue=queue)
        running = await work.using(id=f"{prefix}-running").aenqueue(f"{prefix} running")
        fetched = await self.store.exchange(Call(prefix, 1), fetch=Fetch(queues=(queue,), max=1))
        assert len(fetched.leased) == 1
        waiting = await work.using(id=f"{prefix}-waiting").aenqueue(f"{prefix} waiting")
        shared = await work.using(id=f"{prefix}-shared", queue="default").aenqueue(prefix)
        later = await work.using(id=f"{prefix}-later", delay=3_600).aenqueue(f"{prefix} later")
        unknown = app.named(f"{prefix}.task", strict=False).using(tenant=tenant, queue=queue)
        await unknown.aenqueue(f"{prefix} named")
        first, second = work.call(f"{prefix} first"), work.call(f"{prefix} second")
        flow = await app.aenqueue_flow(first >> second, name=f"{prefix}-flow")
        nightly = work.call(f"{prefix} scheduled")
        await app.schedules.acreate(f"{prefix}-schedule", nightly, "0 2 * * *")
        await self._beat(f"{prefix}-worker", [[running.id, "work"]])
        self.names[tenant] |= {
            "running": running.id,
            "waiting": waiting.id,
            "shared": shared.id,
            "later": later.id,
            "flow": flow.id,
            "schedule": f"{prefix}-schedule",
            "worker": f"{prefix}-worker",
        }

    async def _beat(self, incarnation: str, running: list[list[str]]) -> None:
        record = WorkerRecord(incarnation=incarnation, seen_at=NOW, details={"now": running})
        await self.store.beat(incarnation, worker=record)

    async def picture(self) -> Any:
        """All that a call could have changed."""
        store = self.store
        tasks = {
            record.message.id: (record.state, record.generation, record.message.level)
            for record in (await store.page(limit=1_000)).tasks
        }
        orders = [worker.order for worker in await store.workers()]
        return tasks, await store.snapshot(), await store.schedules(), orders

    @asynccontextmanager
    async def caller(
        self, *scopes: str, tenant: str | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        """A client with a new token; without scopes it has all."""
        headers = await self.api.token(*scopes, tenant=tenant)
        async with self.api.caller(headers, follow_redirects=False) as client:
            yield client


@asynccontextmanager
async def opened_world(
    *tenants: str, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[World]:
    """A server whose broker is in memory, with these tenants in it, or both."""
    clock = SetClock()
    store = MemoryBroker(clock=clock)
    world = World(Api(Fairlead(store=store), **(settings or {})), store, clock)
    await world.populate(*(tenants or (OWNER, OTHER)))
    yield world
    await world.api.server.service.close()
    await world.app.aclose()


def _prefix(tenant: str) -> str:
    return MARK if tenant == OWNER else tenant
