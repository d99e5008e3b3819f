"""The checker would notice: without the comparison of lease and holder, a history is not clean."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from fairlead.model.argument_packing import unpack
from tests.acceptance.harness import Site, opened
from tests.support.checker import History, Verdict
from tests.support.servers import server

SOURCE = Path(__file__).resolve().parents[2] / "src"
WHOLE = "return task.state == RUNNING and task.token == token and task.incarnation == incarnation"
BROKEN = "return task.state == RUNNING"

RUNNING = 10  # tasks

# In a thread: it comes to its end whatever the worker knows of its lease by then.
TASKS = """
@app.task(name="doze")
def doze(ctx: Context, first: float, later: float) -> int:
    record("begin", ctx)
    time.sleep(first if ctx.attempt == 1 else later)
    record("end", ctx)
    return ctx.token
"""


def broken_copy(folder: Path) -> Path:
    """The source, with settlements that go by the id of a task and nothing else."""
    copy = folder / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    script = copy / "fairlead" / "broker" / "redis" / "lua" / "lib" / "task.lua"
    text = script.read_text(encoding="utf-8")
    assert text.count(WHOLE) == 1, "the comparison is not where it was"
    script.write_text(text.replace(WHOLE, BROKEN), encoding="utf-8")
    return copy


async def taken_for_dead(site: Site, source: Path) -> Verdict:
    """One worker stands still until another runs its tasks, and then says what came of them.

    The lease is ended by hand, and earlier than it would end: a worker that finds itself silent for
    all of it drops what it has, and there would not always be an outcome that comes too late.
    """
    path = {"PYTHONPATH": str(source)}
    first = site.worker("-c", "10", "-p", "1", host="one", **path)
    [child] = await first.ready()
    ids = await site.enqueue("doze", RUNNING, 2.0, 4.0)
    await site.recorded("begin", RUNNING)

    first.stop()
    await site.store.give_back(first.born()[child]["incarnation"])
    second = site.worker("-c", "10", "-p", "1", host="another", **path)
    await second.ready()
    await site.recorded("begin", 2 * RUNNING)
    first.cont()
    await site.recorded("end", 2 * RUNNING)
    for worker in site.workers:  # when they have ended, they have said all that they had to say
        worker.signal(signal.SIGTERM)
        assert await worker.wait() == 0
    await site.stream.ended(ids)

    history = History()
    for id in ids:
        history.attempted(id)
        history.acknowledged(id)
    history.read(site.stream.events)
    for record in site.records("end"):
        history.finished(record.id, record.token, record.at)
    for found in await site.found(ids):
        assert found.result is not None
        history.result(found.message.id, unpack(found.result))
    return history.verdict()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_settlements_by_id_alone_are_noticed(tmp_path: Path) -> None:
    async def run(name: str, source: Path, *, audited: bool) -> Verdict:
        folder = tmp_path / name
        folder.mkdir()
        with server() as running:
            async with opened(running.url, folder, TASKS, audited=audited) as site:
                return await taken_for_dead(site, source)

    broken = broken_copy(tmp_path)
    sound, noticed = await asyncio.gather(
        run("sound", SOURCE, audited=True), run("broken", broken, audited=False)
    )

    assert sound.defects == {}
    assert len(sound.duplicated) == RUNNING
    assert noticed.defects, "nobody noticed that the wrong outcome was applied"
    assert noticed.wrong
