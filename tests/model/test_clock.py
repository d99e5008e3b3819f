"""How time follows a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.clock import SILENCE, follow, next_number


@pytest.mark.parametrize(
    ("ahead", "clock", "seen", "expected"),
    [
        pytest.param(0.0, 101.0, 1.0, (101.0, 0.0), id="it goes on"),
        pytest.param(0.0, 120.0, 0.0, (120.0, 0.0), id="a step of 20 seconds is followed"),
        pytest.param(0.0, 121.0, 0.0, (100.0, -21.0), id="a longer one is not"),
        pytest.param(0.0, 500.0, 400.0, (500.0, 0.0), id="a silence is followed"),
        pytest.param(0.0, 900.0, 400.0, (500.0, -400.0), id="what was seen of a leap is"),
        pytest.param(0.0, 40.0, 2.0, (102.0, 62.0), id="set back"),
        pytest.param(10.0, 100.0, 10.0, (109.0, 9.0), id="ahead: a tenth slower"),
        pytest.param(-10.0, 120.0, 10.0, (111.0, -9.0), id="behind: a tenth faster"),
        pytest.param(0.5, 109.5, 10.0, (109.5, 0.0), id="and no further"),
    ],
)
def test_follow(ahead: float, clock: float, seen: float, expected: tuple[float, float]) -> None:
    assert follow(100.0, ahead, clock, seen) == pytest.approx(expected)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 1000.0), st.sampled_from([0.0, -1e6, -3.0, 5.0, 60.0, 1e6])),
        max_size=50,
    )
)
def test_time_never_goes_back_and_never_leaps_further_than_was_seen(
    steps: list[tuple[float, float]],
) -> None:
    now, ahead, clock = 1e9, 0.0, 1e9
    for passed, set_by in steps:
        clock += passed + set_by
        last = now
        now, ahead = follow(now, ahead, clock, passed)
        assert last <= now <= last + 1.1 * (passed + SILENCE) + 1e-3
        assert clock + ahead == pytest.approx(now, abs=1e-3)


def test_numbers_grow_and_are_moments() -> None:
    assert next_number(0, 2.5) == 2_500_000
    assert next_number(2_500_000, 2.5) == 2_500_001
    assert next_number(9_000_000, 2.5) == 9_000_001
