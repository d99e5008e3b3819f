"""Hooks: each event in one process, at least once, and no hook harms a task or another hook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from fairlead import EventInfo, Fairlead
from fairlead.broker import Caller
from fairlead.broker.documents import DocumentChange
from fairlead.broker.memory import MemoryBroker
from fairlead.model.errors import InvalidInput, InvalidOption, Refused, Unreachable
from fairlead.worker import hooks as module
from fairlead.worker.hook_calls import MOST_HANGING
from fairlead.worker.hooks import HookRunner
from tests.client.stores import Counting
from tests.worker.harness import until

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything a hundred times as fast."""
    for name in ("_LEASE", "_RENEW", "_LOST", "_CONFIRM", "_LOOK", "_GRACE"):
        monkeypatch.setattr(module, name, getattr(module, name) / 100)
    monkeypatch.setattr(module, "_PAUSES", (0.001, 0.001, 0.001))


def program(store: Any, hook: Callable[[EventInfo], Any] | None = None, **options: Any) -> Fairlead:
    """An app on a store that others use too, as other processes would."""
    app = Fairlead(store=store)

    @app.task(name="work", max_retries=0)
    async def work(fail: bool = False) -> None:
        if fail:
            raise ValueError("it did not work")

    if hook is not None:
        app.on("completed", "dead", **{"reader": "hook", **options})(hook)
    return app


def runner_of(app: Fairlead) -> HookRunner:
    return HookRunner(app._clients.store, app._hooks.made())


@asynccontextmanager
async def taken(app: Fairlead, name: str = "hook") -> AsyncIterator[HookRunner]:
    """Run the hooks of an app, and wait until this process has one of them."""
    runner = runner_of(app)
    task = asyncio.ensure_future(runner.run())
    try:
        await until(lambda: name in runner.held)
        await until(lambda: kept(app, name))
        yield runner
    finally:
        task.cancel()
        await asyncio.wait([task])


async def kept(app: Fairlead, name: str) -> bool:
    return bool((await app._clients.store.documents(module.KIND, [name])).documents)


async def revision_of(store: Any, name: str = "hook") -> int:
    (document,) = (await store.documents(module.KIND, [name])).documents
    return int(document.revision)


async def is_written_after(store: Any, revision: int) -> bool:
    return await revision_of(store) > revision


async def place_of(store: Any, name: str = "hook") -> str:
    (document,) = (await store.documents(module.KIND, [name])).documents
    return str(msgspec.json.decode(document.value)["place"])


async def run(app: Fairlead, count: int, **arguments: Any) -> list[str]:
    handles = [await app.registered("work").aenqueue(**arguments) for _ in range(count)]
    await app.drain()
    return [handle.id for handle in handles]


# -- what is called ----------------------------------------------------------------------------


async def test_a_hook_is_called_in_a_worker_for_the_events_it_is_for() -> None:
    seen: list[EventInfo] = []
    async with program(MemoryBroker()) as app:

        @app.on("completed", queue="mail")
        async def mailed(event: EventInfo) -> None:
            seen.append(event)

        @app.on("dead", name="work")
        def died(event: EventInfo) -> None:
            assert threading.current_thread() is not threading.main_thread()
            seen.append(event)

        async with app.worker(queues=["default", "mail"]):
            await app.registered("work").aenqueue()
            dead = await app.registered("work").aenqueue(fail=True)
            done = await app.registered("work").using(queue="mail").aenqueue()
            await until(lambda: len(seen) == 2)
    assert {(event.type, event.task_id, event.task) for event in seen} == {
        ("task.dead", dead.id, "work"),
        ("task.completed", done.id, "work"),
    }


async def test_a_worker_that_is_told_so_calls_none() -> None:
    called: list[EventInfo] = []
    async with program(MemoryBroker(), called.append) as app:
        async with app.worker(hooks=False):
            handle = await app.registered("work").aenqueue()
            await handle.aresult(timeout=5)
        await run(app, 1)
        assert not await kept(app, "hook")
        assert called == []


