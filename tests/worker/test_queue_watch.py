"""What a worker says of the queues that it serves: nobody fills one, or one is too full."""

from __future__ import annotations

import logging

import pytest

from fairlead import Fairlead
from fairlead.broker import Caller
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import QueueChange
from fairlead.model.registry import Registry
from fairlead.worker.queue_watch import QueueWatch
from tests.worker.harness import Rig

IDLE = "nothing was ever sent to queue defualt, and no task of this app names it"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings, but for those about workers of earlier tests that never ran."""
    said = [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
    return [each for each in said if "made a worker that never ran" not in each]


async def test_a_queue_that_nobody_fills_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Fairlead("memory://")

    @app.task(name="work", queue="mail")
    async def work() -> None: ...

    worker = app.worker(queues=["defualt", "mail", "default"])
    await worker.queue_watch.look()
    await worker.queue_watch.look()
    assert said(caplog) == [f"{IDLE}; did you mean default?"]


async def test_a_queue_that_the_broker_knows_is_not(caplog: pytest.LogCaptureFixture) -> None:
    app = Fairlead("memory://")

    @app.task(name="work")
    async def work() -> None: ...

    await work.using(queue="other").aenqueue()
    await app.worker(queues=["other"]).queue_watch.look()
    assert said(caplog) == []


async def test_an_app_without_tasks_says_so(caplog: pytest.LogCaptureFixture) -> None:
    app = Fairlead("memory://")
    await app.worker().queue_watch.look()
    (line,) = said(caplog)
    assert line.startswith("this app has no tasks")


async def test_only_the_first_process_of_a_worker_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store = Fairlead("memory://")._clients.store
    await QueueWatch(store, Registry(), lambda: ["default"], "w", is_first=False).look()
    assert said(caplog) == []


async def test_a_queue_at_its_warn_depth_is_logged_each_time_that_it_gets_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Fairlead("memory://")

    @app.task(name="work")
    async def work() -> None: ...

    await app.aconfigure_queue("default", warn_depth=3)
    watch = app.worker().queue_watch
    await app.aenqueue_many([work.call() for _ in range(2)])
    await watch.look()
    assert said(caplog) == []
    await work.aenqueue()
    await watch.look()
    await watch.look()
    first = "queue default reached its warn_depth of 3: 3 waiting"
    assert said(caplog) == [first]
    await app.drain()
    await watch.look()
    await app.aenqueue_many([work.call() for _ in range(4)])
    await watch.look()
    assert said(caplog) == [first, "queue default reached its warn_depth of 3: 4 waiting"]
    assert vars(caplog.records[-1])["depth"] == 4


async def test_of_several_workers_the_oldest_logs_it(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    @rig.task()
    async def work() -> None: ...

    change = QueueChange(queue="default", warn_depth=1)
    await Caller("operator").call(lambda call: rig.broker.configure(call, [change]))
    await rig.enqueue("work")
    watch = rig.worker(incarnation="b").queue_watch
    older = WorkerRecord(incarnation="a", host="h", pid=1, queues=("default",), started_at=0.0)
    await rig.broker.beat("a", worker=older)
    await watch.look()
    assert said(caplog) == []
    await rig.worker(incarnation="a").queue_watch.look()
    assert said(caplog) == ["queue default reached its warn_depth of 1: 1 waiting"]
