"""What is fetched beyond the free slots: seen, charged to nobody, and handed back on a stop."""

from __future__ import annotations

import asyncio

from fairlead.broker.requests import ExchangeReply, Fetch
from fairlead.model.lifecycle import State
from tests.worker.harness import Rig, until


class _Fetches:
    """How much each fetch asked for."""

    def __init__(self, rig: Rig) -> None:
        self.made: list[Fetch] = []
        exchange = rig.broker.exchange

        async def noted(*args: object, **named: object) -> ExchangeReply:
            fetch = named.get("fetch")
            if isinstance(fetch, Fetch):
                self.made.append(fetch)
            return await exchange(*args, **named)  # type: ignore[arg-type]

        rig.broker.exchange = noted  # type: ignore[method-assign]


async def test_long_handlers_are_given_no_more_than_there_are_slots() -> None:
    rig = Rig()
    go = asyncio.Event()

    @rig.task()
    async def wait() -> None:
        await go.wait()

    for _ in range(20):
        await rig.enqueue("wait")
    fetches = _Fetches(rig)
    async with rig.worker(concurrency=4) as worker:
        await until(lambda: len(worker.inflight) == 4)
        for _ in range(50):
            await asyncio.sleep(0)
        assert (await rig.broker.snapshot()).running == 4
        assert not worker.inflight.held
        go.set()
    assert all(fetch.max <= 4 for fetch in fetches.made[:1])


async def test_short_handlers_are_fetched_ahead_but_not_for_more_than_ten_milliseconds() -> None:
    rig = Rig()

    @rig.task()
    async def noop() -> None: ...

    for _ in range(3_000):
        await rig.enqueue("noop")
    fetches = _Fetches(rig)
    async with rig.worker(concurrency=2) as worker:
        await until(lambda: worker.syncer.settled == 3_000)
    ahead = [fetch for fetch in fetches.made if fetch.max > 2]
    assert ahead  # two slots alone would be idle while an exchange is under way
    assert all(fetch.start is not None and fetch.start <= 2 for fetch in fetches.made)
    assert max(fetch.max for fetch in fetches.made) <= 128


async def test_what_is_held_is_shown_and_goes_back_without_an_attempt() -> None:
    rig = Rig()
    go = asyncio.Event()

    @rig.task()
    async def wait() -> None:
        await go.wait()

    ids = [await rig.enqueue("wait") for _ in range(5)]
    worker = rig.worker(concurrency=2, grace=0.0)
    worker.processor._capacity.paces["loop"].rate = 300.0  # as if three ended in ten milliseconds
    async with worker:
        worker.processor._capacity.paces["loop"].since = asyncio.get_running_loop().time() + 60
        await until(lambda: len(worker.inflight.held) == 3)
        assert worker.describe().details["held"] == 3
        records = [await rig.find(id) for id in ids]
        assert [record.started_at is not None for record in records] == [True] * 2 + [False] * 3
        assert len(worker.inflight.leases()) == 5
    for id in ids:
        record = await rig.find(id)
        assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)


async def test_a_crash_is_not_charged_to_what_was_held() -> None:
    rig = Rig()
    go = asyncio.Event()

    @rig.task()
    async def wait() -> None:
        await go.wait()

    ids = [await rig.enqueue("wait") for _ in range(4)]
    worker = rig.worker(concurrency=1)
    worker.processor._capacity.paces["loop"].rate = 300.0
    async with worker:
        worker.processor._capacity.paces["loop"].since = asyncio.get_running_loop().time() + 60
        await until(lambda: len(worker.inflight.held) == 3)
        await rig.broker.give_back("w1")
        crashes = [(await rig.find(id)).crashes for id in ids]
        assert crashes == [1, 0, 0, 0]
        await worker.heartbeater.beat()  # hears that all of them are lost
        assert not worker.inflight.held
        go.set()