async def test_a_new_hook_begins_now_and_goes_on_where_it_was() -> None:
    store, seen = MemoryBroker(), list[str]()
    app = program(store, lambda event: seen.append(event.task_id))
    await run(app, 3)
    async with taken(app):
        second = await run(app, 2)
        await until(lambda: len(seen) == 2)
    between = await run(app, 2)  # nobody is there to call it
    async with taken(program(store, lambda event: seen.append(event.task_id))):
        await until(lambda: len(seen) == 4)
    assert seen == [*second, *between]
    await app.aclose()


@pytest.mark.parametrize(
    ("types", "options", "error"),
    [
        (("exploded",), {}, InvalidOption),
        (("dead",), {"timeout": 0}, InvalidOption),
        (("dead",), {"color": "red"}, InvalidInput),
        (("dead",), {"reader": "hook"}, InvalidInput),
        (("dead",), {"queue": "a b"}, InvalidInput),
    ],
)
async def test_a_hook_that_cannot_be_is_refused(types: Any, options: Any, error: Any) -> None:
    app = program(MemoryBroker(), lambda event: None)
    with pytest.raises(error):
        app.on(*types, **options)(lambda event: None)
    await app.aclose()


# -- one process at a time, at least once ------------------------------------------------------


async def test_each_event_is_handled_by_one_of_several_processes() -> None:
    store, seen = MemoryBroker(), list[str]()
    apps = [program(store, lambda event: seen.append(event.task_id)) for _ in range(3)]
    runners = [runner_of(app) for app in apps]
    tasks = [asyncio.ensure_future(runner.run()) for runner in runners]
    await until(lambda: kept(apps[0], "hook"))
    await until(lambda: sum(len(runner._held) for runner in runners) == 1)
    for runner in runners:
        await runner.look()
    # One that looked before the first had written its name tries as well, and is told.
    await until(lambda: sum(len(runner._held) for runner in runners) == 1)
    ids = await run(apps[0], 20)
    await until(lambda: len(seen) >= 20)
    await asyncio.sleep(0.1)
    assert seen == ids
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await apps[0].aclose()


async def test_what_was_not_finished_by_a_process_that_died_comes_again_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, first, second = MemoryBroker(), list[str](), list[str]()
    hangs = asyncio.Event()

    async def stuck(event: EventInfo) -> None:
        first.append(event.task_id)
        if len(first) == 3:
            await hangs.wait()

    one = program(store, stuck)
    dying = runner_of(one)
    task = asyncio.ensure_future(dying.run())
    await until(lambda: kept(one, "hook"))
    ids = await run(one, 5)
    await until(lambda: len(first) == 3)
    await asyncio.sleep(0.05)  # its place is kept
    with monkeypatch.context() as killed:  # it writes nothing any more, nor lets go

        async def nothing(*args: Any) -> None: ...

        killed.setattr(module._Holding, "_write", nothing)
        task.cancel()
        await asyncio.wait([task])
    async with taken(program(store, lambda event: second.append(event.task_id))):
        await until(lambda: len(second) == 3)
    assert first == ids[:3]
    assert second == ids[2:]
    await one.aclose()


async def test_a_process_that_stops_lets_its_hooks_go_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LEASE", 60.0)
    store = MemoryBroker()
    one = program(store, lambda event: None)
    async with taken(one):
        pass
    async with asyncio.timeout(5), taken(program(store, lambda event: None)):
        pass
    await one.aclose()


async def test_a_hook_that_was_taken_over_keeps_no_place_any_more(caplog: Any) -> None:
    store, seen = MemoryBroker(), list[str]()
    app = program(store, lambda event: seen.append(event.task_id))
    async with taken(app) as runner:
        thief = DocumentChange(
            kind=module.KIND, name="hook", value=b'{"holder":"thief","place":""}'
        )
        await Caller("thief").call(lambda call: store.write_documents(call, [thief]))
        await until(lambda: not runner.held)
        (document,) = (await store.documents(module.KIND, ["hook"])).documents
        assert b"thief" in document.value
    assert "hook lost" in caplog.text
    await app.aclose()


