"""``fairlead tenant``: what tenants have and get, and what is set for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.audit_trail import note
from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.commands import Command, Group, Number, json_option, talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.known_names import (
    check_settable,
    check_shown,
    every_setting,
    new_option,
    tenants_in,
)
from fairlead.cli.common.limit_options import limit_options, said_limits
from fairlead.cli.common.output import (
    NOTHING,
    duration_text,
    print_columns,
    print_fields,
    print_json,
)
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.api.views.tenants import Part, TenantView
    from fairlead.broker.requests import TenantChange
    from fairlead.client import Client

_WIDEST = 40  # characters of a name
_QUEUE = click.option("--queue", help="Only in this queue; it goes before what is set for all.")
_SET = ("weight", "concurrency", "rate", "burst", "paused")


@click.group(
    cls=Group,
    examples=(
        ("fairlead tenant list", "who has work, and what each got of its fair share"),
        ("fairlead tenant weight acme 3", "three times the share of others"),
        ("fairlead tenant limit acme --concurrency 5", "for all workers together"),
        ("fairlead tenant pause acme --queue mail", "in one queue"),
    ),
)
def tenant() -> None:
    """Tenants: their shares, weights, limits and pauses."""


@tenant.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead tenant list", "those that have work, or had some in the last hour"),
        ("fairlead tenant list --queue mail --json", "of one queue, for programs"),
    ),
)
@click.option("--queue", help="Only what they have in this queue.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many."
)
@url_option
@json_option
def list_(queue: str | None, limit: int, url: str | None, as_json: bool) -> int:
    """List tenants that have work or had some lately, those with most first.

    SHARE is the part of all attempts that began in this hour and the one before; FAIR is what the
    weight promises among tenants with work. HELD BY is what keeps it now: a pause, its own limit or
    a limiter. At most 20 queues are read. Exit codes: 0 fine, 2 there is no such queue, 3 the
    broker cannot be reached.
    """
    views = with_client(url, lambda client: _read(client, queue))
    views.sort(key=lambda each: (-each.depth - each.in_flight, each.tenant))
    if as_json:
        print_json({"tenants": views[:limit], "more": len(views) > limit})
        return OK
    if not views:
        talk("no tenant has work, or had some in the last hour")
        return OK
    rows = [
        ("TENANT", "WEIGHT", "WAITING", "RUNNING", "STARTED", "SHARE", "FAIR", "LONGEST", "HELD BY")
    ]
    for each in views[:limit]:
        held = ", ".join(sorted({found.limiter or found.by for found in each.throttled}))
        rows.append(
            (
                one_line(each.tenant, _WIDEST),
                "differs" if each.weight is None else f"{each.weight:g}",
                f"{each.depth:,}",
                f"{each.in_flight:,}",
                f"{each.started:,}",
                _percent(each.share),
                _percent(each.fair_share),
                duration_text(each.longest_wait),
                held,
            )
        )
    print_columns(rows)
    if len(views) > limit:
        talk(f"there are more than {limit:,}: give --limit or --queue")
    return OK


@tenant.command(
    cls=Command,
    examples=(
        ("fairlead tenant show acme", "its work by queue, and what is set for it"),
        ("fairlead tenant show acme --json", "for programs"),
    ),
)
@click.argument("name")
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> int:
    """Show one tenant: its part of each queue, and what is set for it.

    Exit codes: 0 fine, 2 nothing is known of it, 3 the broker cannot be reached.
    """
    parts, settings = with_client(url, lambda client: _one(client, name))
    said = {each.queue or "": _said(each) for each in settings}
    if as_json:
        queues = {part.queue: {"counts": part.counts, "stats": part.stats} for part in parts}
        print_json({"tenant": name, "settings": said, "queues": queues})
        return OK
    print_fields({"tenant": name, **_shown(said.pop("", {}))})
    for queue, each in said.items():
        text = ", ".join(f"{key} {value}" for key, value in _shown(each).items())
        click.echo(f"in queue {queue}: {text}")
    if parts:
        rows: list[tuple[str, ...]] = [
            ("QUEUE", "WEIGHT", "READY", "WAITING", "RUNNING", "DEAD", "STARTED", "LONGEST")
        ]
        for part in parts:
            counts, stats = part.counts, part.stats
            figures = (counts.ready, counts.depth, counts.running, counts.dead, stats.started)
            shown = (f"{count:,}" for count in figures)
            longest = duration_text(stats.longest_wait)
            rows.append((part.queue, f"{stats.weight:g}", *shown, longest))
        click.echo()
        print_columns(rows)
    return OK


@tenant.command(
    cls=Command,
    examples=(
        ("fairlead tenant weight acme 3", "three times the share of others, in all queues"),
        ("fairlead tenant weight acme 0.5 --queue mail", "half a share in one queue"),
    ),
)
@click.argument("name")
@click.argument("weight", type=Number(0.001, 1_000))
@_QUEUE
@new_option
@url_option
def weight(name: str, weight: float, queue: str | None, new: bool, url: str | None) -> int:
    """Set the weight of a tenant: its share beside others that have work. The usual one is 1.

    It acts on what waits already. Exit codes: 0 set, 2 a name or a value is wrong, 3 the broker
    cannot be reached.
    """
    return _configure(url, name, queue, {"weight": weight}, f"has weight {weight:g}", new=new)


@tenant.command(
    cls=Command,
    examples=(
        ("fairlead tenant limit acme --concurrency 5", "in each queue, over all workers"),
        ("fairlead tenant limit acme --rate 60/m --queue mail", "in one queue"),
        ("fairlead tenant limit acme --rate none", "lift a limit"),
    ),
)
@click.argument("name")
@limit_options
@_QUEUE
@new_option
@url_option
def limit(name: str, queue: str | None, new: bool, url: str | None, **said: Any) -> int:
    """Set limits of a tenant, in each queue or in one; what is not named stays as it is.

    Exit codes: 0 set, 2 a name or a value is wrong, 3 the broker cannot be reached.
    """
    return _configure(url, name, queue, said_limits(said), "is limited", new=new)


@tenant.command(
    cls=Command,
    examples=(
        ("fairlead tenant pause acme", "let none of its tasks start; what runs goes on"),
        ("fairlead tenant pause acme --queue mail", "in one queue"),
    ),
)
@click.argument("name")
@_QUEUE
@new_option
@url_option
def pause(name: str, queue: str | None, new: bool, url: str | None) -> int:
    """Let no task of a tenant start until it is resumed.

    Exit codes: 0 paused, 2 a name is wrong, 3 the broker cannot be reached.
    """
    return _configure(url, name, queue, {"paused": True}, "is paused", new=new)


@tenant.command(
    cls=Command,
    examples=(("fairlead tenant resume acme", "what was paused for one queue stays so"),),
)
@click.argument("name")
@_QUEUE
@new_option
@url_option
def resume(name: str, queue: str | None, new: bool, url: str | None) -> int:
    """Let tasks of a tenant start again.

    Exit codes: 0 resumed, 2 a name is wrong, 3 the broker cannot be reached.
    """
    return _configure(url, name, queue, {"paused": False}, "is resumed", new=new)


def _configure(
    url: str | None, name: str, queue: str | None, said: dict[str, Any], done: str, *, new: bool
) -> int:
    from fairlead.client import tenant_change

    change = tenant_change(name, queue, **said)

    async def configure(client: Client) -> None:
        if not await _is_known(client, name):
            check_settable("tenant", name, await _known(client), new=new)
        await client.configure([change])
        await note(client, "tenant.configure", name, queue=queue, **said)

    with_client(url, configure)
    talk(f"tenant {name} {done}" + (f" in queue {queue}" if queue else ""))
    return OK


async def _read(client: Client, queue: str | None) -> list[TenantView]:
    from fairlead.api.views.tenants import tenant_views

    if queue is not None:
        check_shown("queue", queue, (await client.store.snapshot(tenants=False)).queues)
    return await tenant_views(client, queue)


async def _is_known(client: Client, name: str) -> bool:
    """Whether anything is known of a tenant, though it may have no work now."""
    snapshot = await client.store.snapshot(tenants=False, tenant=name)
    return name in tenants_in(snapshot)


async def _known(client: Client) -> set[str]:
    """The tenants that have work, or for which something is set."""
    known = tenants_in(await client.store.snapshot())
    return known | {each.tenant for page in await every_setting(client) for each in page.tenants}


async def _one(client: Client, name: str) -> tuple[list[Part], list[TenantChange]]:
    from fairlead.api.views.tenants import busiest, parts_of, read_queues
    from fairlead.model.names import check_tenant

    check_tenant(name)
    snapshot = await client.store.snapshot(tenants=False, tenant=name)
    names, _ = busiest(snapshot.queues, name)
    reads = await read_queues(client, names, name)
    parts = [part for read in reads for of, part in parts_of(read, name) if of == name]
    pages = await every_setting(client)
    settings = [each for page in pages for each in page.tenants if each.tenant == name]
    if not parts and not settings:
        check_shown("tenant", name, await _known(client))
    return parts, settings


def _said(change: TenantChange) -> dict[str, Any]:
    from msgspec import UNSET

    said = {each: getattr(change, each) for each in _SET}
    return {each: value for each, value in said.items() if value is not UNSET}


def _shown(said: dict[str, Any]) -> dict[str, str]:
    return {each: "none" if value is None else str(value) for each, value in said.items()}


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"
