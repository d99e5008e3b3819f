"""Every option has the text that an editor shows where it is given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import fairlead.app
from fairlead import Fairlead
from fairlead.testing import Kit
from fairlead.worker.run.xcom import XCom
from tools.docstrings import arguments
from tools.option_sets import fields, option_sets
from tools.reference import pages

SETS = (
    "CallOptions", "HistorySelection", "HookOptions", "LimiterSettings", "PageSelection",
    "QueueSettings", "TaskOptions", "TenantSettings", "TimingOptions",
)  # fmt: skip


CLASSES = [
    each
    for each in (*(getattr(fairlead, name) for name in fairlead.__all__), XCom, Kit)
    if isinstance(each, type)
]
CONSTRUCTED = {"Breaker", "Fairlead", "Kit", "Retry", "ZlibCodec"}  # others have one argument
INTERNAL = {"TaskCall.accepted", "TaskCall.submission"}  # called by other parts of Fairlead


def functions(*, all_of_them: bool = False) -> list[Callable[..., Any]]:
    """The public functions and methods, each once; those with options, or all of them."""
    found: dict[Callable[..., Any], None] = dict.fromkeys(
        (fairlead.create_queue, fairlead.register_type)
    )
    for kind in CLASSES:
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            is_made = name == "__init__" and kind.__name__ in CONSTRUCTED
            if is_made or (not name.startswith("_") and method.__module__.startswith("fairlead")):
                found[method] = None
    return [
        each
        for each in found
        if each.__qualname__ not in INTERNAL
        and (all_of_them or any(map(is_option, inspect.signature(each).parameters.values())))
    ]


def is_option(each: inspect.Parameter) -> bool:
    """Whether it may be left out, or is given by its name."""
    several = (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY)
    if each.name in ("cron", "call"):  # of schedules: left out where ``every`` is given
        return each.default is not each.empty
    return each.kind not in several and (
        each.kind is each.KEYWORD_ONLY or each.default is not each.empty
    )


def shown() -> list[str]:
    """The classes and records that the reference shows."""
    return [
        match[1] for text in pages().values() for match in re.finditer(r"^## `(\w+)`", text, re.M)
    ]


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


@pytest.mark.parametrize("function", functions(), ids=lambda each: each.__qualname__)
def test_each_option_of_a_function_has_a_text_in_its_docstring(
    function: Callable[..., Any],
) -> None:
    """Of a text on several lines editors show the first."""
    parameters = inspect.signature(function).parameters.values()
    options = {each.name for each in parameters if is_option(each)} - {"unknown"}
    doc = inspect.getdoc(function) or ""
    texts = arguments(doc)
    assert set(texts) >= options
    assert set(texts) <= {each.name for each in parameters}
    required = {each.name for each in parameters if each.default is each.empty}
    assert {name for name, text in texts.items() if "Default: " not in text} <= required
    assert [name for name, text in texts.items() if f"    {name}: {text}" not in doc] == []


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
def test_a_function_and_its_async_form_say_the_same_of_their_options(kind: type) -> None:
    methods = dict(inspect.getmembers(kind, inspect.isfunction))
    for name, method in methods.items():
        twin = methods.get(f"a{name}")
        if twin is not None:
            assert arguments(inspect.getdoc(method)) == arguments(inspect.getdoc(twin)), name


@pytest.mark.parametrize("function", functions(all_of_them=True), ids=lambda e: e.__qualname__)
def test_each_function_says_what_it_does(function: Callable[..., Any]) -> None:
    first = (inspect.getdoc(function) or "").split("\n\n")[0]
    assert first.endswith((".", ":"))
    assert not re.match(r"See |The same|``\w+`` (for|from) ", first)


@pytest.mark.parametrize("name", shown(), ids=str)
def test_each_field_and_attribute_of_a_record_has_a_text(name: str) -> None:
    """As the reference shows them: a bullet each, with the text that stands below the field."""
    text = (section for page in pages().values() for section in page.split("\n## ")[1:])
    found = [each for each in text if each.startswith(f"`{name}`\n")]
    assert found
    assert re.findall(r"^- \*\*`\w+`\*\*(?: \(`.*`\))?$", "\n".join(found), re.MULTILINE) == []
