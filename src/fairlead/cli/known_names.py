"""Names that an operator gives: the closest one that the broker knows, where it is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.commands import UnknownName, closest, talk

if TYPE_CHECKING:
    from fairlead.broker.views import Settings, Snapshot
    from fairlead.client import Client

__all__ = ("check_settable", "check_shown", "every_setting", "new_option", "tenants_in")

#: The option of commands that set something for a name.
new_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--new", is_flag=True, help="The name is right, although the broker knows a similar one."
)


def check_shown(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse to show what there is not; the closest name is told."""
    names = list(known)
    if name not in names:
        raise UnknownName(
            f"there is no {kind} {name!r}{closest(name, names)}", f"fairlead {kind} list"
        )


def check_settable(kind: str, name: str, known: Iterable[str], *, new: bool) -> None:
    """Refuse a name that looks like a slip of the pen; tell of one that is new."""
    names = list(known)
    if name in names:
        return
    if not new and get_close_matches(name, names, n=1):
        hint = closest(name, names)
        raise UnknownName(
            f"there is no {kind} {name!r} yet{hint} If not, give --new", f"fairlead {kind} list"
        )
    talk(f"{kind} {name!r} is new: the broker did not know it")


async def every_setting(client: Client) -> list[Settings]:
    """All pages of what is set."""
    pages = [await client.settings()]
    while pages[-1].cursor is not None:
        pages.append(await client.settings(cursor=pages[-1].cursor))
    return pages


def tenants_in(snapshot: Snapshot) -> set[str]:
    """The tenants that have work."""
    return {name for queue in snapshot.queues.values() for name in queue.tenants}
