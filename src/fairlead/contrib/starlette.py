"""Fairlead inside of Starlette, and so of FastAPI: a lifespan and a dependency."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from fairlead.app import Fairlead
from fairlead.model.errors import InvalidInput

if TYPE_CHECKING:
    from fairlead.api.http.server import Server

_NAME = "fairlead"  # in the state of each request

#: What ``lifespan=`` of Starlette and FastAPI takes.
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    app: Fairlead,
    *,
    api: Server | None = None,
    worker: bool | Mapping[str, Any] = False,
    wraps: Lifespan | None = None,
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return a lifespan: ``FastAPI(lifespan=lifespan(queue))``.

    When the server stops, what is being enqueued is finished and the connections are closed.
    ``api`` is what ``app.asgi()`` made, if that is mounted: frameworks do not run the lifespan of
    what they mount. ``worker`` runs tasks in this process, too, with these options of
    ``app.worker``. ``wraps`` is a lifespan of your own, which begins first and ends last.
    """

    @asynccontextmanager
    async def made(web: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            found = await stack.enter_async_context(wraps(web)) if wraps is not None else None
            await stack.enter_async_context(app)
            if api is not None:
                await stack.enter_async_context(_serving(api))
            if worker is not False:
                options = {} if worker is True else worker
                await stack.enter_async_context(app.worker(**options))
            yield {**(found or {}), _NAME: app}

    return made


def get_app(connection: HTTPConnection) -> Fairlead:
    """Return the app of the lifespan: ``queue: Annotated[Fairlead, Depends(get_app)]``."""
    found = getattr(connection.state, _NAME, None)
    if not isinstance(found, Fairlead):
        raise InvalidInput(
            "there is no app in the state of this request: give the lifespan to the program, "
            "FastAPI(lifespan=lifespan(queue)), and to the test client: with TestClient(web)"
        )
    return found


@asynccontextmanager
async def _serving(api: Server) -> AsyncIterator[None]:
    api.service.drained.clear()  # it may be started again, in tests for example
    try:
        yield
    finally:
        api.drain()
        await api.service.close()
