"""Looks now and then whether the token of a long connection is still valid."""

from __future__ import annotations

import asyncio

from fairlead.api.mount import Connection
from fairlead.api.problems import Forbidden, Problem, Unauthorized
from fairlead.api.route import Access
from fairlead.api.service import Service

__all__ = ("recheck",)

_PERIOD = 5.0  # seconds


async def recheck(
    service: Service, connection: Connection, token: str | None, access: Access
) -> None:
    """Return when the token was revoked, has expired, or allows something else than before."""
    while True:
        await asyncio.sleep(_PERIOD)
        try:
            now = await service.authorize(connection, token, again=True)
        except (Unauthorized, Forbidden):
            return
        except Problem:
            continue  # the broker is away: nobody can say
        if (now.tenant, now.scopes) != (access.tenant, access.scopes):
            return
