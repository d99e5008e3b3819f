"""What people type who know another task queue: the error says what to use here."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from fairlead import Context, Fairlead, InvalidInput
from fairlead.client import habits
from fairlead.client.call import CallOptions
from fairlead.client.declaration import TaskOptions

app = Fairlead("memory://")


@app.task(name="work")
def work(n: int) -> int:
    return n


HANDLE: Any = work.enqueue(1)


@pytest.mark.parametrize(
    ("thing", "names"), [(work, habits.TASK), (HANDLE, habits.HANDLE), (app, habits.APP)], ids=repr
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


def test_nothing_that_there_is_is_called_a_habit() -> None:
    options = {**CallOptions.__annotations__, **TaskOptions.__annotations__}
    assert options.keys().isdisjoint(habits.OPTIONS)
    for thing, names in ((work, habits.TASK), (HANDLE, habits.HANDLE), (app, habits.APP)):
        assert set(dir(thing)).isdisjoint(names)


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


async def test_the_state_of_a_handle_in_async_code_says_what_to_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = Fairlead("memory://")
    handle = await own.task(name="own")(lambda: None).aenqueue()
    with caplog.at_level(logging.WARNING, logger="fairlead.client"):
        for _ in range(2):
            _ = handle.state
        own.snapshot()
    first, second = [record.getMessage() for record in caplog.records]
    assert first.endswith("in async code use await handle.astate()")
    assert "use the form with an a in front" in second
