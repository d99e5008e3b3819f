"""A process that runs its own tasks may be killed at any place: all of them complete."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.runtime import fault_injection
from tests.fallback.local_killed import TASKS, app_of
from tests.fallback.test_servers import BACK, until
from tests.support.deaths import Deaths, deaths
from tests.support.servers import shared

ENDED = ("local_kept", *fault_injection.DRAINING)  # from here on the first ends are on disk


@pytest.fixture(scope="module")
def dying() -> Iterator[Deaths]:
    with deaths("tests.fallback.local_killed") as process:
        yield process


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "site",
    ["local_claiming", "local_claimed", "handler", "local_ended", "local_kept",
     "drain_read", "drain_sent", "drain_confirmed"],
)  # fmt: skip
async def test_whoever_adopts_completes_every_task_and_runs_none_again_that_had_ended(
    dying: Deaths, tmp_path: Path, site: str
) -> None:
    with shared() as server:
        order = {"url": server.url, "folder": str(tmp_path / "spool")}
        status = await asyncio.to_thread(lambda: dying.at(site, 1, **order))
        assert status == -signal.SIGKILL
        ids = (tmp_path / "ids").read_text().split()
        app = app_of(order)
        fallback = app._clients.fallback
        assert fallback is not None
        await asyncio.to_thread(fallback.spool.adopt)
        kept = fallback.spool.pending(0, 100)
        ended = {each.sequence for each in kept if each.kind.name == "LOCAL_DONE"}
        ran = _ran(tmp_path)
        async with app, app.worker():
            fallback._used()
            await until(lambda: fallback.spool.depth == 0)
            handles = [app.handle(id) for id in ids]
            assert [await each.aresult(timeout=BACK) for each in handles] == list(range(TASKS))
        again = _ran(tmp_path) - ran
        assert set(again) <= set(range(TASKS))
        if site in ENDED:
            ends = len(ended) if site in ("local_kept", "drain_read", "drain_sent") else TASKS
            assert sum(again.values()) == TASKS - ends, "what had ended does not run again"
        if site == "local_claiming":
            assert ran == Counter()
        whole = _ran(tmp_path)
        assert set(whole) == set(range(TASKS))
        assert sum(whole.values()) <= TASKS + 4, "no more than ran at a time"


def _ran(folder: Path) -> Counter[int]:
    lines = folder / "lines"
    text = lines.read_text() if lines.exists() else ""
    return Counter(int(line.split()[0]) for line in text.splitlines())
