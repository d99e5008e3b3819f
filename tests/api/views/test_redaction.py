"""Fields that are shown to nobody."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.views.redaction import HIDDEN, Redaction
from fairlead.model.errors import InvalidOption


@pytest.mark.parametrize(
    ("paths", "value", "shown"),
    [
        ((), {"a": 1}, {"a": 1}),
        (("a",), {"a": 1, "b": 2}, {"a": HIDDEN, "b": 2}),
        (("a",), {"x": [{"a": {"deep": 1}}]}, {"x": [{"a": HIDDEN}]}),
        (("a.b",), {"a": {"b": 1, "c": 2}, "b": 3}, {"a": {"b": HIDDEN, "c": 2}, "b": 3}),
        (("a.*.c",), {"a": [{"c": 1}, {"d": 2}]}, {"a": [{"c": HIDDEN}, {"d": 2}]}),
        (("0",), ["secret", "shown"], [HIDDEN, "shown"]),
        (("0.a",), [{"a": 1}, {"a": 2}], [{"a": HIDDEN}, {"a": 2}]),
        (("a.1",), {"a": [1, 2]}, {"a": [1, HIDDEN]}),
        (("*.a",), [[{"a": 1}], {"a": 2}], [[{"a": HIDDEN}], {"a": HIDDEN}]),
        (("a",), [[], [[{"a": 1}], "x"], 3], [[], [[{"a": HIDDEN}], "x"], 3]),
        (("a.b.c", "b"), {"a": {"b": {"c": 1}}}, {"a": {"b": HIDDEN}}),
        (("a",), "a", "a"),
        (("a",), None, None),
    ],
)
def test_a_path_is_hidden_wherever_it_stands(
    paths: tuple[str, ...], value: Any, shown: Any
) -> None:
    assert Redaction(paths).hide(value) == shown


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b"])
def test_a_path_without_names_is_refused(path: str) -> None:
    with pytest.raises(InvalidOption):
        Redaction((path,))
