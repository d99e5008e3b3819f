"""Outcomes of a dead worker that another process has: its leases end after they are settled."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.broker import destination_of
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import Moved
from fairlead.fallback.outcomes import Outcomes
from fairlead.model.lifecycle import State
from fairlead.spool import Spool
from fairlead.worker.recoverer import Recoverer
from tests.fallback.test_outcomes import WORKER, Scene, done


async def adopted(scene: Scene) -> Spool:
    """A process that has adopted the outcome of a dead worker, and has not sent it."""
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    scene.spool.close()
    sibling = spool(scene)
    assert sibling.adopt() == 1
    return sibling


def spool(scene: Scene) -> Spool:
    return Spool.open(scene.root, broker=destination_of(scene.store))


async def test_it_is_waited_for_who_adopted_outcomes_and_has_not_sent_them(tmp_path: Path) -> None:
    scene = Scene(MemoryBroker(), tmp_path)
    sibling, mine = await adopted(scene), spool(scene)
    waiting = asyncio.ensure_future(Outcomes(mine).await_others(scene.store, {WORKER}))
    await asyncio.wait({waiting}, timeout=0.5)
    assert not waiting.done()
    await Outcomes(sibling).settle(scene.store)
    await asyncio.wait_for(waiting, 5.0)
    assert await scene.states() == [State.COMPLETED, None, None]
    mine.close()
    sibling.close()


async def test_if_that_one_dies_too_its_outcomes_are_settled_here(tmp_path: Path) -> None:
    scene = Scene(MemoryBroker(), tmp_path)
    sibling, mine = await adopted(scene), spool(scene)
    sibling.close()
    await asyncio.wait_for(Outcomes(mine).await_others(scene.store, {WORKER}), 5.0)
    assert await scene.states() == [State.COMPLETED, None, None]
    mine.close()


async def test_outcomes_of_others_are_not_waited_for(tmp_path: Path) -> None:
    scene = Scene(MemoryBroker(), tmp_path)
    sibling, mine = await adopted(scene), spool(scene)
    await asyncio.wait_for(Outcomes(mine).await_others(scene.store, {"another"}), 5.0)
    assert await scene.states() == [State.RUNNING, None, None]
    mine.close()
    sibling.close()


async def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.fallback.outcomes._OTHERS", 0.2)
    scene = Scene(MemoryBroker(), tmp_path)
    sibling, mine = await adopted(scene), spool(scene)
    await asyncio.wait_for(Outcomes(mine).await_others(scene.store, {WORKER}), 5.0)
    assert await scene.states() == [State.RUNNING, None, None]
    mine.close()
    sibling.close()


async def test_a_disk_that_cannot_be_read_ends_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: Spool) -> Any:
        raise OSError(errno.EIO, "x")

    scene = Scene(MemoryBroker(), tmp_path)
    monkeypatch.setattr(Spool, "pending_of_others", fails)
    await asyncio.wait_for(Outcomes(scene.spool).await_others(scene.store, {WORKER}), 5.0)
    assert "spools of other processes not read" in caplog.text
    scene.spool.close()


async def test_leases_of_a_dead_worker_are_ended_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    class Watched(MemoryBroker):
        async def workers(self, *args: Any, **options: Any) -> list[Any]:
            return [SimpleNamespace(incarnation=WORKER, host="here", pid=1, details={})]

        async def give_back(self, *args: Any, **options: Any) -> Moved:
            steps.append("given back")
            return await super().give_back(*args, **options)

    class Watching(Outcomes):
        async def await_others(self, *args: Any) -> None:
            assert args == (scene.store, {WORKER})
            steps.append("waited")

    monkeypatch.setattr("fairlead.worker.recoverer.is_gone", lambda *_: True)
    scene = Scene(Watched(), tmp_path)
    await scene.leases()
    assert await Recoverer(scene.store, lambda: 0.5, Watching(scene.spool)).reclaim() == 1
    assert steps == ["waited", "given back"]
    scene.spool.close()
