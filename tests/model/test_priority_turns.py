"""Turns of levels inside a tenant, and how fair a distribution is."""

from __future__ import annotations

import pytest

from fairlead.model.fairness_stats import jain
from fairlead.model.priority_turns import goes_before, level_at


def served(waiting: list[int], turn: int = 0) -> list[int]:
    """The levels of all dispatches."""
    order = []
    while any(waiting):
        level = level_at(turn, waiting)
        waiting[level] -= 1
        turn += level > 0
        order.append(level)
    return order


def test_critical_goes_first_and_each_lower_level_gets_one_in_eight() -> None:
    assert served([2, 20, 2, 2])[:18] == [0, 0, *[1, 1, 1, 2, 1, 1, 1, 3] * 2]
    assert served([0, 0, 1, 2]) == [2, 3, 3]


@pytest.mark.parametrize("turn", range(8))
def test_how_many_go_before_is_what_a_walk_through_the_turns_says(turn: int) -> None:
    waiting = [2, 9, 5, 4]
    order = served(list(waiting), turn)
    for level, count in enumerate(waiting):
        places = [i for i, each in enumerate(order) if each == level]
        said = [goes_before(level, place, waiting, turn, 100) for place in range(count)]
        assert said == places


def test_counting_stops_somewhere() -> None:
    assert goes_before(2, 500, [0, 0, 501, 0], 0, 100) == 100


def test_jain_is_one_for_equal_shares_and_one_of_n_for_one_who_got_all() -> None:
    assert jain({"a": 5, "b": 5, "c": 5}) == pytest.approx(1.0)
    assert jain({"a": 9, "b": 0, "c": 0}) == pytest.approx(1 / 3)
    assert jain({"a": 6, "b": 3}, {"a": 2.0}) == pytest.approx(1.0)
    assert jain({}) is None
    assert jain({"a": 0}) is None
