"""When calls go into the spool, when they come out of it, and what is left of their times."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.outage import (
    FIRST_PAUSE,
    GOOD_PROBES,
    LONGEST_PAUSE,
    Moment,
    Outage,
    Ramp,
    elapsed,
    remaining,
    worst,
)


def state_of(outage: Outage) -> str:
    """Its state, which mypy takes for what it was before."""
    return outage.state


def spooling(now: float = 1.0) -> Outage:
    outage = Outage()
    outage.failed(now)
    outage.failed(now)
    assert state_of(outage) == "spooling"
    return outage


def test_one_failed_round_makes_a_broker_suspect_and_a_good_one_clears_it() -> None:
    outage = Outage()
    assert outage.failed(1.0)
    assert (state_of(outage), outage.since) == ("suspect", 1.0)
    assert not outage.is_away
    assert outage.succeeded(2.0)
    assert (state_of(outage), outage.since) == ("healthy", 2.0)


def test_two_failed_rounds_in_a_row_lead_into_the_spool() -> None:
    outage = Outage()
    outage.failed(1.0)
    outage.succeeded(1.1)
    outage.failed(1.2)
    assert state_of(outage) == "suspect"
    assert outage.failed(1.3)
    assert state_of(outage) == "spooling"
    assert outage.is_away


def test_silence_leads_into_the_spool_at_once() -> None:
    outage = Outage()
    assert outage.failed(1.0, sure=True)
    assert state_of(outage) == "spooling"


def test_only_good_probes_in_a_row_lead_out_of_it() -> None:
    outage = spooling()
    outage.succeeded(1.5)  # an answer to a call from before
    assert state_of(outage) == "spooling"
    for good in (True, True, False, True, True):
        assert not outage.probed(2.0, good=good)
    assert outage.probed(3.0, good=True)
    assert (state_of(outage), outage.since) == ("draining", 3.0)
    assert outage.drained(4.0)
    assert state_of(outage) == "healthy"


def test_a_drain_outlives_one_failed_round_and_not_two() -> None:
    outage = spooling()
    for _ in range(GOOD_PROBES):
        outage.probed(2.0, good=True)
    assert not outage.failed(3.0)
    assert state_of(outage) == "draining"
    assert outage.failed(3.1)
    assert state_of(outage) == "spooling"


def test_what_is_found_in_a_spool_is_drained() -> None:
    outage = Outage()
    assert outage.found(1.0)
    assert state_of(outage) == "draining"
    away = spooling()
    assert not away.found(2.0)
    assert state_of(away) == "spooling"


def test_each_relapse_doubles_the_pause_and_a_quiet_while_ends_that() -> None:
    outage = spooling(1.0)
    assert (outage.pause(1.0), outage.patience) == (FIRST_PAUSE, 1.0)
    for relapse in range(1, 6):
        for _ in range(GOOD_PROBES):
            outage.probed(float(relapse), good=True)
        outage.failed(float(relapse), sure=True)
        assert outage.pause(1.0) == min(FIRST_PAUSE * 2**relapse, LONGEST_PAUSE)
        assert outage.pause(0.0) == outage.pause(1.0) / 2
        assert outage.patience == min(2**relapse, 4)
    for _ in range(GOOD_PROBES):
        outage.probed(6.0, good=True)
    outage.failed(1000.0, sure=True)
    assert (outage.pause(1.0), outage.patience) == (FIRST_PAUSE, 1.0)


@given(
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=30),
    st.lists(st.floats(0.0, 0.999), min_size=1, max_size=30),
)
def test_a_broker_that_comes_and_goes_causes_no_storm(
    phases: list[float], dice: list[float]
) -> None:
    """Callers try all the time, the broker is up and down by turns: few changes, few probes."""
    ends, total = [], 0.0
    for phase in phases:
        total += phase
        ends.append(total)

    def is_up(now: float) -> bool:
        return sum(end <= now for end in ends) % 2 == 0

    outage, changes, probes, now, turn, next_probe = Outage(), 0, 0, 0.0, 0, 0.0
    while now < total:
        if not outage.is_away:
            if is_up(now):
                changes += outage.succeeded(now) and False
                outage.drained(now)
            else:
                changes += outage.failed(now) and outage.is_away
        elif now >= next_probe:
            turn += 1
            next_probe = now + outage.pause(dice[turn % len(dice)])
            probes += 1
            outage.probed(now, good=is_up(now))
        now += 0.02
    # Each way into the spool needs a phase of its own that was down, and each way out of it the
    # pauses between three probes.
    assert changes <= len(phases) // 2 + 1
    assert probes <= math.ceil(total / (FIRST_PAUSE / 2)) + 1


def test_several_brokers_stand_as_the_worst_of_them() -> None:
    assert worst([]) == "healthy"
    assert worst(["healthy", "suspect"]) == "suspect"
    assert worst(["draining", "suspect"]) == "draining"
    assert worst(["draining", "spooling", "healthy"]) == "spooling"


def test_a_drain_begins_with_a_tenth_and_takes_half_at_most() -> None:
    ramp = Ramp(100.0, 0.5)
    assert ramp.begins == 100.5
    shares = [ramp.share(100.5 + seconds) for seconds in (0.0, 4.9, 5.0, 10.0, 15.0, 1e9)]
    assert shares == [0.1, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert ramp.share(0.0) == 0.1
    assert ramp.wait(100.5, 0.01, 100) == pytest.approx(0.09)
    assert ramp.wait(200.0, 0.01, 100) == pytest.approx(0.01)


def test_a_drain_gives_way_where_others_keep_the_broker_busy() -> None:
    ramp = Ramp(0.0, 0.0)
    quiet = ramp.wait(100.0, 0.01, 100)
    assert ramp.wait(100.0, 0.03, 100) > 5 * quiet  # three times as long, of three times as much
    assert ramp.wait(100.0, 0.01, 100) == pytest.approx(quiet)
    assert ramp.wait(100.0, 0.03, 10) == pytest.approx(3 * quiet)  # few tasks tell little


def test_a_drain_is_slower_as_long_as_calls_are_and_then_as_fast_as_before() -> None:
    ramp = Ramp(0.0, 0.0)
    quiet = ramp.wait(100.0, 0.01, 100)
    slow = [ramp.wait(100.0, 0.01, 100, excess=0.03) for _ in range(30)]
    assert slow[0] > quiet
    assert slow == sorted(slow)
    assert slow[-1] == pytest.approx(0.01 / Ramp.LEAST - 0.01)  # it goes on all the same
    assert ramp.wait(100.0, 0.01, 100, excess=Ramp.EXCESS * 0.7) == pytest.approx(slow[-1])
    again = [ramp.wait(100.0 + n, 0.01, 100, excess=0.001) for n in range(100)]
    assert again == sorted(again, reverse=True)
    assert again[-1] == pytest.approx(quiet)
    assert ramp.wait(300.0, 10.0, 100, excess=10.0) == pytest.approx(10.0)


def test_a_drain_is_soon_below_what_was_too_much_and_careful_beyond_that() -> None:
    ramp = Ramp(0.0, 0.0)
    ramp.wait(100.0, 0.01, 100)
    for _ in range(4):  # batches that were sent until calls were quick again
        ramp.wait(100.0, 0.01, 100, excess=0.03)
    soon = [ramp.wait(100.0, 0.01, 100) for _ in range(30)][-1]
    assert soon == pytest.approx(0.01 / (Ramp.MOST * Ramp.SLOWER) - 0.01)
    shares = [0.01 / (ramp.wait(100.0 + n / 10, 0.01, 100) + 0.01) for n in range(51)]
    assert shares[10] == pytest.approx(shares[0] * Ramp.CAREFUL)  # in a second, of ten batches
    assert shares[30] == pytest.approx(shares[0] * Ramp.CAREFUL**3)
    for _ in range(2):  # it was too much again
        ramp.wait(105.0, 0.01, 100, excess=0.03)
    soon = [ramp.wait(105.0, 0.01, 100) for _ in range(30)][-1]
    assert soon == pytest.approx(0.01 / (shares[50] * Ramp.SLOWER) - 0.01)
    assert ramp.wait(105.0 + 1e6, 0.01, 100) < soon  # however long it was, by a tenth


def test_a_batch_of_a_drain_keeps_the_broker_busy_for_moments_only() -> None:
    ramp = Ramp(0.0, 0.0)
    assert ramp.batch == Ramp.FEW  # nothing is known yet
    ramp.wait(0.0, 0.0005, 100)
    assert ramp.batch == 256
    slow = Ramp(0.0, 0.0)
    slow.wait(0.0, 0.005, 100)
    assert slow.batch == 50
    slow = Ramp(0.0, 0.0)
    slow.wait(0.0, 1.0, 100)
    assert slow.batch == Ramp.FEW


def test_time_counts_by_the_clock_that_nobody_can_set() -> None:
    then = Moment(1_000.0, 50.0, "a")
    assert elapsed(then, Moment(9_000.0, 60.0, "a")) == 10.0
    assert elapsed(then, Moment(500.0, 60.0, "a")) == 10.0
    assert elapsed(then, Moment(1_030.0, 3.0, "b")) == 30.0
    assert elapsed(then, Moment(900.0, 3.0, "b")) == 0.0
    assert elapsed(Moment(1_000.0, 50.0, ""), Moment(1_007.0, 50.0, "")) == 7.0


def test_what_is_left_of_a_delay_and_of_a_deadline() -> None:
    assert remaining(10.0, None, 4.0) == (6.0, None)
    assert remaining(10.0, 20.0, 15.0) == (0.0, 5.0)
    assert remaining(0.0, 20.0, 25.0) == (0.0, 0.0)
