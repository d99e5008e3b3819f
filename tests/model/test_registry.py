from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.argument_packing import pack_arguments, unpack_arguments
from fairlead.model.backoff import RetryPolicy
from fairlead.model.errors import InvalidArgument, InvalidInput, InvalidName, UnknownTask
from fairlead.model.options import Options
from fairlead.model.registry import Registry, TaskSpec

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

SECRET = "hunter2-hunter2"


class Context:
    """Stands for the context that a handler may ask for."""


class Opaque:
    """A class that msgspec knows nothing about."""


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    number: int
    due: date | None = None


class Line(msgspec.Struct):
    item: str
    price: Decimal = Decimal(0)


@dataclasses.dataclass
class Careful:
    value: Any

    def __post_init__(self) -> None:
        raise ValueError(f"{self.value} will not do")


@dataclasses.dataclass
class Ends:
    """Refuses in words that end as msgspec's own would."""

    value: Any

    def __post_init__(self) -> None:
        raise ValueError(self.value)


class Wobbly(ValueError):
    """Says something else each time it is asked."""

    said = 0

    def __str__(self) -> str:
        self.said += 1
        return f"{self.said} - at `$.{SECRET}`"


@dataclasses.dataclass
class Unstable:
    value: Any

    def __post_init__(self) -> None:
        raise Wobbly


def send(to: str, subject: str = "hi", *, copies: int = 1) -> str:
    return f"{to} {subject} {copies}"


async def fetch(ctx: Context, url: str, depth: int = 0) -> None: ...


def anything(*args: int, **kwargs: date) -> None: ...


def strict(*args: int, key: int, **kwargs: int) -> None: ...


def only_keyword(*args, key) -> None: ...  # type: ignore[no-untyped-def]


def spec(handler: Callable[..., Any], **more: Any) -> TaskSpec:
    return TaskSpec("task", handler, context_type=Context, **more)


def annotated(annotation: Any) -> TaskSpec:
    """A task with one argument of this type."""

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = annotation
    return spec(handler)


def named(*names: str) -> Registry:
    registry = Registry()
    for name in names:
        registry.add(TaskSpec(name, send))
    return registry


# The registry


def test_what_was_added_is_found_by_its_name() -> None:
    registry = Registry()
    one, other = TaskSpec("one", send), TaskSpec("other", fetch)
    registry.add(one)
    registry.add(other)
    assert registry.get("one") is one
    assert registry.get("other") is other
    assert list(registry) == [one, other]
    assert len(registry) == 2


def test_what_was_never_added_is_not_found() -> None:
    assert len(Registry()) == 0
    with pytest.raises(UnknownTask, match="task 'send' is not registered"):
        Registry().get("send")


@pytest.mark.parametrize(
    ("asked", "closest"),
    [
        ("mail.sned", ("mail.send", "mail.send_all")),
        ("reprot", ("report",)),
        ("mail.send_al", ("mail.send_all", "mail.send")),
        ("zzz", ()),
        ("", ()),
    ],
)
def test_the_error_for_an_unknown_name_gives_the_closest_ones(
    asked: str, closest: tuple[str, ...]
) -> None:
    with pytest.raises(UnknownTask) as caught:
        named("mail.send", "mail.send_all", "report").get(asked)
    assert caught.value.name == asked
    assert caught.value.closest == closest
    assert ("did you mean" in str(caught.value)) is bool(closest)
    assert all(name in str(caught.value) for name in closest)


def test_the_same_name_for_another_function_is_refused_and_the_first_stays() -> None:
    registry = Registry()
    first = TaskSpec("mail", send)
    registry.add(first)
    with pytest.raises(InvalidInput, match=r"'mail' is registered already, by .*\.send;"):
        registry.add(TaskSpec("mail", fetch))
    assert registry.get("mail") is first


def test_the_same_function_may_be_registered_again_and_the_last_one_counts() -> None:
    registry = named("mail")
    again = TaskSpec("mail", send, options=Options(queue="other"))
    registry.add(again)
    assert registry.get("mail") is again
    assert len(registry) == 1


def test_a_function_of_a_reloaded_module_is_the_same_one() -> None:
    def load() -> Callable[..., Any]:
        def handler() -> None: ...

        return handler

    registry = Registry()
    registry.add(TaskSpec("mail", load()))
    registry.add(TaskSpec("mail", load()))
    assert len(registry) == 1


