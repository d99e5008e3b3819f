"""Handlers that are no plain functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from fairlead.model.errors import InvalidInput
from fairlead.model.registry import Registry, TaskSpec

DAY = date(2030, 1, 2)


class Context:
    """Stands for the context that a handler may ask for."""


class Sender:
    due: int  # not what the constructor takes

    def __init__(self, due: date) -> None: ...

    def __call__(self, ctx: Context, due: date, count: int = 1) -> None: ...

    def method(self, due: date) -> None: ...

    async def later(self, ctx: Context, due: date) -> None: ...


class AsyncSender:
    async def __call__(self, due: date) -> None: ...


@functools.lru_cache
def cached(due: date) -> None: ...


def send(to: str, subject: str = "hi", *, copies: int = 1) -> None: ...


def spec(handler: Callable[..., Any]) -> TaskSpec:
    return TaskSpec("task", handler, context_type=Context)


@pytest.mark.parametrize(
    ("handler", "takes_context", "is_async"),
    [
        pytest.param(Sender(DAY), True, False, id="object"),
        pytest.param(Sender(DAY).method, False, False, id="method"),
        pytest.param(Sender(DAY).later, True, True, id="async method"),
        pytest.param(Sender, False, False, id="class"),
        pytest.param(AsyncSender(), False, True, id="async object"),
        pytest.param(functools.partial(Sender(DAY), count=2), True, False, id="partial"),
        pytest.param(functools.partial(Sender(DAY).later), True, True, id="partial of a method"),
        pytest.param(functools.partial(functools.partial(AsyncSender())), False, True, id="two"),
        pytest.param(cached, False, False, id="cached"),
    ],
)
def test_a_handler_of_another_kind_is_treated_like_a_function(
    handler: Callable[..., Any], takes_context: bool, is_async: bool
) -> None:
    task = spec(handler)
    assert (task.takes_context, task.is_async) == (takes_context, is_async)
    task.check_call((DAY,), {})
    with pytest.raises(InvalidInput, match="cannot be called like this"):
        task.check_call((DAY, 1, 2, 3), {})
    assert task.convert(["2030-01-02"], {}) == ([DAY], {})


def test_what_a_partial_has_fixed_is_no_argument_any_more() -> None:
    task = spec(functools.partial(send, "a", copies=3))
    task.check_call(("subject",), {})
    with pytest.raises(InvalidInput, match="too many positional"):
        task.check_call(("subject", "more"), {})


def test_an_object_is_named_by_its_class_where_its_name_is_taken() -> None:
    registry = Registry()
    registry.add(spec(Sender(DAY)))
    with pytest.raises(InvalidInput, match=r"registered already, by .*test_handlers\.Sender;"):
        registry.add(spec(Sender(DAY)))


@pytest.mark.parametrize("handler", [5, "send", None, [], int, dict.update], ids=repr)
def test_what_cannot_be_called_or_tells_no_parameters_is_refused(handler: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be a task: it cannot be called, or"):
        spec(handler)
