from __future__ import annotations

import copy
import math
from datetime import timedelta
from typing import Any

import pytest

from fairlead.model.errors import FairleadError, InvalidOption
from fairlead.model.signals import Reject, Retry, Signal, Snooze


def test_signals_are_no_errors_of_fairlead() -> None:
    assert not issubclass(Signal, FairleadError)
    assert issubclass(Signal, Exception)


@pytest.mark.parametrize(
    ("signal", "text", "fields"),
    [
        (Retry(), "the handler asked for a retry", {"delay": None}),
        (Retry(3.0, "busy"), "busy", {"delay": 3.0}),
        (Snooze(90), "the handler asked to run again in 90 s", {"delay": 90.0}),
        (Reject("no"), "no", {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_signal_is_a_sentence_and_carries_the_facts(
    signal: Signal, text: str, fields: dict[str, Any]
) -> None:
    assert str(signal) == text
    assert vars(signal) == fields
    again = copy.copy(signal)  # as pickle makes one
    assert (type(again), str(again), vars(again)) == (type(signal), text, fields)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(0, 0), (1.5, 1.5), ("5m", 300), (timedelta(hours=1), 3_600), (315_360_000, 315_360_000)],
)
def test_a_delay_is_given_like_any_other_duration(delay: Any, seconds: float) -> None:
    for signal in (Retry(delay), Snooze(delay)):
        assert signal.delay == seconds
        assert type(signal.delay) is float


@pytest.mark.parametrize(
    "delay", [-1, math.nan, math.inf, 315_360_001, 10**400, "soon", True, b"5m", [], object()]
)
@pytest.mark.parametrize("signal", [Retry, Snooze])
def test_a_delay_that_is_none_is_refused_where_it_is_given(signal: Any, delay: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^delay=.* is not valid: it must be from 0 to"):
        signal(delay)


def test_a_snooze_has_a_delay() -> None:
    with pytest.raises(InvalidOption, match="delay=None"):
        Snooze(None)  # type: ignore[arg-type]
