"""Many who wait for results on one client: one call of the broker serves them all, at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fairlead import Ambiguous, Fairlead, Handle, Refused
from fairlead.broker.memory import MemoryBroker
from tests.support.servers import Running, server
from tests.worker.harness import until

WAITERS = 1_000


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server("valkey") as started:
        yield started


@pytest.fixture(params=["memory", "valkey"])
async def app(request: pytest.FixtureRequest, running: Running) -> AsyncIterator[Fairlead]:
    made = Fairlead("memory://" if request.param == "memory" else running.url)
    try:
        yield made
    finally:
        await made.aclose()


def connections(running: Running) -> int:
    return len(running.admin("CLIENT", "LIST").splitlines())


@pytest.mark.parametrize("tasks", [1, WAITERS], ids=["one task", "a task each"])
async def test_a_thousand_waiters_are_woken_at_once_over_the_same_connections(
    app: Fairlead, running: Running, tasks: int
) -> None:
    go = asyncio.Event()

    @app.task
    async def wait(n: int) -> int:
        await go.wait()
        return n

    async with app.worker(concurrency=WAITERS):
        handles: list[Handle[int]] = await app.aenqueue_many(wait.call(n) for n in range(tasks))
        first = asyncio.ensure_future(handles[0].aresult(timeout=30))
        client = app._clients.current()
        waiter = client.waiter
        await until(lambda: waiter._collector is not None)
        await asyncio.sleep(0.05)  # whatever the worker connects to is connected
        before = connections(running)

        rest = [handles[n % tasks] for n in range(1, WAITERS)]
        waiting = [asyncio.ensure_future(handle.aresult(timeout=30)) for handle in rest]
        await until(lambda: sum(map(len, waiter._waiting.values())) == WAITERS)
        assert connections(running) <= before + 2  # one of the worker's own may come late

        go.set()
        began = time.perf_counter()
        found = await asyncio.gather(first, *waiting)
        took = time.perf_counter() - began
        assert connections(running) <= before + 2  # one of the worker's own may come late
    assert found == [n % tasks for n in range(WAITERS)]
    # A waiter that had to be asked again would have taken ten seconds.
    assert took < 5.0


async def test_who_waits_hears_that_the_client_was_closed_while_no_reply_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(*args: Any, **options: Any) -> Any:
        raise Ambiguous("the reply was lost")

    monkeypatch.setattr(MemoryBroker, "watch", lost)
    app = Fairlead("memory://")

    @app.task
    def never() -> None: ...

    handle = await never.aenqueue()
    waiting = asyncio.ensure_future(handle.aresult(timeout=5))
    await asyncio.sleep(0.1)
    assert not waiting.done()  # it asks again
    await app.aclose()
    with pytest.raises(Refused, match="the client was closed while waiting for a task"):
        await waiting
