"""Types of one's own are stored as their owner says, and read back by annotations."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from fairlead import Fairlead, register_type
from fairlead.model import custom_types
from fairlead.model.argument_packing import convert, pack, unpack
from fairlead.model.errors import InvalidInput, NotSerializable


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class Euro(Money): ...


class Model:
    """Has the methods of a pydantic model."""

    def __init__(self, name: str) -> None:
        self.name = name

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"name": self.name}

    @classmethod
    def model_validate(cls, data: Any) -> Model:
        if not isinstance(data, dict):
            raise ValueError("not a model")
        return cls(**data)


@dataclasses.dataclass
class Order:
    price: Money
    files: list[Path]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_types, "_registered", {})
    register_type(Money, dump=lambda money: money.cents, load=Money)


def test_a_registered_type_is_stored_and_read_back_wherever_it_stands() -> None:
    order = Order(price=Euro(5), files=[Path("/a/b"), Path("c")])
    stored = pack([order], "it")
    assert unpack(stored) == [{"price": 5, "files": ["/a/b", "c"]}]
    (read,) = convert(unpack(stored), list[Order], "it")
    assert (read.price.cents, read.files) == (5, order.files)


def test_a_path_and_a_model_need_no_registration() -> None:
    stored = pack({"path": PurePosixPath("x/y"), "model": Model("n")}, "it")
    plain = unpack(stored)
    assert convert(plain["path"], PurePosixPath, "it") == PurePosixPath("x/y")
    assert convert(plain["model"], Model, "it").name == "n"


def test_what_does_not_fit_is_said_to_be_unreadable_without_its_content() -> None:
    with pytest.raises(NotSerializable, match="cannot be read back") as caught:
        convert("secret", Model, "the result")
    assert "secret" not in str(caught.value)


def test_a_type_that_nobody_knows_is_refused_both_ways() -> None:
    with pytest.raises(NotSerializable, match="cannot be stored"):
        pack(object(), "it")
    with pytest.raises(NotSerializable, match="cannot be read back"):
        convert({"a": 1}, type("Unknown", (), {}), "it")


def test_only_classes_are_registered() -> None:
    with pytest.raises(InvalidInput, match="only a class"):
        register_type("Money", dump=str, load=str)  # type: ignore[arg-type]


async def test_handlers_and_readers_get_the_type_they_ask_for() -> None:
    async with Fairlead("memory://") as app:

        @app.task
        async def double(price: Money, file: Path) -> Money:
            assert isinstance(file, Path)
            return Money(2 * price.cents)

        handle = await double.aenqueue(Money(4), Path("x"))
        await app.drain()
        assert (await handle.aresult()).cents == 8
