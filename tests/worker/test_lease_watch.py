"""Attempts whose leases nobody can keep end before others may have their tasks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from fairlead.fallback.outcomes import Outcomes
from fairlead.model.lifecycle import State
from fairlead.model.message import Message
from fairlead.spool import Spool
from fairlead.worker.app_services import AppServices
from fairlead.worker.inflight import Inflight
from fairlead.worker.lease_watch import LeaseWatch, margin
from tests.worker.harness import Rig, until
from tests.worker.test_outcome_outbox import Cut

LEASE = 0.8  # seconds


class Attempt:
    """Something that runs, and is told to stop."""

    def __init__(self, flags: int = 0) -> None:
        self.stopped: list[str] = []
        message = Message(id=f"t{id(self)}", queue="q", tenant="a", body=b"", flags=flags)
        self.lease: Any = type("Lease", (), {"message": message, "token": 1})
        self.kind = "loop"

    def stop(self, why: str) -> None:
        self.stopped.append(why)


class Watch:
    """A watch over one attempt, whose lease of 30 seconds was kept at 100."""

    def __init__(self, *attempts: Attempt) -> None:
        inflight = Inflight("w1")
        for attempt in attempts:
            inflight.add(attempt)  # type: ignore[arg-type]
        self.kept_at = 100.0
        self.handed_back = 0
        self.watch = LeaseWatch(
            inflight,
            lease=lambda: 30.0,
            kept_at=lambda: self.kept_at,
            hand_back=self._hand_back,
        )

    def _hand_back(self) -> None:
        self.handed_back += 1


def test_what_runs_is_stopped_a_margin_before_the_end_of_its_lease() -> None:
    attempt = Attempt()
    made = Watch(attempt)
    made.watch.look(126.9)
    assert attempt.stopped == []
    made.watch.look(127.0)
    assert attempt.stopped == ["release"]
    assert made.handed_back == 1


def test_leases_that_are_kept_again_are_watched_anew(caplog: pytest.LogCaptureFixture) -> None:
    attempt = Attempt()
    made = Watch(attempt)
    made.watch.look(127.0)
    made.watch.look(128.0)
    made.kept_at = 129.0
    made.watch.look(130.0)
    attempt.stopped.clear()
    made.watch.look(155.0)
    assert attempt.stopped == []
    made.watch.look(156.0)
    assert attempt.stopped == ["release"]
    said = [line for line in caplog.messages if "leases could not be kept" in line]
    assert len(said) == 2  # once for each outage


def test_a_task_that_may_begin_only_once_goes_on() -> None:
    once, other = Attempt(flags=1), Attempt()
    Watch(once, other).watch.look(127.0)
    assert (once.stopped, other.stopped) == ([], ["release"])


@pytest.mark.parametrize(("lease", "seconds"), [(30.0, 3.0), (8.0, 2.0), (0.4, 0.1)])
def test_the_margin_is_three_seconds_or_a_quarter(lease: float, seconds: float) -> None:
    assert margin(lease) == pytest.approx(seconds)


@pytest.mark.parametrize("spooled", [True, False])
async def test_with_a_spool_an_attempt_that_outlasts_its_lease_in_an_outage_is_released(
    tmp_path: Path, spooled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Cut()
    rig = Rig(broker)
    go, ends = asyncio.Event(), list[str]()

    @rig.task()
    async def works() -> None:
        try:
            await go.wait()
            ends.append("well")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    id = await rig.enqueue("works")
    spool = Spool.open(tmp_path)
    services = AppServices(outcomes=Outcomes(spool) if spooled else None)
    with caplog.at_level(logging.ERROR):
        async with rig.worker(lease=LEASE, services=services) as worker:
            await until(lambda: len(worker.inflight) == 1)
            broker.away = True
            await asyncio.sleep(2 * LEASE)
            assert ends == (["cancelled"] if spooled else [])
            go.set()
            broker.away = False
            await rig.finished(id)
    assert ends == (["cancelled", "well"] if spooled else ["well"])
    assert (await rig.find(id)).attempts == 1  # none was used up
    spool.close()


async def test_heartbeats_and_fetches_that_are_answered_keep_attempts_running(
    tmp_path: Path,
) -> None:
    rig = Rig(Cut())
    go = asyncio.Event()

    @rig.task()
    async def works() -> None:
        await go.wait()

    id = await rig.enqueue("works")
    spool = Spool.open(tmp_path)
    async with rig.worker(lease=LEASE, services=AppServices(outcomes=Outcomes(spool))) as worker:
        await until(lambda: len(worker.inflight) == 1)
        await asyncio.sleep(2 * LEASE)
        assert await rig.state(id) is State.RUNNING
        assert len(worker.inflight) == 1
        go.set()
        await rig.finished(id)
    spool.close()
