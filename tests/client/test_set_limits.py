"""What was set can be read again, in the words in which it was set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import Fairlead
from fairlead.model.errors import InvalidName, InvalidOption
from tests.support.servers import shared


@pytest.fixture(params=["memory", "valkey"])
def app(request: pytest.FixtureRequest) -> Iterator[Fairlead]:
    if request.param == "memory":
        yield Fairlead("memory://")
    else:
        with shared() as running, Fairlead(running.url) as made:
            yield made


def test_a_queue_has_all_that_is_in_force_and_takes_it_again(app: Fairlead) -> None:
    app.configure_queue("mail", rate="300/m", keep_completed="2h", max_waiting=5)
    found = app.queue_settings("mail")
    assert (found["rate"], found["keep_completed"], found["max_waiting"]) == (5.0, 7200.0, 5)
    assert found["keep_dead"] == 7 * 86_400.0  # the default
    app.configure_queue("copy", **found)
    assert app.queue_settings("copy") == found


def test_a_tenant_has_what_was_set_in_one_queue_or_for_all(app: Fairlead) -> None:
    assert app.tenant_settings("acme") == {}
    app.configure_tenant("acme", weight=3, rate="1800/h")
    app.configure_tenant("acme", queue="mail", concurrency=2)
    found = app.tenant_settings("acme")
    assert (found["weight"], found["rate"]) == (3.0, 0.5)
    assert app.tenant_settings("acme", queue="mail")["concurrency"] == 2
    assert app.tenant_settings("acme", queue="other") == {}


def test_a_limiter_has_what_was_set(app: Fairlead) -> None:
    assert app.limiter_settings("smtp") == {}
    app.configure_limiter("smtp", rate="5/s", burst=3)
    found = app.limiter_settings("smtp")
    assert (found["rate"], found["burst"]) == (5.0, 3)
    app.configure_limiter("other", **found)
    assert app.limiter_settings("other") == found


def test_a_rate_that_is_none_is_refused_with_what_to_write(app: Fairlead) -> None:
    with pytest.raises(InvalidOption, match="300/m"):
        app.configure_limiter("smtp", rate="5/d")
    with pytest.raises(InvalidName):
        app.queue_settings("a b")
