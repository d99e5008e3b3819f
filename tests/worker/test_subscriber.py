"""Letters about loans: each loan is taken once, however often it is read of."""

from __future__ import annotations

import asyncio
from typing import Any

from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import Call, Fetch, LeaseRef, Mail
from fairlead.model.lifecycle import State
from tests.worker.harness import Rig, until


class Slow(MemoryBroker):
    """Takes its time to read tasks, and notes how often mail is collected meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.finds = 0

    async def find(self, *args: Any, **options: Any) -> Any:
        self.finds += 1
        await self.go.wait()
        return await super().find(*args, **options)


async def lent_to(broker: MemoryBroker, rig: Rig, name: str) -> Mail:
    """Have another worker fetch a task, and lend it to the worker of this name."""
    await broker.exchange(Call(name, 1), fetch=Fetch(queues=("other",), max=1))
    id = await rig.enqueue("note")
    reply = await broker.exchange(Call("old", 1), fetch=Fetch(queues=("default",), max=1))
    (lease,) = reply.leased
    assert await broker.transfer([LeaseRef(id, "old", lease.token)], name, room=9) == ["moved"]
    (mail,) = await broker.collect(name, 0, 0.0)
    return mail


async def test_mail_that_is_being_read_is_not_read_beside_that() -> None:
    broker = Slow()
    rig = Rig(broker)

    @rig.task()
    async def note() -> None: ...

    mail = await lent_to(broker, rig, "w1")
    worker = rig.worker()
    reading = asyncio.ensure_future(worker.subscriber.receive())
    await until(lambda: broker.finds == 1)
    assert worker.subscriber.unread == ""
    assert await worker.subscriber.receive() == 0
    broker.go.set()
    assert await reading == 1
    assert [lease.token for lease in worker.inflight.held] == [mail.token]


async def test_a_letter_that_comes_again_brings_nothing() -> None:
    broker = MemoryBroker()
    rig = Rig(broker)

    @rig.task()
    async def note() -> None: ...

    mail = await lent_to(broker, rig, "w1")
    worker = rig.worker()
    for _ in range(2):
        await worker.subscriber.accept([mail])
    assert len(worker.inflight.held) == 1


async def test_a_loan_that_is_another_s_by_now_is_not_taken() -> None:
    broker = MemoryBroker()
    rig = Rig(broker)

    @rig.task()
    async def note() -> None: ...

    mail = await lent_to(broker, rig, "w1")
    await broker.give_back("w1", [])
    worker = rig.worker()
    await worker.subscriber.accept([mail])
    assert not worker.inflight.held
    assert await rig.state(mail.id) is State.QUEUED
