"""Flows whose results are read, that others write too, or that cannot be written to their end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fairlead import (
    Ambiguous,
    Conflict,
    Context,
    Fairlead,
    InvalidInput,
    QueueFull,
    Refused,
    ResultTimeout,
    State,
    Unreachable,
)
from fairlead.broker import connect
from fairlead.broker.flows import FlowPart, Share
from fairlead.broker.memory import MemoryBroker
from tests.support.store import Client, submit


class Failing(MemoryBroker):
    """Raises at one verb, from its n-th call on."""

    def __init__(self, verb: str, error: Exception, nth: int = 1) -> None:
        super().__init__()
        self.verb, self.error, self.left = verb, error, nth

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("verb"):
            self.left -= 1
            if self.left < 1:
                raise_it = self.error

                async def fail(*args: Any, **kwargs: Any) -> Any:
                    raise raise_it

                return fail
        return super().__getattribute__(name)


def reading_app() -> tuple[Fairlead, Any, Any]:
    app = Fairlead("memory://")

    @app.task(name="extract")
    def extract(n: int) -> int:
        return n * 10

    @app.task(name="load")
    def load(ctx: Context, more: int = 0) -> Any:
        return {"ids": list(ctx.results), "sum": sum(ctx.results.values()) + more}

    return app, extract, load


async def test_an_arrow_gives_results_to_who_takes_a_context() -> None:
    app, extract, load = reading_app()
    a, b, c = extract.call(1), extract.call(2), load.call()
    handle = await app.aenqueue_flow([a, b] >> c)
    (record,) = await app._clients.store.find([c.id])
    assert record is not None
    await app.drain()
    assert await handle.aresult() == {"ids": [a.id, b.id], "sum": 30}


async def test_arrows_outputs_and_options_add_up() -> None:
    app, extract, load = reading_app()
    before = await extract.aenqueue(3)
    a, b = extract.call(1), extract.call(2)
    c = load.using(depends_on=[before]).call(b.output)
    handle = await app.aenqueue_flow((a | b) >> c)
    await app.drain()
    result = await handle.aresult()
    assert sorted(result["ids"]) == sorted([a.id, b.id, before.id])
    assert result["sum"] == 10 + 20 + 30 + 20


async def test_what_a_flow_reads_is_kept_until_it_was_read() -> None:
    store = MemoryBroker(test_clock=True)
    app = Fairlead(store=store)

    @app.task(name="a", retention=0)
    def a() -> int:
        return 1

    @app.task(name="b")
    def b(ctx: Context) -> int:
        return sum(ctx.results.values())

    handle = await app.aenqueue_flow(a.call() >> b.call())
    await app.drain()
    assert await handle.aresult() == 1


async def test_a_wide_flow_without_a_join_is_drafted_quickly() -> None:
    app, extract, _ = reading_app()
    began = time.process_time()
    handle = await app.aenqueue_flow(extract.call(0) >> [extract.call(n) for n in range(10_000)])
    assert time.process_time() - began < 15
    assert (await handle.ainfo()).total == 10_001


async def test_a_flow_cannot_have_the_id_of_one_of_its_calls() -> None:
    app, extract, _ = reading_app()
    with pytest.raises(InvalidInput, match="give the flow another one"):
        await app.aenqueue_flow(extract.using(id="nightly").call(1), id="nightly")


async def test_a_refusal_while_it_is_laid_out_does_not_take_the_commit_back() -> None:
    store = Failing("deliver", Refused("readonly", "no"))
    app = Fairlead(store=store)
    task: Any = app.task(name="t")(lambda: None)
    handle = await app.aenqueue_flow([task.call() for _ in range(120)])
    assert (await handle.ainfo()).total == 120


@pytest.mark.parametrize("error", [Unreachable("gone"), asyncio.CancelledError()])
async def test_room_of_a_flow_that_cannot_be_written_is_free_at_once(error: Exception) -> None:
    store = Failing("stage", error, nth=2)
    app = Fairlead(store=store)
    task: Any = app.task(name="t")(lambda: None)
    await app.aconfigure_queue("default", max_waiting=1_000)
    calls = [task.call() for _ in range(800)]
    with pytest.raises(type(error)):
        await app.aenqueue_flow(calls, timeout="200ms")
    store.verb = ""
    await app.aenqueue_flow([task.call() for _ in range(800)])


async def test_a_flow_that_somebody_else_begins_to_write_is_begun_anew() -> None:
    class Raced(MemoryBroker):
        """Another writer of the same id comes between the parts and the commit, once."""

        raced = False

        async def commit(self, call: Any, flow: str, *, now: float | None = None) -> Any:
            if not self.raced:
                self.raced = True
                share = Share("default", "default", 1)
                other = FlowPart(
                    flow=flow,
                    number=0,
                    tenant="default",
                    shares=(share,),
                    members=(submit("default:other", "default"),),
                )
                assert (await self.stage(Client(self, "w9").call(), other)).code == "staged"
            return await super().commit(call, flow, now=now)

    store = Raced()
    app = Fairlead(store=store)
    task: Any = app.task(name="t")(lambda: 7)
    handle = await app.aenqueue_flow([task.call(), task.call()], id="once")
    assert not handle.duplicate
    assert (await handle.ainfo()).total == 2
    await app.drain()
    assert await handle.aresult() == [7, 7]


async def test_the_same_id_with_other_tasks_is_a_conflict() -> None:
    app, extract, load = reading_app()
    await app.aenqueue_flow([extract.call(1), extract.call(2)], id="x")
    with pytest.raises(Conflict):
        await app.aenqueue_flow([extract.call(1), load.call()], id="x")


async def test_a_look_at_the_result_waits_for_nothing() -> None:
    app, extract, _ = reading_app()
    handle = await app.aenqueue_flow(extract.call(1) >> extract.call(2))
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0)
    await app.drain()
    assert await handle.aresult(timeout=0) == 20


async def test_the_tenant_that_is_full_is_the_one_that_is_named() -> None:
    app, extract, _ = reading_app()
    await app.aconfigure_queue("other", max_tenant_waiting=1)
    big = extract.using(tenant="big", queue="other")
    calls = [extract.using(tenant="small").call(0), big.call(1), big.call(2)]
    with pytest.raises(QueueFull, match="tenant 'big'"):
        await app.aenqueue_flow(calls, tenant="small")
    await app.aconfigure_queue("other", max_tenant_waiting=None, max_tenant_bytes=200)
    with pytest.raises(QueueFull, match=r"tenant 'big'.*max_tenant_bytes: 200 bytes") as full:
        await app.aenqueue_flow(calls, tenant="small")
    assert full.value.setting == "max_tenant_bytes"


async def test_a_parent_that_turned_out_to_be_another_is_read_all_the_same() -> None:
    app, extract, load = reading_app()
    unique = extract.using(unique="k", unique_for=60)
    first = await unique.aenqueue(5)
    again = unique.call(6)
    calls = [again, load.using(depends_on=[again]).call(), load.call(again.output)]
    _, by_name, by_output = await app.aenqueue_many(calls)
    await app.drain()
    assert (await by_name.aresult()) == {"ids": [first.id], "sum": 50}
    assert (await by_output.aresult()) == {"ids": [first.id], "sum": 100}


async def test_a_commit_that_is_never_answered_leaves_a_flow_that_can_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = connect("memory://")
    app = Fairlead(store=inner, timeout=0.2)
    task: Any = app.task(name="t")(lambda: None)
    commit = inner.commit

    async def lost(*args: Any, **kwargs: Any) -> Any:
        await commit(*args, **kwargs)
        raise Ambiguous("the line is dead")

    monkeypatch.setattr(inner, "commit", lost)
    with pytest.raises(Ambiguous):
        await app.aenqueue_flow([task.call()], id="mine")
    assert await app.flow("mine").astate() is State.RUNNING
