"""Results of dependencies, from worker to worker: as arguments, and as ``ctx.results``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead import Context, Fairlead, Handle, State, TaskCancelled, TaskFailed, Unreachable
from fairlead.broker import Store
from fairlead.broker.records import Parts
from fairlead.model.errors import BrokerError, ResultGone, TaskError
from fairlead.worker.run.dependency_loader import MAX_RESULTS
from fairlead.worker.run.results import NO_RESULTS, Ended, Results
from tests.support.servers import Running, server
from tests.worker.harness import AT_ONCE, until

_databases = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server("valkey") as started:
        yield started


@pytest.fixture(params=["memory", "valkey"])
async def app(request: pytest.FixtureRequest, running: Running) -> AsyncIterator[Fairlead]:
    url = "memory://"
    if request.param == "valkey":
        url = f"{running.url}?db={next(_databases) % 16}"
        running.admin("FLUSHALL")
    made = Fairlead(url)
    try:
        yield made
        assert await made._clients.store.audit() == []
    finally:
        await made.aclose()


@dataclass
class Row:
    n: int


async def results(app: Fairlead, *handles: Handle[Any]) -> list[Any]:
    await app.drain()
    return [await handle.aresult(timeout=10) for handle in handles]


# -- arguments ---------------------------------------------------------------------------------


async def test_an_output_becomes_the_argument_that_the_annotation_asks_for(app: Fairlead) -> None:
    @app.task
    def make(n: int) -> Row:
        return Row(n)

    @app.task
    async def add(one: Row, rest: list[Row], by_name: dict[str, Row]) -> int:
        return one.n + sum(row.n for row in rest) + sum(row.n for row in by_name.values())

    a, b, c = (make.call(n) for n in (1, 10, 100))
    total = add.call(a.output, [b.output, a.output], by_name={"c": c.output})
    *_, handle = await app.aenqueue_many([a, b, c, total])
    assert await results(app, handle) == [112]


async def test_an_output_of_a_finished_task_may_be_used_as_well(app: Fairlead) -> None:
    @app.task
    def nothing() -> None:
        pass

    @app.task
    def takes(value: Any) -> list[Any]:
        return [value]

    first = await nothing.aenqueue()
    await app.drain()
    assert await results(app, await takes.aenqueue(first.output)) == [[None]]


@pytest.mark.parametrize("how", ["dead", "cancelled", "deleted"])
async def test_an_output_that_there_is_not_is_no_argument(app: Fairlead, how: str) -> None:
    @app.task(max_retries=0)
    def fails() -> None:
        raise ValueError("on purpose")

    @app.task(max_retries=5)
    def takes(value: Any) -> None:
        pass

    parent = await fails.aenqueue()
    if how == "cancelled":
        await parent.acancel()
    child = await takes.using(on_dependency_failure="run", queue="later").aenqueue(parent.output)
    await app.drain(queues=["default"])
    if how == "deleted":
        await parent.adelete()
    await app.drain()
    info = await child.ainfo()
    assert (info.state, info.reason) == (State.DEAD, "rejected")
    assert info.error is not None
    assert parent.id in info.error.message
    assert {"dead": "on purpose", "cancelled": "cancelled", "deleted": "gone"}[
        how
    ] in info.error.message


async def test_a_retried_attempt_gets_the_output_again(app: Fairlead) -> None:
    seen: list[Any] = []

    @app.task
    def make() -> list[int]:
        return [1]

    @app.task(max_retries=1, backoff=AT_ONCE)
    def takes(value: list[int]) -> list[int]:
        value.append(2)
        seen.append(list(value))
        if len(seen) == 1:
            raise ValueError("once more")
        return value

    parent = make.call()
    _, child = await app.aenqueue_many([parent, takes.call(parent.output)])
    assert await results(app, child) == [[1, 2]]
    assert seen == [[1, 2], [1, 2]]


# -- ctx.results -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_ctx_results_has_what_the_dependencies_returned(app: Fairlead, kind: str) -> None:
    @app.task(name="shop.extract")
    def extract(n: int) -> dict[str, int]:
        return {"n": n}

    @app.task(name="shop.clean")
    def clean(n: int) -> int:
        return n

    def look(ctx: Context) -> list[Any]:
        found = ctx.results
        with pytest.raises(KeyError, match="2 dependencies") as caught:
            found["clean"]
        assert all(id in str(caught.value) for id in list(found)[1:])
        with pytest.raises(KeyError, match="neither the id nor the name"):
            found["other"]
        assert "other" not in found
        assert found.get("other", 7) == 7
        return [
            list(found),
            found["extract"],
            found["shop.extract"],
            found.named("clean"),
            len(found),
        ]

    if kind == "async":

        @app.task(name="look")
        async def looks(ctx: Context) -> list[Any]:
            return look(ctx)
    else:

        @app.task(name="look")
        def looks(ctx: Context) -> list[Any]:
            return look(ctx)

    parents = [extract.call(1), clean.call(3), clean.call(2)]
    *_, handle = await app.aenqueue_many([*parents, looks.using(depends_on=parents).call()])
    (found,) = await results(app, handle)
    assert found == [[call.id for call in parents], {"n": 1}, {"n": 1}, [3, 2], 3]


async def test_ctx_results_by_handle_and_by_chosen_id(app: Fairlead) -> None:
    @app.task
    def make(n: int) -> int:
        return n

    one = await make.using(id="first").aenqueue(1)
    two = await make.aenqueue(2)
    seen: list[Any] = []

    @app.task
    async def look(ctx: Context) -> None:
        seen.extend([ctx.results[one], ctx.results["first"], ctx.results[two], ctx.results[two.id]])
        assert one in ctx.results

    await results(app, await look.using(depends_on=["first", two]).aenqueue())
    assert seen == [1, 1, 2, 2]


async def test_dependencies_that_did_not_complete_raise_what_a_handle_would(app: Fairlead) -> None:
    @app.task(max_retries=0)
    def fails() -> None:
        raise ValueError("on purpose")

    @app.task
    def good() -> int:
        return 1

    seen: list[Any] = []

    @app.task
    async def look(ctx: Context) -> None:
        for id in ctx.results:
            try:
                seen.append(ctx.results.get(id))
            except TaskError as error:
                seen.append((type(error), error.id))

    dead, stopped, fine, gone = [await task.aenqueue() for task in (fails, good, good, good)]
    await stopped.acancel()
    handle = await look.using(
        depends_on=[dead, stopped, fine, gone], on_dependency_failure="run", queue="later"
    ).aenqueue()
    await app.drain(queues=["default"])
    await gone.adelete()
    await results(app, handle)
    assert seen == [
        (TaskFailed, dead.id),
        (TaskCancelled, stopped.id),
        1,
        (ResultGone, gone.id),
    ]


async def test_a_task_without_dependencies_has_no_results(app: Fairlead) -> None:
    @app.task
    async def look(ctx: Context) -> list[str]:
        assert len(ctx.results) == 0
        return list(ctx.results)

    assert await results(app, await look.aenqueue()) == [[]]


def test_results_tell_what_to_do_about_one_that_is_gone() -> None:
    found = Results("default", {"a": Ended()})
    with pytest.raises(ResultGone, match="keep it longer") as caught:
        found["a"]
    assert caught.value.id == "a"
    assert "a" in found
    assert list(found) == ["a"]
    assert repr(NO_RESULTS) == "<Results of 0 tasks>"


def test_results_of_one_that_was_put_to_work_again() -> None:
    found = Results("default", {"a": Ended(task="t", state=State.RUNNING)})
    with pytest.raises(TaskError, match="put to work again"):
        found["t"]


async def test_results_stay_within_a_tenant(app: Fairlead) -> None:
    @app.task
    def secret() -> str:
        return "of acme"

    seen: list[type[BaseException]] = []

    @app.task
    async def look(ctx: Context) -> None:
        for id in ctx.results:
            with pytest.raises(TaskError) as caught:
                ctx.results[id]
            seen.append(caught.type)

    parent = await secret.using(tenant="acme").aenqueue()
    handle = await look.using(tenant="other", depends_on=[parent]).aenqueue()
    await results(app, handle)
    assert seen == [ResultGone]


# -- how they are read -------------------------------------------------------------------------


class Reading:
    """Passes on, counts what is asked for, and fails as told."""

    def __init__(self, app: Fairlead) -> None:
        self.calls: list[list[str]] = []
        self.failures: list[Exception] = []
        self.held: asyncio.Event | None = None
        store: Store = app._clients.store
        self._find = store.find
        store.find = self.find  # type: ignore[method-assign, assignment]

    async def find(self, ids: Sequence[str], parts: Parts) -> Any:
        self.calls.append(list(ids))
        if self.held is not None:
            await self.held.wait()
        if self.failures:
            raise self.failures.pop(0)
        return await self._find(ids, parts=parts)


async def test_attempts_of_one_moment_share_a_call(app: Fairlead) -> None:
    @app.task
    def make(n: int) -> int:
        return n

    @app.task
    async def takes(one: int, two: int) -> int:
        return one + two

    parents = [make.call(n) for n in range(8)]
    handles = await app.aenqueue_many(parents)
    await app.drain()
    calls = [takes.call(a.output, b.output) for a, b in itertools.pairwise(handles)]
    made = await app.aenqueue_many(calls)
    reading = Reading(app)
    await app.drain()
    assert len(reading.calls) <= 2
    assert [await handle.aresult() for handle in made] == [2 * n + 1 for n in range(7)]


async def test_who_takes_no_context_has_nothing_read_but_its_arguments(app: Fairlead) -> None:
    @app.task
    def make(n: int) -> int:
        return n

    @app.task
    def takes(value: int) -> int:
        return value

    @app.task
    def plain() -> None:
        pass

    one, two = await make.aenqueue(1), await make.aenqueue(2)
    await takes.using(depends_on=[two]).aenqueue(one.output)
    await plain.using(depends_on=[one, two]).aenqueue()
    reading = Reading(app)
    await app.drain()
    assert reading.calls == [[one.id]]


async def test_a_fan_in_of_a_thousand(app: Fairlead) -> None:
    @app.task
    async def make(n: int) -> int:
        return n

    @app.task
    async def add(ctx: Context) -> int:
        return sum(ctx.results.values())

    parents = [make.call(n) for n in range(1_000)]
    *_, handle = await app.aenqueue_many([*parents, add.using(depends_on=parents).call()])
    assert await results(app, handle) == [sum(range(1_000))]


async def test_too_much_to_read_is_refused_with_what_to_do(app: Fairlead) -> None:
    @app.task
    async def make() -> bytes:
        return b"x" * (1024 * 1024 - 100)

    @app.task
    async def add(ctx: Context) -> None:
        raise AssertionError("it must not run")

    await app.aconfigure_queue("default", keep_completed_bytes=2 * MAX_RESULTS)
    parents = [make.call() for _ in range(17)]
    handles = await app.aenqueue_many([*parents, add.using(depends_on=parents).call()])
    await app.drain()
    info = await handles[-1].ainfo()
    assert (info.state, info.reason) == (State.DEAD, "rejected")
    assert info.error is not None
    assert "16 MiB" in info.error.message
    assert "return less" in info.error.message
    assert "XCom" in info.error.message


@pytest.mark.parametrize("error", [Unreachable("gone"), BrokerError("odd")], ids=str)
async def test_a_broker_that_does_not_answer_costs_no_attempt(
    app: Fairlead, error: BrokerError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.worker.run.dependency_loader._PAUSE", 0.0)
    seen: list[int] = []

    @app.task
    def make() -> int:
        return 5

    @app.task(max_retries=0)
    async def takes(ctx: Context, value: int) -> int:
        seen.append(ctx.attempt)
        return value

    parent = await make.aenqueue()
    child = await takes.aenqueue(parent.output)
    reading = Reading(app)
    reading.failures = [error]
    assert await results(app, child) == [5]
    assert seen == [1]


@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_an_attempt_that_waits_for_results_can_be_stopped(app: Fairlead, how: str) -> None:
    @app.task
    def make() -> int:
        return 5

    @app.task
    async def takes(value: int) -> int:
        return value

    parent = await make.aenqueue()
    await app.drain()
    child = await takes.aenqueue(parent.output)
    reading = Reading(app)
    reading.held = asyncio.Event()
    async with app.worker(grace=0.0):
        await until(lambda: bool(reading.calls))
        if how == "cancel":
            await child.acancel()

            async def cancelled() -> bool:
                (record,) = await reading._find([child.id])
                return record is not None and record.state is State.CANCELLED

            await until(cancelled)
    reading.held = None
    if how == "stop":
        info = await child.ainfo()
        assert (info.state, info.attempts) == (State.QUEUED, 0)
        assert await results(app, child) == [5]


async def test_a_short_xcom_value_of_a_parent_is_still_there_for_its_child(app: Fairlead) -> None:
    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.xcom.apush("k", "short", ttl=0.001)

    @app.task
    async def child(ctx: Context) -> list[Any]:
        return [await ctx.xcom.apull("k"), await ctx.xcom.apull("none", "default")]

    @app.task
    async def stranger(ctx: Context) -> Any:
        return await ctx.xcom.apull("k")

    first = parent.call()
    second = child.using(depends_on=[first], delay=0.05).call()
    _, one = await app.aenqueue_many([first, second])
    await app.drain()
    other = await stranger.using(tenant="other").aenqueue()
    await app.drain()
    await app._clients.store.tidy()
    async with app.worker():
        assert await one.aresult(timeout=10) == ["short", "default"]
    assert await other.aresult() is None
    assert await results(app, await stranger.aenqueue()) == [None]  # nobody pins it any more
