"""``fairlead task watch``: what happens to one task, until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import url_option, with_app
from fairlead.cli.common.commands import Command, Number, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK, TIMEOUT
from fairlead.cli.common.output import moment_text, print_json
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.client import TaskInfo

_LONGEST = 200  # characters of an error, or of progress


@click.command(
    cls=Command,
    examples=(
        ("fairlead task watch 01f3…", "states and progress, until it has ended"),
        ("fairlead task watch order-7 --tenant acme --timeout 60", "for a minute at most"),
        ("fairlead task watch 01f3… --json", "a line of JSON for each change"),
    ),
)
@click.argument("id")
@click.option("--tenant", help="Whose task it is; needed for ids that were chosen.")
@click.option("--timeout", type=Number(0.001, 1e7), help="Seconds to watch.  [default: no end]")
@url_option
@json_option
def watch(
    id: str, tenant: str | None, timeout: float | None, url: str | None, as_json: bool
) -> int:
    """Show the states and the progress of a task as they change, until it has ended.

    With --json each line is an object. Exit codes: 0 it completed, 1 it is dead, cancelled or
    unknown, 3 the broker cannot be reached, 4 it had not ended in time.
    """

    async def follow(app: Fairlead) -> int:
        import asyncio

        try:
            async with asyncio.timeout(timeout):
                return await _followed(app, id, tenant, as_json)
        except TimeoutError:
            talk(f"task {id!r} had not ended after {timeout:g} s; it goes on")
            return TIMEOUT

    return with_app(url, follow)


async def _followed(app: Fairlead, id: str, tenant: str | None, as_json: bool) -> int:
    from fairlead.client.task_info import info_of
    from fairlead.model.lifecycle import FINAL, State
    from fairlead.model.names import DEFAULT_TENANT, full_id

    stored = id if ":" in id else full_id(DEFAULT_TENANT if tenant is None else tenant, id)
    client = app._clients.current()
    before: tuple[object, ...] = ()
    async with app.events(task=stored) as stream:  # begun first: nothing that follows is missed
        while True:
            record = await client.reader.one(stored, "info")
            if record is None or (tenant is not None and record.message.tenant != tenant):
                talk(f"task {id!r} is not known, or forgotten (next: fairlead task list)")
                return FAILURE
            info = info_of(record)
            now = (info.state, info.attempts, repr(info.progress), info.cancelling)
            if now != before:
                _tell(info, as_json)
                before = now
            if info.state in FINAL:
                return OK if info.state is State.COMPLETED else FAILURE
            await anext(stream)


def _tell(info: TaskInfo, as_json: bool) -> None:
    import time

    if as_json:
        shown = {"id": info.id, "state": info.state, "attempts": info.attempts}
        error = None if info.error is None else f"{info.error.type}: {info.error.message}"
        print_json({**shown, "progress": info.progress, "reason": info.reason, "error": error})
        return
    why = f"{info.error.type}: {info.error.message}" if info.error else info.reason
    progress = "" if info.progress is None else repr(info.progress)
    at = info.finished_at or info.started_at or time.time()
    stopping = "asked to stop" if info.cancelling else ""
    words = (moment_text(at), f"{info.state:10}", progress, stopping, one_line(why, _LONGEST))
    click.echo("  ".join(one_line(word, _LONGEST) for word in words if word).rstrip())
