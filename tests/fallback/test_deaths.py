"""Whoever drains may be killed at any place: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.broker import connect
from fairlead.runtime import fault_injection
from tests.fallback.bench import Bench, submit
from tests.support.deaths import Deaths, deaths
from tests.support.servers import shared


@pytest.fixture(scope="module")
def dying() -> Iterator[Deaths]:
    with deaths("tests.fallback.killed") as process:
        yield process


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("site", fault_injection.DRAINING)
async def test_a_drain_that_is_killed_loses_nothing_and_doubles_nothing(
    dying: Deaths, tmp_path: Path, site: str, times: int
) -> None:
    ids = [f"t{number:03}" for number in range(300)]  # two steps
    with shared() as server:
        store = connect(server.url)
        bench = Bench(tmp_path / "spool", inner=store, silence=5.0)
        await bench.submit(submit("taken"), submit("taken2"))
        bench.fail()
        await bench.submit(*(submit(id) for id in ids[:150]), submit("taken", text=b"other"))
        await bench.submit(*(submit(id) for id in ids[150:]), submit("taken2", text=b"other"))
        bench.close()
        status = await asyncio.to_thread(
            dying.at, site, times, url=server.url, folder=str(tmp_path / "spool")
        )
        assert status == -signal.SIGKILL
        after = Bench(tmp_path / "spool", inner=store, silence=5.0)
        after.fallback.spool.adopt()
        await after.drain()
        assert after.fallback.spool.depth == 0
        assert set(await after.states(*ids)) == {"queued"}
        seen: Counter[str] = Counter()
        last = None
        while (page := await store.events(after=last)).events:
            seen.update(each.task for each in page.events if each.kind == "enqueued")
            last = page.last
        assert seen == Counter([*ids, "taken", "taken2"])
        assert [each.code for each in after.rejected()] == ["conflict", "conflict"]
        after.close()
        await store.close()
