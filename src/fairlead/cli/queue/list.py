"""``fairlead queue list`` and ``show``: how queues stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.known_names import check_shown, every_setting
from fairlead.cli.common.output import duration_text, print_columns, print_fields, print_json
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.broker.records import QueueCounts
    from fairlead.client import Client, Snapshot, WorkerRecord

_COUNTS = ("ready", "scheduled", "retrying", "deferred", "running", "dead", "completed")
_TENANTS = 20  # that are shown, those with most tasks first
_WIDEST = 40  # characters of a tenant


@click.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead queue list", "what waits, runs and is dead in each queue"),
        ("fairlead queue list --json", "for programs"),
    ),
)
@url_option
@json_option
def list_(url: str | None, as_json: bool) -> int:
    """List queues: how many tasks they have, how long the oldest waits, who serves them.

    OLDEST is how long the task waits that has waited the longest. WORKERS are those that were heard
    of in the last 15 seconds and serve the queue. Exit codes: 0 fine, 3 the broker cannot be
    reached.
    """
    snapshot, workers = with_client(url, _read)
    if as_json:
        print_json(
            {
                "now": snapshot.now,
                "queues": {
                    name: _fields(name, counts, workers) for name, counts in snapshot.queues.items()
                },
            }
        )
        return OK
    if not snapshot.queues:
        talk("there are no queues: the first task makes one")
        return OK
    rows = [("QUEUE", *(name.upper() for name in _COUNTS), "OLDEST", "WORKERS", "STATE")]
    for name, counts in sorted(snapshot.queues.items()):
        oldest = None if counts.oldest_at is None else snapshot.now - counts.oldest_at
        figures = (f"{getattr(counts, each):,}" for each in _COUNTS)
        served = str(len(_serving(name, workers)))
        state = "paused" if counts.paused else "open"
        rows.append((name, *figures, duration_text(oldest), served, state))
    print_columns(rows)
    return OK


@click.command(
    cls=Command,
    examples=(
        ("fairlead queue show mail", "counts, settings, the largest tenants, workers"),
        ("fairlead queue show mail --json", "for programs"),
    ),
)
@click.argument("name")
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> int:
    """Show one queue: its counts, what is set for it, its tenants and its workers.

    Exit codes: 0 fine, 2 there is no such queue, 3 the broker cannot be reached.
    """
    counts, settings, workers, now = with_client(url, lambda client: _one(client, name))
    served = [worker.incarnation for worker in _serving(name, workers)]
    if as_json:
        fields = _fields(name, counts, workers)
        print_json({"queue": name, **fields, "settings": settings, "tenants": counts.tenants})
        return OK
    oldest = None if counts.oldest_at is None else now - counts.oldest_at
    print_fields(
        {
            "queue": name,
            "state": "paused" if counts.paused else "open",
            **{each: f"{getattr(counts, each):,}" for each in (*_COUNTS, "cancelled")},
            "oldest": None if oldest is None else f"waits for {duration_text(oldest)}",
            "workers": f"{len(served)}" if served else "none: nothing of it runs",
            **{each: _text(each, value) for each, value in settings.items()},
        }
    )
    if counts.tenants:
        largest = sorted(counts.tenants.items(), key=lambda each: -each[1].depth)[:_TENANTS]
        rows: list[tuple[str, ...]] = [("TENANT", "WAITING", "RUNNING", "DEAD", "HELD BY")]
        for tenant, each in largest:
            held = "pause" if each.paused else each.parked_at or each.parked
            figures = (f"{count:,}" for count in (each.depth, each.running, each.dead))
            rows.append((one_line(tenant, _WIDEST), *figures, held))
        click.echo()
        print_columns(rows)
        if len(counts.tenants) > _TENANTS or counts.more_tenants:
            talk("more tenants have work here: fairlead tenant list --queue " + name)
    return OK


async def _read(client: Client) -> tuple[Snapshot, list[WorkerRecord]]:
    return await client.store.snapshot(tenants=False), await client.store.workers()


async def _one(
    client: Client, name: str
) -> tuple[QueueCounts, dict[str, Any], list[WorkerRecord], float]:
    from fairlead.broker.records import QueueCounts
    from fairlead.model.names import check_queue

    check_queue(name)
    snapshot = await client.store.snapshot(tenants=False)
    known = {*snapshot.queues}
    if name not in known:  # one that nobody used yet may be configured
        known |= {each.queue for page in await every_setting(client) for each in page.queues}
        check_shown("queue", name, known)
    whole = await client.store.snapshot(name)
    (change,) = (await client.store.settings(name)).queues
    settings = {field: getattr(change, field) for field in change.__struct_fields__}
    del settings["queue"], settings["paused"]
    counts = whole.queues.get(name) or QueueCounts()
    return counts, settings, await client.store.workers(), whole.now


def _text(setting: str, value: Any) -> str:
    if value is None:
        return "none"
    return duration_text(value) if setting in ("keep_completed", "keep_dead") else str(value)


def _serving(name: str, workers: list[WorkerRecord]) -> list[WorkerRecord]:
    return [worker for worker in workers if name in worker.queues]


def _fields(name: str, counts: QueueCounts, workers: list[WorkerRecord]) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(counts)
    del fields["tenants"], fields["more_tenants"]
    return {**fields, "workers": len(_serving(name, workers))}
