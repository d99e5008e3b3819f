"""``fairlead spool``: what processes keep on this machine for a broker that was away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fairlead.cli.common.broker_option import url_option, with_store
from fairlead.cli.common.commands import Command, Group, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import print_columns, print_json
from fairlead.model.errors import InvalidInput
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from fairlead.broker import Store
    from fairlead.spool import Kind, Record, SpoolLimits

_SILENCE = 5.0  # seconds for a reply: whoever drains by hand waits for a slow broker
_LONGEST = 60  # characters of a name in a list
_MOST = 10_000  # rejected records that are forgotten at a time

_directory: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--directory",
    "-d",
    metavar="PATH",
    help="The spool.  [default: FAIRLEAD_SPOOL, fairlead.toml, or .fairlead/spool]",
)


@click.group(
    cls=Group,
    examples=(
        ("fairlead spool list", "what is in it, process by process"),
        ("fairlead spool list --rejected", "what the broker did not take, and why"),
        ("fairlead spool export > spool.ndjson", "one line for each record"),
        ("fairlead spool drain", "send what dead processes left"),
    ),
)
def spool() -> None:
    """Look at what processes kept on this disk while the broker was away, and send it.

    Processes send their spools themselves when the broker is back, and take over those of processes
    that have ended. These commands are for a machine where no such process runs any more.
    """


@spool.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead spool list", "each process: how much it has, and since when"),
        ("fairlead spool list --rejected", "what the broker did not take, and why"),
        ("fairlead spool list -d /var/lib/shop/spool --json", "for programs"),
    ),
)
@click.option("--rejected", is_flag=True, help="The records that the broker will never take.")
@_directory
@json_option
def list_(rejected: bool, directory: str | None, as_json: bool) -> int:
    """List the spools of this machine, or the rejected records in them. Changes nothing."""
    from fairlead.spool import folders, put_aside

    root = _root(directory)
    if rejected:
        return _list_rejected(root, as_json)
    found = folders(root)
    aside = put_aside(root)
    if as_json:
        print_json({"directory": str(root), "spools": found, "quarantined": aside})
        return OK
    rows = [("SPOOL", "PROCESS", "RECORDS", "OLDEST", "REJECTED", "BYTES", "BROKER")]
    for each in found:
        pid = f"pid {each.pid}" if each.pid else "unknown"
        state = pid if each.lives else f"{pid}, ended"
        figures = (f"{each.depth:,}", _age(each.oldest_at), f"{each.rejected:,}", f"{each.bytes:,}")
        rows.append((each.name, state, *figures, _cut(each.broker)))
    if found:
        print_columns(rows)
    else:
        talk(f"there is no spool at {root}")
    if aside:
        talk(f"{aside} pieces of files could not be read; they are in {root / 'quarantine'}")
    return OK


def _list_rejected(root: Path, as_json: bool) -> int:
    rows = list(_rows(root, rejected=True, bodies=False))
    if as_json:
        print_json({"directory": str(root), "rejected": rows})
        return OK
    lines: list[tuple[str, ...]] = [("WHEN", "CODE", "TASK", "TENANT", "QUEUE", "ID")]
    for row in rows:
        names = (_cut(row.get(key, "-")) for key in ("code", "task", "tenant", "queue", "id"))
        lines.append((_moment(row["at"]), *names))
    if rows:
        print_columns(lines)
    else:
        talk("the broker has rejected nothing")
    return OK


@spool.command(
    cls=Command,
    examples=(
        ("fairlead spool export", "ids, tasks, tenants and queues, without arguments"),
        ("fairlead spool export --rejected", "what the broker did not take"),
        ("fairlead spool export --bodies > spool.ndjson", "with all that is stored, in base64"),
    ),
)
@click.option("--rejected", is_flag=True, help="The rejected records instead.")
@click.option("--bodies", is_flag=True, help="With what is stored, arguments included, in base64.")
@_directory
def export(rejected: bool, bodies: bool, directory: str | None) -> int:
    """Print each record as one line of JSON. Changes nothing.

    kind is submission, outcome or local_done; what cannot be read is marked as "unreadable". With
    --bodies the lines hold whatever callers gave to their tasks: treat them as you treat that.
    """
    for row in _rows(_root(directory), rejected=rejected, bodies=bodies):
        print_json(row)
    return OK


@spool.command(
    cls=Command,
    examples=(
        ("fairlead spool drain --url redis://host", "send what dead processes left"),
        ("fairlead spool drain --any-broker", "also what was meant for a broker elsewhere"),
        ("fairlead spool drain --json", "for programs"),
    ),
)
@click.option("--any-broker", is_flag=True, help="Also what was kept for another broker.")
@_directory
@url_option
@json_option
def drain(any_broker: bool, directory: str | None, url: str | None, as_json: bool) -> int:
    """Send what processes that have ended left in their spools to the broker.

    What is there already is known by its id, and is not doubled. Spools of processes that run are
    theirs to send. What was kept for another broker stays, unless --any-broker is given: after a
    server has moved, or its shards and routes have changed. Exit code 1: something is left, because
    the broker is away or a queue is full.
    """
    root = _root(directory)
    drained = with_store(url, lambda store: _drain(store, root, any_broker=any_broker))
    if as_json:
        print_json(drained._asdict())
    else:
        talk(
            f"{drained.sent:,} sent, {drained.settled:,} outcomes settled, "
            f"{drained.rejected:,} rejected, {drained.left:,} left"
        )
        if drained.skipped:
            talk(
                f"{drained.skipped:,} are for another broker, as fairlead spool list tells; "
                "--any-broker sends them to this one"
            )
    return FAILURE if drained.left else OK


@spool.command(
    cls=Command,
    examples=(("fairlead spool forget", "delete the rejected records of ended processes"),),
)
@_directory
@json_option
def forget(directory: str | None, as_json: bool) -> int:
    """Delete the rejected records of processes that have ended; running ones keep theirs."""
    from fairlead.spool import folders

    root = _root(directory)
    brokers = {each.broker for each in folders(root) if not each.lives}
    count = sum(_forget(root, broker) for broker in brokers)
    if as_json:
        print_json({"forgotten": count})
    else:
        talk(f"{count:,} rejected records are deleted")
    return OK


def _forget(root: Path, broker: str) -> int:
    """Forget what was rejected of one broker: tasks for several never get into one folder."""
    from fairlead.spool import Spool

    opened = Spool.open(root, limits=_limits(), broker=broker)
    count = 0
    try:
        opened.adopt()
        while records := opened.rejected(_MOST):
            opened.forget(record.sequence for record in records)
            count += len(records)
    finally:
        opened.close()
    return count


class _Drained(NamedTuple):
    adopted: int
    sent: int
    settled: int  # outcomes
    rejected: int
    left: int
    skipped: int  # for another broker


async def _drain(store: Store, root: Path, *, any_broker: bool) -> _Drained:
    """Adopt what was left and send all of it once, at the speed of any drain."""
    import asyncio

    from fairlead.broker import destination_of
    from fairlead.fallback.drainer import Drainer
    from fairlead.fallback.fallback import Fallback, FallbackOptions
    from fairlead.model.outage import Ramp

    options = FallbackOptions(directory=root, limits=_limits(), silence=_SILENCE)
    fallback = Fallback(store, options)
    try:
        adopt = partial(fallback.spool.adopt, any_broker=any_broker)
        adopted = await asyncio.to_thread(adopt)
        before = fallback.spool.stats().rejected
        await fallback.outcomes.settle(store)
        drainer, ramp = Drainer(fallback), Ramp(time.monotonic(), 0.0)
        while await drainer.step(ramp.batch):
            # It is measured, and then the broker is left alone for a while.
            pause = ramp.wait(time.monotonic(), drainer.busy, drainer.count)
            await asyncio.sleep(pause)
        stats = fallback.spool.stats()
        settled, rejected = fallback.outcomes.settled, stats.rejected - before
        others = await asyncio.to_thread(_for_others, root, destination_of(store))
        return _Drained(adopted, drainer.sent, settled, rejected, stats.depth, others)
    finally:
        await fallback.close()


def _for_others(root: Path, broker: str) -> int:
    """Return how many records of ended processes are for another broker."""
    from fairlead.spool import folders

    found = (each for each in folders(root) if not each.lives and each.broker != broker)
    return sum(each.depth for each in found)


def _root(directory: str | None) -> Path:
    from pathlib import Path

    from fairlead.settings import configured_fallback

    return Path(configured_fallback("spool", directory).spool.directory).absolute()


def _limits() -> SpoolLimits:
    from fairlead.settings import configured_fallback
    from fairlead.spool import SpoolLimits

    found = configured_fallback("spool").spool
    return SpoolLimits(found.max_bytes, found.max_count, found.max_age)


def _rows(root: Path, *, rejected: bool, bodies: bool) -> Iterator[dict[str, Any]]:
    from fairlead.spool import folders, stored

    for folder in folders(root):
        for record in stored(root, folder.name, rejected=rejected):
            yield {"spool": folder.name, "lives": folder.lives, **_row(record, bodies=bodies)}


def _row(record: Record, *, bodies: bool) -> dict[str, Any]:
    """What can be told of a record; what callers gave to their tasks only if asked for."""
    import base64

    import msgspec

    from fairlead.spool import Kind, Rejection

    row: dict[str, Any] = {
        "sequence": record.sequence,
        "kind": record.kind.name.lower(),
        "at": record.at,
        "size": len(record.payload),
    }
    kind, payload = record.kind, record.payload
    if kind is Kind.REJECTED:
        try:
            told = Rejection.decode(payload)
        except msgspec.DecodeError:
            return {**row, "unreadable": True}
        kind, payload = told.kind, told.payload
        row |= {"code": told.code, "message": told.message, "rejected": kind.name.lower()}
    if record.started:
        row["started"] = True
    row |= _told(kind, payload)
    if bodies:
        row["payload"] = base64.b64encode(payload).decode()
    return row


def _told(kind: Kind, payload: bytes) -> dict[str, Any]:
    import msgspec

    from fairlead.fallback.codec import decode_submission
    from fairlead.fallback.outcomes import KeptOutcome
    from fairlead.model.message import task_name
    from fairlead.spool import Kind

    try:
        if kind in (Kind.SUBMISSION, Kind.LOCAL_DONE):
            message = decode_submission(payload).submission.message
            names = {"tenant": message.tenant, "queue": message.queue}
            return {"id": message.id, "task": task_name(message.body), **names}
        if kind is Kind.OUTCOME:
            settlement = KeptOutcome.decode(payload).settlement
            return {"id": settlement.id}
    except (InvalidInput, msgspec.DecodeError):
        return {"unreadable": True}
    return {}


def _cut(text: str) -> str:
    return one_line(text, _LONGEST) or "-"


def _age(at: float | None) -> str:
    return "-" if at is None else f"{max(time.time() - at, 0.0):,.0f} s"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
