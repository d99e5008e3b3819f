"""``fairlead queue purge`` and ``delete``: what waits in a queue, or the queue itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.audit_trail import note
from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.bulk_changes import agreed, bulk_options
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import INTERRUPTED, OK
from fairlead.cli.common.known_names import check_shown, every_setting
from fairlead.cli.common.output import print_json, tasks, tasks_were
from fairlead.cli.common.progress import Progress, interruptible

if TYPE_CHECKING:
    from fairlead.broker.requests import Deleted, Moved
    from fairlead.client import Client


@click.command(
    cls=Command,
    examples=(
        ("fairlead queue purge mail", "cancel all that waits; it is counted first"),
        ("fairlead queue purge mail --tenant acme --dry-run", "how many would it be?"),
        ("fairlead queue purge mail --yes", "without a question"),
    ),
)
@click.argument("name")
@click.option("--tenant", help="Only what this tenant has there.")
@bulk_options
@url_option
@json_option
def purge(
    name: str, tenant: str | None, dry_run: bool, yes: bool, url: str | None, as_json: bool
) -> int:
    """Cancel all tasks that wait in a queue. What runs goes on, and what has ended stays.

    It goes in short steps; Ctrl-C ends it after the one under way and says what was done. Exit
    codes: 0 done, 2 there is no such queue, 3 the broker cannot be reached, 130 interrupted.
    """
    waiting, _ = with_client(url, lambda client: _counts(client, name, tenant))
    if dry_run or not waiting:
        if as_json:
            print_json({"queue": name, "waiting": waiting, "cancelled": 0, "finished": True})
        else:
            talk(f"{tasks(waiting)} waiting in queue {name} would be cancelled")
        return OK
    if not yes:
        agreed(f"{tasks(waiting)} waiting in queue {name} would be cancelled. Go on?")

    async def step(client: Client) -> Moved:
        return await client.purge_some(name, tenant)

    done, finished = with_client(
        url, lambda client: _steps(client, name, step, "cancelled", waiting)
    )
    return _tell(name, "cancelled", done, finished, as_json)


@click.command(
    cls=Command,
    examples=(
        ("fairlead queue delete old-mail", "its settings and what has ended there"),
        ("fairlead queue delete old-mail --yes", "without a question"),
    ),
)
@click.argument("name")
@bulk_options
@url_option
@json_option
def delete(name: str, dry_run: bool, yes: bool, url: str | None, as_json: bool) -> int:
    """Forget a queue, its settings and its finished tasks. Refused while tasks wait or run there.

    Exit codes: 0 done, 1 tasks wait or run there, 2 there is no such queue, 3 the broker cannot be
    reached, 130 interrupted.
    """
    waiting, ended = with_client(url, lambda client: _counts(client, name, None))
    if dry_run:
        if as_json:
            print_json({"queue": name, "waiting": waiting, "ended": ended, "deleted": 0})
        else:
            talk(f"queue {name} has {tasks(waiting)} waiting, and {ended:,} that have ended")
        return OK
    if not yes:
        agreed(f"Queue {name} and {tasks(ended)} that ended there would be gone. Go on?")

    async def step(client: Client) -> Deleted:
        return await client.delete_some_of_queue(name)

    done, finished = with_client(url, lambda client: _steps(client, name, step, "deleted", ended))
    return _tell(name, "deleted", done, finished, as_json)


async def _counts(client: Client, name: str, tenant: str | None) -> tuple[int, int]:
    """How many tasks wait there, and how many have ended."""
    from fairlead.broker.records import TenantCounts
    from fairlead.model.names import check_queue, check_tenant

    check_queue(name)
    if tenant is not None:
        check_tenant(tenant)
    known = {*(await client.store.snapshot(tenants=False)).queues}
    if name not in known:
        known |= {each.queue for page in await every_setting(client) for each in page.queues}
        check_shown("queue", name, known)
    found = (await client.store.snapshot(name, tenants=False, tenant=tenant)).queues.get(name)
    if found is None:
        return 0, 0
    if tenant is not None:
        part = found.tenants.get(tenant, TenantCounts())
        return part.depth, part.completed + part.dead + part.cancelled
    return found.depth, found.completed + found.dead + found.cancelled


async def _steps(
    client: Client,
    name: str,
    step: Callable[[Client], Awaitable[Moved | Deleted]],
    done: str,
    total: int,
) -> tuple[int, bool]:
    """Call until there is nothing left; how many tasks it was, and whether it came to the end."""
    count, more = 0, True
    progress = Progress(done, total)
    try:
        with interruptible() as interruption:
            while more and not interruption.came:
                moved = await step(client)
                count, more = count + moved.count, moved.more
                progress.show(count)
    except BaseException:
        if count:
            talk(f"{tasks_were(count, done)} before this, perhaps some more")
        raise
    finally:
        progress.clear()
        if count:
            verb = "purge" if done == "cancelled" else "delete"
            await note(client, f"queue.{verb}", name, changed=count)
    return count, not more


def _tell(name: str, done: str, count: int, finished: bool, as_json: bool) -> int:
    if as_json:
        print_json({"queue": name, done: count, "finished": finished})
    elif finished:
        gone = f"queue {name} is deleted; " if done == "deleted" else ""
        talk(f"{gone}{tasks_were(count, done)}")
    else:
        talk(f"interrupted: {tasks_were(count, done)}, the others are untouched")
    return OK if finished else INTERRUPTED
