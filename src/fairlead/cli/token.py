"""``fairlead token``: who may call the HTTP API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.audit_trail import note
from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.commands import Command, Group, Number, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import print_json
from fairlead.model.durations import duration_rule, in_seconds

if TYPE_CHECKING:
    from fairlead.api.auth.tokens import Token
    from fairlead.client import Client


@click.group(
    cls=Group,
    examples=(
        ("fairlead token create --scopes read,submit --name shop", "a token for a program"),
        ("fairlead token create --scopes read --tenant acme --expires 30d", "of one tenant"),
        ("fairlead token link", "a link to the status page that signs in once"),
        ("fairlead token list", "what there is, and when it was used"),
        ("fairlead token revoke 1f0c…", "from now on nobody gets in with it"),
    ),
)
def token() -> None:
    """Tokens of the HTTP API: make, list and revoke them.

    Scopes: read (states, counts, settings), submit (new tasks), manage (changes of what exists),
    payload (arguments and results).
    """


@token.command(
    cls=Command,
    examples=(
        ("fairlead token create --scopes read,submit,payload --name shop", "prints the token"),
        ("fairlead token create --scopes submit --tenant acme --json", "for programs"),
    ),
)
@click.option("--scopes", required=True, metavar="SCOPE,...", help="read, submit, manage, payload.")
@click.option("--tenant", help="All that its callers see or make belongs to this tenant.")
@click.option("--expires", metavar="DURATION", help="Such as 30d.  [default: never]")
@click.option("--name", default="", help="For people: whose it is.")
@click.option(
    "--rate", type=Number(0.01, 1e6), default=None,
    help="Requests a second, in each server.  [default: as the server says]",
)  # fmt: skip
@url_option
@json_option
def create(
    scopes: str,
    tenant: str | None,
    expires: str | None,
    name: str,
    rate: float | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Make a token and print it: it is not stored, and never shown again."""
    from fairlead.api.auth.token_store import create_token

    lifetime = None
    if expires is not None:
        lifetime = in_seconds(expires, 1.0)
        if lifetime is None:
            raise click.BadParameter(f"{expires!r} is not {duration_rule(1.0)}.")
    chosen = tuple(scope.strip() for scope in scopes.split(",") if scope.strip())

    async def make(client: Client) -> Token:
        made = await create_token(
            client, name=name, scopes=chosen, tenant=tenant, lifetime=lifetime, rate=rate
        )
        await note(client, "token.create", made.id)
        return made

    made = with_client(url, make)
    if as_json:
        fields = {"id": made.id, "token": made.text, "scopes": list(made.stored.scopes)}
        print_json({**fields, "tenant": tenant, "expires_at": made.stored.expires_at})
    else:
        click.echo(made.text)
        talk(f"keep it: it is not shown again; fairlead token revoke {made.id} ends it")
    return OK


@token.command(
    cls=Command,
    examples=(
        ("fairlead token link", "for the server of `fairlead api` on this machine"),
        ("fairlead token link --at https://queue.example.org --tenant acme", "elsewhere"),
    ),
)
@click.option(
    "--at", "address", default="http://127.0.0.1:8800", show_default=True, metavar="ADDRESS",
    help="Where the page is.",
)  # fmt: skip
@click.option("--tenant", help="All that is shown belongs to this tenant.")
@click.option("--name", default="link", show_default=True, help="For people: whose it is.")
@url_option
@json_option
def link(address: str, tenant: str | None, name: str, url: str | None, as_json: bool) -> int:
    """Print a link to the status page that signs in once.

    It can be used within an hour. The tab that opens it may read for a day.
    """
    from fairlead.api.auth.sign_in import create_code, link_of
    from fairlead.model.names import check_tenant

    if tenant is not None:
        check_tenant(tenant)

    async def make(client: Client) -> str:
        code = await create_code(client, scopes=("read",), name=name, tenant=tenant)
        await note(client, "token.link", code.partition("-")[0])
        return code

    made = link_of(address, with_client(url, make))
    if as_json:
        print_json({"link": made})
    else:
        click.echo(made)
    return OK


@token.command("list", cls=Command, examples=(("fairlead token list", "all of the broker"),))
@url_option
@json_option
def list_(url: str | None, as_json: bool) -> int:
    """List the tokens, without their secrets, and when each was used last."""
    from fairlead.api.auth.token_store import list_tokens

    found = with_client(url, list_tokens)
    if as_json:
        print_json({"tokens": found})
        return OK
    for each in found:
        until = "expired" if each.expired else _moment(each.expires_at, "never expires")
        scopes = ",".join(each.scopes)
        used = _moment(each.used_at, "never used")
        whose = f"tenant {each.tenant}" if each.tenant is not None else "all tenants"
        click.echo(f"{each.id}  {each.name or '-':20}  {scopes}  {whose}  {until}  {used}")
    if not found:
        talk("there are no tokens; make one: fairlead token create --scopes read")
    return OK


@token.command(cls=Command, examples=(("fairlead token revoke 1f0c…", "by its id"),))
@click.argument("id")
@url_option
@json_option
def revoke(id: str, url: str | None, as_json: bool) -> int:
    """Revoke a token by its id: servers refuse it within two seconds. Exit code 1: unknown."""
    from fairlead.api.auth.token_store import revoke_token

    if id.startswith("fl_"):  # somebody gave the whole token; its id is the second part
        id = id.split("_")[1]

    async def end(client: Client) -> bool:
        done = await revoke_token(client, id)
        if done:
            await note(client, "token.revoke", id)
        return done

    done = with_client(url, end)
    if as_json:
        print_json({"id": id, "revoked": done})
    else:
        talk(f"token {id} is revoked" if done else f"there is no token {id}")
    return OK if done else FAILURE


def _moment(seconds: float | None, otherwise: str) -> str:
    if seconds is None:
        return otherwise
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
