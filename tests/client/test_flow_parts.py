"""Putting calls together: what waits for what, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fairlead import DependencyCycle, Fairlead, Flow, InvalidInput, TooLarge
from fairlead.client.flow import Part, Plan, plan_of

app = Fairlead("memory://")


@app.task
def step(name: str) -> str:
    return name


def calls(names: str) -> dict[str, Part[Any]]:
    return {name: step.call(name) for name in names}


def edges(flow: Part[Any]) -> dict[str, str]:
    """What each call waits for, by the names they were called with."""
    plan = plan_of(flow)
    names = {id: call.args[0] for id, call in plan.calls.items()}
    return {
        names[id]: "".join(names[other] for other in others) for id, others in plan.waits.items()
    }


def test_one_after_the_other() -> None:
    c = calls("abc")
    assert edges(c["a"] >> c["b"] >> c["c"]) == {"a": "", "b": "a", "c": "b"}


def test_the_other_way_round() -> None:
    c = calls("abc")
    assert edges(c["a"] << c["b"] << c["c"]) == {"c": "", "b": "c", "a": "b"}


def test_side_by_side() -> None:
    c = calls("ab")
    assert edges(c["a"] | c["b"]) == {"a": "", "b": ""}


def test_lists_fan_out_and_in() -> None:
    c = calls("abcd")
    assert edges(c["a"] >> [c["b"], c["c"]] >> c["d"]) == {"a": "", "b": "a", "c": "a", "d": "bc"}


def test_a_list_may_come_first() -> None:
    c = calls("abc")
    assert edges([c["a"], c["b"]] >> c["c"]) == {"a": "", "b": "", "c": "ab"}
    assert edges([c["a"], c["b"]] << c["c"]) == {"c": "", "a": "c", "b": "c"}
    assert edges([c["a"]] | c["c"]) == {"a": "", "c": ""}


def test_all_wait_for_all_between_two_groups() -> None:
    c = calls("abcd")
    assert edges((c["a"] | c["b"]) >> (c["c"] | c["d"])) == {"a": "", "b": "", "c": "ab", "d": "ab"}


def test_the_arrow_binds_closer_than_the_bar() -> None:
    c = calls("abcd")
    assert edges(c["a"] >> c["b"] | c["c"] >> c["d"]) == {"a": "", "b": "a", "c": "", "d": "c"}


def test_flows_are_parts_of_flows() -> None:
    c = calls("abcde")
    inner = c["b"] >> c["c"]
    assert edges(c["a"] >> [inner, c["d"]] >> c["e"]) == {
        "a": "", "b": "a", "c": "b", "d": "a", "e": "cd"
    }  # fmt: skip


def test_lists_may_hold_lists_and_generators() -> None:
    c = calls("abcd")
    assert edges(c["a"] >> [[c["b"]], (each for each in [c["c"], c["d"]])]) == {
        "a": "", "b": "a", "c": "a", "d": "a"
    }  # fmt: skip


def test_a_call_that_stands_in_several_parts_is_one_task() -> None:
    c = calls("abcd")
    flow = Flow(c["a"] >> c["b"], c["a"] >> c["c"], [c["b"], c["c"]] >> c["d"])
    assert edges(flow) == {"a": "", "b": "a", "c": "a", "d": "bc"}


def test_a_part_may_be_used_twice() -> None:
    c = calls("abc")
    pair = c["a"] | c["b"]
    assert edges(Flow(pair, pair >> c["c"])) == {"a": "", "b": "", "c": "ab"}


def test_one_call_is_a_flow() -> None:
    assert edges(calls("a")["a"]) == {"a": ""}
    assert edges(Flow([calls("a")["a"]])) == {"a": ""}


def test_putting_together_changes_no_part() -> None:
    c = calls("abc")
    flow = c["a"] >> c["b"]
    assert flow >> c["c"] is not flow
    assert edges(flow) == {"a": "", "b": "a"}


def test_which_come_last() -> None:
    c = calls("abcd")
    plan: Plan = plan_of(c["a"] >> [c["b"], c["c"] >> c["d"]])
    assert [plan.calls[id].args[0] for id in plan.last] == ["b", "d"]


def test_a_cycle_is_refused_with_its_path() -> None:
    c = calls("abc")
    with pytest.raises(DependencyCycle) as caught:
        plan_of(c["a"] >> c["b"] >> c["c"] >> c["a"])
    assert len(caught.value.path) == 4
    assert caught.value.path[0] == caught.value.path[-1]
    assert all(node.startswith("tests.client.test_flow_parts.step (") for node in caught.value.path)


def test_a_call_before_itself_is_a_cycle() -> None:
    a = calls("a")["a"]
    with pytest.raises(DependencyCycle):
        plan_of(a >> a)


@pytest.mark.parametrize("wrong", [step, "step", 3, None, b"x", {"a": 1}])
def test_what_is_no_call_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput, match=r"use task\.call"):
        calls("a")["a"] >> wrong  # type: ignore[operator]


@pytest.mark.parametrize("empty", [[], [[]], Flow(), [Flow(), []]])
def test_an_empty_list_within_a_chain_is_refused(empty: list[Part[Any]]) -> None:
    c = calls("ab")
    with pytest.raises(InvalidInput, match="empty list"):
        plan_of(c["a"] >> empty >> c["b"])


def test_a_flow_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one call"):
        plan_of(Flow())


def test_a_thousand_may_be_waited_for_but_no_more() -> None:
    most = [step.call(str(i)) for i in range(1000)]
    assert max(len(waits) for waits in plan_of(most >> step.call("join")).waits.values()) == 1000
    with pytest.raises(TooLarge, match="1001 tasks; the limit is 1000") as caught:
        plan_of([*most, step.call("more")] >> step.call("join"))
    assert "groups" in caught.value.__notes__[0]


def test_what_several_parts_add_up_to_is_limited_too() -> None:
    join = step.call("join")
    halves = [[step.call(str(i)) for i in range(600)] >> join for _ in range(2)]
    with pytest.raises(TooLarge, match="1200 tasks"):
        plan_of(Flow(*halves))


def test_what_a_call_names_itself_is_waited_for_as_well() -> None:
    a, b = step.call("a"), step.call("b")
    plan = plan_of(a | b, lambda call: [a.id, "elsewhere"] if call is b else [])
    assert list(plan.waits[b.id]) == [a.id]


@pytest.mark.parametrize("scale", [0.2, pytest.param(1.0, marks=pytest.mark.slow)])
def test_long_chains_and_wide_graphs_are_worked_out_quickly(scale: float) -> None:
    long, wide = int(10_000 * scale), int(100_000 * scale)
    began = time.process_time()
    flow: Part[Any] = step.call("0")
    for i in range(long):
        flow = flow >> step.call(str(i))
    assert len(plan_of(flow).calls) == long + 1
    flow = step.call("root") >> [step.call(str(i)) for i in range(wide)]
    assert len(plan_of(flow).calls) == wide + 1
    assert time.process_time() - began < 20 * scale
