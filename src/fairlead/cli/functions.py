"""``fairlead functions``: the libraries of server functions, of this release and of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import url_option, with_store
from fairlead.cli.common.commands import Command, Group, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import print_json

if TYPE_CHECKING:
    from fairlead.broker import Store


@click.group(
    cls=Group,
    examples=(
        ("fairlead functions list", "which libraries are on the server"),
        ("fairlead functions load", "before a deployment: load those of this release"),
        ("fairlead functions prune --yes", "after it: delete those of other releases"),
    ),
)
def functions() -> None:
    """Libraries of functions that releases of Fairlead keep on their server.

    Whoever calls a function that the server does not know loads its library. So none of these
    commands has to be used; they do early, and all at once, what happens anyway.
    """


@functions.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead functions list", "the server of FAIRLEAD_URL or fairlead.toml"),
        ("fairlead functions list --json", "for programs"),
    ),
)
@url_option
@json_option
def list_(url: str | None, as_json: bool) -> int:
    """List the libraries on the server. Exit code 1 if one of this release is missing."""

    every = with_store(url, lambda store: store.libraries())
    found = [each for each in every if each.functions]
    missing = [each.name for each in every if not each.functions]
    if as_json:
        print_json({"libraries": found, "missing": missing})
    else:
        for each in found:
            release = "this release" if each.current else "another release"
            click.echo(f"{each.name:40}  {each.functions:3} functions  {release}")
        for name in missing:
            click.echo(f"{name:40}  not loaded yet")
    return FAILURE if missing else OK


@functions.command(
    cls=Command,
    examples=(("fairlead functions load --url redis://localhost", "of this release, ahead"),),
)
@url_option
@json_option
def load(url: str | None, as_json: bool) -> None:
    """Load the libraries of this release that are missing.

    A server that is full refuses this; then verbs are sent to it as scripts, which is slower.
    """
    loaded = with_store(url, lambda store: store.load_libraries())
    if as_json:
        print_json({"loaded": loaded})
    elif loaded:
        talk(f"loaded {len(loaded)} libraries")
    else:
        talk("all libraries of this release are there already")


@functions.command(
    cls=Command,
    examples=(
        ("fairlead functions prune", "show what would be deleted"),
        ("fairlead functions prune --yes", "delete it"),
    ),
)
@click.option("--yes", is_flag=True, help="Delete; without it they are only shown.")
@url_option
@json_option
def prune(yes: bool, url: str | None, as_json: bool) -> None:
    """Delete the libraries of other releases.

    A process of another release that still runs loads its libraries again when it needs them.
    """

    async def delete(store: Store) -> list[str]:
        names = [library.name for library in await store.libraries() if not library.current]
        for name in names if yes else ():
            await store.delete_library(name)
        return names

    names = with_store(url, delete)
    if as_json:
        print_json({"libraries": names, "deleted": yes})
        return
    for name in names:
        click.echo(name)
    if not names:
        talk("there are no libraries of other releases")
    elif yes:
        talk(f"deleted {len(names)} libraries")
    else:
        talk(f"{len(names)} libraries would be deleted; do it with --yes")
