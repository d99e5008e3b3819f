"""The circuit breaker of a process, against a model of it that is a handful of lines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead import Breaker, InvalidOption


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    clock = Clock()
    breaker = Breaker(failures=3, cooldown=10, clock=clock)
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert (breaker.state, breaker.admit()) == ("closed", 0.0)
    for _ in range(3):
        breaker.failed()
    assert breaker.state == "open"
    assert breaker.admit() == 10.0
    clock.now += 4
    assert breaker.admit() == 6.0
    breaker.failed()  # of an attempt that began before: it opens no further
    breaker.succeeded()
    breaker.released()
    assert breaker.admit() == 6.0


def test_half_open_it_lets_probes_in_and_closes_or_opens_with_them() -> None:
    clock = Clock()
    breaker = Breaker(failures=1, cooldown=10, probes=2, clock=clock)
    breaker.failed()
    clock.now += 10
    assert breaker.state == "half_open"
    assert [breaker.admit() for _ in range(3)] == [0.0, 0.0, 1.0]
    breaker.released()
    assert breaker.admit() == 0.0
    breaker.succeeded()
    assert breaker.state == "half_open"
    breaker.succeeded()
    assert (breaker.state, breaker.admit()) == ("closed", 0.0)
    breaker.failed()
    clock.now += 10
    assert breaker.admit() == 0.0
    breaker.failed()
    assert (breaker.state, breaker.admit()) == ("open", 10.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failures": 0}, "failures=0"),
        ({"failures": True}, "failures=True"),
        ({"probes": 1.5}, "probes=1.5"),
        ({"cooldown": 0}, "cooldown=0"),
        ({"cooldown": float("nan")}, "cooldown=nan"),
        ({"cooldown": float("inf")}, "cooldown=inf"),
        ({"cooldown": "30s"}, "cooldown='30s'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        Breaker(**options)


FAILURES, COOLDOWN, PROBES = 3, 8.0, 2


class BreakerMachine(RuleBasedStateMachine):
    """Attempts come and go as they like; whoever is let in says how it went, once."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(
            failures=FAILURES, cooldown=COOLDOWN, probes=PROBES, clock=self.clock
        )
        self.running = 0
        self.bad = 0  # failures in a row
        self.opened: float | None = None
        self.probing = self.good = 0

    @property
    def expected(self) -> str:
        if self.opened is None:
            return "closed"
        return "open" if self.clock.now < self.opened + COOLDOWN else "half_open"

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0, 8.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def ask(self) -> None:
        wait = self.breaker.admit()
        if self.expected == "closed":
            assert wait == 0.0
        elif self.expected == "open":
            assert self.opened is not None
            assert wait == self.opened + COOLDOWN - self.clock.now > 0
        elif self.probing + self.good < PROBES:
            assert wait == 0.0
            self.probing += 1
        else:
            assert 0 < wait <= COOLDOWN
        self.running += wait == 0.0

    @precondition(lambda self: self.running > 0)
    @rule(how=st.sampled_from(["succeeded", "failed", "released"]))
    def end(self, how: str) -> None:
        before = self.expected
        getattr(self.breaker, how)()
        self.running -= 1
        if before == "half_open" and how != "failed":
            self.probing = max(0, self.probing - 1)
        if how == "succeeded":
            if before == "closed":
                self.bad = 0
            elif before == "half_open":
                self.good += 1
                if self.good == PROBES:
                    self.opened, self.bad = None, 0
        elif how == "failed" and before != "open":
            self.bad += before == "closed"
            if before == "half_open" or self.bad == FAILURES:
                self.opened = self.clock.now
                self.probing = self.good = 0

    @invariant()
    def agrees(self) -> None:
        assert self.breaker.state == self.expected


TestBreakerMachine = BreakerMachine.TestCase
