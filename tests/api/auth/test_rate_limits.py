"""How often callers may ask."""

from __future__ import annotations

import pytest

from fairlead.api.auth.rate_limits import Buckets
from tests.api.app import Api, problem

TASKS = "/api/v1/tasks"


async def test_a_token_has_a_rate() -> None:
    api = Api()
    async with api.caller(await api.token(rate=0.5)) as client:
        for _ in range(10):
            assert (await client.get(TASKS)).status_code == 200
        answer = await client.get(TASKS)
        body = problem(answer, 429, "too-many-requests")
        assert body["field"] == "token"
        assert 0 < body["retry_after"] <= 2
        assert answer.headers["retry-after"] in ("1", "2")
    async with api.caller(await api.token()) as client:
        assert (await client.get(TASKS)).status_code == 200
    await api.server.service.close()


async def test_the_tokens_of_a_tenant_share_a_rate() -> None:
    api = Api(tenant_rate=0.5)
    for _ in range(2):
        async with api.caller(await api.token(tenant="acme")) as client:
            for _ in range(5):
                assert (await client.get(TASKS)).status_code == 200
    async with api.caller(await api.token(tenant="acme")) as client:
        assert problem(await client.get(TASKS), 429, "too-many-requests")["field"] == "tenant"
    async with api.caller(await api.token(tenant="globex")) as client:
        assert (await client.get(TASKS)).status_code == 200
    await api.server.service.close()


async def test_a_server_has_a_rate_for_tokens_that_have_none() -> None:
    api = Api(token_rate=0.5)
    async with api.caller(await api.token()) as client:
        answers = [(await client.get(TASKS)).status_code for _ in range(11)]
        assert answers == [200] * 10 + [429]
    await api.server.service.close()


def test_buckets_fill_again_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fairlead.api.auth.rate_limits.time.monotonic", lambda: now)
    buckets = Buckets(most=3)
    assert [buckets.take("a", 2.0, 2.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    now = 0.5
    assert buckets.take("a", 2.0, 2.0) == 0.0
    assert buckets.take("a", 2.0, 2.0) > 0.0
    now = 100.0
    assert buckets.left("a", 2.0, 2.0) == 2.0
    for name in "bcd":
        buckets.take(name, 2.0, 2.0)
    assert len(buckets._levels) == 3
