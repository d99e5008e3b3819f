"""A worker in doubt: lost replies, refusals that pass, and what handlers write meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Context, Fairlead
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import Call, Fetch, Settled
from fairlead.model.errors import Ambiguous, BrokerError, Fenced, Refused, Unreachable
from fairlead.model.lifecycle import Settlement, State
from tests.support.proxy import proxy
from tests.support.servers import Running, server
from tests.worker.harness import Rig, until
from tests.worker.test_leases import Flaky


@pytest.fixture
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.mark.parametrize("cause", ["noreplicas", "loading", "misconf", "auth", "oom"])
async def test_a_refusal_after_a_lost_reply_leaves_no_lease_behind(cause: str) -> None:
    broker = Flaky()
    rig = Rig(broker)

    @rig.task()
    async def nothing() -> None: ...

    id = await rig.enqueue("nothing")
    broker.errors = [Ambiguous("x"), Refused(cause, "x"), Unreachable("x"), Refused(cause, "x")]
    async with rig.worker():
        await rig.finished(id)
    assert broker.numbers[:5] == [1] * 5
    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.COMPLETED, 1)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        pytest.param(Ambiguous("x"), Refused("loading", "x"), id="refused"),
        pytest.param(Ambiguous("x"), Unreachable("x"), id="away"),
        pytest.param(Ambiguous("x"), ZeroDivisionError(), id="defect"),
        pytest.param(asyncio.CancelledError(), ZeroDivisionError(), id="cancelled"),
    ],
)
async def test_an_outcome_in_doubt_is_never_counted_as_refused(
    first: BaseException, later: Exception
) -> None:
    """A call that got no reply ends with its time; the next one does not know of it."""
    broker = Flaky()
    rig = Rig(broker)

    @rig.task()
    async def nothing() -> None: ...

    id = await rig.enqueue("nothing")
    syncer = rig.worker().syncer
    reply = await syncer.sync(Fetch(queues=("default",), max=1))
    assert reply is not None
    syncer.add(Settlement(id=id, token=reply.leased[0].token, to=State.COMPLETED))
    syncer.insist_until(0.0)
    for error in (first, later):  # the first one comes when the exchange was carried out
        broker.errors = [error]
        with pytest.raises(type(error)):
            await syncer.sync()
    assert syncer.unsettled == 1
    await syncer.sync()
    assert (syncer.settled, syncer.fenced, syncer.unsettled) == (1, 0, 0)
    assert len(set(broker.numbers[1:])) == 1
    assert await rig.state(id) is State.COMPLETED


async def test_after_a_cut_reply_and_a_server_without_replicas_nothing_is_left_running(
    valkey: Running,
) -> None:
    lent = b"fairlead_exchange_"
    matching = lambda command: lent in command[:200]  # noqa: E731
    async with proxy(path=valkey.path, matching=matching) as between:
        app = Fairlead(f"{between.url}?timeout=1s")
        runs: list[int] = []

        @app.task
        async def work(n: int) -> None:
            runs.append(n)

        direct = Fairlead(valkey.url)
        task = direct.task(name=work.name)(lambda n: None)
        first = await task.aenqueue(0)
        with contextlib.suppress(Unreachable):  # to connect may take longer than one call has
            await app.asnapshot()
        async with app.worker(concurrency=5):
            await first.aresult(timeout=10)
            await asyncio.sleep(0.1)
            cut = between.cut_reply()
            handles = await direct.aenqueue_many(task.call(n) for n in range(1, 11))
            await cut.happened.wait()
            valkey.admin("CONFIG", "SET", "min-replicas-to-write", "1")
            await asyncio.sleep(2.5)  # longer than any call of the worker may take
            valkey.admin("CONFIG", "SET", "min-replicas-to-write", "0")
            for handle in handles:
                await handle.aresult(timeout=20)
        assert sorted(runs) == list(range(11))
        assert (await direct.asnapshot()).running == 0
        await direct.aclose()
        await app.aclose()


# -- what handlers write ----------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
async def test_handlers_that_report_progress_complete_on_a_full_server(
    valkey: Running, sync: bool
) -> None:
    app = Fairlead(valkey.url)

    def plain(ctx: Context) -> str:
        ctx.progress(0.5)
        ctx.xcom.push("where", "here")
        ctx.progress("done")
        return "well"

    async def awaiting(ctx: Context) -> str:
        await ctx.aprogress(0.5)
        await ctx.xcom.apush("where", "here")
        await ctx.aprogress("done")
        return "well"

    task: Any = app.task(name="task", max_retries=0)(plain if sync else awaiting)
    handles = [await task.aenqueue() for _ in range(2)]
    async with app.worker(concurrency=1):
        await handles[0].aresult(timeout=10)  # whatever has to be loaded is there
        valkey.admin("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Refused, match="memory"):
            await task.aenqueue()
        assert await handles[1].aresult(timeout=10) == "well"
        info = await handles[1].ainfo()
    assert info.progress == "done"
    valkey.admin("CONFIG", "SET", "maxmemory", "0")
    await app.aclose()


class Mute(MemoryBroker):
    """Takes no writes of handlers while ``error`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BrokerError | None = None
        self.tries = 0

    async def write(self, call: Call, writes: Any, *, now: float | None = None) -> list[Settled]:
        self.tries += 1
        if self.error is not None:
            raise self.error
        return await super().write(call, writes, now=now)


@pytest.mark.parametrize(
    "error", [Unreachable("x"), Ambiguous("x"), Refused("oom", "x"), Refused("noreplicas", "x")]
)
async def test_progress_that_cannot_be_written_is_logged_once_and_not_the_handler_s_business(
    error: BrokerError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fairlead.worker.run.progress_writer._SOON", 0.1)
    broker = Mute()
    broker.error = error
    rig = Rig(broker)

    @rig.task()
    async def reports(ctx: Context) -> str:
        await ctx.aprogress(1)
        await ctx.aprogress(2)
        broker.error = None
        await ctx.aprogress(3)
        return "well"

    id = await rig.enqueue("reports", max_retries=0)
    with caplog.at_level(logging.INFO, "fairlead.runtime"):
        assert await rig.worker().drain() == 1
    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.COMPLETED, 1)
    assert record.progress is not None
    said = [each.message for each in caplog.records if each.__dict__.get("component") == "progress"]
    assert said == ["broker failed: x", "broker answers again"]


@pytest.mark.parametrize("sync", [False, True])
async def test_a_context_call_that_fails_in_an_outage_releases_the_attempt(
    monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    monkeypatch.setattr(
        "fairlead.worker.run.progress_writer.ProgressWriter.write.__defaults__", (0.1,)
    )
    broker = Mute()
    rig = Rig(broker)
    runs: list[int] = []

    def plain(ctx: Context) -> None:
        runs.append(ctx.attempt)
        broker.error = Refused("noreplicas", "x") if len(runs) < 6 else None
        ctx.xcom.push("k", 1)

    async def awaiting(ctx: Context) -> None:
        runs.append(ctx.attempt)
        broker.error = Unreachable("x") if len(runs) < 6 else None
        await ctx.xcom.apush("k", 1)

    rig.task(name="pushes")(plain if sync else awaiting)
    id = await rig.enqueue("pushes", max_retries=1)
    assert await rig.worker().drain() == 6
    assert runs == [1] * 6
    record = await rig.find(id)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)


async def test_an_error_of_another_broker_is_the_handler_s_own() -> None:
    rig = Rig()

    @rig.task()
    async def fails() -> None:
        raise Unreachable("somebody else's server")

    id = await rig.enqueue("fails", max_retries=0)
    assert await rig.worker().drain() == 1
    assert (await rig.find(id)).state is State.DEAD


async def test_what_handlers_write_does_not_wait_for_an_exchange_in_doubt() -> None:
    broker = Flaky()
    rig = Rig(broker)
    began, doubt, wrote = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @rig.task()
    async def writes(ctx: Context) -> None:
        began.set()
        await doubt.wait()
        await ctx.xcom.apush("k", 1)
        wrote.set()

    @rig.task()
    async def short() -> None: ...

    await rig.enqueue("writes")
    async with rig.worker(concurrency=2):
        await began.wait()
        broker.errors = [Ambiguous("x")] * 901
        await rig.enqueue("short")
        await until(lambda: len(broker.errors) < 900)  # an exchange is being repeated
        doubt.set()
        await asyncio.wait_for(wrote.wait(), 5)
        assert broker.errors  # the exchange is still being repeated
        broker.errors.clear()


async def test_calls_of_handlers_have_the_time_limit_of_the_app() -> None:
    broker = Mute()
    app = Fairlead(store=broker, timeout="200ms")
    waited: list[float] = []

    @app.task(max_retries=1)
    def pushes(ctx: Context) -> None:
        broker.error = Unreachable("x") if not waited else None
        began = time.monotonic()
        try:
            ctx.xcom.push("k", 1)
        finally:
            waited.append(time.monotonic() - began)

    handle = await pushes.aenqueue()
    assert await app.drain() == 2
    assert 0.1 < waited[0] < 5.0
    info = await handle.ainfo()
    assert (info.state, info.attempts) == (State.COMPLETED, 1)


@pytest.mark.parametrize("how", ["app", "call", "calls"])
async def test_a_sync_call_that_a_blocked_loop_does_not_begin_releases_the_attempt(
    how: str,
) -> None:
    app = Fairlead("memory://", timeout="200ms" if how == "app" else None)
    began, blocked, raised = threading.Event(), threading.Event(), threading.Event()
    errors: list[BrokerError] = []
    runs: list[int] = []

    @app.task
    def child(n: int) -> None:
        runs.append(n)

    @app.task(max_retries=1)
    def parent(ctx: Context) -> None:
        began.set()
        assert blocked.wait(20)
        short = child if how == "app" else child.using(enqueue_timeout="200ms")
        try:
            if how == "calls":
                ctx.enqueue_many([child.call(0), short.call(1)])
            else:
                ctx.enqueue(short.call(1))
        except BrokerError as error:
            errors.append(error)
            raised.set()
            raise

    handle = await parent.aenqueue()
    async with app.worker():
        await until(began.is_set)
        blocked.set()
        assert raised.wait(20)  # and the loop stands still
        await handle.aresult(timeout=20)
        await until(lambda: 1 in runs)
        assert (await handle.ainfo()).attempts == 1
    assert [type(error) for error in errors] == [Unreachable]
    assert "nothing was sent" in str(errors[0])
    assert sorted(runs) == ([0, 1] if how == "calls" else [1])


@pytest.mark.parametrize("left", [False, True])
async def test_a_sync_call_waits_for_as_long_as_the_handler_has_the_task(
    monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    monkeypatch.setattr("fairlead.worker.run.context._LOOK", 0.01)
    asked, gate = asyncio.Event(), asyncio.Event()

    class Slow(MemoryBroker):
        async def pull(self, *args: Any, **kwargs: Any) -> list[bytes | None]:
            asked.set()
            await gate.wait()
            return await super().pull(*args, **kwargs)

    rig = Rig(Slow())
    ends: list[object] = []

    @rig.task()
    def pulls(ctx: Context) -> None:
        try:
            ends.append(ctx.xcom.pull("k", "none"))
        except Fenced as error:
            ends.append(type(error))
            raise

    id = await rig.enqueue("pulls")
    async with rig.worker(grace=0.0):
        await asked.wait()
        await asyncio.sleep(0.1)  # many looks
        assert ends == []
        if not left:
            gate.set()
            await rig.finished(id)
    await until(lambda: bool(ends))
    assert ends == ([Fenced] if left else ["none"])
