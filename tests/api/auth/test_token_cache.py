"""What is known of tokens: never old, never at the cost of the broker."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from fairlead import Fairlead
from fairlead.api.auth.token_cache import TokenCache
from fairlead.api.auth.token_store import create_token, list_tokens, revoke_token
from fairlead.api.auth.tokens import KIND, Stored
from fairlead.api.http.problems import BrokerAway, Problem, TooManyRequests, Unauthorized
from fairlead.broker.documents import DocumentChange, DocumentPage
from fairlead.client import Client
from fairlead.model.errors import InvalidInput, Unreachable


class Site:
    """A cache of tokens with a clock that is moved by hand, and a count of its reads."""

    def __init__(self) -> None:
        self.client = Client(Fairlead("memory://")._clients.store)
        self.now = 100.0
        self.reads = 0
        self.away = False
        self._documents = self.client.store.documents
        self.client.store.documents = self.documents  # type: ignore[method-assign]
        self.cache = TokenCache(lambda: self.client, clock=lambda: self.now)

    async def documents(self, *args: Any, **more: Any) -> DocumentPage:
        self.reads += 1
        if self.away:
            raise Unreachable("away")
        return await self._documents(*args, **more)

    async def new(self, **more: Any) -> str:
        return (await create_token(self.client, **{"scopes": ("read",), **more})).text

    async def is_let_in(self, text: str, peer: str = "1.2.3.4", **more: Any) -> bool:
        try:
            await self.cache.find(text, peer, **more)
        except Unauthorized:
            return False
        return True


async def test_a_token_is_read_once_in_a_while() -> None:
    site = Site()
    text = await site.new()
    for _ in range(100):
        assert await site.is_let_in(text)
    assert site.reads == 1
    site.now += 1.5
    assert await site.is_let_in(text)  # read anew beside the request
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert site.reads == 2
    await site.cache.close()


async def test_many_who_come_at_once_share_one_read() -> None:
    site = Site()
    text = await site.new()
    assert all(await asyncio.gather(*(site.is_let_in(text) for _ in range(50))))
    assert site.reads == 1
    await site.cache.close()


async def test_a_revoked_token_ends_within_two_seconds() -> None:
    site = Site()
    text = await site.new()
    assert await site.is_let_in(text)
    assert await revoke_token(site.client, text.split("_")[1])
    site.now += 2.0
    assert not await site.is_let_in(text)
    assert not await revoke_token(site.client, text.split("_")[1])
    await site.cache.close()


async def test_an_expired_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    text = await site.new(lifetime=60.0)
    assert await site.is_let_in(text)
    real = time.time()
    monkeypatch.setattr("fairlead.api.auth.token_cache.time.time", lambda: real + 61)
    assert not await site.is_let_in(text)
    await site.cache.close()


async def test_those_who_guess_are_slowed_down_and_cost_few_reads() -> None:
    site = Site()
    text = await site.new()
    assert await site.is_let_in(text)
    refused = 0
    for at in range(500):
        try:
            assert not await site.is_let_in(f"fl_{at:012x}_" + "x" * 43)
        except TooManyRequests as problem:
            refused += bool(problem.body.retry_after)
    assert refused >= 400
    assert site.reads <= 60
    assert await site.is_let_in(text)  # whoever is known is not punished for his neighbor
    with pytest.raises(TooManyRequests):
        await site.is_let_in("nonsense")
    assert not await site.is_let_in("nonsense", peer="5.6.7.8")
    await site.cache.close()


async def test_a_new_token_gets_in_although_a_neighbor_guesses() -> None:
    site = Site()
    text = await site.new()

    async def guess(times: int) -> None:
        for at in range(times):
            with suppress(Problem):
                await site.is_let_in(f"fl_{at:012x}_" + "x" * 43, peer="10.0.0.1")  # of a proxy

    await guess(100)
    for _ in range(20):  # all tokens are read meanwhile, once
        await asyncio.sleep(0)
    reads = site.reads
    await guess(100)
    assert await site.is_let_in(text, peer="10.0.0.1")
    assert site.reads == reads
    await site.cache.close()


async def test_guesses_from_everywhere_are_bounded_too() -> None:
    site = Site()
    for at in range(2_000):
        with suppress(Problem):
            await site.is_let_in(f"fl_{at:012x}_" + "x" * 43, peer=f"10.0.{at // 250}.{at % 250}")
    assert site.reads <= 400
    await site.cache.close()


async def test_while_the_broker_is_away_a_known_token_is_good_for_health_only() -> None:
    site = Site()
    text, unknown = await site.new(), await site.new()
    assert await site.is_let_in(text)
    site.away = True
    site.now += 5.0
    with pytest.raises(BrokerAway):
        await site.is_let_in(text)
    assert await site.is_let_in(text, stale=True)
    with pytest.raises(BrokerAway):
        await site.is_let_in(unknown, stale=True)
    site.now += 600.0
    with pytest.raises(BrokerAway):
        await site.is_let_in(text, stale=True)
    site.away = False
    assert await site.is_let_in(text)
    await site.cache.close()


async def test_last_use_is_noted_at_most_once_a_minute() -> None:
    site = Site()
    text = await site.new(name="shop")
    (view,) = await list_tokens(site.client)
    assert (view.name, view.used_at) == ("shop", None)
    for _ in range(5):
        assert await site.is_let_in(text)
    for _ in range(10):
        await asyncio.sleep(0)
    (view,) = await list_tokens(site.client)
    assert view.used_at is not None
    assert view.used_by == "1.2.3.4"
    await site.cache.close()


async def test_the_secret_is_stored_nowhere() -> None:
    site = Site()
    text = await site.new()
    (document,) = (await site.client.store.documents(KIND)).documents
    secret = text.split("_", 2)[2]
    assert secret.encode() not in document.value
    stored = msgspec.json.decode(document.value, type=Stored)
    assert len(stored.hash) == 64
    await site.cache.close()


async def test_a_damaged_token_lets_nobody_in() -> None:
    site = Site()
    text = await site.new()
    change = DocumentChange(kind=KIND, name=text.split("_")[1], value=b'{"scopes":["all"]}')
    await site.client.write_documents([change])
    assert not await site.is_let_in(text)
    await site.cache.close()


@pytest.mark.parametrize(
    "options",
    [
        {"scopes": ()},
        {"scopes": ("all",)},
        {"scopes": ("read",), "tenant": ""},
        {"scopes": ("read",), "name": "a\nb"},
        {"scopes": ("read",), "name": "x" * 101},
    ],
)
async def test_a_token_with_odd_properties_is_not_made(options: dict[str, Any]) -> None:
    site = Site()
    with pytest.raises(InvalidInput):
        await create_token(site.client, **options)
