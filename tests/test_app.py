"""The facade: where the broker comes from, registering tasks, operating, working, closing."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import fairlead
from fairlead import (
    Backoff,
    Context,
    Fairlead,
    FairleadError,
    FlowHandle,
    Handle,
    InvalidInput,
    InvalidName,
    InvalidOption,
    Refused,
    ResultGone,
    ResultTimeout,
    Retry,
    Schedules,
    State,
    Task,
    TaskFailed,
    UnknownPriority,
)
from fairlead.broker import connect
from fairlead.model import errors
from tests.runtime.programs import run


def text(text: str) -> str:
    return text


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://")


def test_a_store_takes_the_place_of_a_url() -> None:
    store = connect("memory://")
    one, two = Fairlead(store=store), Fairlead(store=store)
    one.task(name="work")(text).enqueue("1")
    assert two.snapshot().depth == 1
    with pytest.raises(InvalidOption, match="url='memory://'"):
        Fairlead("memory://", store=store)


def test_each_app_in_memory_has_a_broker_of_its_own(app: Fairlead) -> None:
    app.task(name="work")(text).enqueue("1")
    assert Fairlead("memory://").snapshot().depth == 0


def test_all_public_errors_are_offered_at_the_front_door() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    names = {kind.__name__ for kind in kinds if issubclass(kind, errors.FairleadError)}
    assert names <= set(fairlead.__all__)
    assert all(hasattr(fairlead, name) for name in fairlead.__all__)


@pytest.mark.parametrize("kind", [Fairlead, Task, Handle, FlowHandle, Context, Schedules])
def test_each_public_method_says_what_it_does(kind: type) -> None:
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or not (callable(member) or isinstance(member, property)):
            continue
        first = (inspect.getdoc(member) or "").partition("\n")[0]
        assert first.endswith("."), f"{kind.__name__}.{name}: {first!r}"


def test_a_method_that_is_a_function_of_the_package_is_bound_as_any_other(app: Fairlead) -> None:
    assert list(inspect.signature(app.configure_tenant).parameters) == ["name", "queue", "settings"]
    with pytest.raises(TypeError, match=r"configure_queue\(\) missing .* 'name'"):
        app.configure_queue()  # type: ignore[call-arg]


# -- registering -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"queue": "a b"}, InvalidName, "queue 'a b'"),
        ({"tenant": ""}, InvalidName, "tenant ''"),
        ({"name": "1st"}, InvalidName, "task name '1st'"),
        ({"priority": "urgent"}, UnknownPriority, "'urgent'"),
        ({"max_retries": -1}, InvalidOption, "max_retries=-1"),
        ({"max_retries": 10_000}, InvalidOption, "max_retries=10000"),
        ({"timeout": 0}, InvalidOption, "timeout=0"),
        ({"retention": "long"}, InvalidOption, "retention='long'"),
        ({"cost": -1}, InvalidOption, "cost=-1"),
        ({"limiters": "x"}, InvalidOption, "limiters='x'"),
        ({"backoff": 5}, InvalidOption, "backoff=5"),
        ({"backoff_for": {ValueError: 5}}, InvalidOption, "backoff=5"),
        ({"backoff_for": {"ValueError": Backoff()}}, InvalidOption, "'ValueError'"),
        ({"backoff_for": [Backoff()]}, InvalidOption, r"backoff_for=\["),
        ({"retry_on": 5}, InvalidOption, "retry_on=5"),
        ({"retry_on": ["ValueError"]}, InvalidOption, "retry_on='ValueError'"),
        ({"give_up_on": [int]}, InvalidOption, "give_up_on=<class 'int'>"),
        ({"version": 0}, InvalidOption, "version=0"),
        ({"unique_for": 5}, InvalidOption, "unique_for=5"),
        ({"isolation": "thread"}, InvalidOption, "isolation='thread'.*'process' or left out"),
        ({"max_memory": "512MB"}, InvalidOption, "max_memory='512MB'.*isolation='process'"),
        ({"isolation": "process", "max_memory": "1MB"}, InvalidOption, "max_memory='1MB'"),
        ({"isolation": "process", "max_memory": "big"}, InvalidOption, "max_memory='big'"),
        ({"isolation": "process", "max_memory": True}, InvalidOption, "max_memory=True"),
        ({"isolation": "process", "max_memory": -1}, InvalidOption, "max_memory=-1"),
        ({"breaker": 5}, InvalidOption, "breaker=5"),
        ({"quue": "x"}, InvalidInput, r"'quue' is no option.*did you mean queue\?"),
        ({"delay": 5}, InvalidInput, "delay"),
    ],
)
def test_a_bad_option_is_named_when_the_task_is_registered(
    app: Fairlead, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        app.task(**options)(lambda: None)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (2**24, 2**24),
        ("16MB", 2**24),
        ("512 mb", 2**29),
        ("65536KB", 2**26),
        ("2GB", 2**31),
    ],
)
def test_isolation_and_its_memory_are_registered(
    app: Fairlead, given: int | str, stored: int
) -> None:
    app.task(name="alone", isolation="process", max_memory=given)(text)
    app.task(name="free")(lambda: None)
    alone, free = app._registry.get("alone"), app._registry.get("free")
    assert (alone.isolation, alone.max_memory) == ("process", stored)
    assert (free.isolation, free.max_memory, free.breaker) == ("", None, None)


def test_two_functions_cannot_share_a_name(app: Fairlead) -> None:
    app.task(name="work")(lambda: None)
    with pytest.raises(InvalidInput, match="'work' is registered already"):
        app.task(name="work")(text)


def test_only_a_function_can_be_a_task(app: Fairlead) -> None:
    with pytest.raises(InvalidInput, match="'mail' cannot be a task"):
        app.task("mail")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="<class 'int'> cannot be a task"):
        app.task(int)

    def items() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    class Yields:
        def __call__(self) -> Iterator[int]:
            yield 1

    for function in (items, stream, Yields(), functools.partial(items)):
        with pytest.raises(InvalidInput, match="nobody would take what it yields"):
            app.task(name="work")(function)


async def test_an_object_may_be_a_task_and_its_call_a_coroutine_function(app: Fairlead) -> None:
    class Adds:
        async def __call__(self, a: int, b: int) -> int:
            return a + b

    handle = await app.task(name="add")(Adds()).aenqueue(1, 2)
    await app.drain()
    assert await handle.aresult(0) == 3


async def test_a_task_may_be_registered_again_elsewhere_and_under_another_name(
    app: Fairlead,
) -> None:
    other = Fairlead("memory://")

    @other.task(name="add", max_retries=0)
    async def add(a: int, b: int) -> int:
        return a + b

    @other.task(name="tell")
    def tell(ctx: Context) -> str:
        return ctx.id

    again = app.task(name="sum")(add)
    told = await app.task(tell).aenqueue()
    handle = await again.aenqueue(1, 2)
    assert (await handle.ainfo()).max_retries == 5, "options are not taken along"
    await app.drain()
    assert (await handle.aresult(0), await told.aresult(0)) == (3, told.id)


def test_bad_priorities_are_named() -> None:
    with pytest.raises(InvalidOption, match=r"priorities\['vip'\]='top'"):
        Fairlead(priorities={"vip": "top"})
    with pytest.raises(InvalidOption, match=r"priorities=\['vip'\]"):
        Fairlead(priorities=["vip"])  # type: ignore[arg-type]


def test_tasks_of_the_program_itself_are_named_for_its_module() -> None:
    program = """
