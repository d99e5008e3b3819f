from __future__ import annotations

import copy
import inspect
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead
from fairlead.model import errors
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    DependencyCycle,
    FairleadError,
    Fenced,
    FlowCancelled,
    FlowFailed,
    InvalidArgument,
    InvalidCron,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NotSerializable,
    OutOfOrder,
    QueueFull,
    QueueInUse,
    Refused,
    ResultGone,
    ResultTimeout,
    ScheduleConflict,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TooLarge,
    UnknownDependency,
    UnknownPriority,
    UnknownSchedule,
    UnknownTask,
    Unreachable,
)

SECRET = "hunter2-hunter2"
LONG = "x" * 100_000
CLASSES: dict[str, type[BaseException]] = {
    name: cls
    for name, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == errors.__name__ and issubclass(cls, BaseException)
}

#: One of each, with the fields that it must carry.
SAMPLES: list[tuple[BaseException, dict[str, Any]]] = [
    (FairleadError("no"), {}),
    (InvalidInput("no"), {}),
    (
        InvalidName("queue", "no way", "short"),
        {"kind": "queue", "value": "no way", "rule": "short"},
    ),
    (InvalidOption("cost", -1, "more"), {"option": "cost", "value": -1, "rule": "more"}),
    (
        InvalidArgument("send", "order.n", 0, "at least 1"),
        {"task": "send", "field": "order.n", "value": 0, "rule": "at least 1", "stored": False},
    ),
    (
        InvalidCron("61 * * * *", "no", field=1, part="61", column=1),
        {"expression": "61 * * * *", "why": "no", "field": 1, "part": "61", "column": 1},
    ),
    (UnknownSchedule("nightly"), {"name": "nightly"}),
    (ScheduleConflict("nightly", "is taken"), {"name": "nightly"}),
    (UnknownPriority("urgent", ["high", 9]), {"value": "urgent", "known": ("high", 9)}),
    (UnknownTask("sned", ["send"]), {"name": "sned", "closest": ("send",)}),
    (
        NotSerializable("argument 1", SECRET, "no"),
        {"where": "argument 1", "type": "str", "why": "no", "at": ""},
    ),
    (TooLarge("it", 5, 4), {"what": "it", "size": 5, "limit": 4, "unit": "bytes"}),
    (DependencyCycle(["a", "b", "a"]), {"path": ("a", "b", "a")}),
    (UnknownDependency("a", "b"), {"task": "a", "dependency": "b"}),
    (Conflict("a"), {"id": "a"}),
    (BrokerError("no"), {}),
    (Unreachable("no"), {}),
    (Ambiguous("no"), {}),
    (OutOfOrder("w1", 3, 5), {"incarnation": "w1", "number": 3, "last": 5}),
    (Refused("oom", "no memory"), {"cause": "oom", "passes": False}),
    (Refused("loading", "not yet"), {"cause": "loading", "passes": True}),
    (
        QueueFull("mail", 10),
        {
            "cause": "full",
            "passes": False,
            "queue": "mail",
            "limit": 10,
            "tenant": None,
            "setting": "max_waiting",
        },
    ),
    (
        QueueInUse("mail", 1, 2, 3),
        {
            "cause": "in_use",
            "passes": False,
            "queue": "mail",
            "waiting": 1,
            "running": 2,
            "pinned": 3,
        },
    ),
    (Fenced("a", 7), {"id": "a", "token": 7}),
    (TaskError("a", "no"), {"id": "a"}),
    (TaskFailed("a", "exhausted", "boom"), {"id": "a", "reason": "exhausted", "error": "boom"}),
    (TaskCancelled("a"), {"id": "a"}),
    (FlowFailed("a", 2, 5, "b: no"), {"id": "a", "dead": 2, "total": 5, "reason": "b: no"}),
    (FlowCancelled("a", 1, 5), {"id": "a", "cancelled": 1, "total": 5}),
    (ResultGone("a"), {"id": "a"}),
    (ResultTimeout("a", 1.5), {"id": "a", "timeout": 1.5}),
]


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """The tree of the docstring: each name's parent, and the other base in parentheses."""
    assert errors.__doc__ is not None
    found: dict[str, tuple[str | None, str | None]] = {}
    path: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        match = re.match(
            r"    ([│ ]*)((?:├── |└── )?)([A-Z]\w+(?:, [A-Z]\w+)*)(?: \((\w+)\))?(?:  |$)", line
        )
        if match is None:
            continue
        depth = len(match[1]) + len(match[2])
        while path and path[-1][0] >= depth:
            path.pop()
        for name in match[3].split(", "):
            found[name] = (path[-1][1] if path else None, match[4])
        path.append((depth, match[3].split(", ")[-1]))
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    own = set(CLASSES.values())
    real: dict[str, tuple[str | None, str | None]] = {}
    for name, cls in CLASSES.items():
        parents = [base.__name__ for base in cls.__bases__ if base in own]
        others = [b.__name__ for b in cls.__bases__ if b not in own and b is not Exception]
        assert len(parents) <= 1
        assert len(others) <= 1
        real[name] = (parents[0] if parents else None, others[0] if others else None)
    assert drawn() == real


