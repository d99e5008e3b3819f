"""What the demo says is computed from what happened, and from nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.demo.stats import Journal, percentile


def journal(arrivals: str, starts: str, **weights: float) -> Journal:
    """All arrive at the seconds 0, 1, ..., then all start at the seconds after, one by one."""
    made = Journal(weights)
    numbers: dict[str, list[int]] = {tenant: [] for tenant in weights}
    for at, tenant in enumerate(arrivals):
        numbers[tenant].append(made.arrive(tenant, at))
    for at, tenant in enumerate(starts, start=len(arrivals)):
        made.start(tenant, numbers[tenant].pop(0), at)
    return made


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (1, 1.0), (50, 50.0), (99, 99.0), (99.5, 100.0), (100, 100.0)]
)
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], percent) == value


def test_a_percentile_of_few_values_is_the_largest_and_of_none_is_zero() -> None:
    assert percentile([3.0, 1.0], 99) == 3.0
    assert percentile([], 99) == 0.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_at_least_so_many_values_do_not_exceed_the_percentile(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100


def test_waits_last_from_arrival_to_start() -> None:
    seen = journal("aab", "aba", a=1, b=1)
    assert seen.waits == {"a": [3.0, 4.0], "b": [2.0]}
    assert (seen.arrived("a"), seen.waiting("a"), seen.started) == (2, 0, 3)


def test_only_starts_while_another_tenant_waits_count_for_a_share() -> None:
    seen = journal("aaaab", "abaaa", a=1, b=1)
    assert seen.share("a") == 0.5  # once b had nothing more, every start was a's
    assert seen.share("b") == 0.5
    assert seen.fair_share("a") == 0.5


def test_a_tenant_that_was_never_in_competition_has_no_share() -> None:
    seen = journal("aa", "aa", a=1, b=1)
    assert (seen.share("a"), seen.fair_share("a"), seen.share("b")) == (0.0, 0.0, 0.0)
    assert seen.ratio("a", "b") is None


def test_a_fair_share_is_the_weight_among_those_that_wait() -> None:
    seen = journal("aabc", "abca", a=2, b=1, c=1)
    # a competed three times at most: with b and c, with b and c again, with c alone.
    assert seen.fair_share("a") == pytest.approx((2 / 4 + 2 / 4 + 2 / 3) / 3)
    assert seen.share("a") == pytest.approx(1 / 3)


def test_a_ratio_counts_starts_while_both_wait() -> None:
    seen = journal("aaaaaaaabbbb", "aaabaaabaabb", a=3, b=1)
    assert seen.ratio("a", "b") == 8 / 2
    assert seen.ratio("b", "a") == 2 / 8


def test_a_third_tenant_does_not_change_a_ratio() -> None:
    alone = journal("aaaaaabb", "aaabaaab", a=3, b=1)
    among = journal("aaaaaabbccc", "caacabcaaab", a=3, b=1, c=1)
    assert alone.ratio("a", "b") == among.ratio("a", "b") == 6 / 1


def test_first_in_first_out_gives_the_same_starts_in_the_order_of_arrival() -> None:
    seen = journal("aaaab", "baaaa", a=1, b=1)
    assert seen.waits["b"] == [1.0]
    assert seen.fifo_waits(["b"]) == [9.0 - 4.0]
    assert seen.fifo_waits(["a"]) == [5.0, 5.0, 5.0, 5.0]


def test_a_run_that_was_first_in_first_out_waited_just_that_long() -> None:
    seen = journal("abacab", "abacab", a=1, b=1, c=1)
    for tenant in "abc":
        assert seen.fifo_waits([tenant]) == seen.waits[tenant]


def test_what_has_not_started_yet_has_no_wait_to_compare() -> None:
    seen = journal("aab", "a", a=1, b=1)
    assert seen.fifo_waits(["a", "b"]) == [3.0]
