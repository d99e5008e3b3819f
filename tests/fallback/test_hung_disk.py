"""A disk that does not answer: nobody waits for it for longer than they said."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pytest

from fairlead.fallback import fallback, submitter
from fairlead.fallback.background import BackgroundLoop
from fairlead.model.errors import Ambiguous, BrokerError
from fairlead.model.spool_errors import SpoolFailed
from fairlead.spool import committer, files
from tests.fallback.bench import Bench, submit
from tests.worker.harness import until


class Disk:
    """Hangs in its first sync until it is let go."""

    def __init__(self) -> None:
        self.hangs, self.goes_on = threading.Event(), threading.Event()

    def sync(self, fd: int) -> None:
        self.hangs.set()
        assert self.goes_on.wait(60.0)
        os.fdatasync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(files, "sync", made.sync)
    monkeypatch.setattr(fallback, "_DISK", 0.05)
    monkeypatch.setattr(submitter, "_EXTRA", 0.05)
    yield made
    made.goes_on.set()


async def test_a_caller_hears_in_its_time_that_the_task_is_in_doubt(
    bench: Bench, disk: Disk
) -> None:
    bench.fail()
    began = time.monotonic()
    calls = [
        asyncio.create_task(bench.client.submit(submit(f"t{n}"), limit=seconds))
        for n, seconds in enumerate((0.5, 0.7, 60.0))
    ]
    many = asyncio.create_task(bench.client.submit_many([submit("many")], limit=0.6))
    for call in (*calls[:2], many):
        with pytest.raises(Ambiguous):
            await call
    assert time.monotonic() - began < 10.0
    assert not calls[2].done()
    disk.goes_on.set()  # what was in doubt is written, and sent once
    assert (await calls[2]).durability == "spooled"
    await until(lambda: bench.fallback.spool.depth == 4)
    await bench.recover()
    await bench.drain()
    ids = ["t0", "t1", "t2", "many"]
    assert await bench.states(*ids) == ["queued"] * 4
    assert not any(map(bench.fallback.is_spooled, ids))


async def test_a_disk_that_hangs_is_given_nothing_more_and_the_refusal_is_definite(
    bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_HANGS", 0.05)
    bench.fail()
    first = asyncio.create_task(bench.client.submit(submit("first"), limit=60.0))
    await asyncio.to_thread(disk.hangs.wait, 10.0)
    await asyncio.sleep(0.1)
    with pytest.raises(SpoolFailed, match=r"has not answered for 0 s; nothing was written"):
        await bench.client.submit_many([submit("second")])
    assert not bench.fallback.is_spooled("second")
    disk.goes_on.set()
    assert (await first).durability == "spooled"
    assert (await bench.submit(submit("third"))) == ["spooled"]


async def test_a_broker_that_is_back_takes_tasks_though_the_disk_hangs(
    bench: Bench, disk: Disk
) -> None:
    bench.fail()
    with pytest.raises(BrokerError):
        await bench.client.submit(submit("doubted"), limit=0.3)
    background = BackgroundLoop(bench.fallback, dice=lambda: 0.0)
    running = asyncio.create_task(background.run())
    bench.broker.error = None
    await until(lambda: not bench.fallback.outages.away())
    assert (await bench.client.submit(submit("next"), limit=5.0)).durability == "committed"
    disk.goes_on.set()
    await until(lambda: not bench.fallback.is_spooled("doubted"))
    background.stop()
    await running
    assert await bench.states("doubted", "next") == ["queued", "queued"]


async def test_the_end_of_a_program_does_not_wait_for_ever(
    bench: Bench,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(committer, "_HANGS", 0.05)
    bench.fail()
    with pytest.raises(Ambiguous):
        await bench.client.submit(submit("a"), limit=0.3)
    bench.fallback.spool.close()
    assert "the disk of the spool does not answer; what it was given is in doubt" in caplog.messages
