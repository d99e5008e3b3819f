"""Long connections end when their token does."""

from __future__ import annotations

import asyncio
import time

import pytest

from fairlead.api.auth.token_store import revoke_token
from fairlead.api.live import connection as module
from fairlead.api.live.connection import recheck
from tests.api.app import open_api


async def test_wrong_tokens_of_its_address_keep_no_revoked_token_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PERIOD", 0.01)
    async with open_api(token_rate=0.001) as (api, _):
        service = api.server.service
        text = (await api.token("read"))["authorization"].removeprefix("Bearer ")
        connection = {
            "type": "websocket", "headers": [(b"host", b"localhost")], "client": ("1.2.3.4", 1),
        }  # fmt: skip
        access = await service.authorize(connection, text)
        watching = asyncio.ensure_future(recheck(service, connection, text, access))
        await asyncio.sleep(0.3)  # it is looked at more often than it may ask
        assert not watching.done()
        wrong = service._tokens._wrong
        monkeypatch.setattr(wrong, "left", lambda *_: 0.0)  # somebody goes on with wrong ones
        monkeypatch.setattr(wrong, "take", lambda *_: 1.0)
        await revoke_token(service.client(), access.token)
        monkeypatch.setattr(service._tokens, "_clock", lambda: time.monotonic() + 60.0)
        async with asyncio.timeout(10):
            await watching