def test_every_class_of_the_module_is_a_public_error() -> None:
    assert all(issubclass(cls, FairleadError) for cls in CLASSES.values())
    assert set(CLASSES) <= set(fairlead.__all__)


def test_every_class_says_what_it_means() -> None:
    for cls in CLASSES.values():
        assert cls.__doc__


def test_there_is_a_sample_of_each_class() -> None:
    assert {type(error) for error, _ in SAMPLES} == set(CLASSES.values())


@pytest.mark.parametrize(("error", "fields"), SAMPLES, ids=lambda v: type(v).__name__)
def test_an_error_says_it_on_one_line_and_carries_the_facts(
    error: BaseException, fields: dict[str, Any]
) -> None:
    assert str(error)
    assert len(str(error).splitlines()) == 1
    assert {name: getattr(error, name) for name in fields} == fields
    assert vars(error) == fields


@pytest.mark.parametrize(("error", "fields"), SAMPLES, ids=lambda v: type(v).__name__)
def test_another_process_can_raise_it_again(error: BaseException, fields: dict[str, Any]) -> None:
    """Or a process pool breaks, and ``multiprocessing.Pool`` waits for ever."""
    error.add_note("in call 3")
    again = copy.copy(error)  # as pickle makes one
    assert type(again) is type(error)
    assert (str(again), again.args) == (str(error), error.args)
    assert vars(again) == {**fields, "__notes__": ["in call 3"]}
    del error.__notes__


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidOption("cost", -1, "more"), "cost=-1 is not valid: it must be more"),
        (UnknownTask("a"), "task 'a' is not registered (import the module that defines it "),
        (UnknownTask("a", ["b", "c"]), "task 'a' is not registered; did you mean b or c? ("),
        (TooLarge("it", 5, 4, "tasks"), "it is 5 tasks; the limit is 4 tasks"),
        (QueueFull("q", 10), "queue 'q' is full (10 waiting tasks)"),
        (QueueFull("q", 10, "acme"), "queue 'q' is full for tenant 'acme' (10 waiting tasks)"),
        (
            QueueFull("q", 10, "acme", "max_tenant_bytes"),
            "queue 'q' is full for tenant 'acme' "
            "(max_tenant_bytes: 10 bytes of tasks that are not finished)",
        ),
        (TaskFailed("a", "expired"), "task 'a' is dead (expired)"),
        (TaskFailed("a", "exhausted", "boom"), "task 'a' is dead (exhausted): boom"),
        (DependencyCycle(["a", "b", "a"]), "dependencies form a cycle: a -> b -> a"),
        (ResultTimeout("a", 1.5), "task 'a' was not finished within 1.5 s"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_a_sentence(error: BaseException, message: str) -> None:
    assert str(error).startswith(message)


@pytest.mark.parametrize("value", [LONG, [LONG], {LONG: 1}, LONG.encode(), "\n" * 500, (1,) * 999])
def test_a_long_value_is_shortened_in_the_message_and_whole_in_the_field(value: Any) -> None:
    for error in (
        InvalidName("queue", value, "short"),
        InvalidOption("cost", value, "short"),
        UnknownPriority(value, ["high"]),
    ):
        assert len(str(error)) < 200
        assert "…" in str(error)
        assert "\n" not in str(error)
        assert error.value is value


def test_a_long_name_is_shortened_wherever_it_may_be_given() -> None:
    for error in (
        UnknownTask(LONG),
        UnknownDependency(LONG, LONG),
        Conflict(LONG),
        OutOfOrder(LONG, 1, 2),
        QueueFull("q", 1, LONG),
        Fenced(LONG, 1),
        TaskFailed(LONG, "expired"),
        TaskCancelled(LONG),
        FlowFailed(LONG, 1, 2, "a: expired"),
        FlowCancelled(LONG, 1, 2),
        ResultGone(LONG),
        ResultTimeout(LONG, 1),
    ):
        assert len(str(error)) < 350
        assert "…" in str(error)


@given(st.text(max_size=200) | st.integers() | st.lists(st.text(max_size=50)) | st.binary())
def test_any_plain_value_is_shown_short_and_on_one_line(value: Any) -> None:
    shown = str(InvalidOption("o", value, "r"))
    assert len(shown) <= 120
    assert len(shown.splitlines()) == 1
    assert repr(value) in shown if len(repr(value)) <= 80 else "…" in shown


def test_the_content_of_what_cannot_be_stored_is_neither_shown_nor_kept() -> None:
    error = NotSerializable("argument 1", SECRET, "no")
    assert SECRET not in f"{error} {error!r} {vars(error)}"


class Rude:
    def __init__(self, text: str | Exception) -> None:
        self.text = text

    def __repr__(self) -> str:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


def bottomless() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        Rude("a\nb"),
        Rude(RuntimeError("no repr")),
        bottomless(),
        10**5_000,
        type("a\nb", (), {})(),
    ],
    ids=["two lines", "an error", "no end", "too many digits", "a name of two lines"],
)
def test_a_value_that_shows_itself_badly_is_refused_on_one_line_all_the_same(value: Any) -> None:
    assert len(str(InvalidOption("cost", value, "a number")).splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    ["one\ntwo", LONG, "a\u2028b\x1b[31m\r"],
    ids=["two lines", "long", "control characters"],
)
def test_the_error_of_a_dead_task_is_shortened_to_one_line(text: str) -> None:
    error = TaskFailed("a", "exhausted", text)
    assert error.error == text
    assert len(str(error).splitlines()) == 1
    assert len(str(error)) < 1_000


