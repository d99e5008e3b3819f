"""A server of the API in this process, on a broker in memory, and clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from fairlead import Fairlead
from fairlead.api.auth.token_store import create_token
from fairlead.api.http.route import SCOPES
from fairlead.api.http.server import Server
from fairlead.api.settings import ApiSettings

__all__ = ("Api", "open_api", "problem")

_PATIENCE = 30.0  # seconds; tests of outages say less


class Api:
    """An app with a server, and what callers of it need."""

    def __init__(self, app: Fairlead | None = None, **settings: Any) -> None:
        self.app = app or Fairlead("memory://")
        # Patient, so that a busy machine is not taken for a broker that is away.
        self.server: Server = self.app.asgi(ApiSettings(**{"patience": _PATIENCE, **settings}))

    async def token(self, *scopes: str, tenant: str | None = None, **more: Any) -> dict[str, str]:
        """The header of a new token; without scopes it has all."""
        made = await create_token(
            self.server.service.client(), scopes=scopes or SCOPES, tenant=tenant, **more
        )
        return {"authorization": f"Bearer {made.text}"}

    @asynccontextmanager
    async def caller(
        self, headers: dict[str, str] | None = None, peer: str = "127.0.0.1", **options: Any
    ) -> AsyncIterator[httpx.AsyncClient]:
        """A client with these headers; without any, with those of a new token that may all."""
        headers = await self.token() if headers is None else headers
        transport = httpx.ASGITransport(app=self.server, client=(peer, 1))
        options = {"base_url": "http://localhost", **options}
        async with httpx.AsyncClient(transport=transport, headers=headers, **options) as client:
            yield client


@asynccontextmanager
async def open_api(**settings: Any) -> AsyncIterator[tuple[Api, httpx.AsyncClient]]:
    """A server and a caller who may do all."""
    api = Api(**settings)
    async with api.caller() as client:
        yield api, client
    await api.server.service.close()
    await api.app.aclose()


def problem(answer: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """The problem document of an answer, which must be of this kind."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body.get("type")) == (status, f"/problems/{slug}"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["status"] == status
    return body
