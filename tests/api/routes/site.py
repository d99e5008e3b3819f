"""A server of the API with some tasks behind it, and callers with different tokens."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from fairlead.api.auth.tokens import KIND, new_token
from fairlead.api.http.route import SCOPES
from fairlead.api.http.server import Server
from fairlead.api.service import Service
from fairlead.api.settings import ApiSettings
from fairlead.broker import Store
from fairlead.broker.documents import DocumentChange
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import Page, WorkerRecord
from fairlead.broker.requests import Call, Change, Fetch, Submission
from fairlead.client import Clients
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Body, ErrorInfo, Leased, Message
from fairlead.runtime.ids import new_id
from tests.support.clock import SetClock

__all__ = ("Caller", "Site", "site")

_numbers = itertools.count()


class Caller:
    """Calls the API with one token."""

    def __init__(self, client: httpx.AsyncClient, token: str) -> None:
        self._client = client
        self.token = token
        self._headers = {"authorization": f"Bearer {token}"}

    async def call(
        self, method: str, path: str, body: Any = None, *, accept: str = "", **query: Any
    ) -> httpx.Response:
        headers = {**self._headers, **({"accept": accept} if accept else {})}
        return await self._client.request(
            method, f"/api/v1{path}", json=body, params=query, headers=headers
        )

    async def ok(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer of a call that must go well."""
        answer = await self.call(method, path, body, **query)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def get(self, path: str, **query: Any) -> Any:
        return await self.ok("GET", path, **query)

    async def problem(
        self, status: int, method: str, path: str, body: Any = None, **query: Any
    ) -> Any:
        """The problem document of a call that must fail like this."""
        answer = await self.call(method, path, body, **query)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.json()


class Interrupted(MemoryBroker):
    """Lets something happen between a page that is read and what is made of it."""

    after_page: Callable[[], Awaitable[None]] | None = None

    async def page(self, **selection: Any) -> Page:  # type: ignore[mutable-override]
        page = await super().page(**selection)
        if self.after_page is not None:
            await self.after_page()
        return page


class Site:
    """A broker in memory whose clock is set by hand, and what stands around it."""

    def __init__(
        self, store: Store, clock: SetClock, server: Server, http: httpx.AsyncClient
    ) -> None:
        self.store = store
        self.server = server
        self.clock = clock
        self._http = http
        self._number = 0
        self._worker = f"worker-{next(_numbers)}"

    def interrupt(self, after_page: Callable[[], Awaitable[None]] | None) -> None:
        """Let this happen whenever a page was read."""
        assert isinstance(self.store, Interrupted)
        self.store.after_page = after_page

    def call_id(self) -> Call:
        self._number += 1
        return Call(self._worker, self._number)

    async def caller(self, *scopes: str, tenant: str | None = None) -> Caller:
        """A new token; without scopes it has all of them."""
        token = new_token(name="tests", scopes=scopes or SCOPES, tenant=tenant, now=self.clock.now)
        value = msgspec.json.encode(token.stored)
        change = DocumentChange(kind=KIND, name=token.id, value=value)
        await self.store.write_documents(self.call_id(), [change])
        return Caller(self._http, token.text)

    async def enqueue(
        self,
        count: int = 1,
        *,
        tenant: str = "acme",
        queue: str = "default",
        task: str = "work",
        args: Sequence[Any] = (),
        **options: Any,
    ) -> list[str]:
        """Put tasks into the broker; their ids."""
        body = Body(task=task, arguments=pack_arguments(tuple(args), {})).encode()
        delay = options.pop("delay", 0.0)
        made = [
            Submission(
                message=Message(id=new_id(), queue=queue, tenant=tenant, body=body, **options),
                delay=delay,
            )
            for _ in range(count)
        ]
        receipts = await self.store.enqueue(self.call_id(), made)
        assert {receipt.code for receipt in receipts} == {"accepted"}
        return [receipt.id for receipt in receipts]

    async def enqueue_each(self, tenants: Sequence[str], *, queue: str) -> None:
        """A task of each of up to 200 tenants, in one call."""
        body = Body(task="work", arguments=b"").encode()
        made = [
            Submission(message=Message(id=new_id(), queue=queue, tenant=tenant, body=body))
            for tenant in tenants
        ]
        await self.store.enqueue(self.call_id(), made)

    async def fetch(self, count: int = 1, queue: str = "default") -> list[Leased]:
        fetch = Fetch(queues=(queue,), max=count)
        return (await self.store.exchange(self.call_id(), fetch=fetch)).leased

    async def settle(
        self, leases: Sequence[Leased], to: State, error: ErrorInfo | None = None, **more: Any
    ) -> None:
        made = [
            Settlement(id=lease.message.id, token=lease.token, to=to, error=error, **more)
            for lease in leases
        ]
        assert set((await self.store.exchange(self.call_id(), made)).settled) <= {"applied"}

    async def dead(
        self,
        count: int = 1,
        *,
        error: tuple[str, str] = ("ValueError", "it did not work"),
        queue: str = "default",
        **options: Any,
    ) -> list[str]:
        """Dead tasks; nothing else may wait in their queue."""
        ids = await self.enqueue(count, queue=queue, **options)
        leases = await self.fetch(count, queue)
        assert sorted(lease.message.id for lease in leases) == sorted(ids)
        await self.settle(leases, State.DEAD, ErrorInfo(*error), reason="exhausted")
        return ids

    async def configure(self, *changes: Change) -> None:
        await self.store.configure(self.call_id(), changes)

    async def states(self, ids: Sequence[str]) -> list[State | None]:
        found = await self.store.find(ids)
        return [None if record is None else record.state for record in found]

    async def worker(self, incarnation: str = "w", **about: Any) -> None:
        """A worker that says this of itself."""
        record = WorkerRecord(incarnation=incarnation, seen_at=self.clock.now, **about)
        await self.store.beat(incarnation, worker=record)


@asynccontextmanager
async def site(store: Store | None = None, **settings: Any) -> AsyncIterator[Site]:
    """A server in this process, and its broker: one in memory, unless it is given."""
    clock = SetClock()
    store = store or Interrupted(clock=clock)
    server = Server(Service(Clients(store), ApiSettings(**{"patience": 30.0, **settings})))
    transport = httpx.ASGITransport(app=server, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield Site(store, clock, server, http)
