"""Many tasks at once over a real connection: the next call is packed while one is under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import Ambiguous, Fairlead, InvalidInput, QueueFull
from fairlead.broker import connect
from fairlead.broker.call_sizes import packed_for
from fairlead.broker.requests import Call, Fetch
from fairlead.client.submit_path import dated
from tests.client.stores import submission
from tests.support.proxy import Proxy, proxy
from tests.support.servers import Running, shared

MANY = 2_300  # five calls


@pytest.fixture
def running() -> Iterator[Running]:
    with shared() as made:
        yield made


@pytest.fixture
async def between(running: Running) -> AsyncIterator[Proxy]:
    async with proxy(path=running.path) as made:
        yield made


async def order(running: Running, count: int) -> list[str]:
    """The ids of what waits, in the order in which it would be lent."""
    store = connect(running.url)
    found: list[str] = []
    for number in range(1, count // 100 + 2):
        reply = await store.exchange(
            Call("looks", number), fetch=Fetch(queues=("default",), max=100)
        )
        found += [lease.message.id for lease in reply.leased]
    await store.close()
    return found


@pytest.mark.parametrize("lost", [1, 3, 5])
async def test_a_lost_reply_in_the_middle_is_asked_for_again_and_nothing_is_twice(
    running: Running, between: Proxy, lost: int
) -> None:
    async with Fairlead(between.url) as app:

        @app.task
        def work(n: int) -> None: ...

        await app.aenqueue_many([])
        await app.asnapshot()  # there is a connection
        await work.aenqueue(-1)
        fault = between.drop_reply(lost)
        handles = await app.aenqueue_many([work.call(n) for n in range(MANY)])
        assert fault.happened.is_set()
        assert not any(handle.duplicate for handle in handles)
        assert (await app.asnapshot()).ready == MANY + 1
    assert (await order(running, MANY))[1:] == [handle.id for handle in handles]


@pytest.mark.slow
async def test_the_error_names_the_tasks_of_the_call_that_failed(
    running: Running, between: Proxy
) -> None:
    async with Fairlead(between.url) as app:

        @app.task
        def work(n: int) -> None: ...

        await work.aenqueue(-1)
        calls = [work.call(n) for n in range(MANY)]
        fault = between.drop_reply(2)

        async def cut_off() -> None:
            await fault.happened.wait()
            await between.refuse()

        watching = asyncio.create_task(cut_off())
        with pytest.raises(Ambiguous) as caught:
            await app.aenqueue_many(calls, timeout="3s")
        await watching
        assert caught.value.ids == tuple(call.id for call in calls[500:1000])
        await between.accept()
        again = await app.aenqueue_many(calls)
        assert [handle.duplicate for handle in again] == [True] * 1000 + [False] * (MANY - 1000)
        assert (await app.asnapshot()).ready == MANY + 1


async def test_a_full_queue_refuses_the_rest_of_all_calls(running: Running) -> None:
    async with Fairlead(running.url) as app:

        @app.task
        def work(n: int) -> None: ...

        await app.aconfigure_queue("default", max_waiting=1_200)
        with pytest.raises(QueueFull) as caught:
            await app.aenqueue_many([work.call(n) for n in range(MANY)])
        assert "1200 of 2300" in caught.value.__notes__[0]


async def test_all_are_checked_before_any_is_written(running: Running) -> None:
    async with Fairlead(running.url) as app:

        @app.task
        def work(n: Any) -> None: ...

        calls = [work.call(n) for n in range(MANY)]
        with pytest.raises(InvalidInput) as caught:
            await app.aenqueue_many([*calls, work.call(object())])
        assert caught.value.__notes__ == [
            f"in call {MANY}, of task {work.name!r}; none was enqueued"
        ]
        assert (await app.asnapshot()).depth == 0


async def test_one_that_is_cancelled_can_be_enqueued_again(running: Running) -> None:
    async with Fairlead(running.url) as app:

        @app.task
        def work(n: int) -> None: ...

        calls = [work.call(n) for n in range(MANY)]
        sending = asyncio.create_task(app.aenqueue_many(calls))
        await asyncio.sleep(0.005)
        sending.cancel()
        await asyncio.wait([sending])
        await app.aenqueue_many(calls)
        assert (await app.asnapshot()).ready == MANY


async def test_packed_submissions_are_the_same_call(running: Running) -> None:
    store = connect(running.url)
    made = [submission(tenant=f"t{n % 3}") for n in range(10)]
    packed = packed_for(store, made)
    assert list(packed) == made
    assert packed is not made
    first = await store.enqueue(Call("c", 1), packed)  # there is no connection yet
    assert {receipt.code for receipt in first} == {"accepted"}
    assert await store.enqueue(Call("c", 1), packed) == first
    assert await store.enqueue(Call("c", 1), made) == first
    others = packed_for(store, [submission() for _ in range(3)])
    assert {receipt.code for receipt in await store.enqueue(Call("c", 2), others)} == {"accepted"}
    await store.close()


@pytest.mark.parametrize("way", ["batch", "single calls", "one after the other", "flow"])
async def test_tasks_for_one_moment_are_due_at_once_and_run_in_their_order(
    app: Fairlead, way: str
) -> None:
    ran: list[int] = []

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    at = time.time() + 2  # longer than all of them take to be accepted
    numbers = list(range(40))
    if way == "single calls":
        handles = await asyncio.gather(*(work.using(at=at).aenqueue(n) for n in numbers))
    elif way == "one after the other":
        handles = [await work.using(at=at).aenqueue(n) for n in numbers]
    elif way == "batch":  # with ids in another order: it is that of the calls which counts
        calls = [work.using(at=at, id=f"n{99 - n}").call(n) for n in numbers]
        handles = await app.aenqueue_many(calls)
    else:
        calls = [work.using(at=at).call(n) for n in numbers]
        flow = await app.aenqueue_flow(calls)
        handles = [flow[call] for call in calls]
    infos = await asyncio.gather(*(handle.ainfo() for handle in handles))
    assert {info.due_at for info in infos} == {at}
    async with app.worker(concurrency=1):
        await asyncio.gather(*(handle.aresult(timeout=30) for handle in handles))
    assert ran == numbers


def test_what_is_for_one_moment_has_one_delay_where_moments_are_not_kept() -> None:
    """A ledger and a spool keep the delay; each call was made at a time of its own."""
    at = time.time() + 100
    made = [replace(submission(), at=at, delay=delay) for delay in (100.5, 100.2)]
    found = {each.delay for each in dated([*made, submission()])}
    assert len(found) == 2
    assert 0.0 in found
    assert max(found) == pytest.approx(100, abs=1)