from fairlead import Fairlead
app = Fairlead("memory://")

@app.task
def work() -> None: ...

print(work.name)
"""
    assert run(program) == "__main__.work\n"
    script = f"""
import runpy, tempfile, pathlib
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "jobs.py")
    path.write_text({program!r})
    runpy.run_path(str(path), run_name="__main__")
"""
    assert run(script) == "jobs.work\n"


# -- operating ---------------------------------------------------------------------------------


async def test_queues_tenants_and_limiters_are_configured(app: Fairlead) -> None:
    running: list[str] = []
    most = 0

    @app.task
    async def work(ctx: Context) -> None:
        nonlocal most
        running.append(ctx.tenant)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.pop()

    await app.aconfigure_queue("default", concurrency=2, keep_completed="1m")
    await asyncio.to_thread(app.configure_tenant, "a", weight=2, concurrency=1)
    await app.aconfigure_tenant("b", queue="default", paused=True)
    await asyncio.to_thread(app.configure_limiter, "gate", concurrency=1)
    for tenant in "ab":
        for _ in range(3):
            work.using(tenant=tenant, limiters=["gate"]).enqueue()
    assert await app.drain() == 3
    assert most == 1
    await app.aconfigure_tenant("b", queue="default", paused=False)
    await asyncio.to_thread(app.configure_queue, "default", paused=True)
    assert await app.drain() == 0
    await app.aconfigure_queue("default", paused=False)
    await app.aconfigure_limiter("gate", concurrency=None)
    assert await app.drain() == 3


@pytest.mark.parametrize(
    ("what", "name", "settings", "error", "words"),
    [
        ("queue", "a b", {}, InvalidName, "queue 'a b'"),
        ("queue", "q", {"max_waiting": -1}, InvalidOption, "max_waiting=-1"),
        ("queue", "q", {"max_waiting": True}, InvalidOption, "max_waiting=True"),
        ("queue", "q", {"keep_dead_bytes": None}, InvalidOption, "keep_dead_bytes=None"),
        ("queue", "q", {"keep_completed": "soon"}, InvalidOption, "keep_completed='soon'"),
        ("queue", "q", {"concurrency": 1.5}, InvalidOption, "concurrency=1.5"),
        ("queue", "q", {"concurrency": -1}, InvalidOption, "concurrency=-1"),
        ("queue", "q", {"paused": 1}, InvalidOption, "paused=1"),
        ("queue", "q", {"rate": 0}, InvalidOption, "rate=0"),
        ("queue", "q", {"rate": "fast"}, InvalidOption, "rate='fast'"),
        ("queue", "q", {"max_waiting": "5"}, InvalidOption, "max_waiting='5'"),
        ("queue", "q", {"max_wating": 5}, InvalidInput, r"did you mean max_waiting\?"),
        ("queue", "q", {"weight": 5}, InvalidInput, "'weight' is no option of a queue"),
        ("tenant", "t", {"weight": "heavy"}, InvalidOption, "weight='heavy'"),
        ("tenant", "t", {"weight": 1001}, InvalidOption, "weight=1001"),
        ("tenant", "", {}, InvalidName, "tenant ''"),
        ("tenant", "t", {"queue": "a b"}, InvalidName, "queue 'a b'"),
        ("tenant", "t", {"weight": 0}, InvalidOption, "weight=0"),
        ("tenant", "t", {"weight": float("nan")}, InvalidOption, "weight=nan"),
        ("limiter", "a b", {}, InvalidName, "limiter 'a b'"),
        ("limiter", "l", {"burst": 0}, InvalidOption, "burst=0"),
        ("limiter", "l", {"burst": None}, InvalidOption, "burst=None"),
    ],
)
async def test_bad_settings_are_named(
    app: Fairlead,
    what: str,
    name: str,
    settings: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        await asyncio.to_thread(getattr(app, f"configure_{what}"), name, **settings)
    with pytest.raises(error, match=words):
        await getattr(app, f"aconfigure_{what}")(name, **settings)


async def test_snapshot_and_purge(app: Fairlead) -> None:
    work = app.task(name="work")(text)
    for queue in ("a", "b"):
        for tenant in ("x", "y"):
            app.enqueue_many(
                work.using(queue=queue, tenant=tenant).call(str(n)) for n in range(600)
            )
    snapshot = await app.asnapshot()
    assert snapshot.depth == 2_400
    assert snapshot.queues["a"].tenants["x"].ready == 600
    assert await app.apurge("a", tenant="x") == 600
    assert await asyncio.to_thread(app.purge, "a") == 600
    assert await app.apurge(tenant="x") == 600
    assert await app.apurge() == 600
    assert (await app.asnapshot()).depth == 0
    assert await app.apurge("unknown") == 0
    with pytest.raises(InvalidName, match="'a b'"):
        await app.apurge("a b")
    with pytest.raises(InvalidName, match="tenant ''"):
        await app.apurge(tenant="")


# -- working -----------------------------------------------------------------------------------


async def test_drain_serves_every_queue_that_there_is(app: Fairlead) -> None:
    seen: list[str] = []

    @app.task(queue="first")
    async def first() -> None:
        seen.append("first")
        await second.using(queue="made.later").aenqueue()

    @app.task
    def second() -> None:
        seen.append("second")

    await first.aenqueue()
    await second.using(delay=3600).aenqueue()
    assert await app.drain() == 2
    assert seen == ["first", "second"]
    assert (await app.asnapshot()).scheduled == 1
    await second.aenqueue()
    assert await app.drain(queues=["first"]) == 0
    with pytest.raises(InvalidOption, match="at least one queue"):
        await app.drain(queues=[])


async def test_a_drain_that_would_never_end_gives_up(app: Fairlead) -> None:
    @app.task(name="again")
    async def again() -> None:
        await again.aenqueue()

    @app.task(name="onward")
    async def onward(n: int) -> None:
        await onward.using(queue=f"q{n}").aenqueue(n + 1)  # which no worker knew of before

    await again.aenqueue()
    with pytest.raises(FairleadError, match=r"'again' ran most.*drain\(limit="):
        await app.drain(limit=20)
    await app.apurge()
    await onward.aenqueue(0)
    with pytest.raises(FairleadError, match="'onward' ran most") as caught:
        await app.drain(limit=3)
    assert caught.value.__notes__ == ["3 attempts were made before, in the same drain"]
    await app.apurge()

    @app.task
    async def once() -> None: ...

    await app.aenqueue_many(once.call() for _ in range(3))
    assert await app.drain(limit=3) == 3
    await once.aenqueue()
    assert await app.drain(limit=None) == 1
    with pytest.raises(InvalidOption, match="limit='3'"):
        await app.drain(limit="3")  # type: ignore[arg-type]


async def test_retries_follow_the_options_of_the_task(app: Fairlead) -> None:
    @app.task(max_retries=9, give_up_on=OSError, retry_on=(Exception,))
    def gives_up() -> None:
        raise FileNotFoundError

    @app.task(
        backoff=Backoff(initial=100, jitter="none"),
        backoff_for={LookupError: Backoff(initial=200, jitter="none")},
    )
    def waits(kind: str) -> None:
        raise {"key": KeyError, "value": ValueError}[kind]

    @app.task
    async def asks() -> None:
        raise Retry(delay=300)

    dead = await gives_up.aenqueue()
    later = [await waits.aenqueue("key"), await waits.aenqueue("value"), await asks.aenqueue()]
    assert await app.drain() == 4
    with pytest.raises(TaskFailed, match="FileNotFoundError"):
        await dead.aresult()
    records = await app._clients.current().find([handle.id for handle in later])
    now = (await app.asnapshot()).now
    delays = [record.due_at - now for record in records if record and record.due_at]
    assert delays == [pytest.approx(wanted, abs=30) for wanted in (200, 100, 300)]


async def test_exceptions_of_handlers_are_recorded(app: Fairlead) -> None:
    @app.task(max_retries=0)
    async def fails(text: str) -> None:
        raise ValueError(text)

    one = await fails.aenqueue("while draining")
    await app.drain()
    async with app.worker(concurrency=1, threads=1):
        two = await fails.aenqueue("while serving")
        with pytest.raises(TaskFailed):
            await two.aresult(30)
    assert [(each.task_id, str(each.exception)) for each in app.exceptions] == [
        (one.id, "while draining"),
        (two.id, "while serving"),
    ]


async def test_a_dead_task_is_browsed_requeued_and_deleted(app: Fairlead) -> None:
    failing = True

    @app.task(max_retries=0)
    async def work() -> str:
        if failing:
            raise ValueError("not today")
        return "done"

    handle = await work.using(tenant="acme").aenqueue()
    await app.drain()
    page = await app.apage(state="dead", tenant="acme")
    assert [(task.id, task.reason) for task in page.tasks] == [(handle.id, "exhausted")]
    assert page.cursor is None

    failing = False
    assert await handle.arequeue() is True
    assert await handle.arequeue() is False  # it is not dead any more
    assert await handle.adelete() is False  # nor finished
    await app.drain()
    assert await handle.aresult(0) == "done"
    assert await asyncio.to_thread(handle.delete) is True
    with pytest.raises(ResultGone):
        await handle.aresult(0)


@pytest.mark.parametrize(
    ("selection", "error", "words"),
    [
        ({"state": "gone"}, InvalidOption, "state='gone'"),
        ({"stat": "dead"}, InvalidInput, r"'stat' is no option of a page; did you mean state\?"),
        ({"queue": "a b"}, InvalidName, "queue 'a b'"),
        ({"tenant": 5}, InvalidName, "tenant 5"),
        ({"cursor": 5}, InvalidOption, "cursor=5"),
        ({"cursor": "junk"}, InvalidOption, "cursor='junk'"),
        ({"limit": "x"}, InvalidOption, "limit='x'"),
        ({"limit": 0}, InvalidOption, "limit=0"),
    ],
)
async def test_a_bad_selection_of_a_page_is_named(
    app: Fairlead, selection: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await asyncio.to_thread(lambda: app.page(**selection))
    with pytest.raises(error, match=words):
        await app.apage(**selection)


async def test_workers_are_listed_while_they_serve(app: Fairlead) -> None:
    app.task(name="work", queue="mail")(text)
    assert await asyncio.to_thread(app.workers) == []
    async with app.worker(concurrency=3) as worker:
        await worker.heartbeater.beat()
        (record,) = await app.aworkers()
        assert (record.incarnation, record.concurrency) == (worker.incarnation, 3)
        assert ("mail" in record.queues, record.tasks) == (True, ("work",))


async def test_a_timeout_of_zero_looks_and_does_not_wait(app: Fairlead) -> None:
    @app.task
    async def work() -> int:
        return 7

    handle = await work.aenqueue()
    with pytest.raises(ResultTimeout):
        await handle.aresult(0)
    await app.drain()
    assert handle.result(0) == 7


async def test_a_worker_serves_what_comes(app: Fairlead) -> None:
    @app.task(queue="mail")
    async def send(to: str) -> str:
        return f"sent to {to}"

    async with app.worker(queues={"mail": 1.0}):
        handles = [await send.aenqueue("a"), send.enqueue("b")]
        assert [await handle.aresult(30) for handle in handles] == ["sent to a", "sent to b"]
    late = await send.aenqueue("c")
    assert await late.astate() is State.QUEUED


def test_one_app_serves_several_loops_one_after_the_other(app: Fairlead) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    async def program(n: int) -> int:
        calls = [app.aenqueue_many([work.call(n)]) for _ in range(10)]
        ((handle,), *_) = await asyncio.gather(*calls)
        await app.drain()
        return await handle.aresult(10)

    assert [asyncio.run(program(n)) for n in range(5)] == list(range(5))
    assert len(app._clients._by_loop) <= 1  # loops that are closed leave nothing behind


# -- closing -----------------------------------------------------------------------------------


async def test_a_closed_app_finishes_what_it_began_and_refuses_the_rest() -> None:
    async with Fairlead("memory://") as app:
        work = app.task(name="work")(text)
        begun = [asyncio.create_task(work.aenqueue(str(n))) for n in range(10)]
        await asyncio.sleep(0)
    assert len({(await task).id for task in begun}) == 10
    for attempt in (work.aenqueue, lambda _: asyncio.to_thread(work.enqueue, "1")):
        with pytest.raises(Refused) as refused:
            await attempt("1")
        assert refused.value.cause == "closed"
    with pytest.raises(Refused, match="closed"):
        await app.aenqueue_many([work.call("1")])
    await app.aclose()  # twice does no harm


def test_sync_code_closes_an_app_too() -> None:
    with Fairlead("memory://") as app:
        work = app.task(name="work")(text)
        handle = work.enqueue("1")
    with pytest.raises(Refused, match="closed"):
        work.enqueue("2")
    assert handle.state is State.QUEUED  # reading goes on
    app.close()


def test_max_memory_is_refused_where_memory_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.client.declaration.can_measure", lambda: False)
    with pytest.raises(InvalidOption, match=r"max_memory='512MB'.*/proc"):
        Fairlead("memory://").task(isolation="process", max_memory="512MB")(lambda: None)
