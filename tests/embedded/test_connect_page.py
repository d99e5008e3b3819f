"""The ACL user of docs/how-to/connect.md may do all that Fairlead does, and little else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from fairlead import Fairlead, State
from fairlead.broker import connect
from tests.support.servers import Running, server
from tests.worker.harness import until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "connect.md"

FORBIDDEN = ("SET other 1", "FLUSHALL", "CONFIG SET appendonly no", "KEYS *", "SHUTDOWN")


@pytest.fixture
def guarded() -> Iterator[Running]:
    """A server with the user that the page describes."""
    line = re.search(r"^ACL SETUSER .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    with server() as running:
        running.admin(*line.group().split())
        yield running
        assert running.admin("ACL", "LOG") == []


def url(running: Running) -> str:
    return running.url.replace("unix://", "unix://fairlead:password@")


async def test_the_user_of_the_page_may_do_everything(guarded: Running) -> None:
    store = connect(url(guarded))
    async with Fairlead(store=store) as app:

        @app.task
        async def work(n: int) -> int:
            return n

        @app.task
        async def hangs() -> None:
            await asyncio.Event().wait()

        await app.aconfigure_tenant("acme", weight=2, concurrency=5, rate=1_000)
        async with app.worker(grace=0.0):
            parent = await work.using(tenant="acme").aenqueue(1)
            child = await work.using(depends_on=[parent], delay=0.1).aenqueue(2)
            assert await child.aresult(timeout=20) == 2
            stuck = await hangs.aenqueue()

            async def has(state: State) -> bool:
                return await stuck.astate() is state

            await until(lambda: has(State.RUNNING))
            await stuck.acancel()
            await until(lambda: has(State.CANCELLED))
        assert (await app.asnapshot()).depth == 0
        assert (await app.apage(state="completed")).tasks
        assert await app.apurge() == 0
        last = (await store.events()).last
        assert (await store.events(after=last, timeout=0.05)).events == []
        assert await store.audit() == []


def test_the_user_of_the_page_may_not_do_much_else(guarded: Running) -> None:
    with redis.Redis.from_url(url(guarded)) as client:
        for command in FORBIDDEN:
            with pytest.raises(NoPermissionError):
                client.execute_command(*command.split())
    guarded.admin("ACL", "LOG", "RESET")