class Flaky(Counting):
    """A store whose documents cannot be written for a while."""

    async def write_documents(self, *args: Any, **options: Any) -> Any:
        self._lose("write")
        return await self.inner.write_documents(*args, **options)


async def test_an_outage_costs_time_and_no_event() -> None:
    store, seen = Flaky(), list[str]()
    app = program(store.store, lambda event: seen.append(event.task_id))
    async with taken(app) as runner:
        store.lost["write"] = [Unreachable("away")] * 3
        ids = await run(app, 3)
        await until(lambda: not store.lost["write"] and len(seen) >= 3)
        await until(lambda: "hook" in runner.held)
        ids += await run(app, 1)
        await until(lambda: ids[-1] in seen)
    assert list(dict.fromkeys(seen)) == ids
    await app.aclose()


async def test_a_hook_that_has_nothing_to_read_yet_keeps_the_place_it_had() -> None:
    store, seen = MemoryBroker(), list[str]()
    app = program(store, lambda event: seen.append(event.task_id))
    async with taken(app):
        await run(app, 1)
        await until(lambda: len(seen) == 1)
    place = await place_of(store)
    async with taken(program(store, lambda event: None)):
        first = await revision_of(store)
        await until(lambda: is_written_after(store, first))
        assert await place_of(store) == place != ""
    await app.aclose()


async def test_a_document_that_got_lost_is_written_again_and_no_event_is_missed() -> None:
    store, seen, go_on = MemoryBroker(), list[str](), asyncio.Event()

    async def waits(event: EventInfo) -> None:
        seen.append(event.task_id)
        await go_on.wait()

    app = program(store, waits)
    async with taken(app) as runner:
        ids = await run(app, 3)
        await until(lambda: len(seen) == 1)
        gone = DocumentChange(kind=module.KIND, name="hook", value=None)
        await Caller("server").call(lambda call: store.write_documents(call, [gone]))
        await until(lambda: kept(app, "hook"))
        assert runner.held == ["hook"]
        go_on.set()
        await until(lambda: len(seen) >= 3)
    assert seen == ids
    await app.aclose()


async def test_a_write_whose_answer_got_lost_costs_no_hook(caplog: Any) -> None:
    store = LateAnswers()
    app = program(store.store, lambda event: None)
    async with taken(app):
        store.late_failures = [Refused("late", "nobody waits for it any more")]
        await until(lambda: not store.late_failures)
        lost = await revision_of(store.store)
        await until(lambda: is_written_after(store.store, lost))
    assert "hook lost" not in caplog.text
    await app.aclose()


class LateAnswers(Counting):
    """A store that writes documents, but whose answers get lost."""

    async def write_documents(self, *args: Any, **options: Any) -> Any:
        answers = await self.inner.write_documents(*args, **options)
        if self.late_failures:
            raise self.late_failures.pop(0)
        return answers


# -- hooks that misbehave ----------------------------------------------------------------------


async def test_a_hook_that_fails_is_called_again_and_then_given_up(caplog: Any) -> None:
    calls: list[str] = []
    others: list[str] = []

    async def fails(event: EventInfo) -> None:
        calls.append(event.task_id)
        if event.task_id == first:
            raise KeyError("secret words")

    app = program(MemoryBroker(), fails)
    app.on("completed", reader="other")(lambda event: others.append(event.task_id))
    first = ""
    async with taken(app):
        handle = await app.registered("work").aenqueue()
        first = handle.id
        await app.drain()
        (second,) = await run(app, 1)
        await until(lambda: second in calls and second in others)
    assert calls == [first] * 4 + [second]
    assert [record.levelname for record in caplog.records if "hook" in record.message][-1:] == [
        "ERROR"
    ]
    assert "hook given up" in caplog.text
    assert "secret words" not in caplog.text
    await app.aclose()


async def test_a_hook_that_fails_once_is_called_again() -> None:
    calls: list[str] = []

    def fails_once(event: EventInfo) -> None:
        calls.append(event.task_id)
        if len(calls) == 1:
            raise KeyError

    app = program(MemoryBroker(), fails_once)
    async with taken(app):
        ids = await run(app, 2)
        await until(lambda: len(calls) == 3)
    assert calls == [ids[0], *ids]
    await app.aclose()


