"""What belongs to a connection that lasts: its parts end together, and with its token."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from fairlead.api.http.mount import Connection
from fairlead.api.http.problems import Forbidden, Problem, Unauthorized
from fairlead.api.http.route import Access
from fairlead.api.service import Service

_PERIOD = 5.0  # seconds


async def first_of(works: Mapping[str, Coroutine[Any, Any, object]]) -> str:
    """Run all of them until one ends, and cancel the others. Return its name, or raise its error.

    Of several that end at once the first one counts.
    """
    tasks = {name: asyncio.ensure_future(work) for name, work in works.items()}
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        name = next(name for name, task in tasks.items() if task.done())
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        for task in tasks.values():  # of those that failed too, nobody else will ask
            if not task.cancelled():
                task.exception()
    tasks[name].result()
    return name


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
