"""Named limiters and their breakers: how they stand, what they allow, closing one by hand."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.api.http.problems import Conflicting, NotFound
from fairlead.api.http.route import Request, Route
from fairlead.api.views.paging import PageQuery, about, for_operators, named_page, said_of
from fairlead.api.views.timestamps import moment
from fairlead.broker.records import LimiterState
from fairlead.broker.requests import LimiterChange
from fairlead.model.names import check_limiter

_MOST = 1_000_000
_Count = Annotated[int, Meta(ge=1, le=_MOST)]


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    """How the breaker of a limiter stands."""

    state: Annotated[
        Literal["closed", "open", "half_open"], about("Open: nothing passes. Half open: probes do.")
    ]
    failed: Annotated[int, about("Failures in a row.")]
    open_until: Annotated[datetime | None, about("When the first probe may go.")] = None
    failures: Annotated[int | None, about("In a row, which open it.")] = None
    cooldown: Annotated[float | None, about("Seconds that it stays open.")] = None
    probes: Annotated[int | None, about("At a time, while it is half open.")] = None


class LimiterView(msgspec.Struct, frozen=True, kw_only=True):
    """One named limiter. What it allows is told where one is shown alone."""

    name: str
    concurrency: int | None = None
    rate: Annotated[float | None, about("A second.")] = None
    burst: int | None = None
    used: Annotated[int, about("Tasks that run under it.")] = 0
    waiting: Annotated[int, about("Tenants whose next task waits for room, in all queues.")] = 0
    breaker: BreakerView | None = None


class LimiterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Limiters by name."""

    now: datetime
    limiters: list[LimiterView]
    more_limiters: Annotated[bool, about("There are more than the 1,000 that can be told of.")]
    cursor: str | None = None


class LimiterPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and breaker; what is left out stays, null lifts a limit or ends the breaker."""

    concurrency: Annotated[int, Meta(ge=0, le=_MOST)] | UnsetType | None = UNSET
    rate: Annotated[float, Meta(gt=0, le=_MOST)] | UnsetType | None = UNSET
    burst: _Count | UnsetType = UNSET
    failures: _Count | UnsetType | None = UNSET
    cooldown: Annotated[float, Meta(gt=0, le=86_400)] | UnsetType = UNSET
    probes: _Count | UnsetType = UNSET


async def _list(request: Request) -> LimiterPage:
    for_operators(request, "limiters are")
    query: PageQuery = request.query
    found = await request.client.store.snapshot(tenants=False)
    page, cursor = named_page(found.limiters, query.limit, query.cursor)
    changes = await asyncio.gather(*(_set(request, name) for name, _ in page))
    return LimiterPage(
        now=moment(found.now),
        limiters=[
            _view(name, state, change) for (name, state), change in zip(page, changes, strict=True)
        ],
        more_limiters=found.more_limiters,
        cursor=cursor,
    )


async def _get(request: Request) -> LimiterView:
    for_operators(request, "limiters are")
    name = check_limiter(request.path["name"])
    return _view(name, await _state(request, name), await _set(request, name))


async def _set(request: Request, name: str) -> LimiterChange | None:
    """What is set for a limiter, if anything is."""
    found = (await request.client.store.settings(limiter=name)).limiters
    return found[0] if found else None


async def _state(request: Request, name: str) -> LimiterState:
    found = (await request.client.store.snapshot(tenants=False)).limiters.get(name)
    if found is None:
        raise NotFound(f"there is no limiter {name!r}")
    return found


def _view(name: str, state: LimiterState, change: LimiterChange | None = None) -> LimiterView:
    said: dict[str, Any] = {} if change is None else said_of(change)
    breaker = None
    if state.state != "":
        breaker = BreakerView(
            state=state.state,
            failed=state.failed,
            open_until=moment(state.open_until),
            failures=said.get("failures"),
            cooldown=said.get("cooldown"),
            probes=said.get("probes"),
        )
    return LimiterView(
        name=name,
        concurrency=said.get("concurrency"),
        rate=said.get("rate"),
        burst=said.get("burst"),
        used=state.used,
        waiting=state.waiting,
        breaker=breaker,
    )


async def _patch(request: Request) -> LimiterView:
    for_operators(request, "limiters are")
    name = check_limiter(request.path["name"])
    said = said_of(request.body)
    await request.client.configure([LimiterChange(name=name, **said)])
    await request.note("limiter.configure", name, **said)
    found = (await request.client.store.snapshot(tenants=False)).limiters.get(name)
    # Without any limit it is none.
    return _view(name, found or LimiterState(), await _set(request, name))


async def _close(request: Request) -> LimiterView:
    for_operators(request, "limiters are")
    name = check_limiter(request.path["name"])
    state, change = await _state(request, name), await _set(request, name)
    failures = None if change is None or change.failures is UNSET else change.failures
    if state.state == "" or failures is None:
        raise Conflicting(f"limiter {name!r} has no breaker", field="failures")
    # Its row of failures ends with the breaker; both in one call, so none passes in between.
    off, on = LimiterChange(name=name, failures=None), LimiterChange(name=name, failures=failures)
    await request.client.configure([off, on])
    await request.note("limiter.close", name)
    return _view(name, await _state(request, name), change)


ROUTES = (
    Route(
        method="GET",
        path="/limiters",
        handler=_list,
        scope="read",
        summary="List named limiters and how their breakers stand.",
        query=PageQuery,
    ),
    Route(
        method="GET",
        path="/limiters/{name}",
        handler=_get,
        scope="read",
        summary="Show one limiter.",
        problems=(NotFound,),
    ),
    Route(
        method="PATCH",
        path="/limiters/{name}",
        handler=_patch,
        scope="manage",
        summary="Set limits and breaker of a limiter; a new name makes one.",
        body=LimiterPatch,
    ),
    Route(
        method="POST",
        path="/limiters/{name}/close",
        handler=_close,
        scope="manage",
        summary="Close an open breaker now, as if nothing had failed.",
        problems=(NotFound, Conflicting),
    ),
)
