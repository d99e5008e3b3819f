"""The document that workers publish: what is in it, and what goes when there is no room."""

from __future__ import annotations

import functools
from typing import Annotated, Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from fairlead.client.declaration import TaskOptions, declared
from fairlead.client.named_call import spec_of
from fairlead.model import catalog as module
from fairlead.model.backoff import RetryPolicy
from fairlead.model.catalog import (
    MAX_CATALOG,
    MAX_SCHEMA,
    Catalog,
    TaskEntry,
    catalog_of,
    decode_catalog,
    digest_of,
    encode_catalog,
    entry_of,
    published,
)
from fairlead.model.errors import InvalidInput
from fairlead.model.message import LEVEL_NAMES
from fairlead.model.parameters import Parameter
from fairlead.model.priorities import Priorities
from fairlead.model.registry import Registry, TaskSpec

PRIORITIES = Priorities({"urgent": "critical", 9: "low"})


def entry(handler: Any, default_timeout: float | None = None, **options: Any) -> TaskEntry:
    said = cast(TaskOptions, {"name": "work", **options})
    return entry_of(declared(handler, said, PRIORITIES, None), PRIORITIES, default_timeout)


async def plain(n: int = 1) -> None:
    """Do it.

    At length.
    """


def test_an_entry_has_the_options_that_hold_for_calls() -> None:
    found = entry(
        plain, queue="q", tenant="t", priority=9, max_retries=4, max_crashes=1, timeout="1m",
        retention="1h", cost=2.0, limiters=["a"], unique="k", unique_for="5s", version=7,
        isolation="process",
    )  # fmt: skip
    assert found == TaskEntry(
        name="work", version=7, summary="Do it.", queue="q", tenant="t", priority="low",
        max_retries=4, max_crashes=1, timeout=60.0, retention=3600.0, cost=2.0, limiters=("a",),
        unique="k", unique_for=5.0, isolation="process",
        parameters=(Parameter(name="n", schema={"type": "integer", "default": 1}),),
    )  # fmt: skip


def test_an_entry_of_a_task_that_says_nothing_has_the_defaults() -> None:
    found = entry(plain, 30.0)
    assert (found.queue, found.tenant, found.priority) == ("default", "default", "normal")
    assert (found.max_retries, found.timeout) == (RetryPolicy().max_retries, 30.0)
    assert entry(plain, 30.0, timeout=None).timeout is None
    assert entry(plain, unique="k", unique_until="started").unique_until == "started"


def test_a_priority_of_the_app_goes_by_its_label_too() -> None:
    own = Priorities({"p0": 0, "p1": 1, "p2": 2, "p3": 3, "p4": 4})
    for said, level, label in (("p4", "level-5", "p4"), (0, "high", "p0"), ("p1", "normal", "p1")):
        made = entry_of(declared(plain, {"name": "work", "priority": said}, own, None), own)
        assert (made.priority, made.priority_label) == (level, label)
        assert spec_of(made).options.priority == f"level-{LEVEL_NAMES.index(level)}"
    by_arguments: TaskOptions = {"name": "work", "priority": lambda n: "p4"}
    assert entry_of(declared(plain, by_arguments, own, None), own).priority_label == ""


def test_a_priority_that_arguments_decide_is_left_open() -> None:
    assert entry(plain, priority=lambda n: "urgent").priority == ""


@pytest.mark.parametrize(
    ("doc", "summary"),
    [
        (None, ""), ("", ""), ("  \n ", ""), ("\n  First.\n\nMore.", "First."), (3, ""),
        ("x" * 500, "x" * 200 + "…"), ("tab\there", "tab here"), ("half \ud800", "half ?"),
    ],
)  # fmt: skip
def test_the_summary_is_the_first_line_of_the_docstring(doc: Any, summary: str) -> None:
    def handler() -> None: ...

    handler.__doc__ = doc
    assert entry(handler).summary == summary
    assert entry(functools.partial(handler)).summary == summary


def test_the_same_tasks_make_the_same_document_whatever_their_order() -> None:
    one, other = Registry(), Registry()
    for name in ("a", "b"):
        one.add(TaskSpec(name, plain))
    for name in ("b", "a"):
        other.add(TaskSpec(name, plain))
    data = published(one, PRIORITIES)
    assert data == published(other, PRIORITIES)
    assert digest_of(data) != digest_of(published(one, PRIORITIES, 5.0))
    assert [task.name for task in decode_catalog(data).tasks] == ["a", "b"]


