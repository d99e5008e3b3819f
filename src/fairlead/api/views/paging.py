"""What the answers of all routes have in common: moments, pages, and what a tenant is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta

from fairlead.api.http.problems import Forbidden
from fairlead.api.http.route import Request

T = TypeVar("T")

MAX_LIMIT = 200  # entries of a page


def about(text: str) -> Meta:
    """What a field means, for the description of the API."""
    return Meta(description=text)


Limit = Annotated[
    int, Meta(ge=1, le=MAX_LIMIT, description="How many entries the page may have, at most 200.")
]
Cursor = Annotated[
    str, Meta(max_length=500, description="Where to go on: the `cursor` of the page before.")
]


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of a list."""

    limit: Limit = 100
    cursor: Cursor | None = None


def named_page(
    found: Mapping[str, T], limit: int, cursor: str | None
) -> tuple[list[tuple[str, T]], str | None]:
    """A page of what has names, in their order; the cursor is the last name of the page.

    So what comes or goes meanwhile moves nothing else from one page to another.
    """
    names: Iterable[str] = sorted(found)
    if cursor is not None:
        names = (name for name in names if name > cursor)
    taken = list(islice(names, limit + 1))
    more = len(taken) > limit
    page = taken[:limit]
    return [(name, found[name]) for name in page], page[-1] if more else None


def for_operators(request: Request, what: str) -> None:
    """Raise ``Forbidden`` for a token that is bound to a tenant."""
    if request.access.tenant is not None:
        raise Forbidden(
            f"{what} for operators only",
            field="tenant",
            rule="a token that is not bound to a tenant",
        )


def said_of(patch: msgspec.Struct) -> dict[str, Any]:
    """What was said of a change; the rest stays as it is."""
    said = {name: getattr(patch, name) for name in patch.__struct_fields__}
    return {name: value for name, value in said.items() if value is not UNSET}
