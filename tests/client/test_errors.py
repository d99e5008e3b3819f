"""What people type who know another task queue: the error says what to use here."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Context, Fairlead, InvalidInput, NotSerializable, ResultGone
from fairlead.client import errors
from fairlead.client.call import CallOptions
from fairlead.client.declaration import TaskOptions

app = Fairlead("memory://")


@app.task(name="work")
def work(n: int) -> int:
    return n


HANDLE: Any = work.enqueue(1)


@pytest.mark.parametrize(
    ("thing", "names"), [(work, errors.TASK), (HANDLE, errors.HANDLE), (app, errors.APP)], ids=repr
)
def test_a_name_of_another_queue_is_no_attribute_and_the_error_says_what_is(
    thing: Any, names: dict[str, str]
) -> None:
    for name, instead in names.items():
        with pytest.raises(AttributeError) as caught:
            getattr(thing, name)
        assert str(caught.value).endswith(f"has no attribute {name!r}; {instead}")
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = thing.nonsense
    assert not hasattr(thing, "delay") or thing is app


@pytest.mark.parametrize(
    ("option", "words"),
    [("countdown", "here it is delay"), ("eta", "here it is at"), ("task_id", "here it is id")],
)
def test_an_option_of_another_queue_is_told_what_it_is_here(option: str, words: str) -> None:
    said: Any = {option: 5}
    with pytest.raises(InvalidInput, match=rf"'{option}' is no option of task.using; {words} "):
        work.using(**said)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("broker", 'here it is the first argument: Fairlead\\("redis://..."\\)'),
        ("result_backend", "here it is nothing: results are kept where the tasks are"),
        ("max_retrys", r"did you mean max_retries\?"),
        ("nonsense", r"\(there are: url, shards, "),
    ],
)
def test_an_argument_that_an_app_does_not_have_is_told_what_to_use(option: str, words: str) -> None:
    said: Any = {option: "redis://:secret@localhost"}
    with pytest.raises(
        InvalidInput, match=f"^'{option}' is no option of Fairlead;? ?{words}"
    ) as caught:
        Fairlead(**said)
    assert "secret" not in str(caught.value)


def test_nothing_that_there_is_is_called_a_habit() -> None:
    options = {**CallOptions.__annotations__, **TaskOptions.__annotations__}
    assert options.keys().isdisjoint(errors.OPTIONS)
    assert {"url", *(Fairlead.__init__.__kwdefaults__ or ())}.isdisjoint(errors.APP_OPTIONS)
    for thing, names in ((work, errors.TASK), (HANDLE, errors.HANDLE), (app, errors.APP)):
        assert set(dir(thing)).isdisjoint(names)

    class Named:
        delay = 1

    with pytest.raises(TypeError, match=r"Named has what is called a habit: \{'delay'\}"):
        errors.telling(errors.TASK)(Named)


def test_things_can_still_be_copied() -> None:
    assert copy.copy(HANDLE) == HANDLE
    assert copy.copy(work).name == "work"


def test_a_repr_says_what_it_is_and_holds_no_secret() -> None:
    assert repr(app) == "<Fairlead memory://, 1 tasks>"
    assert "hunter2" not in repr(Fairlead("redis://:hunter2@localhost:1/0"))
    assert repr(work) == "<SyncTask work>"
    assert repr(HANDLE) == f"<Handle work {HANDLE.id} tenant='default'>"


async def test_the_context_of_an_attempt_says_which_it_is() -> None:
    seen = []

    @app.task(name="tell")
    def tell(ctx: Context) -> None:
        seen.append(repr(ctx))

    handle = await tell.using(tenant="acme").aenqueue()
    await app.drain()
    shown = f"<Context tell {handle.id} attempt=1 tenant='acme' queue='default'>"
    assert seen == [shown]


async def test_what_would_block_the_loop_says_what_to_use_instead() -> None:
    own = Fairlead("memory://")
    task = own.task(name="own")(lambda: None)
    handle = await task.aenqueue()
    flow = await own.aenqueue_flow(task.call() >> task.call())
    own_calls: dict[str, Callable[[], object]] = {
        "handle.astate": lambda: handle.state,
        "handle.ainfo": handle.info,
        "handle.alogs": handle.logs,
        "handle.acancel": handle.cancel,
        "handle.arequeue": handle.requeue,
        "handle.adelete": handle.delete,
        "handle.aexplain": handle.explain,
        "handle.aresult": handle.result,
        "flow.astate": lambda: flow.state,
        "flow.ainfo": flow.info,
        "flow.acancel": flow.cancel,
        "app.asnapshot": own.snapshot,
        "app.apage": own.page,
        "app.aworkers": own.workers,
        "app.apurge": own.purge,
        "app.aconfigure_queue": lambda: own.configure_queue("default", paused=False),
        "app.schedules.alist": own.schedules.list,
    }
    for better, call in own_calls.items():
        with pytest.raises(InvalidInput, match="would block the event loop") as caught:
            call()
        assert f"in async code use: await {better}(" in str(caught.value)
        thing = {"handle": handle, "flow": flow, "app": own, "app.schedules": own.schedules}
        owner, _, name = better.rpartition(".")
        assert callable(getattr(thing[owner], name))
        if not better.endswith("result"):
            await asyncio.to_thread(call)  # sync code as ever


async def test_enqueueing_in_async_code_blocks_shortly_and_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = Fairlead("memory://")
    task = own.task(name="own")(lambda: None)
    with caplog.at_level(logging.WARNING, logger="fairlead.client"):
        for _ in range(2):
            task.enqueue()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "use the form with an a in front" in told


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": object()}]}, "['a'][1]['b']"),
        ([{"k": {1: 2}}], "[0]['k']"),
        ([1.0, float("nan")], "[1]"),
        ({"no name": object()}, "[key 0]"),
        (object(), ""),
    ],
)
def test_what_cannot_be_stored_is_found_inside_of_an_argument(value: Any, path: str) -> None:
    own = Fairlead("memory://")
    task = own.task(name="own")(lambda thing: thing)
    with pytest.raises(NotSerializable) as caught:
        task.enqueue(value)
    assert caught.value.where == "argument 0"
    assert str(caught.value).endswith(f", at {path}") is bool(path)


async def test_a_flow_that_nobody_knows_is_called_a_flow() -> None:
    own = Fairlead("memory://")
    with pytest.raises(ResultGone, match=r"^the broker does not know flow 'default:nope'"):
        await own.flow("nope").astate()


def test_a_handler_that_is_called_without_its_context_says_so() -> None:
    own = Fairlead("memory://")

    @own.task(name="own")
    def work(ctx: Context, a: int) -> int:
        return a

    with pytest.raises(TypeError, match=r"the first parameter is its Context: .*Kit\.context\(\)"):
        work(1)  # type: ignore[call-arg, arg-type]
    assert work(object(), 2) == 2  # type: ignore[arg-type]  # whatever a test makes of it


async def test_the_attempt_that_runs_is_told_beside_those_used_up() -> None:
    own = Fairlead("memory://")
    seen: list[tuple[int, int]] = []

    @own.task(name="own")
    async def work() -> None:
        info = await handle.ainfo()
        seen.append((info.attempts, info.attempt))

    handle = await work.aenqueue()
    assert (await handle.ainfo()).attempt == 0
    await own.drain()
    info = await handle.ainfo()
    assert [*seen, (info.attempts, info.attempt)] == [(0, 1), (1, 1)]


async def test_a_worker_that_never_ran_is_told(caplog: pytest.LogCaptureFixture) -> None:
    own = Fairlead("memory://")
    own.task(name="own")(lambda: None)
    with caplog.at_level(logging.WARNING, logger="fairlead.worker"):
        async with own.worker():
            pass
        gc.collect()
        assert not caplog.records
        own.worker()
        gc.collect()
    assert [each.getMessage() for each in caplog.records] == [
        "app.worker() made a worker that never ran; use: async with app.worker(): ..."
    ]


def test_import_loads_nothing_before_it_is_used() -> None:
    program = """
import sys
import fairlead
print([name for name in sys.modules if name.startswith(("fairlead.", "asyncio", "msgspec"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