def wide(fields: int) -> Any:
    """A handler whose parameter has a schema of about so many times 60 bytes."""
    names = [(f"field_{n:04}", Annotated[int, Meta(description="x" * 10)]) for n in range(fields)]
    struct = msgspec.defstruct("Wide", names)

    def handler(value: Any, other: int = 0) -> None: ...

    handler.__annotations__["value"] = struct
    return handler


def test_a_task_whose_schemas_are_too_large_is_listed_without_them_and_says_so() -> None:
    assert entry(wide(100)).is_cut is False
    found = entry(wide(1_000))
    assert found.is_cut is True
    assert found.parameters == (
        Parameter(name="value", required=True), Parameter(name="other"),
    )  # fmt: skip
    assert found.definitions == {}


def test_parameters_that_are_too_many_are_not_listed_at_all() -> None:
    scope: dict[str, Any] = {}
    exec(f"def handler({', '.join(f'parameter_{n}' for n in range(2_000))}): ...", scope)
    found = entry(scope["handler"])
    assert (found.is_cut, found.parameters) == (True, None)


def many(handler: Any, count: int, name: str = "task") -> Catalog:
    registry = Registry()
    for number in range(count):
        registry.add(TaskSpec(f"{name}_{number:05}", handler))
    return catalog_of(registry, PRIORITIES)


def test_the_largest_schemas_go_first_when_a_document_has_no_room_for_all() -> None:
    large, small = many(wide(150), 20), many(plain, 20, "small")
    catalog = Catalog(tasks=large.tasks + small.tasks)
    data = encode_catalog(catalog)
    found = decode_catalog(data)
    assert MAX_CATALOG - MAX_SCHEMA < len(data) <= MAX_CATALOG
    assert [task.name for task in found.tasks] == [task.name for task in catalog.tasks]
    assert not any(task.is_cut for task in found.tasks[20:])
    assert 10 < sum(task.is_cut for task in found.tasks[:20]) < 20
    assert not found.more


def test_names_and_options_stay_when_there_is_no_room_for_any_parameters() -> None:
    found = decode_catalog(encode_catalog(many(plain, 900)))
    assert len(found.tasks) == 900
    assert all(task.is_cut for task in found.tasks if task.parameters is None)
    assert not found.more


def test_tasks_from_the_end_are_left_out_when_even_names_are_too_many() -> None:
    data = encode_catalog(many(plain, 3_000))
    found = decode_catalog(data)
    assert found.more
    assert MAX_CATALOG * 0.9 < len(data) <= MAX_CATALOG
    assert found.tasks[0].name == "task_00000"


@given(st.lists(st.integers(1, 150), max_size=12), st.integers(200, 4_000))
def test_a_document_is_never_larger_than_it_may_be(sizes: list[int], limit: int) -> None:
    tasks = tuple(
        TaskEntry(
            name=f"t{n}", summary="s" * size, definitions={"A": "x" * size * 4}, parameters=()
        )
        for n, size in enumerate(sizes)
    )
    data = encode_catalog(Catalog(tasks=tasks), limit)
    assert len(data) <= limit
    found = decode_catalog(data)
    assert found.more == (len(found.tasks) < len(tasks))


@pytest.mark.parametrize(
    "data", [b"", b"x", b"[]", b'{"tasks": 3}', b'{"tasks": [{}]}', b"[" * 9999]
)
def test_what_is_no_catalog_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a catalog"):
        decode_catalog(data)


@pytest.mark.parametrize(
    "field", ['"max_retries": 1000000000', '"version": 0', '"cost": -1', '"max_crashes": 500']
)
def test_figures_that_no_task_can_have_make_it_no_catalog(field: str) -> None:
    with pytest.raises(InvalidInput, match="not a catalog"):
        decode_catalog(f'{{"tasks": [{{"name": "a", {field}}}]}}'.encode())


def test_fields_of_a_later_release_are_passed_over() -> None:
    data = b'{"tasks": [{"name": "a", "color": 3}], "format": 9}'
    assert decode_catalog(data).tasks == (TaskEntry(name="a"),)


def test_a_class_is_taken_apart_once_however_many_tasks_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    fields = msgspec.structs.fields

    def counted(kind: Any) -> Any:
        asked.append(kind)
        return fields(kind)

    monkeypatch.setattr(msgspec.structs, "fields", counted)
    module._defaults.cache_clear()
    tasks = tuple(TaskEntry(name=f"task{n}", parameters=(Parameter(name="a"),)) for n in range(50))
    encode_catalog(Catalog(tasks=tasks), 1_000)
    assert len(asked) == len(set(asked)) <= 3