def test_one_function_may_have_two_names() -> None:
    assert len(named("one", "two")) == 2


@pytest.mark.parametrize(
    "handlers",
    [
        (lambda: 1, lambda: 2),
        (functools.partial(send, "a"), functools.partial(anything, 1)),
    ],
    ids=["lambdas", "partials"],
)
def test_two_handlers_without_a_name_of_their_own_are_not_the_same(
    handlers: tuple[Callable[..., Any], ...],
) -> None:
    registry = Registry()
    registry.add(TaskSpec("mail", handlers[0]))
    with pytest.raises(InvalidInput):
        registry.add(TaskSpec("mail", handlers[1]))


@pytest.mark.parametrize("name", ["", "no way", "9", "a\nb", None, 5])
def test_a_task_needs_a_proper_name(name: Any) -> None:
    with pytest.raises(InvalidName, match="task name"):
        TaskSpec(name, send)


def test_a_task_has_the_default_options_unless_it_is_given_others() -> None:
    assert (spec(send).options, spec(send).policy) == (Options(), RetryPolicy())
    assert spec(send).version == 1
    policy = RetryPolicy(max_retries=1)
    given = spec(send, options=Options(queue="mail"), policy=policy, version=3)
    assert (given.options.queue, given.policy, given.version) == ("mail", policy, 3)


def test_an_async_handler_is_told_from_a_sync_one() -> None:
    assert spec(fetch).is_async
    assert not spec(send).is_async


# The context


def test_a_handler_takes_the_context_if_its_first_parameter_says_so() -> None:
    def second(x: int, ctx: Context) -> None: ...
    def keyword(*, ctx: Context) -> None: ...
    def many(*ctx: Context) -> None: ...
    def bare(ctx) -> None: ...  # type: ignore[no-untyped-def]
    def none() -> None: ...

    assert spec(fetch).takes_context
    assert not any(spec(f).takes_context for f in (send, second, keyword, many, bare, none))
    assert not TaskSpec("fetch", fetch).takes_context  # no context type, no context


def test_a_context_that_is_annotated_as_text_is_recognized() -> None:
    def handler(ctx: Context, /) -> None: ...

    handler.__annotations__["ctx"] = "Context"
    assert spec(handler).takes_context


def test_the_context_is_recognized_beside_an_annotation_that_cannot_be_resolved() -> None:
    def handler(ctx: Context, x: Unknown) -> None: ...

    assert spec(handler).takes_context


# Checking calls


