"""Flows through an app: all or nothing, and what their handles tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead import (
    Ambiguous,
    Conflict,
    Enqueuing,
    Fairlead,
    Flow,
    FlowCancelled,
    FlowFailed,
    InvalidInput,
    InvalidOption,
    QueueFull,
    Refused,
    Reject,
    ResultGone,
    ResultTimeout,
    State,
    TaskCall,
    TooLarge,
    UnknownDependency,
    UnknownTask,
)
from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.client.flow_submit import drafted
from tests.support.store import NOW, Client, submit


class Shop:
    """An app whose tasks say what they did."""

    def __init__(self, store: Store | None = None) -> None:
        self.app = Fairlead("memory://") if store is None else Fairlead(store=store)
        self.done: list[str] = []
        self.broken: set[str] = set()

        @self.app.task(name="step")
        async def step(name: str) -> str:
            if name in self.broken:
                raise Reject("broken")
            self.done.append(name)
            return name.upper()

        self.step = step

    def calls(self, names: str) -> list[TaskCall[str]]:
        return [self.step.call(name) for name in names]


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    yield made
    assert await made.app._clients.store.audit() == []


async def test_a_flow_runs_in_its_order_and_gives_the_last_result(shop: Shop) -> None:
    a, b, c, d = shop.calls("abcd")
    handle = await shop.app.aenqueue_flow(a >> [b, c] >> d, name="nightly")
    assert [one.id for one in handle.handles] == [a.id, b.id, c.id, d.id]
    assert handle[c].id == c.id
    info = await handle.ainfo()
    assert (info.name, info.tenant, info.total, info.progress) == ("nightly", "default", 4, 0.0)
    await shop.app.drain()
    assert shop.done[0] == "a"
    assert shop.done[3] == "d"
    assert await handle.aresult() == "D"
    assert await handle.astate() is State.COMPLETED
    assert not handle.duplicate


async def test_several_last_tasks_give_a_list(shop: Shop) -> None:
    a, b, c = shop.calls("abc")
    handle = await shop.app.aenqueue_flow(a >> [b, c])
    await shop.app.drain()
    assert await handle.aresult() == ["B", "C"]


async def test_the_result_is_waited_for(shop: Shop) -> None:
    a, b = shop.calls("ab")
    handle = await shop.app.aenqueue_flow(a >> b)
    waiting = asyncio.create_task(handle.aresult(timeout=20))
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0.01)
    await shop.app.drain()
    assert await waiting == "B"


def test_everything_works_from_sync_code() -> None:
    shop = Shop()
    a, b = shop.calls("ab")
    handle = shop.app.enqueue_flow(a >> b)
    assert handle.state is State.RUNNING
    asyncio.run(shop.app.drain())
    assert handle.result(timeout=5) == "B"
    assert handle.info().completed == 2
    assert handle.failed() == []
    assert not handle.cancel()
    assert not handle.retry()


async def test_waiting_on_a_loops_thread_is_refused(shop: Shop) -> None:
    handle = await shop.app.aenqueue_flow(shop.calls("a"))
    with pytest.raises(InvalidInput, match="would block the event loop"):
        handle.result()


async def test_a_failure_names_the_first_task_that_failed_by_itself(shop: Shop) -> None:
    shop.broken = {"b"}
    a, b, c = shop.calls("abc")
    handle = await shop.app.aenqueue_flow(a >> b >> c)
    await shop.app.drain()
    with pytest.raises(FlowFailed, match=f"2 of the 3 tasks .* first: step \\({b.id}\\): rejected"):
        await handle.aresult()
    assert [info.id for info in await handle.afailed()] == [b.id, c.id]

    shop.broken = set()
    assert await handle.aretry()
    await shop.app.drain()
    assert await handle.aresult() == "C"
    assert shop.done == ["a", "b", "c"]


async def test_a_cancelled_flow_says_so(shop: Shop) -> None:
    handle = await shop.app.aenqueue_flow(shop.calls("ab"))
    assert await handle.acancel()
    with pytest.raises(FlowCancelled, match="2 of the 2 tasks"):
        await handle.aresult()
    assert await shop.app.drain() == 0


async def test_a_flow_is_found_by_its_id_and_tenant(shop: Shop) -> None:
    step = shop.step.using(tenant="acme")
    await shop.app.aenqueue_flow(step.call("a") >> step.call("b"), id="nightly")
    found = shop.app.flow("nightly", "acme")
    assert (await found.ainfo()).total == 2
    assert found.handles == []
    with pytest.raises(ResultGone):
        await shop.app.flow("nightly").astate()
    with pytest.raises(InvalidInput, match="found by its id"):
        await found.aresult()
    with pytest.raises(KeyError, match="not a call that this flow was made of"):
        found[step.call("a")]
    assert not await shop.app.flow("nightly").acancel()
    assert await found.acancel()


async def test_a_handle_of_another_tenant_sees_and_does_nothing(shop: Shop) -> None:
    step = shop.step.using(tenant="acme")
    handle = await shop.app.aenqueue_flow(step.call("a"))
    stranger = shop.app.flow(handle.id, "other")
    with pytest.raises(ResultGone):
        await stranger.ainfo()
    assert not await stranger.acancel()
    assert await handle.astate() is State.RUNNING


async def test_the_same_id_again_is_the_same_flow(shop: Shop) -> None:
    first = await shop.app.aenqueue_flow(shop.calls("ab"), id="once")
    a, b = shop.calls("ab")
    again = await shop.app.aenqueue_flow(a | b, id="once")
    assert again.duplicate
    assert again == first
    assert [one.id for one in again.handles] == [one.id for one in first.handles]
    assert again[a].duplicate
    await shop.app.drain()
    assert shop.done == ["a", "b"]
    assert await again.aresult() == ["A", "B"]


async def test_another_flow_under_a_known_id_is_a_conflict(shop: Shop) -> None:
    await shop.app.aenqueue_flow(shop.calls("ab"), id="once")
    with pytest.raises(Conflict):
        await shop.app.aenqueue_flow(shop.calls("abc"), id="once")


async def test_a_flow_that_does_not_fit_leaves_nothing(shop: Shop) -> None:
    await shop.app.aconfigure_queue("default", max_waiting=3)
    with pytest.raises(QueueFull, match="3 waiting"):
        await shop.app.aenqueue_flow(shop.calls("abcd"))
    assert (await shop.app.asnapshot()).depth == 0
    await shop.app.aenqueue_flow(shop.calls("abc"))
    with pytest.raises(QueueFull):
        await shop.step.aenqueue("d")


async def test_a_tenant_that_is_full_is_named(shop: Shop) -> None:
    await shop.app.aconfigure_queue("default", max_tenant_waiting=1)
    step = shop.step.using(tenant="acme")
    with pytest.raises(QueueFull, match="acme"):
        await shop.app.aenqueue_flow(step.call("a") >> step.call("b"))


async def test_dependencies_outside_of_the_flow(shop: Shop) -> None:
    before = await shop.step.aenqueue("before")
    a = shop.step.using(depends_on=[before]).call("a")
    handle = await shop.app.aenqueue_flow(a >> shop.step.call("b"))
    assert (await handle[a].ainfo()).waiting_for == (before.id,)
    await shop.app.drain()
    assert shop.done == ["before", "a", "b"]


async def test_an_unknown_dependency_refuses_all_of_it(shop: Shop) -> None:
    a = shop.step.using(depends_on=["nowhere"]).call("a")
    with pytest.raises(UnknownDependency, match="nowhere"):
        await shop.app.aenqueue_flow(shop.step.call("b") >> a)
    assert (await shop.app.asnapshot()).depth == 0


async def test_a_call_that_waits_for_a_call_of_the_flow_by_its_options(shop: Shop) -> None:
    a = shop.step.call("a")
    b = shop.step.using(depends_on=[a]).call("b")
    await shop.app.aenqueue_flow([b, a])
    await shop.app.drain()
    assert shop.done == ["a", "b"]


async def test_an_id_that_is_a_task_already_refuses_all_of_it(shop: Shop) -> None:
    await shop.step.using(id="taken").aenqueue("x")
    with pytest.raises(Conflict, match="taken"):
        await shop.app.aenqueue_flow([shop.step.call("a"), shop.step.using(id="taken").call("a")])
    assert (await shop.app.asnapshot()).depth == 1


async def test_unique_members_are_refused(shop: Shop) -> None:
    with pytest.raises(InvalidOption, match="give it an id"):
        await shop.app.aenqueue_flow(shop.step.using(unique="k").call("a"))


async def test_several_tenants_need_to_say_whose_flow_it_is(shop: Shop) -> None:
    calls = [shop.step.using(tenant=name).call(name) for name in ("x", "y")]
    with pytest.raises(InvalidInput, match="'x' and 'y'; say whose flow it is"):
        await shop.app.aenqueue_flow(calls)
    handle = await shop.app.aenqueue_flow(calls, tenant="x")
    assert handle.tenant == "x"
    assert handle[calls[1]].tenant == "y"
    await shop.app.drain()
    assert await handle.astate() is State.COMPLETED


async def test_bad_calls_are_named_and_nothing_is_written(shop: Shop) -> None:
    with pytest.raises(InvalidInput) as caught:
        await shop.app.aenqueue_flow([shop.step.call("a"), shop.step.call(1, 2, 3)])  # type: ignore[call-arg, arg-type]
    assert "nothing of the flow was enqueued" in caught.value.__notes__[0]
    other = Shop()
    other_step: Any = other.app.task(name="other")(lambda: None)
    with pytest.raises(UnknownTask):
        await shop.app.aenqueue_flow(other_step.call())
    assert (await shop.app.asnapshot()).depth == 0


async def test_middleware_goes_around_every_member(shop: Shop) -> None:
    seen: list[str] = []

    @shop.app.around_enqueue
    async def around(enqueuing: Enqueuing) -> AsyncIterator[None]:
        enqueuing.headers["from"] = "test"
        seen.append(f"before {enqueuing.id}")
        yield
        seen.append(f"after {enqueuing.id}")

    a, b = shop.calls("ab")
    await shop.app.aenqueue_flow(a >> b)
    assert seen == [f"before {a.id}", f"before {b.id}", f"after {b.id}", f"after {a.id}"]


async def test_middleware_may_refuse_all_of_it(shop: Shop) -> None:
    @shop.app.around_enqueue
    async def around(enqueuing: Enqueuing) -> AsyncIterator[None]:
        if enqueuing.task == "step":
            raise PermissionError("no")
        yield

    with pytest.raises(PermissionError):
        await shop.app.aenqueue_flow(shop.calls("ab"))
    assert (await shop.app.asnapshot()).depth == 0


async def test_a_large_flow_is_there_as_a_whole(shop: Shop) -> None:
    a, b = shop.calls("ab")
    handle = await shop.app.aenqueue_flow(a >> [shop.step.call("x") for _ in range(1_000)] >> b)
    counts = await shop.app.asnapshot()
    assert (counts.ready, counts.deferred) == (1, 1_001)
    await shop.app.drain()
    assert await handle.aresult() == "B"
    assert len(shop.done) == 1_002


async def test_a_closed_broker_refuses(shop: Shop) -> None:
    await shop.app.aclose()
    with pytest.raises(Refused, match="closed"):
        await shop.app.aenqueue_flow(shop.calls("a"))


def test_too_many_tenants_are_refused() -> None:
    shop = Shop()
    calls = [shop.step.using(tenant=f"t{n}").call("x") for n in range(201)]
    with pytest.raises(TooLarge, match="201 tenants"):
        shop.app.enqueue_flow(calls, tenant="x")


class Interrupted(MemoryBroker):
    """Loses the connection for good at one of its verbs."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self.verb = verb

    async def commit(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().commit(*args, **kwargs)
        if self.verb == "commit":
            raise Ambiguous("the line is dead")
        return answer

    async def deliver(self, *args: Any, **kwargs: Any) -> Any:
        if self.verb == "deliver":
            raise Ambiguous("the line is dead")
        return await super().deliver(*args, **kwargs)


async def test_a_commit_whose_answer_is_lost_says_how_to_go_on() -> None:
    shop = Shop(Interrupted("commit"))
    with pytest.raises(Ambiguous) as caught:
        await shop.app.aenqueue_flow(shop.calls("ab"), id="mine", timeout="200ms")
    assert "default:mine" in caught.value.__notes__[0]
    assert caught.value.id == "default:mine"
    assert (await shop.app.flow("mine").ainfo()).total == 2


async def test_a_flow_that_is_committed_is_accepted_whatever_happens_next() -> None:
    store = Interrupted("deliver")
    shop = Shop(store)
    handle = await shop.app.aenqueue_flow([shop.step.call("x") for _ in range(120)])
    assert (await handle.ainfo()).total == 120
    store.verb = ""
    await shop.app.drain()  # the worker lays out the rest
    assert await handle.astate() is State.COMPLETED
    assert len(shop.done) == 120


async def test_a_flow_that_was_given_up_says_so() -> None:
    """Ten minutes pass between two parts."""
    store = MemoryBroker(test_clock=True)
    shop = Shop(store)
    await Client(store).enqueue(submit("a:first"), now=NOW)
    draft = drafted(
        Flow([shop.step.call("x") for _ in range(600)]),
        shop.app._registry,
        id=None,
        tenant=None,
        name="",
    )
    client = shop.app._clients.current()
    stage = store.stage

    async def slowly(call: Any, part: Any, **kwargs: Any) -> Any:
        if part.number == 1:
            await store.tidy(now=NOW + 601)
        return await stage(call, part, **kwargs)

    store.stage = slowly  # type: ignore[method-assign]
    with pytest.raises(Refused, match="not committed in time"):
        await client.submit_flow(draft)
    assert await client.flow(draft.id) is None
