"""Tasks that name those of other servers are sent again exactly if a server lost them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead.broker import Store, connect
from fairlead.broker.requests import Submission
from fairlead.client.client import Client
from fairlead.fallback.drainer import Drainer
from fairlead.fallback.fallback import Fallback, FallbackOptions
from tests.fallback.bench import submit
from tests.support.servers import Running, server


class Shop:
    """A process that uses two servers, and whose drain somebody drives."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        options = FallbackOptions(directory=folder, silence=5.0, is_kept=False)
        self.fallback = Fallback(store, options)
        self.client = Client(store, fallback=self.fallback)
        self._drainer = Drainer(self.fallback)

    async def submit(self, *submissions: Submission) -> set[str]:
        """Enqueue tasks in one call; where they are."""
        receipts = await self.client.submit_many(submissions)
        return {receipt.durability for receipt in receipts}

    async def look(self) -> int:
        """Look at the history, send what was lost; how many tasks that were."""
        before = self.fallback.replayer.replayed
        await self.fallback.replayer.look()
        while await self._drainer.step():
            pass
        return self.fallback.replayer.replayed - before

    async def found(self, *ids: str) -> list[str]:
        """Return those that the broker knows."""
        return [id for id, each in zip(ids, await self.store.find(ids), strict=True) if each]


@pytest.fixture
def main() -> Iterator[Running]:
    with server(aof=True, config={"appendfsync": "always"}) as made:
        yield made


@pytest.fixture
def bulk() -> Iterator[Running]:
    with server() as made:  # it keeps what was saved
        yield made


@pytest.fixture
async def shop(main: Running, bulk: Running, tmp_path: Path) -> AsyncIterator[Shop]:
    store = connect(main.url, routes={"queue:bulk": f"{bulk.url}?shard=bulk"})
    made = Shop(store, tmp_path / "spool")
    yield made
    await made.fallback.close()
    await store.close()


def chain(name: str) -> list[Submission]:
    """One in each server, the second after the first: two stages of one call."""
    return [submit(f"{name}-0"), submit(f"{name}-1", queue="bulk", depends_on=[f"{name}-0"])]


async def test_a_restart_that_loses_nothing_sends_nothing(shop: Shop, main: Running) -> None:
    await shop.submit(submit("parent"))
    for number in range(3):
        await shop.submit(*chain(f"t{number}"))
    assert await shop.look() == 0
    for number in range(2):
        main.restart()
        assert await shop.look() == 0
        assert await shop.submit(*chain(f"next{number}")) == {"committed"}
        assert await shop.look() == 0


async def test_exactly_what_a_server_lost_is_sent_again(shop: Shop, bulk: Running) -> None:
    await shop.submit(*chain("kept"))
    assert await shop.look() == 0
    bulk.admin("SAVE")
    for number in range(3):
        await shop.submit(*chain(f"lost{number}"))
    bulk.restart()  # with what was saved
    # The next call goes over another connection, and does not hide what was lost.
    await shop.submit(*chain("next"))
    lost = [f"lost{number}-1" for number in range(3)]
    assert await shop.found("kept-1", *lost) == ["kept-1"]
    assert await shop.look() == 3
    ids = ["kept-1", *lost, "next-0", "next-1"]
    assert await shop.found(*ids) == ids
    assert await shop.look() == 0


async def test_one_connection_that_was_reset_sends_nobody_into_the_spool(
    shop: Shop, bulk: Running
) -> None:
    await shop.submit(*chain("first"))
    assert await shop.look() == 0
    bulk.admin("CLIENT", "KILL", "TYPE", "normal")
    assert await shop.submit(*chain("next")) == {"committed"}
    assert shop.fallback.replayer.is_moved
    assert await shop.look() == 0
    assert shop.fallback.spool.depth == 0


async def test_a_drain_sends_no_task_before_the_one_of_another_server_that_it_waits_for(
    shop: Shop,
) -> None:
    last = submit("t-2", depends_on=["t-1"])
    await shop.fallback.keep([*chain("t"), last])
    assert await shop.look() == 0
    found = await shop.store.find(["t-0", "t-1", "t-2"])
    assert [each and str(each.state) for each in found] == ["queued", "deferred", "deferred"]
    assert shop.fallback.spool.depth == 0
