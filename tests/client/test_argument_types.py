"""Arguments are checked by the annotations of the handler before anything is written."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from fairlead import Context, Fairlead, InvalidArgument, State, register_type
from fairlead.client.call import BoundTask

app = Fairlead("memory://")


class Color(enum.Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    lines: list[str]


class Model:
    """Stands for a model with pydantic's methods; the package is not needed for that."""

    made = 0

    def model_dump(self, mode: str) -> dict[str, int]:
        return {"x": 1}

    @classmethod
    def model_validate(cls, data: Any) -> Model:
        cls.made += 1
        return cls()


class Account:
    def __init__(self, id: int) -> None:
        self.id = id


def _load(id: int) -> Account:
    raise ConnectionError("only workers may ask for it")


register_type(Account, dump=lambda account: account.id, load=_load)


@app.task
def plain(n: int, text: str = "", ratio: float = 0.0, *, on: bool | None = None) -> None: ...


@app.task
def rich(
    ctx: Context, order: Order, color: Color = Color.RED, when: date | None = None
) -> None: ...


@app.task
def many(first: Any, *rest: int, **named: str) -> None: ...


@app.task
def ruled(count: Annotated[int, msgspec.Meta(ge=1)], size: Literal["s", "m"] = "s") -> None: ...


@app.task
def own(path: Path, model: Model | None = None, account: Account | None = None) -> None: ...


@app.task
def untyped(a, b=1):  # type: ignore[no-untyped-def]
    ...


GOOD: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (plain, (1,), {}),
    (plain, (2**63, "é", 1), {"on": True}),
    (rich, (Order(1, ["a"]), Color.RED, date(2030, 1, 2)), {}),
    (rich, ({"number": 1, "lines": []}, "red", "2030-01-02"), {}),
    (many, (None, 1, 2), {"a": "b"}),
    (ruled, (1, "m"), {}),
    (own, (Path("/tmp"), Model(), Account(5)), {}),
    (untyped, ("anything", [1]), {}),
]
BAD: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (plain, ("one",), {}, "n ('one') does not fit task '{}': it must be a whole number"),
    (plain, (True,), {}, "n (True) does not fit task '{}': it must be a whole number"),
    (plain, (1, 2), {}, "text (2) does not fit task '{}': it must be text"),
    (plain, (1,), {"on": 1}, "on (1) does not fit task '{}': it must be true or false or null"),
    (rich, (Order("1", []),), {}, "order.number ('1') does not fit"),  # type: ignore[arg-type]
    (rich, ({"number": 1},), {}, "order.lines does not fit task '{}': it must be given"),
    (rich, (Order(1, []), "blue"), {}, "color ('blue') does not fit task '{}': it must be 'red'"),
    (rich, (Order(1, []),), {"when": "soon"}, "when ('soon') does not fit"),
    (many, (None, 1, "2"), {}, "rest[1] ('2') does not fit"),
    (many, (None,), {"a": 1}, "a (1) does not fit"),
    (ruled, (0,), {}, "count (0) does not fit task '{}': it must be at least 1"),
    (ruled, (1, "x"), {}, "size ('x') does not fit task '{}': it must be one of 'm', 's'"),
]


@pytest.mark.parametrize(("task", "args", "kwargs"), GOOD, ids=str)
def test_what_fits_is_enqueued(task: Any, args: Any, kwargs: Any) -> None:
    for _ in range(2):  # the second time the short way is open
        assert task.enqueue(*args, **kwargs).state is State.QUEUED


@pytest.mark.parametrize(("task", "args", "kwargs", "words"), BAD, ids=str)
def test_what_does_not_fit_is_refused_before_it_is_written(
    task: Any, args: Any, kwargs: Any, words: str
) -> None:
    before = app.snapshot().depth
    for good, good_args, good_kwargs in GOOD:  # the short way is open, where there is one
        if good is task:
            good.call(*good_args, **good_kwargs).submission()
    for enqueue in (
        lambda: task.enqueue(*args, **kwargs),
        lambda: asyncio.run(task.aenqueue(*args, **kwargs)),
        lambda: app.enqueue_many([task.call(*args, **kwargs)]),
    ):
        with pytest.raises(InvalidArgument) as caught:
            enqueue()
        assert str(caught.value).startswith(words.format(task.name))
    assert app.snapshot().depth == before


def test_types_of_ones_own_are_made_by_workers_only() -> None:
    before = Model.made
    own.enqueue(Path("x"), Model(), Account(7))
    assert Model.made == before


def test_what_another_task_returns_is_not_known_yet() -> None:
    first = untyped.enqueue(1)
    after = plain.enqueue(first.output)
    assert after.state is State.DEFERRED


async def test_a_result_that_does_not_fit_is_rejected_without_retries() -> None:
    app = Fairlead("memory://")

    @app.task
    def word() -> str:
        return "hunter2"

    @app.task(max_retries=5)
    def count(n: int) -> None: ...

    handle = await count.aenqueue((await word.aenqueue()).output)  # type: ignore[arg-type]
    await app.drain()
    info = await handle.ainfo()
    assert (info.state, info.reason, info.attempts) == (State.DEAD, "rejected", 1)
    assert info.error is not None
    assert info.error.type == "InvalidArgument"
    assert "n (str) does not fit" in info.error.message
    assert "hunter2" not in repr(info.error)


@pytest.mark.parametrize("count", [1, 300])
def test_the_short_way_takes_only_types_that_are_known_to_fit(count: int) -> None:
    @app.task(name=f"first{count}")
    def first(n: int | str | bool | None, *rest: Any) -> None: ...

    kind = BoundTask(first._bound.spec, first._bound.priorities)
    kind.template((1,), {})
    assert kind.quick is not None
    assert kind.quick.plain("id", (1,), {}) is None  # nobody has looked at it
    for length in range(count):
        first.call(1, *([0] * length)).submission()
    ready = first._bound.ready
    assert ready is not None
    assert ready.plain("id", (1,), {}) is not None
    assert ready.plain("id", (1, "a"), {}) is None
    assert _combinations(ready._known) == min(count, 256)


def _combinations(known: dict[Any, Any]) -> int:
    return len(known) and sum(kind is None or _combinations(known[kind]) for kind in known)
