"""Names and numbers of priorities: the level of each, and the name of each level."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.errors import InvalidOption, UnknownPriority
from fairlead.model.message import LEVEL_NAMES, LEVELS
from fairlead.model.priorities import Priorities, levels_of

SIX = {"critical": 0, "p5": 1, "p4": 2, "p3": 3, "p2": 4, "p1": 5}


def test_without_labels_there_are_the_four_names() -> None:
    found = Priorities()
    assert [found.level(name) for name in LEVELS] == [0, 1, 2, 3]
    assert [found.name(level) for level in range(8)] == list(LEVEL_NAMES)
    assert found.default == 2


def test_names_for_the_four_are_shown_as_these() -> None:
    found = Priorities({"vip": "high", 9: "low"})
    assert (found.level("vip"), found.level(9), found.name(1)) == (1, 3, "high")


def test_the_lower_number_goes_first() -> None:
    found = Priorities({"low": 10, "high": 0, "normal": 5})
    assert [found.level(label) for label in ("high", "normal", "low")] == [1, 2, 3]
    assert [found.level(number) for number in (0, 5, 10)] == [1, 2, 3]
    assert [found.name(level) for level in (1, 2, 3)] == ["high", "normal", "low"]


def test_six_labels_have_six_levels() -> None:
    found = Priorities(SIX)
    assert [found.level(label) for label in SIX] == [0, 1, 2, 3, 4, 5]
    assert [found.name(level) for level in range(8)] == [*SIX, "level-6", "level-7"]
    assert found.default == found.level("p3")  # the middle, since none is called normal


@pytest.mark.parametrize("count", range(1, 9))
def test_up_to_eight_numbers_keep_their_order(count: int) -> None:
    labels = {f"l{n}": 10 * n for n in range(count)}
    levels = [Priorities(labels).level(label) for label in labels]
    assert levels == sorted(set(levels))
    assert (levels[0] == 0) == (count in (4, 8))  # what starves the rest is only taken if needed


def test_normal_is_the_default_wherever_it_stands() -> None:
    labels = {"a": 1, "b": 2, "c": 3, "d": 4, "normal": 5}
    found = Priorities(labels)
    assert found.default == found.level("normal")


def test_labels_of_one_number_share_a_level_and_the_first_is_shown() -> None:
    found = Priorities({"urgent": 1, "now": 1, "later": 2})
    assert found.level("urgent") == found.level("now") == found.level(1)
    assert found.name(found.level(1)) == "urgent"


def test_an_unknown_one_is_refused_with_those_that_are_known() -> None:
    for unknown in ("high", "p6", 6, True, None):
        with pytest.raises(UnknownPriority) as caught:
            Priorities(SIX).level(unknown)
        assert caught.value.known == (0, 1, 2, 3, 4, 5, *SIX)


def test_every_level_has_a_name_that_no_label_hides() -> None:
    for found in (Priorities(), Priorities(SIX), Priorities({"low": 0, "high": 1})):
        assert [found.level(f"level-{level}") for level in range(8)] == list(range(8))
        assert [found.level(found.name(level)) for level in range(8)] == list(range(8))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({f"l{n}": n for n in range(9)}, "9 different numbers.*at most 8"),
        ({"a": 1, "b": "high"}, r"priorities\['b'\].*a whole number"),
        ({"a": 1, 2: 3}, r"label=2 is not valid: it must be a text"),
        ({"a": True}, r"priorities\['a'\]=True"),
        ({"a": 1.5}, r"priorities\['a'\]=1.5"),
        ({"level-5": 1}, r"priorities\['level-5'\].*another name"),
    ],
)
def test_what_is_wrong_is_named(said: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        Priorities(said)


def test_nothing_else_than_numbers_has_levels() -> None:
    with pytest.raises(InvalidOption, match="a number for each label"):
        levels_of(["high"])
