"""``fairlead init``: a small project that runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.commands import Command, talk
from fairlead.cli.common.exit_codes import OK

if TYPE_CHECKING:
    from pathlib import Path

_TASKS = '''\
"""The tasks of this project. Run them with: fairlead up tasks:app --reload"""

import asyncio

from fairlead import Context, Fairlead

app = Fairlead()  # the broker is named in fairlead.toml, or by FAIRLEAD_URL

app.declare_limiter("mail", rate=20, burst=5)  # what the mail server takes, from all workers


@app.task(max_retries=3, limiters=["mail"])
async def send_mail(to: str, subject: str = "Hello") -> str:
    """Send a mail. After an error it is tried again, up to three times."""
    await asyncio.sleep(0.1)  # your own code
    return f"{subject!r} sent to {to}"


@app.task(timeout="5m")
async def make_report(ctx: Context, month: str) -> str:
    """Make a report, and tell how far it is."""
    for step in range(5):
        await asyncio.sleep(0.2)
        await ctx.aprogress({"step": step + 1, "of": 5})
    return f"report of {month}"


@app.schedule("0 7 * * MON-FRI", tz="Europe/Berlin")
@app.task
async def morning_mail() -> None:
    """Enqueue a mail, at seven on working days."""
    await send_mail.aenqueue("team@example.com", subject="Good morning")
'''

_TEST = '''\
"""Tests need no server: pytest test_tasks.py"""

import os

os.environ["FAIRLEAD_URL"] = "memory://"  # before the app is imported

import asyncio

from tasks import app, send_mail


def test_a_mail_is_sent() -> None:
    handle = send_mail.enqueue("ann@example.com")
    asyncio.run(app.drain())
    assert handle.result() == "'Hello' sent to ann@example.com"
'''

_SETTINGS = """\
# What this project does not say in its code. `fairlead config` shows every value and its source.

# A Valkey of its own, in ./.fairlead; in production your server: "redis://queue.internal"
url = "embedded://"
"""

_IGNORED = ".fairlead/\n__pycache__/\n"
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


@click.command(
    cls=Command,
    examples=(
        ("fairlead init", "tasks.py, its test and fairlead.toml, in this folder"),
        ("fairlead init shop", "in a new folder"),
        ("fairlead init --module jobs", "with another name for the module"),
    ),
)
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path())
@click.option(
    "--module", default="tasks", show_default=True, help="The name of the module with the tasks."
)
def init(folder: str | None, module: str) -> int:
    """Write a small project that runs: tasks, a test of them, and fairlead.toml.

    No file that is there already is changed: if one is, nothing is written.
    """
    from pathlib import Path

    if not _NAME.fullmatch(module):
        raise click.BadParameter(
            f"{module!r} is no name of a module: lower-case letters, digits and _.",
            param_hint="--module",
        )
    place = Path(folder or ".")
    files = {
        f"{module}.py": _TASKS.replace("tasks:app", f"{module}:app"),
        f"test_{module}.py": _TEST.replace("test_tasks.py", f"test_{module}.py").replace(
            "from tasks", f"from {module}"
        ),
        "fairlead.toml": _SETTINGS,
    }
    there = [name for name in files if (place / name).exists()]
    if there:
        raise click.UsageError(
            f"{str(place / there[0])!r} is there already; give another FOLDER or --module"
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            _write(place / name, text)
        if not (place / ".gitignore").exists():
            _write(place / ".gitignore", _IGNORED)
    except OSError as error:
        raise click.UsageError(f"cannot write {str(error.filename)!r}: {error.strerror}") from None
    for name in files:
        click.echo(str(place / name))
    go = "" if folder is None else f"cd {folder} && "
    talk(f"next: {go}fairlead up {module}:app --reload")
    talk(f"      {go}fairlead task enqueue {module}.send_mail ann@example.com --wait")
    return OK


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