@pytest.mark.parametrize(
    ("handler", "args", "kwargs"),
    [
        (send, ("a",), {}),
        (send, ("a", "b"), {"copies": 2}),
        (send, (), {"to": "a"}),
        (fetch, ("u",), {}),
        (fetch, ("u", 3), {}),
        (fetch, (), {"url": "u", "depth": 1}),
        (anything, (1, 2, 3), {"a": 1, "args": 2, "kwargs": 3}),
    ],
)
def test_arguments_that_fit_are_accepted_and_the_context_is_not_among_them(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    spec(handler).check_call(args, kwargs)


@pytest.mark.parametrize(
    ("handler", "args", "kwargs", "named"),
    [
        (send, (), {}, "'to'"),
        (send, ("a", "b", "c"), {}, "too many positional"),
        (send, ("a",), {"to": "b"}, "'to'"),
        (send, ("a",), {"color": 1}, "'color'$"),
        (send, ("a",), {"delay": 5}, r"'delay'; for the option use task.using\(delay=...\)$"),
        (fetch, (), {}, "'url'"),
        (fetch, ("u", 1, 2), {}, "too many positional"),
        (fetch, ("u",), {"ctx": 1}, "'ctx'"),
        (strict, (), {}, "'key'"),
        (strict, (1, 2, 3, 4, 5), {}, "'key'"),
        (only_keyword, (), {}, "'key'"),
        (only_keyword, (1,) * 9, {}, "'key'"),
        (strict, (1,), {"other": 1}, "'key'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_task_and_argument(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=f"task 'task' cannot be called like this: .*{named}"):
        spec(handler).check_call(args, kwargs)


def test_a_refused_call_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        spec(send).check_call((SECRET, SECRET, SECRET), {})
    assert SECRET not in str(caught.value)


# Converting


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (float, 1.5),
        (str, "a"),
        (bytes, b"a"),
        (bool, True),
        (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, UTC)),
        (date, date(2030, 1, 2)),
        (timedelta, timedelta(days=1, microseconds=1)),
        (UUID, UUID(int=5)),
        (Decimal, Decimal("1.10")),
        (Color, Color.RED),
        (Order, Order(1, date(2030, 1, 2))),
        (Line, Line("a", Decimal("0.5"))),
        (list[Order], [Order(1), Order(2)]),
        (dict[str, Line], {"a": Line("b")}),
        (set[int], {1, 2}),
        (frozenset[str], frozenset(["a"])),
        (tuple[int, ...], (1, 2)),
        (tuple[int, Color], (1, Color.RED)),
        (Order | None, None),
        (Order | None, Order(1)),
        (Literal["a", "b"], "b"),
        (bytearray, bytearray(b"ab")),
        (Any, {"a": [1]}),
        (object, 5),
    ],
    ids=repr,
)
def test_a_stored_argument_comes_back_as_its_annotation_says(annotation: Any, value: Any) -> None:
    stored = unpack_arguments(pack_arguments([value], {"value": value}))
    args, kwargs = annotated(annotation).convert(*stored)
    assert args == [value]
    assert kwargs == {"value": value}
    assert type(args[0]) is type(value)


@dataclasses.dataclass
class Blob:
    data: bytearray


def test_bytes_inside_a_dataclass_come_back_as_bytes() -> None:
    stored = unpack_arguments(pack_arguments([Blob(bytearray(b"ab"))], {}))
    assert annotated(Blob).convert(*stored) == ([Blob(bytearray(b"ab"))], {})


@given(st.datetimes(timezones=st.just(UTC)), st.uuids(), st.decimals(allow_nan=False))
def test_richer_arguments_come_back_exactly(moment: datetime, id: UUID, price: Decimal) -> None:
    def handler(moment: datetime, id: UUID, *, price: Decimal) -> None: ...

    stored = unpack_arguments(pack_arguments([moment, id], {"price": price}))
    assert spec(handler).convert(*stored) == ([moment, id], {"price": price})


def test_the_context_does_not_shift_the_arguments() -> None:
    def handler(ctx: Context, due: date, order: Order, *, color: Color = Color.RED) -> None: ...

    stored = unpack_arguments(pack_arguments([date(2030, 1, 2)], {"order": Order(1)}))
    assert spec(handler).convert(*stored) == ([date(2030, 1, 2)], {"order": Order(1)})
    with pytest.raises(InvalidArgument, match=r"due .*does not fit"):
        spec(handler).convert([5], {})


def test_defaults_are_left_to_the_handler() -> None:
    assert spec(send).convert(["a"], {}) == (["a"], {})
    assert spec(fetch).convert([], {"url": "u"}) == ([], {"url": "u"})


def test_variable_arguments_are_converted_one_by_one() -> None:
    args, kwargs = spec(anything).convert([1, 2], {"a": "2030-01-02", "b": "2030-01-03"})
    assert args == [1, 2]
    assert kwargs == {"a": date(2030, 1, 2), "b": date(2030, 1, 3)}
    with pytest.raises(InvalidArgument, match=r"args .*does not fit"):
        spec(anything).convert([1, "2"], {})
    with pytest.raises(InvalidArgument, match=r"kwargs .*does not fit"):
        spec(anything).convert([], {"a": 5})


def test_fixed_and_variable_arguments_keep_their_types_apart() -> None:
    def handler(due: date, *rest: Color, last: Order) -> None: ...

    found = spec(handler).convert(["2030-01-02", "red", "red"], {"last": {"number": 1}})
    assert found == ([date(2030, 1, 2), Color.RED, Color.RED], {"last": Order(1)})


@pytest.mark.parametrize("name", ["args", "due"])
def test_a_keyword_may_be_spelled_like_a_parameter_that_takes_no_keyword(name: str) -> None:
    def handler(due: int, /, *args: int, **kwargs: date) -> None: ...

    spec(handler).check_call((1,), {name: date(2030, 1, 2)})
    found = spec(handler).convert([1], {name: "2030-01-02"})
    assert found == ([1], {name: date(2030, 1, 2)})


def test_without_annotations_plain_data_stays_as_it_is() -> None:
    def handler(a, b=None, *args, **kwargs) -> None: ...  # type: ignore[no-untyped-def]

    found = spec(handler).convert([{"x": 1}, "2030-01-02", [1]], {"c": None})
    assert found == ([{"x": 1}, "2030-01-02", [1]], {"c": None})


def test_annotations_that_cannot_be_resolved_leave_plain_data() -> None:
    def handler(a: Unknown, b: int) -> None: ...

    assert spec(handler).convert([{"x": 1}, 5], {}) == ([{"x": 1}, 5], {})
    assert spec(handler).check_call((1, 2), {}) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("annotation", ["math.Missing", "'int' | None", "int |"])
def test_annotations_that_fail_in_other_ways_leave_plain_data_too(annotation: str) -> None:
    assert hasattr(math, "pi")  # the name is there, the attribute is not
    assert annotated(annotation).convert([5], {}) == ([5], {})


def test_annotations_that_raise_whatever_they_like_leave_plain_data_too() -> None:
    assert annotated("1 / 0").convert([5], {}) == ([5], {})


def test_annotations_may_name_what_is_defined_further_down() -> None:
    assert spec(early).convert([{"x": 1}], {}) == ([Late(1)], {})


def early(value: Late) -> None: ...


@dataclasses.dataclass
class Late:
    x: int


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "5"),
        (int, 1.5),
        (int, None),
        (int, True),
        (str, 5),
        (str, b"a"),
        (bytes, "YQ=="),
        (date, "soon"),
        (UUID, "5"),
        (list[int], 5),
        (list[int], ["a"]),
        (dict[str, int], {"a": "b"}),
        (Order, {}),
        (Order, {"number": "1"}),
        (Line, [1]),
        (tuple[int, int], [1]),
        (Order | None, 5),
        (Opaque, {"a": 1}),
    ],
    ids=repr,
)
def test_a_value_of_the_wrong_type_is_refused_by_the_name_of_its_argument(
    annotation: Any, value: Any
) -> None:
    for args, kwargs in (([value], {}), ([], {"value": value})):
        words = rf"^value \({type(value).__name__}\) does not fit task '\w+': it must be "
        with pytest.raises(InvalidArgument, match=words) as caught:
            annotated(annotation).convert(args, kwargs)
        assert (caught.value.field, caught.value.stored) == ("value", True)
        assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, SECRET),
        (date, SECRET),
        (list[int], [SECRET]),
        (dict[str, int], {SECRET: SECRET}),
        (Order, {"number": SECRET}),
        (Order, {SECRET: 1}),
        (Color, SECRET),
        (Literal["a"], SECRET),
        (Careful, {"value": SECRET}),
        (Careful, {"value": f"this - at {SECRET}"}),
        (Careful, {"value": f"this - at `$.{SECRET}`"}),
        (Ends, {"value": f"this - at `$.{SECRET}`"}),
        (list[Ends], [{"value": f"this - at `$.{SECRET}`"}]),
        (Color, f"x - at `$.{SECRET}`"),
        (Unstable, {"value": SECRET}),
    ],
    ids=repr,
)
def test_a_refused_value_is_not_repeated_in_the_error(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        annotated(annotation).convert([value], {})
    assert SECRET not in repr((str(caught.value), vars(caught.value)))


@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        (list[int], [1, "a"], "`$[1]`"),
        (dict[str, list[int]], {"a": [1.5]}, "`$[...][0]`"),
        (list[Order], [{"number": "a"}], "`$[0].number`"),
        (list[Ends], [{"value": "no"}], "`$[0]`"),
        (dict[int, int], {"a": 1}, "`key` in `$`"),
        (int, "a", ""),
        (Ends, {"value": "no"}, ""),
    ],
    ids=repr,
)
def test_an_error_says_where_inside_the_argument_it_is(
    annotation: Any, value: Any, place: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        annotated(annotation).convert([value], {})
    assert caught.value.rule.endswith(f" at {place}" if place else annotation.__name__)


def test_a_type_that_has_no_conversion_leaves_plain_data() -> None:
    assert annotated(list["Missing"]).convert([[1]], {}) == ([[1]], {})  # type: ignore[name-defined]  # noqa: F821
