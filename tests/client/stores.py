"""Stores around a store, to see and to hold up what goes through them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from fairlead.broker import Store, connect
from fairlead.broker.records import Parts, TaskRecord
from fairlead.broker.requests import Call, Fetch, Mail, Receipt, Submission, Watched
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Body, Message
from fairlead.model.options import Dependency, Unique
from fairlead.runtime.ids import new_id


class Counting:
    """Passes everything on, and remembers the enqueue calls."""

    def __init__(self, inner: Store | None = None) -> None:
        self.inner = inner or connect("memory://")
        self.batches: list[list[Submission]] = []
        self.calls: list[Call] = []
        self.failures: list[Exception] = []  # raised once each, in place of the next calls
        self.collecting = 0
        self.collects = 0
        self.begun = asyncio.Event()  # a collecting call is under way
        self.late_failures: list[Exception] = []  # the same, but the call was carried out
        self.drop = ""  # the task whose letters get lost
        self.lost: dict[str, list[Exception]] = {}  # the same, by verb, for the reads
        self.before_find: Callable[[], Awaitable[None]] | None = None

    @property
    def store(self) -> Store:
        return cast(Store, self)

    async def enqueue(self, call: Call, submissions: Sequence[Submission]) -> list[Receipt]:
        self.calls.append(call)
        self.batches.append(list(submissions))
        if self.failures:
            raise self.failures.pop(0)
        await asyncio.sleep(0)  # as a broker behind a network, it lets others go on meanwhile
        receipts = await self.inner.enqueue(call, submissions)
        if self.late_failures:
            raise self.late_failures.pop(0)
        return receipts

    async def collect(self, incarnation: str, after: int, timeout: float) -> list[Mail]:
        self.collects += 1
        self.collecting += 1
        self.begun.set()
        try:
            mails = await self.inner.collect(incarnation, after, timeout)
            while self.drop and all(mail.id == self.drop for mail in mails):
                after = max([after, *(mail.number for mail in mails)])
                mails = await self.inner.collect(incarnation, after, timeout)
            return [mail for mail in mails if mail.id != self.drop]
        finally:
            self.collecting -= 1
            self.begun.clear()

    async def find(self, ids: Sequence[str], parts: Parts) -> list[TaskRecord | None]:
        self._lose("find")
        if self.before_find is not None:
            await self.before_find()
        return await self.inner.find(ids, parts=parts)

    async def watch(self, incarnation: str, ids: Sequence[str]) -> list[Watched]:
        self._lose("watch")
        return await self.inner.watch(incarnation, ids)

    def _lose(self, verb: str) -> None:
        if self.lost.get(verb):
            raise self.lost[verb].pop(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def submission(
    id: str | None = None,
    *,
    tenant: str = "acme",
    queue: str = "default",
    depends_on: Sequence[Dependency] = (),
    unique: Unique | None = None,
    body: bytes = b"",
) -> Submission:
    message = Message(
        id=id or new_id(),
        queue=queue,
        tenant=tenant,
        body=body or Body(task="work", arguments=b"").encode(),
    )
    return Submission(message=message, depends_on=tuple(depends_on), unique=unique)


async def finish(store: Store, count: int = 1, result: bytes | None = None) -> list[str]:
    """Fetch tasks as a worker would and complete them; the ids."""
    worker = new_id()
    reply = await store.exchange(Call(worker, 1), fetch=Fetch(queues=("default",), max=count))
    settlements = [
        Settlement(id=lease.message.id, token=lease.token, to=State.COMPLETED, result=result)
        for lease in reply.leased
    ]
    await store.exchange(Call(worker, 2), settlements)
    return [settlement.id for settlement in settlements]
