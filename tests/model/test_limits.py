from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.errors import InvalidOption
from fairlead.model.limits import (
    NO_BREAKER,
    PRECISION,
    UNLIMITED,
    Breaker,
    Circuit,
    Limit,
    counted,
    room_at,
)

START = 1_763_230_000.25  # a unix time, with the rounding that comes with it

rates = st.floats(0.01, 10_000)
bursts = st.integers(1, 50)
gaps = st.floats(0, 1) | st.sampled_from([0.0, 0.0, 0.0, 1e-7, 1e-6, 0.001, 100.0])


class Gate:
    """A rate limit as a broker keeps it: two numbers, asked and counted."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self.since, self.gone = 0.0, 0
        self.passed: list[float] = []

    @property
    def room(self) -> float:
        return room_at(self.since, self.gone, self.rate, self.burst)

    def attempt(self, now: float) -> bool:
        if self.room > now + PRECISION:
            return False
        self.since, self.gone = counted(self.since, self.gone, now, self.rate)
        self.passed.append(now)
        return True


def test_no_limit_is_the_default() -> None:
    assert Limit() == UNLIMITED
    assert (UNLIMITED.concurrency, UNLIMITED.rate, UNLIMITED.burst) == (None, None, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrency": 0},
        {"concurrency": 1_000_000},
        {"rate": 1e-9},
        {"rate": 1_000_000},
        {"rate": 1_000_000.0, "burst": 1_000_000},
        {"burst": 1},
    ],
    ids=str,
)
def test_the_bounds_themselves_are_allowed(fields: dict[str, Any]) -> None:
    limit = Limit(**fields)
    assert {name: getattr(limit, name) for name in fields} == fields
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(limit), type=Limit) == limit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", -1),
        ("concurrency", 1_000_001),
        ("rate", 0),
        ("rate", -1.0),
        ("rate", math.nan),
        ("rate", math.inf),
        ("rate", 1_000_000.5),
        ("burst", 0),
        ("burst", -1),
        ("burst", 1_000_001),
        ("burst", math.nan),
    ],
)
def test_what_lies_beyond_is_refused_by_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        Limit(**{field: value})
    assert caught.value.option == field
    assert str(caught.value).startswith(f"{field}={value!r} is not valid: it must be ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", "x"),
        ("concurrency", 1.5),
        ("concurrency", True),
        ("rate", "5"),
        ("rate", True),
        ("rate", 10**400),
        ("rate", 10**5_000),
        ("rate", 5j),
        ("concurrency", 10**5_000),
        ("concurrency", math.nan),
        ("burst", 10**5_000),
        ("burst", "5"),
        ("burst", True),
        ("burst", 1.5),
        ("burst", None),
    ],
    ids=lambda value: "huge" if type(value) is int else repr(value)[:8],
)
def test_values_of_another_type_are_refused_by_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=field):
        Limit(**{field: value})


def test_a_burst_goes_at_once_and_then_one_every_interval() -> None:
    gate = Gate(rate=4, burst=3)
    assert [gate.attempt(START) for _ in range(5)] == [True, True, True, False, False]
    for step in range(1, 20):
        assert gate.room == START + step / 4
        assert not gate.attempt(START + step / 4 - 0.001)
        assert gate.attempt(START + step / 4)


def test_a_burst_is_there_again_after_a_rest() -> None:
    gate = Gate(rate=4, burst=3)
    for now in (START, START + 0.75, START + 1_000):
        assert [gate.attempt(now) for _ in range(4)] == [True, True, True, False]


def test_a_short_rest_gives_back_a_part_of_the_burst() -> None:
    gate = Gate(rate=4, burst=3)
    assert all(gate.attempt(START) for _ in range(3))
    assert [gate.attempt(START + 0.5) for _ in range(3)] == [True, True, False]


def test_a_fresh_limit_has_room_at_once() -> None:
    assert room_at(0.0, 0, 0.001, 1) <= START
    assert counted(0.0, 0, START, 0.001) == (START, 1)


@given(rates, bursts, st.lists(gaps, max_size=120))
def test_never_more_than_burst_and_rate_pass_in_any_window(
    rate: float, burst: int, steps: list[float]
) -> None:
    gate = Gate(rate, burst)
    now = START
    for step in steps:
        now += step
        gate.attempt(now)
    for first, begin in enumerate(gate.passed):
        for last in range(first, len(gate.passed)):
            elapsed = gate.passed[last] - begin
            allowed = burst + rate * (elapsed + 2 * PRECISION) + 1e-6
            assert last - first + 1 <= allowed + (1 if rate * PRECISION > 0.001 else 0)


@given(rates, bursts, st.lists(gaps, max_size=60))
def test_one_passes_exactly_when_room_at_says_and_not_before(
    rate: float, burst: int, steps: list[float]
) -> None:
    gate = Gate(rate, burst)
    now = START
    for step in steps:
        now += step
        if not gate.attempt(now):
            at = gate.room
            assert now < at <= now + burst / rate + 1 / rate + PRECISION
            early = at - max(2 * PRECISION, 0.01 / rate)
            assert early <= now or not gate.attempt(early)
            assert gate.attempt(at)
            now = at


@given(rates, st.integers(2, 50), st.integers(2, 150))
def test_a_crowd_that_never_rests_is_spaced_exactly(rate: float, burst: int, count: int) -> None:
    gate = Gate(rate, burst)
    now = START
    while len(gate.passed) < count:
        if not gate.attempt(now):
            now = gate.room
    expected = [START + max(0, n - burst + 1) / rate for n in range(count)]
    assert gate.passed == pytest.approx(expected, rel=0, abs=2 * PRECISION)


def test_one_that_is_just_in_time_by_a_coarser_clock_is_in_time() -> None:
    gate = Gate(rate=3, burst=1)
    for step in range(20_000):
        assert gate.attempt(round(START + step / 3, 6))
    assert (gate.since, gate.gone) == (START, 20_000)


@pytest.mark.parametrize(
    "burst",
    [
        1,
        2,
        10,
    ],
)
def test_the_rounding_of_many_steps_does_not_add_up(burst: int) -> None:
    gate = Gate(rate=3, burst=burst)
    now = START
    for _ in range(20_000):
        now = max(now, gate.room)
        assert gate.attempt(now)
    assert gate.passed[-1] - START == pytest.approx((20_000 - burst) / 3, abs=2 * PRECISION)


@given(rates, bursts, st.lists(gaps, max_size=60))
def test_counting_never_moves_the_moment_of_room_backwards(
    rate: float, burst: int, steps: list[float]
) -> None:
    gate = Gate(rate, burst)
    now, last = START, -math.inf
    for step in steps:
        now += step
        if gate.attempt(now):
            assert gate.room >= last - PRECISION
            assert gate.gone >= 1
            last = gate.room


# -- breakers ---------------------------------------------------------------------------------


def test_no_breaker_is_the_default() -> None:
    assert Breaker() == NO_BREAKER
    assert (NO_BREAKER.failures, NO_BREAKER.cooldown, NO_BREAKER.probes) == (None, 30.0, 1)
    assert Circuit().state(NO_BREAKER, START) == ""
    assert Circuit().state(Breaker(failures=1), START) == "closed"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"failures": 0}, "failures=0"),
        ({"failures": -1}, "failures=-1"),
        ({"failures": 1.5}, "failures=1.5"),
        ({"failures": True}, "failures=True"),
        ({"failures": "5"}, "failures='5'"),
        ({"failures": 1_000_001}, "failures=1000001"),
        ({"cooldown": 0}, "cooldown=0"),
        ({"cooldown": -1.0}, "cooldown=-1"),
        ({"cooldown": math.nan}, "cooldown=nan"),
        ({"cooldown": math.inf}, "cooldown=inf"),
        ({"cooldown": 86_401}, "cooldown=86401"),
        ({"cooldown": "30s"}, "cooldown='30s'"),
        ({"cooldown": None}, "cooldown=None"),
        ({"probes": 0}, "probes=0"),
        ({"probes": None}, "probes=None"),
        ({"probes": True}, "probes=True"),
    ],
)
def test_what_no_breaker_can_be_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Breaker(**fields)
    assert words in str(caught.value)


class Service:
    """A breaker as a broker keeps it, beside an account of it that is written out at length."""

    def __init__(self, breaker: Breaker) -> None:
        self.breaker, self.circuit = breaker, Circuit()
        self.now, self.token = START, 0
        self.running: dict[int, bool] = {}  # token -> whether it was lent since the last opening
        self.row = 0  # failures in a row that count
        self.opened_at: float | None = None

    @property
    def half_open(self) -> bool:
        return self.opened_at is not None and self.now >= self.opened_at + self.breaker.cooldown

    def lend(self) -> None:
        probes = sum(self.running.values())
        allowed = self.opened_at is None or (self.half_open and probes < self.breaker.probes)
        until = self.circuit.closed_until(self.breaker, self.now)
        assert (until is None) == allowed
        if until is not None and until != math.inf:
            assert self.opened_at is not None
            assert until == self.opened_at + self.breaker.cooldown > self.now
        if allowed:
            self.token += 1
            self.running[self.token] = True
            self.circuit = self.circuit.lent()

    def settle(self, which: int, well: bool | None) -> None:
        if not self.running:
            return
        token = sorted(self.running)[which % len(self.running)]
        counts = self.running.pop(token)
        self.circuit = self.circuit.after(
            well, token, self.breaker, now=self.now, last_token=self.token
        )
        if not counts or well is None:
            return
        self.row = 0 if well else self.row + 1
        assert self.breaker.failures is not None
        if well:
            self.opened_at = None
        elif self.opened_at is not None or self.row >= self.breaker.failures:
            self.opened_at = self.now
            self.running = dict.fromkeys(self.running, False)

    def compare(self) -> None:
        probes = sum(self.running.values()) if self.opened_at is not None else 0
        assert (self.circuit.failed, self.circuit.opened_at) == (self.row, self.opened_at)
        assert self.circuit.probing == probes
        state = "closed" if self.opened_at is None else "half_open" if self.half_open else "open"
        assert self.circuit.state(self.breaker, self.now) == state
        until = self.circuit.open_until(self.breaker, self.now)
        assert (until is not None) == (state == "open")


steps = st.one_of(
    st.just(("lend",)),
    st.tuples(st.just("settle"), st.integers(0, 99), st.sampled_from([True, False, False, None])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])),
)


@given(
    st.builds(
        Breaker,
        failures=st.integers(1, 4),
        cooldown=st.sampled_from([1.0, 2.5]),
        probes=st.integers(1, 3),
    ),
    st.lists(steps, max_size=60),
)
def test_a_breaker_does_what_its_account_says(
    breaker: Breaker, steps: list[tuple[Any, ...]]
) -> None:
    service = Service(breaker)
    for step in steps:
        if step[0] == "lend":
            service.lend()
        elif step[0] == "settle":
            service.settle(step[1], step[2])
        else:
            service.now += step[1]
        service.compare()


@given(st.integers(0, 9), st.none() | st.floats(1, 1e9), st.integers(0, 99), st.integers(0, 9))
def test_without_a_breaker_nothing_is_remembered(
    failed: int, opened_at: float | None, last_token: int, probing: int
) -> None:
    circuit = Circuit(failed=failed, opened_at=opened_at, last_token=last_token, probing=probing)
    assert circuit.under(NO_BREAKER, now=START, last_token=7) == Circuit()
    assert Circuit().after(False, 9, NO_BREAKER, now=START, last_token=9) == Circuit()


def test_other_settings_hold_for_the_present_state() -> None:
    closed = Circuit(failed=3)
    assert closed.under(Breaker(failures=4), now=START, last_token=7) == closed
    opened = closed.under(Breaker(failures=3), now=START, last_token=7)
    assert opened == Circuit(failed=3, opened_at=START, last_token=7)
    assert opened.under(Breaker(failures=9), now=START + 1, last_token=8) == opened
    assert opened.closed_until(Breaker(failures=9, cooldown=5), START + 1) == START + 5
    assert opened.closed_until(Breaker(failures=9, cooldown=1), START + 1) is None
