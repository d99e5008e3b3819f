"""Middleware around enqueues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead import (
    Context,
    Enqueuing,
    Fairlead,
    InvalidInput,
    QueueFull,
    TooLarge,
    correlation,
)


@pytest.fixture
async def app() -> AsyncIterator[Fairlead]:
    app = Fairlead("memory://")
    yield app
    assert await app._clients.store.audit() == []


async def test_it_runs_around_every_way_to_enqueue_and_its_headers_arrive(app: Fairlead) -> None:
    seen: list[Enqueuing] = []
    headers: dict[str, str] = {}

    @app.around_enqueue
    async def stamp(enqueuing: Enqueuing) -> AsyncIterator[None]:
        enqueuing.headers["n"] = str(len(seen))
        seen.append(enqueuing)
        yield

    @app.task(name="child")
    async def child(ctx: Context) -> None:
        headers[ctx.id] = ctx.headers["n"]

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.aenqueue(child.call())
        await ctx.aenqueue_many([child.call()])

    @app.task(name="sync_parent")
    def sync_parent(ctx: Context) -> None:
        ctx.enqueue(child.call())
        ctx.enqueue_many([child.call()])

    with correlation("request"):
        handle = await child.using(tenant="acme", queue="mail").aenqueue()
    assert seen[0] == Enqueuing(
        task="child",
        id=handle.id,
        tenant="acme",
        queue="mail",
        correlation_id="request",
        headers={"n": "0"},
    )
    with pytest.raises(AttributeError):
        seen[0].id = "other"  # type: ignore[misc]
    await asyncio.to_thread(child.enqueue)
    await app.aenqueue_many(child.call() for _ in range(3))
    await asyncio.to_thread(app.enqueue_many, [child.call(), child.call()])
    await parent.aenqueue()
    await sync_parent.aenqueue()
    await app.drain()
    assert len(seen) == 13
    assert headers == {each.id: each.headers["n"] for each in seen if each.task == "child"}
    assert len(headers) == 11


async def test_headers_are_none_without_middleware_and_cannot_be_changed(app: Fairlead) -> None:
    seen: list[Any] = []

    @app.task
    async def work(ctx: Context) -> None:
        seen.append(dict(ctx.headers))
        with pytest.raises(TypeError):
            ctx.headers["a"] = "b"  # type: ignore[index]

    await work.aenqueue()
    await app.drain()
    app.around_enqueue(_stamp)
    await work.aenqueue()
    await app.drain()
    assert seen == [{}, {"a": "1"}]
    assert app.exceptions == []


async def _stamp(enqueuing: Enqueuing) -> AsyncIterator[None]:
    enqueuing.headers["a"] = "1"
    yield


async def test_raising_before_the_yield_writes_nothing(app: Fairlead) -> None:
    seen: list[str] = []

    @app.around_enqueue
    async def watch(enqueuing: Enqueuing) -> AsyncIterator[None]:
        try:
            yield
        except PermissionError:
            seen.append(enqueuing.tenant)  # which it must not swallow

    @app.around_enqueue
    async def guard(enqueuing: Enqueuing) -> AsyncIterator[None]:
        if enqueuing.tenant == "blocked":
            raise PermissionError("not you")
        yield

    @app.task
    def work() -> None: ...

    blocked = work.using(tenant="blocked")
    with pytest.raises(PermissionError, match="not you"):
        await blocked.aenqueue()
    with pytest.raises(PermissionError, match="not you"):
        await asyncio.to_thread(blocked.enqueue)
    with pytest.raises(PermissionError, match="not you"):
        await app.aenqueue_many([work.call(), blocked.call(), work.call()])
    assert (await app.asnapshot()).depth == 0
    assert seen == ["blocked", "blocked", "blocked", "default"]
    await work.aenqueue()
    assert (await app.asnapshot()).depth == 1


async def test_after_the_yield_it_sees_success_or_the_refusal_of_each(app: Fairlead) -> None:
    seen: list[tuple[str, str]] = []

    @app.around_enqueue
    async def watch(enqueuing: Enqueuing) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - swallowed on purpose: it does not help
            seen.append((enqueuing.tenant, type(error).__name__))
        else:
            seen.append((enqueuing.tenant, "accepted"))

    @app.task
    def work() -> None: ...

    await app.aconfigure_queue("default", max_tenant_waiting=1)
    await work.using(tenant="a").aenqueue()
    with pytest.raises(QueueFull):
        await work.using(tenant="a").aenqueue()
    with pytest.raises(QueueFull, match="tenant 'a'"):
        await app.aenqueue_many(work.using(tenant=tenant).call() for tenant in "bac")
    assert seen[:2] == [("a", "accepted"), ("a", "QueueFull")]
    assert sorted(seen[2:]) == [("a", "QueueFull"), ("b", "accepted"), ("c", "accepted")]
    assert (await app.asnapshot()).depth == 3


async def test_what_it_raises_after_the_yield_reaches_the_caller_and_the_task_stays(
    app: Fairlead,
) -> None:
    @app.around_enqueue
    async def late(enqueuing: Enqueuing) -> AsyncIterator[None]:
        yield
        raise ConnectionError("metrics are down")

    @app.task
    def work() -> None: ...

    with pytest.raises(ConnectionError, match="metrics are down"):
        await work.aenqueue()
    with pytest.raises(ConnectionError):
        await app.aenqueue_many([work.call(), work.call()])
    assert (await app.asnapshot()).depth == 3


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"n": 1}, InvalidInput),
        ({1: "n"}, InvalidInput),
        ({"n": "\ud800"}, InvalidInput),
        ({"n": "x" * 20_000}, TooLarge),
    ],
)
async def test_bad_headers_are_refused_and_hurt_nobody_else(
    app: Fairlead, headers: dict[Any, Any], error: type[Exception]
) -> None:
    @app.around_enqueue
    async def stamp(enqueuing: Enqueuing) -> AsyncIterator[None]:
        if enqueuing.tenant == "bad":
            enqueuing.headers.update(headers)
        yield

    @app.task
    def work() -> None: ...

    bad, *good = await asyncio.gather(
        work.using(tenant="bad").aenqueue(),
        *(work.aenqueue() for _ in range(3)),
        return_exceptions=True,
    )
    assert type(bad) is error
    assert not any(isinstance(each, BaseException) for each in good)
    assert (await app.asnapshot()).depth == 3
