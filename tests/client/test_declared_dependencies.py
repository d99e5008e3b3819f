"""Ids and dependencies that tasks declare, and what an app says for all of its tasks."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import (
    Backoff,
    Context,
    DependencyCycle,
    Fairlead,
    InvalidName,
    InvalidOption,
    State,
    UnknownDependency,
)


@pytest.mark.parametrize("tenant", ["default", "acme"])
async def test_the_last_task_of_a_pipeline_brings_those_before_it(
    app: Fairlead, tenant: str
) -> None:
    ran: list[str] = []

    @app.task(id="extract")
    def extract() -> int:
        ran.append("extract")
        return 1000

    @app.task(id="transform", depends_on=["extract"])
    def transform(ctx: Context) -> int:
        ran.append("transform")
        return 2 * int(ctx.results["extract"])

    @app.task(id="load", depends_on=[transform])
    def load(ctx: Context) -> int:
        ran.append("load")
        return int(ctx.results["transform"])

    sender = load if tenant == "default" else load.using(tenant=tenant)
    handle = await sender.aenqueue()
    assert handle.id == f"{tenant}:load"
    states = [await app.handle(name, tenant).astate() for name in ("extract", "transform", "load")]
    assert states == [State.QUEUED, State.DEFERRED, State.DEFERRED]
    await app.drain()
    assert ran == ["extract", "transform", "load"]
    assert await handle.aresult(timeout=10) == 2000
    again = await sender.aenqueue()  # while the broker knows it, it is the same
    assert (again.duplicate, await again.aresult(timeout=10), len(ran)) == (True, 2000, 3)


async def test_what_comes_in_between_is_not_enqueued_twice(app: Fairlead) -> None:
    @app.task(id="prepare")
    def prepare() -> None: ...

    @app.task(id="a", depends_on=["prepare"])
    def a() -> None: ...

    @app.task(id="b", depends_on=["prepare"])
    def b() -> None: ...

    @app.task(id="combine", depends_on=["a", "b"])
    def combine() -> None: ...

    await combine.aenqueue()
    assert (await app.asnapshot()).depth == 4
    assert (await app.handle("combine").ainfo()).waiting_for == ("default:a", "default:b")
    assert await app.drain() == 4


async def test_a_task_that_needs_arguments_is_enqueued_before(app: Fairlead) -> None:
    @app.task(id="first")
    def first(n: int = 0) -> int:
        return n

    @app.task(id="needs")
    def needs(n: int) -> int:
        return n

    @app.task(id="last", depends_on=[first, "needs"])
    def last(ctx: Context) -> list[int]:
        return [ctx.results["first"], ctx.results["needs"]]

    with pytest.raises(UnknownDependency, match="needs"):
        await last.aenqueue()
    await app.apurge()
    await first.using(tenant="t").aenqueue(7)  # not as the pipeline would
    await needs.using(tenant="t").aenqueue(8)
    handle = await last.using(tenant="t").aenqueue()
    await app.drain()
    assert await handle.aresult(timeout=10) == [7, 8]


async def test_what_a_call_says_takes_the_place_of_what_was_declared(app: Fairlead) -> None:
    @app.task(id="first")
    def first() -> None: ...

    @app.task(depends_on=["first"], on_dependency_failure="run")
    def last() -> None: ...

    alone = await last.using(depends_on=[]).aenqueue()
    assert await alone.astate() is State.QUEUED
    other = await first.using(id="other").aenqueue()
    assert other.id == "default:other"
    waits = await last.aenqueue()
    await app.handle("first").acancel()
    assert await waits.astate() is State.QUEUED  # "run"


def test_sync_code_enqueues_a_pipeline_too(app: Fairlead) -> None:
    app.task(id="first")(lambda: None)
    last = app.task(name="last", depends_on=["first"])(lambda: None)
    assert last.enqueue().state is State.DEFERRED
    assert app.handle("first").state is State.QUEUED


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"id": "a", "depends_on": ["a"]}, DependencyCycle, "a -> a"),
        ({"id": "a b"}, InvalidName, "task id 'a b'"),
        ({"depends_on": "first"}, InvalidOption, "a list of ids"),
        ({"depends_on": [5]}, InvalidOption, "an id, or a task that declares one"),
        ({"on_dependency_failure": "ignore"}, InvalidOption, "on_dependency_failure='ignore'"),
    ],
)
def test_a_bad_declaration_is_named(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Fairlead("memory://").task(**options)(lambda: None)


async def test_a_cycle_is_refused_before_anything_is_written(app: Fairlead) -> None:
    app.task(id="one", name="one", depends_on=["two"])(lambda: None)
    two = app.task(id="two", name="two", depends_on=["one"])(lambda: None)
    with pytest.raises(DependencyCycle, match="default:one"):
        await two.aenqueue()
    plain = app.task(name="plain")(lambda: None)
    with pytest.raises(DependencyCycle, match="default:me -> default:me"):
        await plain.using(id="me", depends_on=["me"]).aenqueue()
    assert (await app.asnapshot()).depth == 0


async def test_an_app_has_defaults_for_its_tasks() -> None:
    app = Fairlead(
        "memory://",
        max_retries=1,
        backoff=Backoff(initial=7, jitter="none"),
        on_dependency_failure="wait",
    )

    @app.task
    def fails() -> None:
        raise ValueError

    @app.task(max_retries=0, on_dependency_failure="run")
    def own() -> None:
        raise ValueError

    first, last = await fails.aenqueue(), await own.aenqueue()
    child = await fails.using(depends_on=[last]).aenqueue()
    runs = await own.using(depends_on=[last]).aenqueue()
    await app.drain()
    info = await first.ainfo()
    assert (info.state, info.max_retries) == (State.RETRYING, 1)
    assert info.due_at is not None
    assert 6 < info.due_at - info.enqueued_at < 9
    assert await last.astate() is State.DEAD
    assert await child.astate() is State.DEFERRED
    assert await runs.astate() is State.DEAD  # it ran


@pytest.mark.parametrize(
    "defaults", [{"max_retries": -1}, {"backoff": 5}, {"on_dependency_failure": "ignore"}], ids=str
)
def test_a_bad_default_is_refused_at_once(defaults: Any) -> None:
    with pytest.raises(InvalidOption, match=next(iter(defaults))):
        Fairlead("memory://", **defaults)
