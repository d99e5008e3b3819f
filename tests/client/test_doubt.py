"""What callers hear, and when, of servers that die, go silent or refuse for a while."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from fairlead import Ambiguous, Fairlead, Refused, Unreachable
from fairlead.model.lifecycle import State
from tests.broker.redis.harness import listens, soon
from tests.support.proxy import Proxy, proxy
from tests.support.servers import Running, server


@pytest.fixture
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture
async def between(valkey: Running) -> AsyncIterator[Proxy]:
    async with proxy(path=valkey.path, matching=b"FCALL") as made:
        yield made


@contextlib.asynccontextmanager
async def opened(url: str, timeout: float | str | None = None) -> AsyncIterator[Fairlead]:
    app = Fairlead(url, timeout=timeout)
    app.task(name="work")(_work)
    try:
        yield app
    finally:
        with contextlib.suppress(Exception):
            await app.aclose()


def _work() -> int:
    return 7


def took(began: float) -> float:
    return time.monotonic() - began


async def test_an_enqueue_that_was_carried_out_is_never_said_to_be_not_executed(
    valkey: Running, between: Proxy
) -> None:
    """The reply is swallowed, and the server takes no more connections."""
    async with opened(between.url, 1.0) as app, opened(valkey.url) as direct:
        work = app.registered("work")
        await work.using(enqueue_timeout="10s").aenqueue()  # it connects
        lost = between.drop_reply()
        await between.refuse()
        began = time.monotonic()
        with pytest.raises(Ambiguous) as caught:
            await work.aenqueue()
        assert 0.8 < took(began) < 3
        assert lost.happened.is_set()
        assert caught.value.id is not None
        assert await direct.handle(caught.value.id).astate() is State.QUEUED

        began = time.monotonic()
        with pytest.raises(Unreachable) as sure:  # this one was never sent
            await work.aenqueue()
        assert 0.8 < took(began) < 3
        assert sure.value.id is not None
        assert (await direct.asnapshot()).depth == 2


async def test_a_lost_reply_and_then_a_refusal_is_in_doubt_until_the_reply_comes(
    valkey: Running, between: Proxy
) -> None:
    async with opened(between.url, 0.6) as app:
        work = app.registered("work")
        await work.using(enqueue_timeout="10s").aenqueue()  # it connects
        lost = between.drop_reply()
        call = asyncio.create_task(work.aenqueue())
        await lost.happened.wait()
        valkey.admin("CONFIG", "SET", "maxmemory", "1")  # refuses at once, for good
        with pytest.raises(Ambiguous) as caught:
            await call
        assert caught.value.id is not None

        valkey.admin("CONFIG", "SET", "maxmemory", "0")
        lost = between.drop_reply()
        call = asyncio.create_task(work.using(enqueue_timeout="20s").aenqueue())
        await lost.happened.wait()
        valkey.admin("CONFIG", "SET", "maxmemory", "1")
        await asyncio.sleep(0.2)
        valkey.admin("CONFIG", "SET", "maxmemory", "0")
        await call
        assert (await app.asnapshot()).depth == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["app", "url", "call", "batch", "calls", "flow"])
async def test_an_enqueue_against_a_dead_server_takes_as_long_as_was_said(
    valkey: Running, how: str
) -> None:
    url = f"{valkey.url}?timeout=1s" if how == "url" else valkey.url
    async with opened(url, 1.0 if how == "app" else None) as app:
        work = app.registered("work")
        await work.using(enqueue_timeout="10s").aenqueue()  # it connects
        valkey.kill()
        short, long = (work.using(enqueue_timeout=each) for each in (1.0, "1m"))
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "call": short.aenqueue,
            "batch": lambda: app.aenqueue_many([long.call()], timeout=1.0),
            "calls": lambda: app.aenqueue_many([long.call(), short.call(), work.call()]),
            "flow": lambda: app.aenqueue_flow(long.call() >> short.call() >> work.call()),
        }
        began = time.monotonic()
        with pytest.raises((Unreachable, Ambiguous)):
            await ways.get(how, work.aenqueue)()
        assert 0.8 < took(began) < 2.5


async def test_a_silent_server_is_waited_for_as_long_as_was_said(valkey: Running) -> None:
    async with opened(valkey.url, "500ms") as app:
        work = app.registered("work")
        handle = await work.using(enqueue_timeout="10s").aenqueue()  # it connects
        valkey.pause()
        try:
            began = time.monotonic()
            with pytest.raises(Ambiguous, match="within the time of the call"):
                await work.aenqueue()
            assert 0.4 < took(began) < 2
            began = time.monotonic()
            with pytest.raises(Ambiguous):
                await handle.astate()
            assert took(began) < 2
        finally:
            valkey.resume()
        assert await handle.astate() is State.QUEUED


@pytest.mark.long(20)
@pytest.mark.slow
async def test_ten_seconds_are_all_that_an_enqueue_takes_also_after_a_lost_reply(
    between: Proxy,
) -> None:
    async with opened(between.url) as app:
        work = app.registered("work")
        await work.aenqueue()
        between.drop_reply()
        await between.refuse()
        for error in (Ambiguous, Unreachable):
            began = time.monotonic()
            with pytest.raises(error):
                await work.aenqueue()
            assert 8 < took(began) < 12


@pytest.mark.slow
async def test_in_an_outage_all_callers_have_their_own_time_and_know_that_nothing_was_sent(
    valkey: Running,
) -> None:
    async with opened(valkey.url, 0.5) as app:
        work = app.registered("work")
        await work.using(enqueue_timeout="10s").aenqueue()  # it connects
        valkey.kill()

        async def one(delay: float) -> tuple[float, BaseException | None]:
            await asyncio.sleep(delay)
            began = time.monotonic()
            try:
                await work.aenqueue()
            except (Unreachable, Ambiguous) as error:
                return took(began), error
            return took(began), None

        while not isinstance((await one(0))[1], Unreachable):
            pass  # it met the connection as it went, and on a busy machine the next one, too
        found = await asyncio.gather(*(one(n / 100) for n in range(120)))
        assert {type(error) for _, error in found} == {Unreachable}
        assert max(seconds for seconds, _ in found) < 1.5
        assert min(seconds for seconds, _ in found) > 0.3


async def test_a_call_with_little_time_does_not_wait_for_one_with_much(valkey: Running) -> None:
    async with opened(valkey.url) as app:
        work = app.registered("work")
        handle = await work.aenqueue()
        valkey.pause()
        try:
            patient = asyncio.create_task(work.using(enqueue_timeout=30).aenqueue())
            await asyncio.sleep(0.05)
            began = time.monotonic()
            with pytest.raises(Unreachable, match="not sent"):
                await work.using(enqueue_timeout=0.3).aenqueue()
            assert took(began) < 1.5
        finally:
            valkey.resume()
        await patient
        assert (await app.asnapshot()).depth == 2
        assert await handle.acancel()


async def test_who_waits_for_a_result_waits_through_refusals_that_pass(valkey: Running) -> None:
    async with opened(f"{valkey.url}?timeout=200ms") as app:
        work = app.registered("work")
        handles = [await work.using(enqueue_timeout="10s").aenqueue() for _ in range(3)]
        waiting = [asyncio.create_task(handle.aresult(timeout=120)) for handle in handles]
        await asyncio.sleep(0.1)
        valkey.admin("CONFIG", "SET", "min-replicas-to-write", "1")
        late = asyncio.create_task(handles[0].aresult(timeout=120))  # its first call is refused
        short = asyncio.create_task(handles[0].aresult(timeout=0.5))
        with pytest.raises(TimeoutError):
            await short
        await asyncio.sleep(1.0)
        assert not any(each.done() for each in (*waiting, late))
        with pytest.raises(Refused):
            await work.using(enqueue_timeout="1s").aenqueue()
        valkey.admin("CONFIG", "SET", "min-replicas-to-write", "0")
        await app.drain()
        assert await asyncio.gather(*waiting, late) == [7] * 4


@pytest.mark.slow
async def test_who_waits_for_a_result_waits_while_the_server_loads_its_data() -> None:
    config = {
        "appendonly": "no",
        "save": "",
        "key-load-delay": "1000",
        "loading-process-events-interval-bytes": "1024",
    }
    with server(config=config) as running:
        running.admin("DEBUG", "POPULATE", "3000")
        async with opened(f"{running.url}?timeout=300ms") as app:
            handle = await app.registered("work").aenqueue()
            waiting = asyncio.create_task(handle.aresult(timeout=120))
            await asyncio.sleep(0.1)
            running.admin("SAVE")
            running.kill()
            running.start(ready=False)
            await soon(lambda: listens(running))
            await asyncio.sleep(1.5)
            assert not waiting.done()
            await soon(lambda: running.admin("PING"), 30)
            async with asyncio.timeout(20):  # it may be a moment before the next try to connect
                while not waiting.done():
                    with contextlib.suppress(Unreachable):
                        await app.drain()
            assert await waiting == 7


def test_a_sync_call_on_the_thread_of_a_running_loop_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Fairlead("memory://")
    work = app.task(name="work")(_work)
    work.enqueue()
    assert not caplog.records

    async def main() -> None:
        for _ in range(3):
            work.enqueue()
        assert (await app.asnapshot()).depth == 4

    with caplog.at_level(logging.WARNING, "fairlead.client"):
        asyncio.run(main())
    (record,) = [each for each in caplog.records if each.name == "fairlead.client"]
    assert "aenqueue" in record.message
    assert record.__dict__["where"].startswith(__file__)


async def test_who_is_cancelled_with_a_call_in_flight_leaves_the_line_whole(
    between: Proxy,
) -> None:
    async with opened(between.url) as app:
        work = app.registered("work")
        handles = [await work.aenqueue() for _ in range(2)]
        between.swallow(up=False)
        call = asyncio.create_task(handles[0].acancel())
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait([call])
        between.heal()
        assert await handles[1].acancel()
        assert (await work.aenqueue()).id
