"""Rates in words mean what they say."""

from __future__ import annotations

import pytest

from fairlead.model.rates import in_rate


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (5, 5.0),
        (0.5, 0.5),
        ("5", 5.0),
        ("5/s", 5.0),
        ("300/m", 5.0),
        ("1800 / h", 0.5),
        (" 1.5/s ", 1.5),
    ],
)
def test_a_rate_is_a_number_a_second(said: object, means: float) -> None:
    assert in_rate(said) == means


@pytest.mark.parametrize(
    "said",
    [
        "",
        "five",
        "5/d",
        "5/",
        "/m",
        "-5/m",
        "1e3",
        "5/m/h",
        "nan",
        "inf",
        "\u0665/s",
        True,
        None,
        [5],
    ],
)
def test_anything_else_is_none(said: object) -> None:
    assert in_rate(said) is None
