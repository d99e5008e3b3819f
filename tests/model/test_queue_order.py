from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.queue_order import QueueOrder, StrictOrder, WeightedOrder, parse_queues, strict

LARGEST = 128
MIX = {"high": 6.0, "mid": 3.0, "low": 1.0}

sizes = st.lists(st.integers(1, LARGEST), max_size=200)
weightings = st.dictionaries(
    st.sampled_from([f"q{i}" for i in range(8)]), st.floats(0.1, 100), min_size=1
)


class Shop:
    """Queues with backlogs, and a fetch that fills itself in the order it is told."""

    def __init__(self, order: QueueOrder, backlog: dict[str, float]) -> None:
        self.order, self.backlog = order, backlog
        self.taken: Counter[str] = Counter()

    def fetch(self, size: int) -> Counter[str]:
        got: Counter[str] = Counter()
        empty = []
        for queue in self.order.order():
            if got.total() == size:
                break
            got[queue] = int(min(size - got.total(), self.backlog[queue]))
            self.backlog[queue] -= got[queue]
            if not self.backlog[queue]:
                empty.append(queue)
        self.order.record(got, empty)
        self.taken += got
        return got


def full(weights: dict[str, float], **options: int) -> Shop:
    return Shop(WeightedOrder(weights, **options), dict.fromkeys(weights, math.inf))


def errors(shop: Shop, weights: dict[str, float]) -> dict[str, float]:
    """How far each queue is from its exact share of what was taken so far."""
    total, whole = shop.taken.total(), sum(weights.values())
    return {q: abs(shop.taken[q] - total * w / whole) for q, w in weights.items()}


def test_strict_order_is_the_order_given_whatever_was_found() -> None:
    order = StrictOrder(["b", "a"])
    order.record({"b": 100}, empty=["a"])
    assert order.order() == ("b", "a") == strict(iter(["b", "a"]))


def test_equal_weights_begin_in_the_order_given_and_take_turns() -> None:
    shop = full({"b": 1, "a": 1, "c": 1})
    assert [next(iter(shop.fetch(1))) for _ in range(6)] == ["b", "a", "c", "b", "a", "c"]


def test_single_tasks_follow_the_weights_closely() -> None:
    shop = full(MIX, largest_fetch=1)
    first = [next(iter(shop.fetch(1))) for _ in range(10)]
    assert Counter(first) == {"high": 6, "mid": 3, "low": 1}
    assert first[:3] == ["high", "mid", "high"]


@given(sizes, st.permutations(list(MIX)))
def test_full_queues_get_their_shares_within_one_fetch(counts: list[int], names: list[str]) -> None:
    weights = {name: MIX[name] for name in names}
    shop = full(weights)
    for count in counts:
        shop.fetch(count)
        assert max(errors(shop, weights).values()) <= LARGEST


@given(weightings, sizes)
def test_the_error_of_full_queues_is_bounded_for_any_weights(
    weights: dict[str, float], counts: list[int]
) -> None:
    shop = full(weights)
    whole = sum(weights.values())
    for count in counts:
        shop.fetch(count)
        for queue, error in errors(shop, weights).items():
            share = weights[queue] / whole
            spread = max(0.0, 1 + share * (len(weights) - 2))
            assert error <= LARGEST / 2 * spread + 1e-6


def test_the_shares_hold_over_a_million_tasks() -> None:
    dice = random.Random(7)
    shop = full(MIX)
    while shop.taken.total() < 1_000_000:
        shop.fetch(dice.randint(1, LARGEST))
    assert max(errors(shop, MIX).values()) <= LARGEST


@given(
    weightings,
    st.randoms(use_true_random=False),
    st.lists(st.tuples(st.integers(1, LARGEST), st.integers(0, 300)), max_size=150),
)
def test_a_queue_with_work_is_never_starved(
    weights: dict[str, float], dice: random.Random, steps: list[tuple[int, int]]
) -> None:
    shop = Shop(WeightedOrder(weights), dict.fromkeys(weights, 0))
    waited = Counter[str]()  # tasks of others, since the queue last gave one or had none
    for size, arrivals in steps:
        shop.backlog[dice.choice(list(weights))] += arrivals
        got = shop.fetch(size)
        for queue, weight in weights.items():
            if got[queue] or not shop.backlog[queue]:
                waited[queue] = 0
            else:
                waited[queue] += got.total()
            turn = LARGEST * sum(weights.values()) / weight
            assert waited[queue] <= turn + LARGEST * len(weights)


@given(sizes, sizes, st.floats(0.1, 10), st.integers(0, 50))
def test_a_queue_that_was_idle_comes_back_without_a_burst(
    before: list[int], after: list[int], weight: float, small: int
) -> None:
    weights = {"late": weight, "busy": 1.0}
    shop = Shop(WeightedOrder(weights), {"late": small, "busy": math.inf})
    for count in before:
        shop.fetch(count)
    shop.backlog["late"] = math.inf
    shop.taken.clear()
    for count in after:
        shop.fetch(count)
        assert max(errors(shop, weights).values()) <= LARGEST + 1e-6


