"""What follows an attempt: another one, or the end."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.lifecycle import (
    FINAL,
    TRANSITIONS,
    DeadReason,
    Settlement,
    State,
    apply_cancel,
)
from fairlead.model.message import ErrorInfo, Leased, Message, run_flags, run_limits
from fairlead.model.retries import (
    ALONE,
    CRASH_LIMIT,
    Cancelled,
    Crashed,
    Failed,
    Outcome,
    Released,
    Succeeded,
    Unroutable,
    after_crash,
    crashes_after,
    settle,
)
from fairlead.model.signals import Reject, Retry, Snooze

S = State
INFO = ErrorInfo("ValueError", "no")
MESSAGE = Message(id="acme:x", queue="mail", tenant="acme", body=b"b")
STEADY = Backoff(initial=2, factor=3, max=100, jitter="none")

seconds = st.floats(0, 1e6)
dice = st.floats(0, 1, exclude_max=True)
signals: st.SearchStrategy[BaseException] = st.one_of(
    st.builds(Retry, st.none() | seconds),
    st.builds(Snooze, seconds),
    st.builds(Reject, st.just("no")),
)
errors: st.SearchStrategy[BaseException] = st.sampled_from(
    [ValueError("a"), ConnectionResetError(), TimeoutError(), KeyError(), KeyboardInterrupt()]
)
failures = st.builds(Failed, signals | errors, st.just(INFO))
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, st.none() | st.binary(max_size=10)),
    failures,
    st.just(Released()),
    st.just(Cancelled()),
    st.builds(Unroutable, st.just(INFO)),
    st.builds(Crashed, st.just(INFO)),
)
backoffs = st.builds(Backoff, initial=seconds, max=seconds)
policies = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, 20),
    backoff=backoffs,
    give_up_on=st.sampled_from([(), (ValueError,), (OSError,)]),
    per_exception=st.just(()) | backoffs.map(lambda backoff: ((TimeoutError, backoff),)),
)
leases = st.builds(
    Leased,
    message=st.just(MESSAGE),
    token=st.integers(1, 2**63),
    attempt=st.integers(1, 30),
    crashes=st.integers(0, 3),
    unroutable=st.integers(0, 400),
)


def lease(attempt: int = 1, unroutable: int = 0, crashes: int = 0) -> Leased:
    return Leased(message=MESSAGE, token=7, attempt=attempt, unroutable=unroutable, crashes=crashes)


def after(
    outcome: Outcome | BaseException,
    *,
    attempt: int = 1,
    unroutable: int = 0,
    crashes: int = 0,
    dice: float = 0.5,
    keep: float | None = None,
    **policy: Any,
) -> Settlement:
    if isinstance(outcome, BaseException):
        outcome = Failed(outcome, INFO)
    return settle(
        lease(attempt, unroutable, crashes),
        outcome,
        RetryPolicy(**{"backoff": STEADY} | policy),
        dice=dice,
        run_time=1.5,
        keep=keep,
    )


@given(leases, outcomes, policies, dice, seconds, st.none() | seconds)
def test_whatever_happened_the_move_is_a_legal_one_out_of_running(
    lease: Leased,
    outcome: Outcome,
    policy: RetryPolicy,
    dice: float,
    run_time: float,
    keep: float | None,
) -> None:
    move = settle(lease, outcome, policy, dice=dice, run_time=run_time, keep=keep)
    assert move.to in TRANSITIONS[State.RUNNING]
    assert (move.id, move.token, move.run_time) == (MESSAGE.id, lease.token, run_time)
    assert move.delay >= 0
    assert move.delay == 0 or move.to in (State.SCHEDULED, State.RETRYING)
    assert (move.result is not None) <= (move.to is State.COMPLETED)
    assert move.keep == (keep if move.to is State.COMPLETED else None)
    assert (move.to is State.DEAD) == (move.reason in get_args(DeadReason)) or (
        move.to is State.RETRYING and move.reason in ("unroutable", "crashed")
    )
    assert (move.error is not None) == (
        move.to in (State.DEAD, State.RETRYING)
    )  # the last error is kept where somebody may look for it


@given(leases, outcomes, policies, dice)
def test_an_attempt_is_burnt_only_by_what_the_handler_did_with_it(
    lease: Leased, outcome: Outcome, policy: RetryPolicy, dice: float
) -> None:
    move = settle(lease, outcome, policy, dice=dice)
    free = isinstance(outcome, Released | Unroutable) or (
        isinstance(outcome, Failed) and isinstance(outcome.error, Snooze)
    )
    assert move.burn is not free


@given(failures, policies, st.integers(1, 30), dice)
def test_a_task_is_never_tried_more_often_than_its_policy_allows(
    failure: Failed, policy: RetryPolicy, attempt: int, dice: float
) -> None:
    move = settle(lease(attempt), failure, policy, dice=dice)
    if attempt > policy.max_retries and not isinstance(failure.error, Snooze):
        assert move.to is State.DEAD
    if move.to is State.RETRYING:
        assert attempt <= policy.max_retries


def test_success_completes_with_the_result_and_its_retention() -> None:
    move = after(Succeeded(b"r"), keep=60)
    assert move == Settlement(
        id="acme:x", token=7, to=State.COMPLETED, result=b"r", run_time=1.5, keep=60
    )
    assert after(Succeeded()).result is None


def test_the_last_attempt_may_still_succeed() -> None:
    assert after(Succeeded(), attempt=6, max_retries=5).to is State.COMPLETED


def test_a_failure_is_retried_after_the_backoff_of_its_attempt() -> None:
    moves = [after(ValueError(), attempt=attempt) for attempt in (1, 2, 3, 4, 5)]
    assert [move.to for move in moves] == [State.RETRYING] * 5
    assert [move.delay for move in moves] == [2, 6, 18, 54, 100]
    assert all(move.error == INFO and move.burn and move.reason == "" for move in moves)


@pytest.mark.parametrize("most", [0, 1, 2, 5])
@pytest.mark.parametrize("error", [ValueError(), Retry(), Retry(3)], ids=repr)
def test_the_attempt_after_the_last_retry_is_the_last(most: int, error: BaseException) -> None:
    for attempt in range(1, most + 1):
        assert after(error, attempt=attempt, max_retries=most).to is State.RETRYING
    move = after(error, attempt=most + 1, max_retries=most, keep=60)
    assert move.to is State.DEAD
    assert (move.reason, move.error, move.burn) == ("exhausted", INFO, True)
    assert (move.delay, move.keep) == (0, None)


def test_a_backoff_of_its_own_is_used_for_an_error_that_has_one() -> None:
    special = ((OSError, Backoff(initial=40, jitter="none")),)
    assert after(ConnectionError(), per_exception=special).delay == 40
    assert after(ValueError(), per_exception=special).delay == 2


def test_the_dice_decide_the_jitter() -> None:
    backoff = Backoff(initial=10, jitter="full")
    assert after(ValueError(), dice=0.25, backoff=backoff).delay == 2.5
    assert after(ValueError(), dice=0.75, backoff=backoff).delay == 7.5


def test_a_retry_without_a_delay_waits_for_the_backoff() -> None:
    assert after(Retry(), attempt=2).delay == 6
    assert after(Retry(None), attempt=2).to is State.RETRYING


@pytest.mark.parametrize("delay", [0, 0.5, 3_600])
def test_a_retry_with_a_delay_waits_for_just_that(delay: float) -> None:
    move = after(Retry(delay), attempt=3)
    assert (move.to, move.delay, move.burn) == (State.RETRYING, delay, True)


def test_a_retry_is_granted_whatever_the_policy_retries_on() -> None:
    assert after(Retry(), retry_on=()).to is State.RETRYING
    assert after(Retry(1), give_up_on=(Exception,)).to is State.RETRYING


@given(leases, policies, seconds, dice)
def test_a_snooze_burns_nothing_ever(
    lease: Leased, policy: RetryPolicy, delay: float, dice: float
) -> None:
    move = settle(lease, Failed(Snooze(delay), INFO), policy, dice=dice)
    assert (move.to, move.delay, move.burn) == (State.SCHEDULED, delay, False)
    assert (move.reason, move.error) == ("snoozed", None)


@given(st.integers(1, 30), policies)
def test_a_reject_is_the_end_at_once(attempt: int, policy: RetryPolicy) -> None:
    move = settle(lease(attempt), Failed(Reject("no"), INFO), policy, dice=0)
    assert (move.to, move.reason, move.error) == (State.DEAD, "rejected", INFO)
    assert move.burn


def test_an_error_that_is_given_up_on_is_the_end_at_once() -> None:
    move = after(UnicodeError(), give_up_on=(ValueError,))
    assert (move.to, move.reason, move.error, move.burn) == (State.DEAD, "rejected", INFO, True)
    assert after(KeyError(), give_up_on=(ValueError,)).to is State.RETRYING


def test_an_error_that_is_given_up_on_at_the_last_attempt_was_rejected_all_the_same() -> None:
    move = after(UnicodeError(), attempt=6, max_retries=5, give_up_on=(ValueError,))
    assert (move.to, move.reason) == (State.DEAD, "rejected")
    assert after(KeyError(), attempt=1, max_retries=0, retry_on=(OSError,)).reason == "rejected"
    assert after(KeyError(), attempt=6, max_retries=5, give_up_on=(ValueError,)).reason == (
        "exhausted"
    )


def test_an_error_that_is_not_retried_on_is_the_end_at_once() -> None:
    assert after(KeyError(), retry_on=(OSError,)).reason == "rejected"
    assert after(KeyboardInterrupt()).to is State.DEAD


def test_a_released_task_goes_back_to_its_queue_untouched() -> None:
    move = after(Released(), attempt=99, keep=60)
    assert move == Settlement(
        id="acme:x", token=7, to=State.QUEUED, burn=False, reason="released", run_time=1.5
    )


def test_what_is_released_for_a_while_is_scheduled_and_uses_up_no_attempt() -> None:
    move = after(Released(delay=4.0), attempt=99, dice=0.5)
    assert (move.to, move.burn, move.delay) == (State.SCHEDULED, False, 5.0)


def test_a_cancelled_attempt_is_a_cancelled_task() -> None:
    move = after(Cancelled(), keep=60)
    assert (move.to, move.burn, move.keep) == (State.CANCELLED, True, None)


def test_an_unroutable_task_comes_back_after_five_seconds_doubling_to_five_minutes() -> None:
    moves = [after(Unroutable(INFO), unroutable=n, attempt=99) for n in range(9)]
    assert [move.delay for move in moves] == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    for move in moves:
        assert (move.to, move.burn) == (State.RETRYING, False)
        assert (move.reason, move.error) == ("unroutable", INFO)


def test_an_unroutable_task_is_dead_after_about_a_day() -> None:
    waited, handed_back = 0.0, 0
    while (move := after(Unroutable(INFO), unroutable=handed_back)).to is State.RETRYING:
        waited += move.delay
        handed_back += 1
    assert 23.5 * 3_600 <= waited <= 24.5 * 3_600
    assert (move.to, move.reason, move.error) == (State.DEAD, "unroutable", INFO)
    assert not move.burn


@given(st.integers(0, 10**6), dice, policies)
def test_the_backoff_of_an_unroutable_task_is_neither_thrown_nor_the_handlers(
    handed_back: int, dice: float, policy: RetryPolicy
) -> None:
    outcome = Unroutable(INFO)
    move = settle(lease(unroutable=handed_back), outcome, policy, dice=dice)
    assert move == settle(lease(unroutable=handed_back), outcome, RetryPolicy(), dice=0)


def test_a_crash_is_retried_after_the_default_backoff_of_its_attempt() -> None:
    special = ((Exception, Backoff(initial=40, jitter="none")),)
    moves = [after(Crashed(INFO), attempt=n, per_exception=special) for n in (1, 2, 3)]
    assert [move.delay for move in moves] == [2, 6, 18]
    for move in moves:
        assert (move.to, move.reason, move.error) == (State.RETRYING, "crashed", INFO)
        assert move.burn


def test_a_crash_at_the_last_attempt_is_the_end() -> None:
    assert after(Crashed(INFO), attempt=5, max_retries=5).to is State.RETRYING
    move = after(Crashed(INFO), attempt=6, max_retries=5)
    assert (move.to, move.reason, move.error, move.burn) == (State.DEAD, "exhausted", INFO, True)


@pytest.mark.parametrize("attempt", [1, 3, 99])
def test_the_third_crash_in_a_row_is_poison_whatever_the_attempt(attempt: int) -> None:
    for crashes in range(CRASH_LIMIT - 1):
        assert after(Crashed(INFO), attempt=attempt, crashes=crashes).reason != "poison"
    for crashes in (CRASH_LIMIT - 1, CRASH_LIMIT):
        move = after(Crashed(INFO), attempt=attempt, crashes=crashes)
        assert (move.to, move.reason, move.error) == (State.DEAD, "poison", INFO)
        assert move.burn


def test_a_crash_is_retried_whatever_errors_the_policy_gives_up_on() -> None:
    assert after(Crashed(INFO), retry_on=(), give_up_on=(BaseException,)).to is State.RETRYING


@given(leases, outcomes, policies, dice)
def test_an_overruled_move_is_a_legal_one_too(
    lease: Leased, outcome: Outcome, policy: RetryPolicy, dice: float
) -> None:
    to = apply_cancel(settle(lease, outcome, policy, dice=dice).to, cancel_requested=True)
    assert to in TRANSITIONS[State.RUNNING]
    assert to in FINAL


@pytest.mark.parametrize(
    ("crashes", "expected"),
    [(1, S.QUEUED), (2, S.QUEUED), (3, S.DEAD), (4, S.DEAD), (100, S.DEAD)],
)
def test_the_third_crash_in_a_row_is_the_last(crashes: int, expected: State) -> None:
    assert CRASH_LIMIT == 3
    reason = "poison" if expected is State.DEAD else ""
    assert after_crash(crashes, 1, 0, cancel_requested=False) == (expected, reason)
    assert after_crash(crashes, 1, 0, cancel_requested=True) == (State.CANCELLED, "")
    assert expected in TRANSITIONS[State.RUNNING]


@pytest.mark.parametrize("max_retries", [0, 1, 7, 1000])
def test_a_crash_uses_up_an_attempt_of_those_that_the_message_allows(max_retries: int) -> None:
    flags = run_flags(max_retries, None)
    assert run_limits(flags) == (max_retries + 1, None)
    last = after_crash(1, max_retries + 1, flags, cancel_requested=False)
    assert last == (State.DEAD, "exhausted")
    if max_retries:
        assert after_crash(1, max_retries, flags, cancel_requested=False) == (State.QUEUED, "")
        assert after_crash(3, 1, flags, cancel_requested=False) == (State.DEAD, "poison")


@pytest.mark.parametrize("max_crashes", [0, 1, 5, 100])
def test_a_limit_of_crashes_is_asked_instead(max_crashes: int) -> None:
    flags = run_flags(0, max_crashes)
    assert run_limits(flags) == (1, max_crashes)
    end = after_crash(max_crashes + 1, 99, flags, cancel_requested=False)
    assert end == (State.DEAD, "poison")
    if max_crashes:
        assert after_crash(max_crashes, 99, flags, cancel_requested=False) == (State.QUEUED, "")


def test_a_task_that_blocked_the_loop_runs_alone_from_now_on() -> None:
    assert [crashes_after(n, blocked=True) for n in range(4)] == [ALONE, ALONE, 3, 4]
    assert [crashes_after(n, blocked=False) for n in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("flags", "max_retries", "run_time", "to"),
    [
        (0, 0, 1.0, State.DEAD),
        (0, 0, 0.0, State.QUEUED),  # it had not begun
        (0, 1, 1.0, State.QUEUED),
        (run_flags(0, None), 5, 1.0, State.DEAD),  # as it was when it was enqueued
        (run_flags(3, None), 0, 1.0, State.QUEUED),
        (run_flags(0, 2), 0, 1.0, State.QUEUED),  # it may survive crashes
    ],
)
def test_what_may_begin_only_once_is_not_handed_back_after_it_has_begun(
    flags: int, max_retries: int, run_time: float, to: State
) -> None:
    message = Message(id="t", queue="default", tenant="a", body=b"", flags=flags)
    lease = Leased(message=message, token=1, attempt=1)
    policy = RetryPolicy(max_retries=max_retries)
    found = settle(lease, Released(), policy, dice=0.0, run_time=run_time)
    assert (found.to, found.burn) == (to, to is State.DEAD)
    assert found.reason == ("exhausted" if to is State.DEAD else "released")
    assert (found.error is not None) is (to is State.DEAD)