@pytest.mark.parametrize("kind", ["async", "stubborn", "sync"])
async def test_a_hook_that_takes_too_long_is_given_up(kind: str, caplog: Any) -> None:
    calls: list[str] = []
    release, stop = threading.Event(), asyncio.Event()

    async def waits(event: EventInfo) -> None:
        calls.append(event.task_id)
        if len(calls) == 1:
            try:
                await stop.wait()
            except asyncio.CancelledError:
                if kind == "stubborn":
                    await stop.wait()
                raise

    def blocks(event: EventInfo) -> None:
        calls.append(event.task_id)
        if len(calls) == 1:
            release.wait()

    app = program(MemoryBroker(), blocks if kind == "sync" else waits, timeout=0.05)
    async with taken(app):
        ids = await run(app, 2)
        await until(lambda: len(calls) == 2)
    assert calls == ids
    assert "takes too long" in caplog.text
    release.set()
    stop.set()
    await asyncio.sleep(0.01)
    await app.aclose()


async def test_calls_that_never_end_hold_no_more_than_a_few_threads(caplog: Any) -> None:
    calls, release = list[str](), threading.Event()

    def hangs(event: EventInfo) -> None:
        calls.append(event.task_id)
        release.wait()

    app = program(MemoryBroker(), hangs, timeout=0.01)
    async with taken(app):
        ids = await run(app, MOST_HANGING + 2)
        await until(lambda: "too many calls hang" in caplog.text)
        assert calls == ids[:MOST_HANGING]
        release.set()
        await until(lambda: len(calls) == len(ids))
    assert calls == ids
    await app.aclose()


@pytest.mark.parametrize("error", [SystemExit, StopIteration])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_error_that_means_something_to_a_loop_is_one_like_any_other(
    kind: str, error: type[BaseException]
) -> None:
    calls: list[str] = []

    def fails(event: EventInfo) -> None:
        calls.append(event.task_id)
        if len(calls) == 1:
            raise error

    async def fails_on_the_loop(event: EventInfo) -> None:
        fails(event)

    app = program(MemoryBroker(), fails if kind == "sync" else fails_on_the_loop)
    async with taken(app):
        ids = await run(app, 1)
        await until(lambda: len(calls) == 2)
    assert calls == ids * 2
    await app.aclose()


async def test_a_slow_hook_holds_up_neither_tasks_nor_other_hooks() -> None:
    release, others = asyncio.Event(), list[str]()

    async def slow(event: EventInfo) -> None:
        await release.wait()

    app = program(MemoryBroker(), slow)
    app.on("completed", reader="other")(lambda event: others.append(event.task_id))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.worker())
        handles = [await app.registered("work").aenqueue() for _ in range(5)]
        for handle in handles:
            await handle.aresult(timeout=5)
        await until(lambda: len(others) == 5)
        release.set()
    await app.aclose()


async def test_events_that_are_gone_are_missed_with_a_warning(caplog: Any) -> None:
    store, seen = MemoryBroker(event_bytes=3_000), list[str]()
    app = program(store, lambda event: seen.append(event.task_id))
    async with taken(app):
        await run(app, 1)
        await until(lambda: len(seen) == 1)
    await run(app, 50)
    (last,) = await run(app, 1)  # the others may have ended in one entry, which did not stay
    async with taken(app):
        await until(lambda: seen[-1] == last)
    assert "hook missed events" in caplog.text
    await app.aclose()


async def test_a_call_that_ends_soon_is_waited_for_when_the_worker_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_GRACE", 5.0)
    store, seen, entered = MemoryBroker(), list[str](), asyncio.Event()

    async def slow(event: EventInfo) -> None:
        entered.set()
        await asyncio.sleep(0.05)
        seen.append(event.task_id)

    app = program(store, slow)
    async with taken(app):
        ids = await run(app, 1)
        await entered.wait()
    assert seen == ids
    async with taken(program(store, slow)):
        await asyncio.sleep(0.1)
    assert seen == ids  # and not again
    await app.aclose()