async def test_held_tasks_of_a_paused_queue_go_back_at_the_next_beat() -> None:
    rig = Rig()
    go = asyncio.Event()

    @rig.task()
    async def wait() -> None:
        await go.wait()

    for _ in range(4):
        await rig.enqueue("wait")
    worker = rig.worker(concurrency=1)
    worker.processor._capacity.paces["loop"].rate = 300.0
    async with worker:
        worker.processor._capacity.paces["loop"].since = asyncio.get_running_loop().time() + 60
        await until(lambda: len(worker.inflight.held) == 3)
        await rig.pause("default")
        await worker.heartbeater.beat()

        async def rest_is_back() -> bool:
            return (await rig.broker.snapshot()).running == 1

        await until(rest_is_back)
        assert not worker.inflight.held
        go.set()


async def test_a_held_task_that_begins_is_told_to_the_broker() -> None:
    rig = Rig()
    gates = [asyncio.Event(), asyncio.Event()]

    @rig.task()
    async def wait(number: int) -> None:
        await gates[number].wait()

    first, second = [await rig.enqueue("wait", number) for number in range(2)]
    worker = rig.worker(concurrency=1)
    worker.processor._capacity.paces["loop"].rate = 100.0
    async with worker:
        worker.processor._capacity.paces["loop"].since = asyncio.get_running_loop().time() + 60
        await until(lambda: bool(worker.inflight.held))
        assert (await rig.find(second)).started_at is None
        gates[0].set()
        await rig.finished(first)

        async def known() -> bool:
            return (await rig.find(second)).started_at is not None

        await until(known)
        gates[1].set()


async def test_what_is_held_behind_long_handlers_goes_back_for_others_to_take() -> None:
    rig = Rig()
    go = asyncio.Event()

    @rig.task()
    async def wait() -> None:
        await go.wait()

    for _ in range(8):
        await rig.enqueue("wait")
    worker = rig.worker(concurrency=2)
    worker.processor._capacity.paces["loop"].rate = 600.0  # it was fast until now
    async with worker:
        worker.processor._capacity.paces["loop"].since = asyncio.get_running_loop().time() + 60
        await until(lambda: len(worker.inflight.held) == 6)
        worker.processor._capacity.paces["loop"].rate = 0.0

        async def back() -> bool:
            return (await rig.broker.snapshot()).ready == 6

        await until(back)
        assert not worker.inflight.held
        go.set()


async def test_a_held_task_that_is_cancelled_never_begins() -> None:
    rig = Rig()
    go = asyncio.Event()
    begun: list[int] = []

    @rig.task()
    async def wait(number: int) -> None:
        begun.append(number)
        await go.wait()

    ids = [await rig.enqueue("wait", number) for number in range(3)]
    worker = rig.worker(concurrency=1)
    worker.processor._capacity.paces["loop"].rate = 200.0
    async with worker:
        worker.processor._capacity.paces["loop"].since = asyncio.get_running_loop().time() + 60
        await until(lambda: len(worker.inflight.held) == 2)
        assert (await rig.cancel(ids[2])).code == "requested"
        await rig.finished(ids[2], State.CANCELLED)  # its mail is heard of at once
        go.set()
        await rig.finished(ids[1])
    assert begun == [0, 1]


async def test_nothing_begins_while_nobody_keeps_the_leases() -> None:
    rig = Rig()
    begun: list[int] = []

    @rig.task()
    async def quick(number: int) -> None:
        begun.append(number)

    exchange, answered = rig.broker.exchange, asyncio.Event()
    worker = rig.worker(concurrency=1)

    async def late(*args: object, **named: object) -> ExchangeReply:
        reply = await exchange(*args, **named)  # type: ignore[arg-type]
        if reply.leased and not answered.is_set():
            worker.processor.kept = False  # nobody has been heard of for a whole lease by now
            answered.set()
        return reply

    rig.broker.exchange = late  # type: ignore[method-assign]
    id = await rig.enqueue("quick", 1)
    async with worker:
        await answered.wait()

        async def back() -> bool:
            return await rig.state(id) is State.QUEUED

        await until(back)
        assert begun == []
        worker.processor.kept = True
        await rig.finished(id)