def test_a_queue_that_was_idle_is_first_when_it_has_work_again() -> None:
    order = WeightedOrder({"busy": 6, "late": 1}, largest_fetch=10)
    for _ in range(100):
        order.record({"busy": 10}, empty=["late"])
    assert order.order() == ("busy", "late")  # the same pass, so the order given
    order.record({"busy": 1})
    assert order.order() == ("late", "busy")
    order.record({"late": 10})
    assert order.order() == ("busy", "late")


def test_a_queue_that_the_fetch_never_came_to_keeps_its_claim() -> None:
    order = WeightedOrder({"a": 1, "b": 1, "c": 1}, largest_fetch=10)
    order.record({"a": 100})
    order.record({"b": 10}, empty=["c"])  # c is lifted to b, not to a
    assert order.order() == ("b", "c", "a")
    order.record({"b": 50, "c": 10}, empty=["c"])
    assert order.order() == ("b", "c", "a")
    order.record({"b": 60})
    assert order.order() == ("c", "a", "b")


def test_all_start_anew_when_all_are_empty() -> None:
    order = WeightedOrder(MIX)
    order.record({"high": 100, "mid": 5})
    order.record({}, empty=list(MIX))
    assert order.order() == WeightedOrder(MIX).order()


def test_extreme_weights_neither_overflow_nor_lose_tasks() -> None:
    order = WeightedOrder({"tiny": 5e-324, "huge": 1e308, "other": 1e308}, largest_fetch=2)
    for _ in range(10):
        order.record({order.order()[0]: 1})
    order.record({"huge": 1})
    assert order.order() == ("other", "huge", "tiny")
    order.record({"tiny": 1})
    assert order.order() == ("other", "huge", "tiny")


@pytest.mark.parametrize("order", [WeightedOrder({"a": 1}), StrictOrder(["a"])])
@pytest.mark.parametrize(
    ("got", "empty", "named"),
    [({"b": 1}, (), "'b'"), ({"a": 1}, ("b",), "'b'"), ({"a": -1}, (), "-1")],
)
def test_a_record_of_what_cannot_be_is_refused(
    order: QueueOrder, got: dict[str, int], empty: tuple[str, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        order.record(got, empty)


def test_a_refused_record_charges_nothing() -> None:
    order = WeightedOrder({"a": 1, "b": 1})
    with pytest.raises(ValueError, match="'x'"):
        order.record({"a": 5, "x": 1})
    assert order.order() == ("a", "b")


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf])
def test_a_weight_that_is_not_positive_and_finite_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of queue 'a'"):
        WeightedOrder({"b": 1, "a": weight})


@pytest.mark.parametrize(
    ("queues", "named"),
    [
        ([], "at least one"),
        (["a", "b", "a"], "'a'"),
        (["a", "no way"], "'no way'"),
        ([f"q{i}" for i in range(1001)], "limit is 1000"),
    ],
)
def test_what_cannot_be_an_order_is_refused(queues: list[str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        StrictOrder(queues)


def test_a_thousand_queues_are_allowed() -> None:
    weights = {f"q{i}": 1.0 for i in range(1000)}
    assert WeightedOrder(weights).order() == strict(weights)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("high=6,low=1", {"high": 6, "low": 1}),
        ("a,b", {"a": 1, "b": 1}),
        (" a = 0.5 , b ", {"a": 0.5, "b": 1}),
    ],
)
def test_queues_are_read_from_the_command_line(text: str, weights: dict[str, float]) -> None:
    assert parse_queues(text) == weights
    assert list(parse_queues(text)) == list(weights)


@given(weightings)
def test_any_weights_can_be_written_on_the_command_line(weights: dict[str, float]) -> None:
    assert parse_queues(",".join(f"{q}={w!r}" for q, w in weights.items())) == weights


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("a,,b", "''"),
        ("a,=3", "'=3'"),
        ("a=x", "'a=x'"),
        ("a=", "'a='"),
        ("a=1=2", "'a=1=2'"),
        ("a,b=0", "weight of queue 'b'"),
        ("a=nan", "weight of queue 'a'"),
        ("a,b,a=2", "'a=2'"),
        ("a b", "'a b'"),
    ],
)
def test_an_error_names_the_bad_part(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_queues(text)


def test_both_orders_are_one_type_to_a_worker() -> None:
    orders: list[QueueOrder] = [WeightedOrder({"a": 1}), StrictOrder(["a"])]
    found: list[Any] = [order.order() for order in orders]
    assert found == [("a",), ("a",)]
