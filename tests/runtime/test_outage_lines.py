"""What is logged while a broker fails: why, and again after pauses that grow."""

from __future__ import annotations

import logging

import pytest

from fairlead.model.errors import Unreachable
from fairlead.runtime.component import Outage


@pytest.mark.parametrize("repeats", [False, True])
def test_a_failure_is_said_with_its_reason_and_repeated_ever_later(
    repeats: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr("fairlead.runtime.component.time.monotonic", lambda: now)
    outage = Outage("worker", repeats=repeats)
    with caplog.at_level(logging.INFO, "fairlead.runtime"):
        said: list[float] = []
        for second in range(60):
            now = 100.0 + second
            before = len(caplog.records)
            outage.failed(Unreachable("could not connect to host:1:\nno"))
            said += [second] * (len(caplog.records) - before)
        outage.over()
    assert said == ([0, 5, 15, 35] if repeats else [0])
    assert caplog.messages[0] == "broker failed: could not connect to host:1: no"
    if repeats:
        assert caplog.messages[1] == "broker still fails: could not connect to host:1: no"
        assert vars(caplog.records[3])["seconds"] == 35.0
    assert caplog.messages[-1] == "broker answers again"
