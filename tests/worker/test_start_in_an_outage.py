"""A worker in a program of one's own that starts while the broker is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead import Fairlead, Unreachable
from fairlead.worker import config
from tests.support.servers import server
from tests.worker.harness import until


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of a broker that fails."""
    return [line for line in caplog.messages if line.startswith("broker failed: could not connect")]


async def test_with_a_fallback_it_waits_for_the_broker_and_then_does_what_was_spooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(config, "_PAUSE", 0.05)
    with server(aof=True) as running:
        running.kill()
        app = Fairlead(running.url, fallback="spool", spool=tmp_path / "spool", timeout=1.0)
        done: list[int] = []

        @app.task(name="note")
        async def note(number: int) -> None:
            done.append(number)

        async def work() -> None:
            async with app.worker():
                await until(lambda: done == [7], 30.0)

        async with app:
            assert (await note.aenqueue(7)).durability == "spooled"
            working = asyncio.create_task(work())
            await until(lambda: bool(failures(caplog)), 10.0)
            assert not working.done()
            await asyncio.to_thread(running.start)
            await working
        assert len(failures(caplog)) == 1


async def test_it_can_be_cancelled_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with server() as running:
        running.kill()
        async with Fairlead(running.url, fallback="spool", spool=tmp_path, timeout=0.2) as app:
            entering = asyncio.create_task(app.worker().__aenter__())
            await until(lambda: bool(failures(caplog)), 10.0)
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering


async def test_without_a_fallback_it_raises() -> None:
    with server() as running:
        running.kill()
        async with Fairlead(running.url, timeout=0.2) as app:
            with pytest.raises(Unreachable):
                await app.worker().__aenter__()
