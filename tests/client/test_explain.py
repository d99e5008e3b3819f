"""Handles say why their tasks do not run, and apps what happened, with real workers."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import Explanation, Fairlead, State
from fairlead.broker.flows import FlowPart, Share
from fairlead.broker.memory import MemoryBroker
from tests.support.store import NOW, Client, submit
from tests.support.twins import on_server


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://")


async def test_a_handle_explains_itself_from_waiting_to_done(app: Fairlead) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail")
    async def send(to: str) -> str:
        begun.set()
        await go_on.wait()
        return to

    handle = await send.using(tenant="acme").aenqueue("a@x")
    found = await handle.aexplain()
    assert isinstance(found, Explanation)
    assert (found.code, found.state) == ("no_worker", State.QUEUED)
    async with app.worker(queues=["mail"], concurrency=1):
        await begun.wait()
        found = await handle.aexplain()
        assert (found.code, found.reasons[0].fields["incarnation"] != "") == ("running", True)
        behind = await send.using(tenant="acme").aenqueue("b@x")
        go_on.set()
        assert await handle.aresult(timeout=10) == "a@x"
        assert await behind.aresult(timeout=10) == "b@x"
        assert (await handle.aexplain()).code == "completed"
    stats = await app.astats("mail", tenants=True)
    queue = stats.queues["mail"]
    assert (queue.enqueued, queue.started, queue.completed) == (2, 2, 2)
    assert queue.run.count == queue.wait.count == 2
    assert stats.tenants["mail"]["acme"].completed == 2


async def test_a_pause_and_a_worker_that_does_not_know_the_task(app: Fairlead) -> None:
    @app.task
    async def known() -> int:
        return 1

    async with app.worker():
        await app.aconfigure_queue("default", paused=True)
        handle = await known.aenqueue()
        assert (await handle.aexplain()).code == "queue_paused"

        @app.task  # registered after the worker told what it knows
        async def unknown() -> None: ...

        late = await unknown.aenqueue()
        codes = [reason.code for reason in (await late.aexplain()).reasons]
        assert codes[:2] == ["queue_paused", "unknown_task"]
        await late.acancel()
        await app.aconfigure_queue("default", paused=False)
        assert await handle.aresult(timeout=10) == 1


async def test_a_worker_that_is_full_or_quiet_is_no_way_to_start(app: Fairlead) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def endless() -> None:
        begun.set()
        await go_on.wait()

    await endless.aenqueue()
    async with app.worker(concurrency=1) as worker:
        await begun.wait()
        await worker.heartbeater.beat()
        behind = await endless.aenqueue()
        found = await behind.aexplain()
        assert (found.code, found.estimate) == ("workers_busy", None)
        worker.processor.be_quiet()
        await worker.heartbeater.beat()
        assert (await behind.aexplain()).code == "workers_quiet"
        go_on.set()


def test_sync_code_can_ask_too(app: Fairlead) -> None:
    @app.task
    def later() -> None: ...

    handle = later.using(delay=60).enqueue()
    found = handle.explain()
    assert (found.code, found.state) == ("scheduled", State.SCHEDULED)
    assert app.stats().queues["default"].enqueued == 1
    assert app.stats("default").tenants == {}
    stranger = app.handle(handle.id, "somebody-else")
    assert stranger.explain().code == "unknown"
    with pytest.raises(ValueError, match="queue"):
        app.stats("no such queue!")


@pytest.mark.parametrize("place", ["memory", "valkey"])
async def test_a_task_whose_flow_is_being_laid_out_says_so(place: str) -> None:
    store = MemoryBroker(test_clock=True) if place == "memory" else on_server("valkey")
    c = Client(store)
    members = tuple(submit(f"a:t{n}") for n in range(120))
    part = FlowPart(
        flow="a:f", number=0, tenant="a", shares=(Share("default", "a", 120),), members=members
    )
    assert (await store.stage(c.call(), part, now=NOW)).code == "staged"
    assert (await store.commit(c.call(), "a:f", now=NOW)).code == "committed"
    first = Fairlead(store=store).handle("a:t0", "a")
    assert (await first.aexplain()).code == "flow"
    while (await store.deliver(now=NOW)).more:
        pass
    assert (await first.aexplain()).code == "no_worker"
    await store.close()
