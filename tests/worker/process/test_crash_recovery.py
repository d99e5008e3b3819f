"""What a supervisor sees to before it gives back the leases of a dead child."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker import destination_of
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import Hello, TaskRecord
from fairlead.fallback.outcomes import Outcomes
from fairlead.model.errors import Unreachable
from fairlead.model.lifecycle import State
from fairlead.spool import Spool
from fairlead.worker.process.crash_recovery import settle_spooled
from fairlead.worker.process.shared_state import Row, SharedState
from tests.fallback.test_outcomes import WORKER, Scene, done


def test_the_board_shows_which_outcomes_are_in_the_spool() -> None:
    shared_state = SharedState.made(2)
    rows = [shared_state.take(["a"], 1)["a"], shared_state.take(["b"], 2)["b"]]
    shared_state.start(rows[0], 3, once=True)
    shared_state.spool(rows[0])
    assert shared_state.lent() == [Row("a", 1, 3, True, True, True), Row("b", 2, 0, False)]
    shared_state.drop(rows[0])
    shared_state.take(["c"], 3)
    assert [row.spooled for row in shared_state.lent()] == [False, False]
    shared_state.close()


async def test_outcomes_of_a_dead_child_are_settled(tmp_path: Path) -> None:
    scene = Scene(MemoryBroker(), tmp_path)
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    scene.spool.close()
    row = Row("t0", lease.token, 0, True, spooled=True)
    outcomes = await settle_spooled(str(tmp_path), WORKER, [row], scene.store)
    assert outcomes is not None
    assert outcomes.settled == 1
    assert await scene.states() == [State.COMPLETED, None, None]


async def test_a_supervisor_waits_for_whoever_adopted_the_outcomes_before_it(
    tmp_path: Path,
) -> None:
    asked = asyncio.Event()

    class Watched(MemoryBroker):
        async def find(self, *args: Any, **options: Any) -> list[TaskRecord | None]:
            asked.set()
            return await super().find(*args, **options)

    scene = Scene(Watched(), tmp_path)
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    scene.spool.close()
    sibling = Spool.open(tmp_path, broker=destination_of(scene.store))
    assert sibling.adopt() == 1
    row = Row("t0", lease.token, 0, True, spooled=True)
    waiting = asyncio.ensure_future(settle_spooled(str(tmp_path), WORKER, [row], scene.store))
    looking = asyncio.ensure_future(asked.wait())
    await asyncio.wait({waiting, looking}, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
    assert (looking.done(), waiting.done()) == (True, False)
    await Outcomes(sibling).settle(scene.store)
    await asyncio.wait_for(waiting, 5.0)
    assert await scene.states() == [State.COMPLETED, None, None]
    sibling.close()


async def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.worker.process.crash_recovery._OTHERS", 0.2)
    scene = Scene(MemoryBroker(), tmp_path)
    [lease] = await scene.leases()
    row = Row("t0", lease.token, 0, True, spooled=True)
    await asyncio.wait_for(settle_spooled(str(tmp_path), WORKER, [row], scene.store), 5.0)
    assert await scene.states() == [State.RUNNING, None, None]


async def test_without_outcomes_in_a_spool_nothing_is_adopted(tmp_path: Path) -> None:
    scene = Scene(MemoryBroker(), tmp_path)
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    scene.spool.close()
    row = Row("t0", lease.token, 0, True)
    assert await settle_spooled(str(tmp_path), WORKER, [row], scene.store) is None
    assert scene.left() == 1


async def test_while_the_broker_is_away_nothing_is_adopted(tmp_path: Path) -> None:
    class Away(MemoryBroker):
        async def hello(self) -> Hello:
            raise Unreachable("x")

    scene = Scene(Away(), tmp_path)
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    scene.spool.close()
    folders = sorted(tmp_path.iterdir())
    row = Row("t0", lease.token, 0, True, spooled=True)
    with pytest.raises(Unreachable):
        await settle_spooled(str(tmp_path), WORKER, [row], scene.store)
    assert sorted(tmp_path.iterdir()) == folders
