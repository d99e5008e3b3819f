"""Workers bring flows to their end, though nobody but them calls the broker any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead import Fairlead
from fairlead.broker import Store, connect
from fairlead.broker.requests import Submission
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.lifecycle import State
from fairlead.model.message import Body
from tests.support.flows import parts_of
from tests.support.servers import shared
from tests.support.store import Client, submit

LEAVES = [f"leaf{n}" for n in range(130)]


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield connect("memory://")
        return
    with shared() as running:
        opened = connect(running.url)
        yield opened
        await opened.close()


def made(id: str, *after: str) -> Submission:
    body = Body(task="work", arguments=pack_arguments((id,), {})).encode()
    return submit(id, body=body, after=after)


@pytest.mark.parametrize("how", ["worker", "drain"])
async def test_a_worker_runs_a_flow_to_its_end(store: Store, how: str) -> None:
    app = Fairlead(store=store)
    ran: list[str] = []

    @app.task(name="work")
    async def work(id: str) -> None:
        ran.append(id)

    c = Client(store, "writer")
    members = [made("root"), *(made(id, "root") for id in LEAVES), made("last", *LEAVES)]
    for part in parts_of("f", *members):
        assert (await store.stage(c.call(), part)).code == "staged"
    assert (await store.commit(c.call(), "f")).code == "committed"
    if how == "drain":
        assert await app.drain() == len(members)
    else:
        async with app.worker(concurrency=20):
            async with asyncio.timeout(20):
                (watched,) = await store.watch("reader", ["f"])
                while not watched.state or watched.state is State.RUNNING:
                    await store.collect("reader", 0, 5.0)
                    (watched,) = await store.watch("reader", ["f"])
    (found,) = await store.flows(["f"])
    assert found is not None
    assert (found.state, found.completed) == (State.COMPLETED, len(members))
    assert (ran[0], ran[-1]) == ("root", "last")
    assert sorted(ran[1:-1]) == sorted(LEAVES)
