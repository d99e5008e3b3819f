"""``fairlead limiter``: limits that tasks of all queues share, and their breakers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.audit_trail import note
from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.commands import Command, Group, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.known_names import check_settable, check_shown, new_option
from fairlead.cli.common.limit_options import limit_options, said_limits, setting
from fairlead.cli.common.output import NOTHING, moment_text, print_columns, print_fields, print_json

if TYPE_CHECKING:
    from fairlead.broker.records import LimiterState
    from fairlead.broker.requests import LimiterChange
    from fairlead.client import Client

_SET = ("concurrency", "rate", "burst", "failures", "cooldown", "probes")


@click.group(
    cls=Group,
    examples=(
        ("fairlead limiter list", "what they allow, and how they stand"),
        ("fairlead limiter set smtp --rate 300/m", "five a second, over all workers"),
        ("fairlead limiter close smtp", "close an open breaker now"),
    ),
)
def limiter() -> None:
    """Limiters that tasks of all queues share, and their breakers."""


@limiter.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead limiter list", "what they allow, and how they stand"),
        ("fairlead limiter list --json", "for programs"),
    ),
)
@url_option
@json_option
def list_(url: str | None, as_json: bool) -> int:
    """List limiters: what they allow, how much runs under them and how breakers stand.

    WAITING are tenants whose next task waits for room. Exit codes: 0 fine, 3 the broker cannot be
    reached.
    """
    found = with_client(url, _all)
    if as_json:
        print_json({"limiters": {name: _fields(*each) for name, each in found.items()}})
        return OK
    if not found:
        talk("there are no limiters: fairlead limiter set NAME --rate 5")
        return OK
    rows: list[tuple[str, ...]] = [
        ("LIMITER", "CONCURRENCY", "RATE", "BURST", "RUNNING", "WAITING", "BREAKER")
    ]
    for name, (state, change) in sorted(found.items()):
        fields = _fields(state, change)
        limits = (_number(fields[each]) for each in ("concurrency", "rate", "burst"))
        rows.append(
            (name, *limits, f"{state.used:,}", f"{state.waiting:,}", state.state or NOTHING)
        )
    print_columns(rows)
    return OK


@limiter.command(
    cls=Command,
    examples=(
        ("fairlead limiter show smtp", "its limits and its breaker"),
        ("fairlead limiter show smtp --json", "for programs"),
    ),
)
@click.argument("name")
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> int:
    """Show one limiter. Exit codes: 0 fine, 2 there is none, 3 the broker cannot be reached."""
    found = with_client(url, _all)
    check_shown("limiter", name, found)
    fields = _fields(*found[name])
    if as_json:
        print_json({"limiter": name, **fields})
        return OK
    until = fields.pop("open_until")
    shown = {each: "none" if value is None else value for each, value in fields.items()}
    print_fields({"limiter": name, **shown, "open until": until and moment_text(until)})
    return OK


@limiter.command(
    "set",
    cls=Command,
    examples=(
        ("fairlead limiter set smtp --rate 300/m --concurrency 10", "limits for all workers"),
        ("fairlead limiter set bank --failures 5 --cooldown 30s", "with a breaker"),
        ("fairlead limiter set smtp --rate none", "lift a limit"),
    ),
)
@click.argument("name")
@limit_options
@setting("--failures", "Failures in a row which open the breaker; none ends it.")
@click.option("--cooldown", help="How long an open breaker lets nothing pass: 30s.")
@setting("--probes", "How many tasks may try while it is half open.")
@new_option
@url_option
def set_(name: str, new: bool, url: str | None, **said: Any) -> int:
    """Make or change a limiter; what is not named stays as it is.

    Exit codes: 0 set, 2 a name or a value is wrong, 3 the broker cannot be reached.
    """
    from fairlead.client import limiter_change

    settings: Any = said_limits(said)
    change = limiter_change(name, **settings)

    async def configure(client: Client) -> None:
        known = (await client.store.snapshot(tenants=False)).limiters
        check_settable("limiter", name, known, new=new)
        await client.configure([change])
        await note(client, "limiter.configure", name, **settings)

    with_client(url, configure)
    talk(f"limiter {name} is set")
    return OK


@limiter.command(
    cls=Command, examples=(("fairlead limiter close smtp", "as if nothing had failed"),)
)
@click.argument("name")
@url_option
def close(name: str, url: str | None) -> int:
    """Close an open breaker now, as if nothing had failed.

    Exit codes: 0 closed, 1 it has no breaker, 2 there is no such limiter, 3 the broker cannot be
    reached.
    """
    from fairlead.broker.requests import LimiterChange

    async def reset(client: Client) -> bool:
        found = await _all(client)
        check_shown("limiter", name, found)
        state, change = found[name]
        failures = _fields(state, change)["failures"]
        if not state.state or failures is None:
            return False
        # Its row of failures ends with the breaker; both in one call, so none passes in between.
        off = LimiterChange(name=name, failures=None)
        await client.configure([off, LimiterChange(name=name, failures=failures)])
        await note(client, "limiter.close", name)
        return True

    if with_client(url, reset):
        talk(f"the breaker of limiter {name} is closed")
        return OK
    talk(f"error: limiter {name!r} has no breaker (next: fairlead limiter set {name} --failures 5)")
    return FAILURE


async def _all(client: Client) -> dict[str, tuple[LimiterState, LimiterChange | None]]:
    """How all limiters stand, and what is set for each."""
    from fairlead.cli.common.known_names import every_setting

    states = (await client.store.snapshot(tenants=False)).limiters
    said = {each.name: each for page in await every_setting(client) for each in page.limiters}
    return {name: (state, said.get(name)) for name, state in states.items()}


def _fields(state: LimiterState, change: LimiterChange | None) -> dict[str, Any]:
    from msgspec import UNSET

    said = {each: None if change is None else getattr(change, each) for each in _SET}
    limits = {each: None if value is UNSET else value for each, value in said.items()}
    breaker = {"breaker": state.state or "none", "failed": state.failed}
    standing = {"running": state.used, "waiting": state.waiting}
    return {**limits, **standing, **breaker, "open_until": state.open_until}


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.4g}"
