"""Settings of limiters as an operator says them: durations become seconds, mistakes are named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET

from fairlead import Fairlead, InvalidInput, InvalidOption
from fairlead.broker.requests import LimiterChange
from fairlead.client.limits import limiter_change


@pytest.fixture
async def app() -> AsyncIterator[Fairlead]:
    app = Fairlead("memory://")
    yield app
    await app.aclose()


@pytest.mark.parametrize("cooldown", [90, 90.0, "90s", "1.5m", timedelta(seconds=90)], ids=repr)
def test_a_cooldown_is_a_duration(cooldown: Any) -> None:
    assert limiter_change("api", failures=5, cooldown=cooldown, probes=2) == LimiterChange(
        name="api", failures=5, cooldown=90.0, probes=2
    )


def test_what_is_not_said_of_a_breaker_is_left_as_it_is() -> None:
    change = limiter_change("api", concurrency=3)
    assert (change.failures, change.cooldown, change.probes) == (UNSET, UNSET, UNSET)
    assert limiter_change("api", failures=None).failures is None


BAD: list[tuple[dict[str, Any], str]] = [
    ({"failures": 0}, "failures=0"),
    ({"failures": 2.5}, "failures=2.5"),
    ({"failures": True}, "failures=True"),
    ({"failures": "5"}, "failures='5'"),
    ({"cooldown": 0}, "cooldown=0"),
    ({"cooldown": -1}, "cooldown=-1"),
    ({"cooldown": "soon"}, "cooldown='soon'"),
    ({"cooldown": None}, "cooldown=None"),
    ({"cooldown": "2d"}, "cooldown=172800"),
    ({"probes": 0}, "probes=0"),
    ({"probes": None}, "probes=None"),
    ({"probes": 1.0}, "probes=1.0"),
]


@pytest.mark.parametrize(("settings", "words"), BAD, ids=[words for _, words in BAD])
async def test_a_breaker_that_cannot_be_is_named_and_nothing_changes(
    app: Fairlead, settings: dict[str, Any], words: str
) -> None:
    await app.aconfigure_limiter("api", failures=3)
    with pytest.raises(InvalidOption, match=words):
        await app.aconfigure_limiter("api", concurrency=1, **settings)

    assert (await app.asnapshot()).limiters["api"].state == "closed"


@pytest.mark.parametrize("what", ["queue", "tenant"])
@pytest.mark.parametrize("option", ["failures", "cooldown", "probes"])
async def test_only_limiters_have_breakers(app: Fairlead, what: str, option: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{option}' is no option of a {what}"):
        await getattr(app, f"aconfigure_{what}")("name", **{option: 1})


async def test_a_breaker_is_set_and_taken_away_by_the_app(app: Fairlead) -> None:
    await app.aconfigure_limiter("api", failures=5, cooldown="30s", probes=1)
    assert (await app.asnapshot()).limiters["api"].state == "closed"
    await app.aconfigure_limiter("api", failures=None)
    assert (await app.asnapshot()).limiters == {}
