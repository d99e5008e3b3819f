"""What runs beside the calls of a process, turn by turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.fallback.background import BackgroundLoop
from fairlead.model.spool_errors import SpoolFailed
from fairlead.spool import SpoolLimits
from tests.fallback.bench import Bench, submit


def background_of(bench: Bench) -> BackgroundLoop:
    return BackgroundLoop(bench.fallback, clock=lambda: bench.now, dice=lambda: 0.0)


async def test_a_task_that_became_too_old_is_refused_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path / "spool", limits=SpoolLimits(max_age=0.1))
    bench.fail()
    await bench.submit(submit("old"), submit("older"))
    await bench.recover()  # takes three probes
    background = background_of(bench)
    await background._turn()
    assert not bench.fallback.is_spooled("old")
    assert bench.fallback.ids.refused("old") == "too_old"
    assert [each.message for each in caplog.records if "too long" in each.message] == [
        "2 records were in the spool for too long, and are not sent; see `fairlead spool`"
    ]
    bench.close()


async def test_why_a_task_was_refused_is_not_forgotten(bench: Bench) -> None:
    await bench.submit(submit("same", text=b"one"))
    bench.fail()
    await bench.submit(submit("same", text=b"two"))
    await bench.recover()
    bench.fallback.ids.refuse("same", "conflict (of the drain)")
    await background_of(bench)._turn()
    bench.now += 60.0
    await background_of(bench)._turn()
    assert (bench.fallback.ids.refused("same") or "").startswith("conflict")
    assert len(bench.rejected()) == 1


@pytest.mark.parametrize("error", [SpoolFailed("no"), PermissionError(13, "Permission denied")])
async def test_a_directory_that_cannot_be_read_is_said_once_and_holds_up_nothing(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def adopt() -> int:
        raise error

    monkeypatch.setattr(bench.fallback.spool, "adopt", adopt)
    bench.fail()
    await bench.submit(submit("a"))
    background = background_of(bench)
    await background._turn()
    assert len(background._probes) == 1
    await bench.recover()
    for _ in range(3):
        bench.now += 20.0
        await background._turn()
    assert await bench.states("a") == ["queued"]
    assert len([each for each in caplog.records if "cannot be used" in each.message]) == 1
    await asyncio.gather(*background._probes.values())
