"""Which state of a task may follow which, and what others decide about it."""

from __future__ import annotations

from typing import get_args

import pytest

from fairlead.model.lifecycle import (
    CREATION,
    FINAL,
    ORIGINS,
    TRANSITIONS,
    WAITING,
    DependencyPolicy,
    State,
    apply_cancel,
    may_return,
    on_dependency,
)

S = State


def test_every_state_has_its_transitions_and_they_lead_to_states() -> None:
    assert set(TRANSITIONS) == set(ORIGINS) == set(State)
    assert len(State) == 8
    for targets in TRANSITIONS.values():
        assert targets <= set(State)
        assert all(isinstance(target, State) for target in targets)


def test_the_transitions_are_these() -> None:
    assert {state: set(targets) for state, targets in TRANSITIONS.items()} == {
        S.SCHEDULED: {S.QUEUED, S.COMPLETED, S.DEAD, S.CANCELLED},
        S.DEFERRED: {S.SCHEDULED, S.QUEUED, S.COMPLETED, S.DEAD, S.CANCELLED},
        S.QUEUED: {S.RUNNING, S.COMPLETED, S.DEAD, S.CANCELLED},
        S.RUNNING: {S.COMPLETED, S.RETRYING, S.DEAD, S.CANCELLED, S.QUEUED, S.SCHEDULED},
        S.RETRYING: {S.QUEUED, S.COMPLETED, S.DEAD, S.CANCELLED},
        S.COMPLETED: set(),
        S.DEAD: {S.QUEUED, S.DEFERRED},
        S.CANCELLED: {S.DEFERRED},
    }


def test_final_states_are_left_only_by_a_requeue_of_the_dead_and_the_retry_of_a_flow() -> None:
    exits = {(state, target) for state in FINAL for target in TRANSITIONS[state]}
    assert exits == {
        (State.DEAD, State.QUEUED),
        (State.DEAD, State.DEFERRED),
        (State.CANCELLED, State.DEFERRED),
    }


@pytest.mark.parametrize(
    ("state", "reason", "returns"),
    [
        (State.DEAD, "exhausted", True),
        (State.DEAD, "dependency_failed: x", True),
        (State.CANCELLED, "dependency_failed: x", True),
        (State.CANCELLED, "", False),
        (State.CANCELLED, "purged", False),
        (State.COMPLETED, "", False),
        (State.RUNNING, "", False),
    ],
)
def test_a_retry_of_a_flow_takes_back_what_failed(state: State, reason: str, returns: bool) -> None:
    assert may_return(state, reason) is returns


def test_the_origins_are_the_transitions_read_backwards() -> None:
    forward = {(origin, to) for origin, targets in TRANSITIONS.items() for to in targets}
    backward = {(origin, to) for to, origins in ORIGINS.items() for origin in origins}
    assert forward == backward


def test_a_state_is_waiting_or_running_or_final() -> None:
    assert WAITING | FINAL | {State.RUNNING} == set(State)
    assert not WAITING & FINAL
    assert State.RUNNING not in WAITING | FINAL


def test_what_runs_or_waits_may_be_completed_and_only_what_is_queued_runs() -> None:
    assert ORIGINS[State.COMPLETED] == WAITING | {State.RUNNING}
    assert ORIGINS[State.RUNNING] == {State.QUEUED}


def test_every_waiting_task_can_be_cancelled_and_can_die() -> None:
    for state in WAITING | {State.RUNNING}:
        assert {State.CANCELLED, State.DEAD} <= TRANSITIONS[state]


def test_every_state_can_be_reached_and_every_open_one_can_end() -> None:
    reached = set(CREATION)
    while more := {to for state in reached for to in TRANSITIONS[state]} - reached:
        reached |= more
    assert reached == set(State)
    assert all(TRANSITIONS[state] & FINAL for state in State if state not in FINAL)


def test_a_task_is_never_created_running_or_retrying() -> None:
    assert set(State) - CREATION == {State.RUNNING, State.RETRYING}


# What others decide


@pytest.mark.parametrize("to", State)
def test_a_cancelled_task_stays_cancelled_unless_it_was_completed(to: State) -> None:
    assert apply_cancel(to, cancel_requested=False) is to
    expected = State.COMPLETED if to is State.COMPLETED else State.CANCELLED
    assert apply_cancel(to, cancel_requested=True) is expected


ON_DEPENDENCY: dict[State, dict[DependencyPolicy, str]] = {
    S.SCHEDULED: {"dead": "wait", "cancel": "wait", "wait": "wait", "run": "wait"},
    S.DEFERRED: {"dead": "wait", "cancel": "wait", "wait": "wait", "run": "wait"},
    S.QUEUED: {"dead": "wait", "cancel": "wait", "wait": "wait", "run": "wait"},
    S.RUNNING: {"dead": "wait", "cancel": "wait", "wait": "wait", "run": "wait"},
    S.RETRYING: {"dead": "wait", "cancel": "wait", "wait": "wait", "run": "wait"},
    S.COMPLETED: {"dead": "met", "cancel": "met", "wait": "met", "run": "met"},
    S.DEAD: {"dead": S.DEAD, "cancel": S.CANCELLED, "wait": "wait", "run": "met"},
    S.CANCELLED: {"dead": S.DEAD, "cancel": S.CANCELLED, "wait": "wait", "run": "met"},
}


@pytest.mark.parametrize("policy", get_args(DependencyPolicy))
@pytest.mark.parametrize("parent", State)
def test_what_a_parent_means_for_its_child_is_written_here(
    parent: State, policy: DependencyPolicy
) -> None:
    expected = ON_DEPENDENCY[parent][policy]
    found = on_dependency(parent, policy)
    assert found == expected
    assert isinstance(found, State) == isinstance(expected, State)


def test_the_end_of_a_child_is_one_that_a_deferred_or_new_task_may_have() -> None:
    ends = {end for row in ON_DEPENDENCY.values() for end in row.values() if isinstance(end, State)}
    assert ends == {State.DEAD, State.CANCELLED}
    assert ends <= TRANSITIONS[State.DEFERRED] & CREATION
