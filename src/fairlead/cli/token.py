"""``fairlead token``: who may call the HTTP API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from getpass import getuser
from typing import TypeVar

import click
import msgspec

from fairlead.api.audit import AUDIT, AuditLine
from fairlead.api.token_store import create_token, list_tokens, revoke_token
from fairlead.api.tokens import Token
from fairlead.broker import Store
from fairlead.cli.codes import FAILURE, OK
from fairlead.cli.commands import Command, Group, Number, talk
from fairlead.cli.target import look, url_option
from fairlead.client import Client
from fairlead.model.durations import duration_rule, in_seconds
from fairlead.model.errors import BrokerError

__all__ = ("token",)

T = TypeVar("T")

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(
    cls=Group,
    section="Look after it",
    examples=(
        ("fairlead token create --scopes read,submit --name shop", "a token for a program"),
        ("fairlead token create --scopes read --tenant acme --expires 30d", "of one tenant"),
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
@_as_json
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
        await _note(client, "token.create", made.id)
        return made

    made = _asked(url, make)
    if as_json:
        fields = {"id": made.id, "token": made.text, "scopes": list(made.stored.scopes)}
        click.echo(json.dumps({**fields, "tenant": tenant, "expires_at": made.stored.expires_at}))
    else:
        click.echo(made.text)
        talk(f"keep it: it is not shown again; fairlead token revoke {made.id} ends it")
    return OK


@token.command("list", cls=Command, examples=(("fairlead token list", "all of the broker"),))
@url_option
@_as_json
def list_(url: str | None, as_json: bool) -> int:
    """List the tokens, without their secrets, and when each was used last."""
    found = _asked(url, list_tokens)
    if as_json:
        click.echo(msgspec.json.encode({"tokens": found}).decode())
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
@_as_json
def revoke(id: str, url: str | None, as_json: bool) -> int:
    """Revoke a token by its id: servers refuse it within two seconds. Exit code 1: unknown."""
    if id.startswith("fl_"):  # somebody gave the whole token; its id is the second part
        id = id.split("_")[1]

    async def end(client: Client) -> bool:
        done = await revoke_token(client, id)
        if done:
            await _note(client, "token.revoke", id)
        return done

    done = _asked(url, end)
    if as_json:
        click.echo(json.dumps({"id": id, "revoked": done}))
    else:
        talk(f"token {id} is revoked" if done else f"there is no token {id}")
    return OK if done else FAILURE


def _asked(url: str | None, question: Callable[[Client], Awaitable[T]]) -> T:
    async def ask(store: Store) -> T:
        client = Client(store)
        try:
            return await question(client)
        finally:
            await client.close()

    return look(url, ask)


async def _note(client: Client, action: str, target: str) -> None:
    """Add to the audit trail; what was done stays done, and a new token must be shown, if not."""
    line = AuditLine(token="", name=_person(), peer="cli", action=action, target=target)
    try:
        await client.note(AUDIT, [msgspec.json.encode(line)])
    except BrokerError as error:
        talk(f"warning: {action} is done, but missing in the audit trail: {error}")


def _person() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # no such user in this container
        return ""


def _moment(seconds: float | None, otherwise: str) -> str:
    if seconds is None:
        return otherwise
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
