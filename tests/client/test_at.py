"""Tasks that are due at a moment of the calendar."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from fairlead import Fairlead, InvalidOption, State

HOUR = timedelta(hours=1)


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://")


@pytest.mark.parametrize(
    "moment",
    [
        lambda: datetime.now(UTC) + HOUR,
        lambda: datetime.now(timezone(timedelta(hours=-7))) + HOUR,
        lambda: time.time() + 3600,
        lambda: int(time.time()) + 3600,
    ],
    ids=["utc", "zone", "float", "int"],
)
def test_a_task_is_due_at_the_moment_that_was_said(app: Fairlead, moment: Any) -> None:
    @app.task
    def work() -> None: ...

    handle = work.using(at=moment()).enqueue()
    due = handle.info().due_at
    assert handle.state is State.SCHEDULED
    assert due is not None
    assert abs(due - time.time() - 3600) < 60


def test_the_moment_is_kept_however_late_a_sender_is_used(
    app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def work() -> None: ...

    at = time.time() + 3600
    sender = work.using(at=at)
    first = sender.call().submission().delay
    monkeypatch.setattr("fairlead.client.template.time.time", lambda: at - 60)
    assert (round(first), sender.call().submission().delay) == (3600, 60)
    monkeypatch.setattr("fairlead.client.template.time.time", lambda: at + 60)
    assert sender.call().submission().delay == 0.0


async def test_a_moment_that_has_passed_is_now(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    handle = await work.using(at=datetime.now(UTC) - HOUR).aenqueue()
    assert await handle.astate() is State.QUEUED
    assert await app.drain() == 1


@pytest.mark.parametrize(
    "at",
    [
        datetime(2040, 1, 1),  # noqa: DTZ001 - of no zone
        30, 1.7e12, float("nan"), True, "2030-01-01", timedelta(hours=1), 10**400,
        lambda: datetime.now(UTC) + timedelta(days=4000),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_moment_is_refused(app: Fairlead, at: Any) -> None:
    @app.task
    def work() -> None: ...

    said = at() if callable(at) else at
    with pytest.raises(InvalidOption, match="for seconds from now use delay"):
        work.using(at=said).enqueue()
    assert app.snapshot().depth == 0


def test_a_moment_and_a_delay_contradict_each_other(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidOption, match="given without delay"):
        work.using(at=datetime.now(UTC), delay=5).enqueue()


def test_a_schedule_has_moments_of_its_own(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidOption, match="the schedule says when"):
        app.schedules.create("nightly", work.using(at=datetime.now(UTC)).call(), "0 3 * * *")
