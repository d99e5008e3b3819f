"""When a child asks to be replaced."""

from __future__ import annotations

import pytest

from fairlead.model.errors import InvalidInput
from fairlead.worker.process.retirement import Retirement

MB = 1024**2


def test_without_limits_it_never_is_enough() -> None:
    retirement = Retirement(measure=lambda: 2**60)
    retirement.begin(0.0)
    assert retirement.why(10**12, 1e12) == ""


def test_each_limit_says_what_was_reached() -> None:
    size = 20 * MB
    retirement = Retirement(
        max_tasks=100, max_rss=64 * MB, max_age=60.0, dice=lambda: 0.0, measure=lambda: size
    )
    retirement.begin(1_000.0)
    assert retirement.why(99, 1_059.9) == ""
    assert retirement.why(100, 1_000.0) == "100 tasks are done"
    assert retirement.why(0, 1_060.0) == "it is 60 seconds old"
    size = 64 * MB
    assert retirement.why(0, 1_000.0) == "it takes 64 MB"


def test_children_that_began_together_differ_by_up_to_a_tenth() -> None:
    dice = iter([0.0, 0.5, 0.999])
    children = [Retirement(max_tasks=100, max_age=100.0, dice=lambda: next(dice)) for _ in range(3)]
    for child in children:
        child.begin(0.0)
    assert [bool(child.why(104, 0.0)) for child in children] == [True, False, False]
    assert [bool(child.why(105, 0.0)) for child in children] == [True, True, False]
    assert [bool(child.why(110, 0.0)) for child in children] == [True, True, True]
    assert [bool(child.why(0, 104.0)) for child in children] == [True, False, False]
    assert [bool(child.why(0, 110.0)) for child in children] == [True, True, True]


def test_an_app_that_is_larger_than_its_limit_is_refused_instead_of_replaced_for_ever() -> None:
    retirement = Retirement(max_rss=64 * MB, measure=lambda: 70 * MB)
    with pytest.raises(InvalidInput, match="--max-rss is 64 MB, but the app takes 70 MB"):
        retirement.begin(0.0)
