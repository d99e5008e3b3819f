"""Tasks and calls: options, ids, correlation, and what is stored of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from fairlead import Conflict, Context, Fairlead, QueueFull, State, correlation
from fairlead.broker import connect
from fairlead.broker.records import TaskRecord
from fairlead.model.argument_packing import unpack_arguments
from fairlead.model.message import LEVELS, Body, Trace


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://", priorities={"urgent": "critical", 9: "low"})


async def stored(app: Fairlead, id: str) -> TaskRecord:
    (record,) = await app._clients.current().find([id])
    assert record is not None
    return record


async def test_a_task_can_still_be_called_like_its_function(app: Fairlead) -> None:
    @app.task
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    @app.task()
    async def triple(n: int) -> int:
        return 3 * n

    assert double(4) == 8
    assert await triple(4) == 12
    assert double.__doc__ == "Twice as much."
    assert double.name.endswith(
        "test_task.test_a_task_can_still_be_called_like_its_function.<locals>.double"
    )
    assert repr(triple).endswith("triple>")


async def test_enqueue_stores_arguments_and_options(app: Fairlead) -> None:
    @app.task(name="mail.send", queue="mail", priority="urgent", version=3, max_retries=2)
    async def send(to: str, *, subject: str = "hi") -> str:
        return to

    handle = await send.using(
        tenant="acme", cost=2, limiters=["smtp"], timeout="1m", retention=timedelta(hours=1)
    ).aenqueue("a@x", subject="yo")
    record = await stored(app, handle.id)
    message = record.message
    assert (message.queue, message.tenant, message.cost) == ("mail", "acme", 2.0)
    assert (LEVELS[message.level], message.limiters) == ("critical", ("smtp",))
    body = Body.decode(message.body)
    assert (body.task, body.task_version) == ("mail.send", 3)
    assert unpack_arguments(body.arguments) == (["a@x"], {"subject": "yo"})
    # What the call did not say stays with the registered task, which may be changed meanwhile.
    assert (body.max_retries, body.timeout, body.retention) == (None, 60.0, 3600.0)
    assert (handle.tenant, handle.duplicate, handle.durability) == ("acme", False, "committed")


async def test_using_adds_to_what_was_said_before(app: Fairlead) -> None:
    @app.task(queue="a", tenant="one")
    def work() -> None: ...

    sender = work.using(tenant="two", priority="low").using(priority=9, queue="b")
    message = (await stored(app, (await sender.aenqueue()).id)).message
    assert (message.queue, message.tenant, message.level) == ("b", "two", 3)
    plain = (await stored(app, (await work.aenqueue()).id)).message
    assert (plain.queue, plain.tenant, plain.level) == ("a", "one", 2)
    call = sender.call().using(queue="c")
    (handle,) = await app.aenqueue_many([call])
    assert (await stored(app, handle.id)).message.queue == "c"


async def test_a_priority_may_depend_on_the_arguments(app: Fairlead) -> None:
    @app.task(priority=lambda n: "high" if n > 10 else "low")
    def work(n: int) -> None: ...

    levels = [(await stored(app, (await work.aenqueue(n)).id)).message.level for n in (1, 11)]
    assert [LEVELS[level] for level in levels] == ["low", "high"]


async def test_delays_dependencies_and_deadlines_reach_the_broker(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    later = await work.using(delay="10m", deadline="1h").aenqueue()
    child = await work.using(depends_on=[later]).aenqueue()
    assert (await later.astate(), await child.astate()) == (State.SCHEDULED, State.DEFERRED)
    record = await stored(app, later.id)
    assert record.due_at is not None
    assert record.deadline_at is not None
    assert record.due_at - record.enqueued_at == pytest.approx(600)
    assert record.deadline_at - record.enqueued_at == pytest.approx(3600)


async def test_calls_of_one_batch_may_depend_on_each_other_in_any_order(app: Fairlead) -> None:
    order: list[str] = []

    @app.task
    async def step(name: str) -> None:
        order.append(name)

    first = step.call("first")
    second = step.using(depends_on=[first]).call("second")
    third = step.using(depends_on=(first, second)).call("third")
    handles = await app.aenqueue_many([third, first, second])
    assert [handle.id for handle in handles] == [third.id, first.id, second.id]
    assert await app.drain() == 3
    assert order == ["first", "second", "third"]


async def test_a_call_keeps_its_id_and_is_one_task(app: Fairlead) -> None:
    @app.task
    def work(n: int) -> None: ...

    call = work.call(1)
    (one,), (two,) = await app.aenqueue_many([call]), await app.aenqueue_many([call])
    assert one == two
    assert (one.id, one.duplicate, two.duplicate) == (call.id, False, True)
    assert hash(one) == hash(two)
    assert call.using(delay=5).id != call.id
    assert call.id in repr(call)


async def test_a_chosen_id_belongs_to_its_tenant(app: Fairlead) -> None:
    @app.task
    def work(n: int) -> None: ...

    one = await work.using(id="order-1", tenant="a").aenqueue(1)
    other = await work.using(id="order-1", tenant="b").aenqueue(2)
    again = await work.using(id="order-1", tenant="a").aenqueue(1)
    assert (one.id, other.id) == ("a:order-1", "b:order-1")
    assert (again.id, again.duplicate) == (one.id, True)
    with pytest.raises(Conflict, match="a:order-1"):
        await work.using(id="order-1", tenant="a").aenqueue(99)
    assert app.handle("order-1", tenant="a") == one


async def test_a_unique_key_gives_the_handle_of_the_task_that_stands(app: Fairlead) -> None:
    @app.task
    def work(n: int) -> None: ...

    @app.task(unique="one")
    def alone(n: int) -> None: ...

    one = await work.using(unique="k").aenqueue(1)
    two = await work.using(unique="k").aenqueue(2)
    assert (two.id, two.duplicate) == (one.id, True)
    other = await alone.aenqueue(1)  # keys belong to their task
    assert not other.duplicate
    assert (await alone.aenqueue(2)).id == other.id


async def test_a_full_queue_is_told_and_the_rest_of_a_batch_stands(app: Fairlead) -> None:
    @app.task(queue="small")
    def work(n: int) -> None: ...

    await app.aconfigure_queue("small", max_waiting=3, max_tenant_waiting=2)
    calls = [work.using(tenant=f"t{n % 2}").call(n) for n in range(4)]
    with pytest.raises(QueueFull) as full:
        await app.aenqueue_many(calls)
    assert (full.value.queue, full.value.limit, full.value.tenant) == ("small", 3, None)
    assert full.value.__notes__[0].startswith("3 of 4 tasks were accepted")
    await app.aconfigure_queue("small", max_waiting=None)
    handles = await app.aenqueue_many(calls)
    assert [handle.duplicate for handle in handles] == [True, True, True, False]
    with pytest.raises(QueueFull, match="tenant 't0'") as full:
        await work.using(tenant="t0").aenqueue(9)
    assert (full.value.limit, full.value.tenant) == (2, "t0")
    assert full.value.setting == "max_tenant_waiting"


async def test_a_tenant_that_has_too_much_is_told_which_limit_it_is(app: Fairlead) -> None:
    @app.task(queue="small")
    def work(text: str) -> None: ...

    await app.aconfigure_queue("small", max_tenant_bytes=10_000)
    calls = [work.using(tenant="t0").call("x" * size) for size in (6_000, 6_000, 1_000)]
    told = r"queue 'small' is full for tenant 't0' \(max_tenant_bytes: 10000 bytes"
    with pytest.raises(QueueFull, match=told) as full:
        await app.aenqueue_many(calls)
    error = full.value
    assert (error.cause, error.queue, error.tenant) == ("full", "small", "t0")
    assert (error.setting, error.limit) == ("max_tenant_bytes", 10_000)
    assert error.__notes__[0].startswith("2 of 3 tasks were accepted")
    await app.aconfigure_queue("small", max_tenant_bytes=None)
    assert [handle.duplicate for handle in await app.aenqueue_many(calls)] == [True, False, True]


# -- correlation ----------------------------------------------------------------------------------


async def origin(app: Fairlead, id: str) -> str:
    return Trace.of((await stored(app, id)).message).correlation_id


async def test_a_task_is_its_own_origin_unless_something_is_said(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    alone = await work.aenqueue()
    assert await origin(app, alone.id) == alone.id
    with correlation("request-7"):
        inherited = await work.aenqueue()
        synced = work.enqueue()
        said = await work.using(correlation_id="other").aenqueue()
    assert await origin(app, inherited.id) == "request-7"
    assert await origin(app, synced.id) == "request-7"
    assert await origin(app, said.id) == "other"
    long = await work.using(id="x" * 128, tenant="t" * 128).aenqueue()
    assert await origin(app, long.id) == long.id


async def test_what_a_handler_enqueues_has_the_same_origin(app: Fairlead) -> None:
    made: list[str] = []

    @app.task
    async def child() -> None: ...

    @app.task
    async def asynchronous() -> None:
        made.append((await child.aenqueue()).id)

    @app.task
    def threaded(ctx: Context) -> None:
        assert ctx.correlation_id == "request-7"
        made.append(child.enqueue().id)

    for task in (asynchronous, threaded):
        await task.using(correlation_id="request-7").aenqueue()
    assert await app.drain() == 4
    assert app.exceptions == []
    assert [await origin(app, id) for id in made] == ["request-7"] * 2


# -- in threads -----------------------------------------------------------------------------------


def test_sync_and_async_code_share_one_store() -> None:
    store = connect("memory://")
    app = Fairlead(store=store)

    @app.task
    def work(n: int) -> None: ...

    work.enqueue(1)

    async def program() -> int:
        await work.aenqueue(2)
        work.enqueue(3)  # in the thread of a running loop
        return (await app.asnapshot()).depth

    assert asyncio.run(program()) == 3
    assert app.snapshot().depth == 3


async def test_dependencies_may_come_from_a_generator(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    first = work.call()
    ids = (call for call in (first,))
    second = work.using(depends_on=ids).call()  # type: ignore[arg-type]
    await app.aenqueue_many([second, first])
    assert (await stored(app, second.id)).waiting_for == (first.id,)