@pytest.mark.parametrize(
    "error",
    [
        DependencyCycle([f"acme:{'x' * 120}"] * 1_000),
        UnknownPriority("a", [f"priority-{n}" for n in range(1_000)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_long_list_of_names_is_shortened(error: BaseException) -> None:
    assert len(str(error)) < 2_000


def test_a_long_cycle_is_shown_by_its_ends() -> None:
    path = [f"t{n}" for n in range(10_002)]
    error = DependencyCycle(path)
    assert error.path == tuple(path)
    assert str(error) == (
        "dependencies form a cycle: t0 -> t1 -> t2 -> t3 -> t4 -> t5 -> … 9,990 more … -> "
        "t9996 -> t9997 -> t9998 -> t9999 -> t10000 -> t10001"
    )
    assert "more" not in str(DependencyCycle(path[:12]))
    assert "… 1 more …" in str(DependencyCycle(path[:13]))


def test_of_many_priorities_twenty_are_listed() -> None:
    known = [*range(24), 10**5_000]
    error = UnknownPriority("urgent", known)
    assert error.known == tuple(known)
    assert str(error).endswith("configured are: " + ", ".join(map(str, range(20))) + ", … 5 more")
    assert str(UnknownPriority("a", known[-2:])).endswith("23, <an integer of 16610 bits>")


def test_a_wrong_call_is_a_value_error_and_a_late_result_a_timeout() -> None:
    with pytest.raises(ValueError, match="no"):
        raise InvalidInput("no")
    with pytest.raises(TimeoutError):
        raise ResultTimeout("a", 1)
