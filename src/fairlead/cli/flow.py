"""``fairlead flow``: how far a flow is, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import url_option, with_app
from fairlead.cli.common.commands import Command, Group, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import plain, print_json
from fairlead.model.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.client import FlowInfo, TaskInfo

_tenant = click.option("--tenant", default=DEFAULT_TENANT, help="Whose flow it is.")


@click.group(
    cls=Group,
    examples=(
        ("fairlead flow show nightly --tenant acme", "how far it is, and what failed"),
        ("fairlead flow retry nightly --tenant acme", "put the failed part back to work"),
    ),
)
def flow() -> None:
    """Flows: tasks that depend on each other and were enqueued as one."""


@flow.command(
    cls=Command,
    examples=(
        ("fairlead flow show 01a1e37803f17fcaafd4ede22d5217c1", "by the id that Fairlead made"),
        ("fairlead flow show nightly --tenant acme --json", "by a chosen one, for programs"),
    ),
)
@click.argument("id")
@_tenant
@url_option
@click.option("--json", "as_json", is_flag=True, help="Print what is known as one JSON object.")
def show(id: str, tenant: str, url: str | None, as_json: bool) -> int:
    """How far a flow is, and which of its tasks are dead.

    Exit codes: 0 it runs or has completed, 1 tasks of it are dead or cancelled, or it is unknown.
    """

    async def look(app: Fairlead) -> tuple[FlowInfo, list[TaskInfo]]:
        handle = app.flow(id, tenant)
        info = await handle.ainfo()
        return info, await handle.afailed() if info.dead else []

    info, failed = with_app(url, look)
    if as_json:
        from fairlead.cli.task.list import task_fields

        print_json({**plain(info), "failed": [task_fields(each) for each in failed]})
    else:
        _show(info, failed)
    return FAILURE if info.dead + info.cancelled else OK


@flow.command(
    cls=Command,
    examples=(("fairlead flow cancel nightly --tenant acme", "what runs is asked to stop"),),
)
@click.argument("id")
@_tenant
@url_option
def cancel(id: str, tenant: str, url: str | None) -> int:
    """Cancel a whole flow: what waits at once, what runs as soon as it stops.

    Exit codes: 0 done, 1 there was nothing to cancel.
    """
    return _told(with_app(url, lambda app: app.flow(id, tenant).acancel()), id, "cancelled")


@flow.command(
    cls=Command,
    examples=(("fairlead flow retry nightly --tenant acme", "after the cause was mended"),),
)
@click.argument("id")
@_tenant
@url_option
def retry(id: str, tenant: str, url: str | None) -> int:
    """Put the dead tasks of a flow back to work, and those that ended because of them.

    Exit codes: 0 done, 1 there was nothing to retry.
    """
    return _told(with_app(url, lambda app: app.flow(id, tenant).aretry()), id, "retried")


def _told(done: bool, id: str, what: str) -> int:
    talk(f"flow {id}: {what}" if done else f"flow {id}: nothing to be {what}")
    return OK if done else FAILURE


def _show(info: FlowInfo, failed: list[TaskInfo]) -> None:
    name = f" {info.name}" if info.name else ""
    click.echo(f"flow {info.id}{name}  tenant {info.tenant}  {info.state}")
    ended = info.completed + info.dead + info.cancelled
    click.echo(
        f"  {ended:,} of {info.total:,} tasks have ended ({info.progress:.0%}): "
        f"{info.completed:,} completed, {info.dead:,} dead, {info.cancelled:,} cancelled"
    )
    for each in failed:
        click.echo(f"  dead  {each.task}  {each.id}  {each.reason}")
