"""Where a listing goes on inside a step of the server's, which may have changed meanwhile."""

from __future__ import annotations

import pytest

from fairlead.broker.redis.reads import _Place
from fairlead.model.errors import InvalidOption


def test_a_step_that_is_as_it_was_goes_on_behind_what_was_listed() -> None:
    place = _Place.parse(str(_Place.inside("17", 100, ["a", "b"])))
    assert (place.step, place.count) == ("17", 100)
    assert place.known(["a", "b", "c"]) == 2


@pytest.mark.parametrize(
    "now",
    [
        ["c", "b", "a"],  # the server keeps them in another order: c was not listed yet
        ["b", "c"],  # one is gone
        ["new", "a", "b", "c"],
        [],
    ],
)
def test_a_step_that_has_changed_is_listed_again(now: list[str]) -> None:
    assert _Place.inside("17", 100, ["a", "b"]).known(now) == 0


def test_the_beginning_and_the_next_step_know_nothing() -> None:
    assert _Place.parse(None).known(["a"]) == 0
    assert _Place.parse("17").known(["a"]) == 0


@pytest.mark.parametrize(
    "cursor", ["", "x", "1-2", "1-2-3", "1-2-3-zz", "1-2-3-" + "0" * 17, "1-2-a"]
)
def test_a_cursor_that_no_page_returned_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidOption):
        _Place.parse(cursor)
