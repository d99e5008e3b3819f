"""``fairlead limiter``: what limiters allow, and their breakers."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fairlead import Fairlead
from tests.cli.conftest import Operator


def test_without_limiters_it_says_how_to_make_one(app: Fairlead, operator: Operator) -> None:
    answer = operator("limiter", "list")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "fairlead limiter set" in answer.stderr


def test_what_was_set_can_be_read_back(app: Fairlead, operator: Operator) -> None:
    assert operator("limiter", "set", "smtp", "--rate", "300/m", "--burst", "2").returncode == 0
    assert operator("limiter", "set", "smtp", "--concurrency", "7").stderr == (
        "limiter smtp is set\n"
    )
    answer = operator("limiter", "list")
    assert answer.stdout.splitlines()[1].split() == ["smtp", "7", "5", "2", "0", "0", "-"]
    report = json.loads(operator("limiter", "show", "smtp", "--json").stdout)
    assert (report["rate"], report["concurrency"], report["breaker"]) == (5.0, 7, "none")
    assert operator("limiter", "set", "smtp", "--rate", "none").returncode == 0
    shown = operator("limiter", "show", "smtp").stdout.splitlines()
    assert ["rate", "none"] in [line.split() for line in shown]


def test_an_unknown_limiter_is_answered_with_the_closest(app: Fairlead, operator: Operator) -> None:
    operator("limiter", "set", "smtp", "--rate", "5")
    for args in (("show", "smpt"), ("close", "smpt"), ("set", "smpt", "--rate", "5")):
        answer = operator("limiter", *args)
        assert answer.returncode == 2
        assert "did you mean smtp?" in answer.stderr


def test_an_open_breaker_is_closed_by_hand(
    app: Fairlead, operator: Operator, work_off: Callable[[], int]
) -> None:
    operator("limiter", "set", "bank", "--failures", "1", "--cooldown", "1h")

    @app.task(name="pay", limiters=["bank"], max_retries=0)
    async def pay() -> None:
        raise ConnectionError("the bank is closed")

    pay.enqueue()
    work_off()

    def breaker() -> object:
        return json.loads(operator("limiter", "show", "bank", "--json").stdout)["breaker"]

    assert breaker() == "open"
    assert "open until" in operator("limiter", "show", "bank").stdout
    answer = operator("limiter", "close", "bank")
    assert (answer.returncode, breaker()) == (0, "closed")


def test_a_limiter_without_a_breaker_has_none_to_close(app: Fairlead, operator: Operator) -> None:
    operator("limiter", "set", "smtp", "--rate", "5")
    answer = operator("limiter", "close", "smtp")
    assert answer.returncode == 1
    assert "has no breaker (next: " in answer.stderr


@pytest.mark.parametrize("value", ["x", "5/w"])
def test_a_wrong_rate_is_named(app: Fairlead, operator: Operator, value: str) -> None:
    answer = operator("limiter", "set", "smtp", "--rate", value)
    assert answer.returncode == 2
    assert value in answer.stderr
