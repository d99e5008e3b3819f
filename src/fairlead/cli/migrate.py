"""``fairlead migrate``: whether this release can read what is stored, and what to do if not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import url_option, with_store
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import print_json

if TYPE_CHECKING:
    from fairlead.broker import Store
    from fairlead.broker.records import ShardLayout

_WAYS = {
    "nothing": "nothing to do",
    "convert": "can be converted: --yes does it",
    "discard": (
        "there is no way to convert it: let workers of the release that wrote it empty it, or "
        "throw it away with --discard --yes"
    ),
    "upgrade": "a later release wrote it: use that one",
}


@click.command(
    cls=Command,
    examples=(
        ("fairlead migrate", "show what would be done, shard by shard"),
        ("fairlead migrate --yes", "do it"),
        ("fairlead migrate --discard --yes", "throw away what cannot be converted"),
    ),
)
@click.option("--yes", is_flag=True, help="Do it; without it, it is only shown.")
@click.option("--discard", is_flag=True, help="Throw away what cannot be converted.")
@url_option
@json_option
def migrate(yes: bool, discard: bool, url: str | None, as_json: bool) -> int:
    """Bring what is stored to the layout of this release.

    Stop the processes of other releases first; while it runs, all are refused. Exit code 1 if a
    shard cannot be used by this release as it is.
    """
    from fairlead.broker.requests import LAYOUT

    async def carry_out(store: Store) -> tuple[list[ShardLayout], list[ShardLayout]]:
        before = await store.layouts()
        stuck = {"upgrade"} if discard else {"upgrade", "discard"}
        if yes and not any(each.way in stuck for each in before):
            await store.migrate(discard=discard, progress=_progress)
        return before, await store.layouts()

    before, after = with_store(url, carry_out)
    usable = all(each.way == "nothing" for each in after)
    if as_json:
        print_json({"layout": LAYOUT, "shards": after, "usable": usable})
        return OK if usable else FAILURE
    for old, new in zip(before, after, strict=True):
        click.echo(_line(old, new))
    if not usable:
        talk(f"this release of Fairlead reads layout {LAYOUT}")
    return OK if usable else FAILURE


def _line(old: ShardLayout, new: ShardLayout) -> str:
    if old == new:
        what = f"layout {new.layout}, {new.tasks:,} tasks" if new.layout else "empty"
        return f"shard {new.shard}: {what}: {_WAYS[new.way]}"
    done = "converted" if new.layout else f"threw {old.tasks:,} tasks away"
    return f"shard {new.shard}: was layout {old.layout}: {done}"


def _progress(keys: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{keys:,} keys done", nl=False, err=True)
