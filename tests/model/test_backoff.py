from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.backoff import Backoff, Jitter, RetryPolicy

seconds = st.floats(0, 1e9)
dice = st.floats(0, 1, exclude_max=True)
retries = st.integers(0, 10_000) | st.integers(0, 10**400)
jitters: st.SearchStrategy[Jitter] = st.sampled_from(["full", "plus_minus", "none"])
backoffs = st.builds(
    Backoff,
    initial=seconds,
    factor=st.floats(1, 1e6),
    max=seconds,
    jitter=jitters,
    spread=st.floats(0, 1),
)

CONNECTION = Backoff(initial=7)
OS = Backoff(initial=8)


def test_the_defaults_are_one_second_doubling_to_five_minutes_with_full_jitter() -> None:
    assert Backoff() == Backoff(initial=1.0, factor=2.0, max=300.0, jitter="full", spread=0.1)
    assert [Backoff().ceiling(retry) for retry in (0, 1, 2, 8, 9, 50)] == [1, 2, 4, 256, 300, 300]
    assert [Backoff().delay(3, d) for d in (0, 0.25, 0.5)] == [0, 2, 4]


def test_plus_minus_moves_the_delay_by_the_spread_to_either_side() -> None:
    backoff = Backoff(initial=10, jitter="plus_minus", spread=0.2)
    assert [backoff.delay(0, d) for d in (0, 0.5, 0.75)] == pytest.approx([8, 10, 11])


def test_no_jitter_ignores_the_dice() -> None:
    backoff = Backoff(initial=3, jitter="none")
    assert {backoff.delay(1, d) for d in (0, 0.3, 0.99)} == {6}


def test_an_initial_delay_above_the_maximum_is_capped() -> None:
    assert Backoff(initial=60, max=10).ceiling(0) == 10


def test_a_huge_retry_does_not_overflow() -> None:
    assert Backoff().ceiling(10**400) == 300
    assert Backoff(factor=1).ceiling(10**400) == 1
    assert Backoff(initial=0).ceiling(10**400) == 0


@given(backoffs, retries)
def test_the_ceiling_grows_from_the_initial_delay_to_the_maximum(
    backoff: Backoff, retry: int
) -> None:
    assert backoff.ceiling(0) == min(backoff.initial, backoff.max)
    assert backoff.ceiling(0) <= backoff.ceiling(retry) <= backoff.ceiling(retry + 1) <= backoff.max


@given(backoffs, retries, dice)
def test_a_delay_stays_within_what_its_jitter_allows(
    backoff: Backoff, retry: int, dice: float
) -> None:
    ceiling, delay = backoff.ceiling(retry), backoff.delay(retry, dice)
    low, high = {
        "full": (0.0, ceiling),
        "plus_minus": (ceiling * (1 - backoff.spread), ceiling * (1 + backoff.spread)),
        "none": (ceiling, ceiling),
    }[backoff.jitter]
    assert math.isfinite(delay)
    assert low - 1e-9 * ceiling <= delay <= high + 1e-9 * ceiling


@given(backoffs, retries, dice, dice)
def test_a_higher_throw_never_gives_a_shorter_delay(
    backoff: Backoff, retry: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert backoff.delay(retry, low) <= backoff.delay(retry, high)


@given(backoffs)
def test_a_backoff_survives_encoding(backoff: Backoff) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(backoff), type=Backoff) == backoff


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial", -1),
        ("initial", math.nan),
        ("initial", "1"),
        ("initial", True),
        ("factor", 0.5),
        ("factor", math.inf),
        ("max", -0.1),
        ("max", math.inf),
        ("max", 1e10),
        ("spread", -0.1),
        ("spread", 1.1),
        ("spread", math.nan),
        ("jitter", "some"),
    ],
)
def test_nonsense_is_refused_by_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field}=.* is not valid: it must be ") as caught:
        Backoff(**{field: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("retry", "throw"), [(-1, 0.5), (0, 1.0), (0, -0.1), (0, math.nan)])
def test_a_negative_retry_and_foreign_dice_are_refused(retry: int, throw: float) -> None:
    with pytest.raises(ValueError, match="retry=-1" if retry < 0 else "dice="):
        Backoff().delay(retry, throw)


def test_the_default_policy_retries_exceptions_five_times_but_not_an_interrupt() -> None:
    policy = RetryPolicy()
    assert (policy.max_retries, policy.backoff) == (5, Backoff())
    assert policy.retries(ValueError())
    assert not policy.retries(KeyboardInterrupt())


@pytest.mark.parametrize(
    ("retry_on", "give_up_on", "error", "expected"),
    [
        ((Exception,), (ValueError,), ValueError(), False),
        ((Exception,), (ValueError,), UnicodeError(), False),
        ((Exception,), (ValueError,), KeyError(), True),
        ((ConnectionError,), (OSError,), ConnectionRefusedError(), True),
        ((ConnectionError,), (OSError,), FileNotFoundError(), False),
        ((OSError,), (ConnectionError,), ConnectionRefusedError(), False),
        ((OSError,), (OSError,), OSError(), False),
        ((OSError,), (), KeyError(), False),
        ((), (), KeyError(), False),
    ],
)
def test_giving_up_wins_unless_a_more_specific_class_is_retried(
    retry_on: tuple[type[BaseException], ...],
    give_up_on: tuple[type[BaseException], ...],
    error: BaseException,
    expected: bool,
) -> None:
    assert RetryPolicy(retry_on=retry_on, give_up_on=give_up_on).retries(error) is expected


@given(
    st.permutations([(OSError, OS), (ConnectionError, CONNECTION)]),
    st.sampled_from(
        [
            (ConnectionResetError(), CONNECTION),
            (ConnectionError(), CONNECTION),
            (FileNotFoundError(), OS),
            (KeyError(), Backoff()),
        ]
    ),
)
def test_the_most_specific_backoff_counts_in_whichever_order_they_are_given(
    pairs: list[tuple[type[BaseException], Backoff]], case: tuple[BaseException, Backoff]
) -> None:
    error, expected = case
    assert RetryPolicy(per_exception=tuple(pairs)).backoff_for(error) == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_retries": -1}, "max_retries=-1"),
        ({"max_retries": 1.5}, "max_retries=1.5"),
        ({"retry_on": (int,)}, "retry_on=<class 'int'>"),
        ({"give_up_on": ("ValueError",)}, "give_up_on='ValueError'"),
        ({"per_exception": ((str, OS),)}, "per_exception=<class 'str'>"),
        ({"per_exception": ((KeyError, OS), (KeyError, OS))}, "each class once"),
    ],
)
def test_a_policy_refuses_nonsense(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RetryPolicy(**options)
