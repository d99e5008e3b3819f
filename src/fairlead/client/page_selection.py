"""Which tasks a listing has, and the check of what callers say of it."""

from __future__ import annotations

from typing import Any, TypedDict

from fairlead.client.stated import check_stated
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State
from fairlead.model.names import check_queue, check_tenant

__all__ = ("MOST_WITH_ARGUMENTS", "PageSelection", "page_arguments")

MOST_WITH_ARGUMENTS = 100  # tasks, which may have a MiB of them each


class PageSelection(TypedDict, total=False):
    """Which tasks to list: what is left out does not matter."""

    state: State | str
    queue: str
    tenant: str
    cursor: str | None
    limit: int  # at most 1,000; with arguments 100
    arguments: bool  # with what the tasks were called with


def page_arguments(selection: PageSelection) -> dict[str, Any]:
    """Check a selection; return the arguments of ``Inspector.page`` that it stands for."""
    check_stated(selection, PageSelection, "a page")
    state, cursor = selection.get("state"), selection.get("cursor")
    queue, tenant = selection.get("queue"), selection.get("tenant")
    limit = selection.get("limit", 100)
    if state is not None and state not in tuple(State):
        raise InvalidOption("state", state, f"one of {', '.join(State)}")
    if cursor is not None and not isinstance(cursor, str):
        raise InvalidOption("cursor", cursor, "one that an earlier page returned")
    if type(limit) is not int:
        raise InvalidOption("limit", limit, "a whole number")
    if selection.get("arguments") and limit > MOST_WITH_ARGUMENTS:
        raise InvalidOption("limit", limit, f"at most {MOST_WITH_ARGUMENTS} with arguments")
    return {
        "state": None if state is None else State(state),
        "queue": None if queue is None else check_queue(queue),
        "tenant": None if tenant is None else check_tenant(tenant),
        "cursor": cursor,
        "limit": limit,
    }
