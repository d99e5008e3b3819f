"""Names that an operator gives: the closest one that the broker knows, where it is unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlead.cli.common.commands import UnknownName, closest, talk
from fairlead.model.errors import UnknownSchedule

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.broker.records import Settings, Snapshot
    from fairlead.client import Client

T = TypeVar("T")

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
    hint = closest(name, names)
    if hint and not new:
        raise UnknownName(
            f"there is no {kind} {name!r} yet{hint} If not, give --new", f"fairlead {kind} list"
        )
    talk(f"{kind} {name!r} is new: the broker did not know it")


async def naming_schedules(app: Fairlead, work: Awaitable[T]) -> T:
    """Do it; of a schedule that there is not the closest name is told."""
    try:
        return await work
    except UnknownSchedule as error:
        names = [each.name for each in await app.schedules.alist()]
        step = "look for its name with fairlead schedule list"
        raise UnknownName(f"{error}{closest(error.name, names)}", step) from None


async def every_setting(client: Client) -> list[Settings]:
    """All pages of what is set."""
    pages = [await client.store.settings()]
    while pages[-1].cursor is not None:
        pages.append(await client.store.settings(cursor=pages[-1].cursor))
    return pages


def tenants_in(snapshot: Snapshot) -> set[str]:
    """The tenants that have work."""
    return {name for queue in snapshot.queues.values() for name in queue.tenants}
