"""``fairlead check``: whether the workers on this machine do what they are there for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.common.commands import Command, talk
from fairlead.cli.common.output import plain, print_json, tasks

if TYPE_CHECKING:
    from fairlead.worker.process.status import Status

_OK, _WRONG, _CUT_OFF, _NOBODY = 0, 1, 3, 4


@click.command(
    cls=Command,
    examples=(
        ("fairlead check", "all workers of this user on this machine"),
        ("fairlead check --app shop.tasks:app", "those of one app"),
        ("fairlead check --pid 4711", "one of them, by the pid of its supervisor"),
        ("fairlead check --ready", "as a readiness probe: the broker must answer, too"),
        ("fairlead check --json", "for programs"),
    ),
)
@click.option("--app", metavar="APP", help="Of this app only, as MODULE:ATTRIBUTE.")
@click.option("--pid", type=click.IntRange(1), help="Of one supervisor.")
@click.option("--ready", is_flag=True, help="Fail as well while the broker does not answer.")
@click.option("--json", "as_json", is_flag=True, help="Print what is known as one JSON object.")
def check(app: str | None, pid: int | None, ready: bool, as_json: bool) -> int:
    """Look at the workers of this machine, for a probe. Asks nobody, so it never waits.

    A worker is fine if its supervisor speaks, the loops of its children go round and they fetch.
    That the broker does not answer is nothing a restart would mend: it fails --ready only. Exit
    codes: 0 fine, 1 something is wrong, 3 the broker does not answer (with --ready), 4 there is no
    worker.
    """
    from fairlead.cli.common.app_loader import check_target
    from fairlead.worker.process.status import read_all, run_dir

    wanted = None if app is None else check_target(app)
    found = [
        status
        for status in read_all()
        if pid in (None, status.pid) and wanted in (None, status.app)
    ]
    problems = [text for status in found for text in status.problems()]
    cut_off = [text for status in found for text in status.cut_off()]
    code = _OK
    if not found:
        code = _NOBODY
    elif problems:
        code = _WRONG
    elif ready and (cut_off or not all(map(_begun, found))):
        code = _CUT_OFF
    if as_json:
        workers = [plain(status) for status in found]
        report = {"code": code, "problems": problems, "broker": cut_off, "workers": workers}
        print_json(report)
        return code
    for status in found:
        running = sum(child.running for child in status.children)
        text = f"{len(status.children)} of {status.wanted} children, {tasks(running)} running"
        if status.quiet:
            text += ", quiet"
        brokers = dict.fromkeys(child.broker for child in status.children if child.broker)
        shown = ", ".join(brokers) or "no broker yet"
        click.echo(f"worker {status.pid}  {status.app}  {shown}  {text}")
    for text in (*problems, *cut_off):
        click.echo(f"  {text}")
    if not found:
        whose = "" if wanted is None else f" of {wanted}"
        talk(f"no worker{whose} of this user on this machine (looked in {run_dir()})")
    return code


def _begun(status: Status) -> bool:
    return any(child.state == "working" for child in status.children)
