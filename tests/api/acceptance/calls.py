"""One good call of every route. A route that is new has to be entered here, or tests fail.

``{names}`` are filled in with what a tenant has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fairlead.api.route_table import ROUTES

__all__ = ("CALLS", "GoodCall", "filled_in", "unknown_routes")

NEW = {"task": "work", "args": [1], "kwargs": {"k": "v"}}


@dataclass(frozen=True)
class GoodCall:
    """What an operator says, and who else may say it."""

    path: str
    body: Any = None
    query: dict[str, Any] = field(default_factory=dict)
    scope: str = "read"  # the only one that opens it
    #: For a token of a tenant: ``own`` (answers about its own things only), ``named`` (the path
    #: names a thing of a tenant, else 404), ``global`` (403, or 404 as if there were none).
    kind: str = "own"
    whose: str = ""  # where it says of whom it is, beside the path: "query", "body", ...
    also: tuple[str, ...] = ()  # other scopes that it takes
    status: int = 200


def _manage(
    path: str, body: Any = None, kind: str = "named", whose: str = "", **more: Any
) -> GoodCall:
    return GoodCall(path, body, scope="manage", kind=kind, whose=whose, **more)


_MANY = {"action": "cancel", "filter": {"name": "work"}}
_NIGHTLY = {**NEW, "cron": "0 2 * * *"}

CALLS: dict[str, GoodCall] = {
    # tasks
    "POST /tasks": GoodCall("/tasks", NEW, scope="submit", whose="body", status=201),
    "POST /tasks/batch": GoodCall("/tasks/batch", [NEW, NEW], scope="submit", whose="items"),
    "GET /tasks": GoodCall("/tasks", whose="query"),
    "GET /tasks/{id}": GoodCall("/tasks/{done}", kind="named", whose="query"),
    "GET /tasks/{id}/payload": GoodCall(
        "/tasks/{done}/payload", scope="payload", kind="named", whose="query"
    ),
    "GET /tasks/{id}/result": GoodCall(
        "/tasks/{done}/result", scope="payload", kind="named", whose="query"
    ),
    "GET /tasks/{id}/explain": GoodCall("/tasks/{waiting}/explain", kind="named", whose="query"),
    "GET /tasks/{id}/history": GoodCall("/tasks/{done}/history", kind="named", whose="query"),
    "GET /tasks/{id}/log": GoodCall(
        "/tasks/{done}/log", scope="payload", kind="named", whose="query"
    ),
    "GET /history": GoodCall("/history", whose="query"),
    "POST /tasks/{id}/cancel": _manage("/tasks/{running}/cancel", whose="query"),
    "POST /tasks/{id}/retry": _manage("/tasks/{dead}/retry", whose="query"),
    "POST /tasks/{id}/run": _manage("/tasks/{later}/run", whose="query"),
    "PATCH /tasks/{id}": _manage("/tasks/{waiting}", {"priority": "high"}, whose="query"),
    "DELETE /tasks/{id}": _manage("/tasks/{gone}", whose="query", status=204),
    "POST /tasks/act": _manage("/tasks/act", _MANY, kind="own", whose="filter"),
    # queues
    "GET /queues": GoodCall("/queues"),
    "GET /queues/{queue}": GoodCall("/queues/{queue}", kind="named"),
    "PATCH /queues/{queue}": _manage("/queues/{queue}", {"max_waiting": 1000}, "global"),
    "DELETE /queues/{queue}": _manage("/queues/{queue}", kind="global", status=409),
    "POST /queues/{queue}/pause": _manage("/queues/{queue}/pause", kind="global"),
    "POST /queues/{queue}/resume": _manage("/queues/{queue}/resume", kind="global"),
    "POST /queues/{queue}/purge": _manage("/queues/{queue}/purge", kind="own", whose="query"),
    # tenants
    "GET /tenants": GoodCall("/tenants"),
    "GET /tenants/{tenant}": GoodCall("/tenants/{tenant}", kind="named"),
    "PATCH /tenants/{tenant}": _manage("/tenants/{tenant}", {"weight": 3}),
    "POST /tenants/{tenant}/pause": _manage("/tenants/{tenant}/pause"),
    "POST /tenants/{tenant}/resume": _manage("/tenants/{tenant}/resume"),
    # limiters
    "GET /limiters": GoodCall("/limiters", kind="global"),
    "GET /limiters/{name}": GoodCall("/limiters/{limiter}", kind="global"),
    "PATCH /limiters/{name}": _manage("/limiters/{limiter}", {"concurrency": 99}, "global"),
    "POST /limiters/{name}/close": _manage("/limiters/{limiter}/close", kind="global"),
    # workers
    "GET /workers": GoodCall("/workers", kind="global"),
    "GET /workers/{id}": GoodCall("/workers/{worker}", kind="global"),
    "POST /workers/{id}/pause": _manage("/workers/{worker}/pause", kind="global", status=202),
    "POST /workers/{id}/resume": _manage("/workers/{worker}/resume", kind="global", status=202),
    "POST /workers/{id}/stop": _manage("/workers/{worker}/stop", kind="global", status=202),
    # dead letters
    "GET /dead-letters": GoodCall("/dead-letters", whose="query"),
    "GET /dead-letters/groups": GoodCall("/dead-letters/groups", whose="query"),
    "POST /dead-letters/requeue": _manage(
        "/dead-letters/requeue", {"all": True}, kind="own", whose="body"
    ),
    "POST /dead-letters/delete": _manage("/dead-letters/delete", {"ids": ["{dead}"]}, kind="own"),
    # schedules
    "GET /schedules": GoodCall("/schedules", whose="query"),
    "GET /schedules/{name}": GoodCall("/schedules/{schedule}", kind="named"),
    "PUT /schedules/{name}": _manage(
        "/schedules/{schedule}", _NIGHTLY, whose="body", also=("submit",)
    ),
    "DELETE /schedules/{name}": _manage("/schedules/{schedule}", status=204),
    "POST /schedules/{name}/pause": _manage("/schedules/{schedule}/pause"),
    "POST /schedules/{name}/resume": _manage("/schedules/{schedule}/resume"),
    "POST /schedules/{name}/run": _manage(
        "/schedules/{schedule}/run", also=("submit",), status=201
    ),
    # flows
    "GET /flows/{id}": GoodCall("/flows/{flow}", kind="named", whose="query"),
    "POST /flows/{id}/cancel": _manage("/flows/{flow}/cancel", whose="query"),
    "POST /flows/{id}/retry": _manage("/flows/{flow}/retry", whose="query"),
    # the rest
    "GET /stats": GoodCall("/stats"),
    "GET /stats/histograms": GoodCall("/stats/histograms", kind="either"),
    "GET /autoscale": GoodCall("/autoscale", kind="either"),
    "GET /audit": GoodCall("/audit", scope="manage", kind="either"),
    "GET /task-types": GoodCall("/task-types", kind="known"),
    "GET /task-types/{name}": GoodCall("/task-types/work", kind="known", status=404),
    "GET /health": GoodCall("/health", kind="either"),
}


def unknown_routes() -> set[str]:
    """Routes that are not entered, and entries that are no routes."""
    return {f"{route.method} {route.path}" for route in ROUTES} ^ set(CALLS)


def filled_in(value: Any, names: dict[str, str]) -> Any:
    """The same with the names of a tenant in it."""
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, list):
        return [filled_in(each, names) for each in value]
    if isinstance(value, dict):
        return {key: filled_in(each, names) for key, each in value.items()}
    return value
