"""Every option has the text that an editor shows where it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import fairlead.app
from fairlead import Fairlead
from tools.docstrings import arguments
from tools.option_sets import fields, option_sets

SETS = (
    "CallOptions", "HistorySelection", "HookOptions", "LimiterSettings", "PageSelection",
    "QueueSettings", "TaskOptions", "TenantSettings", "TimingOptions",
)  # fmt: skip


def test_the_options_of_all_methods_are_looked_at() -> None:
    signatures = (
        str(inspect.signature(function))
        for kind in (Fairlead, fairlead.Task, fairlead.Schedules, fairlead.TaskCall)
        for _, function in inspect.getmembers(kind, inspect.isfunction)
    )
    taken = {name for text in signatures for name in option_sets() if f"Unpack[{name}]" in text}
    assert taken | {"TaskOptions"} == set(SETS)


@pytest.mark.parametrize("name", SETS)
def test_each_option_has_a_text_below_it(name: str) -> None:
    assert [field for field, _, text in fields(name) if not text.endswith(".")] == []


@pytest.mark.parametrize("name", SETS)
def test_each_text_names_the_default(name: str) -> None:
    one_of_three = {"every", "at"} if name == "TimingOptions" else set()  # with the expression
    silent = {field for field, _, text in fields(name) if "Default: " not in text}
    assert silent == one_of_three


@pytest.mark.parametrize("function", [Fairlead.__init__, Fairlead.worker, Fairlead.drain])
def test_each_parameter_has_a_text_in_the_docstring(function: Callable[..., Any]) -> None:
    """Of a text on several lines editors show the first."""
    parameters = set(inspect.signature(function).parameters) - {"self", "app", "unknown"}
    doc = inspect.getdoc(function) or ""
    texts = arguments(doc)
    assert set(texts) == parameters
    assert [name for name, text in texts.items() if "Default: " not in text] == []
    assert [name for name, text in texts.items() if f"    {name}: {text}" not in doc] == []
