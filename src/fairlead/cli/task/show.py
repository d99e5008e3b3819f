"""``fairlead task show``, ``explain`` and ``history``: all that is known of one task."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import url_option, with_store
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.ledger_option import ledger_option, with_history
from fairlead.cli.common.output import moment_text, plain, print_json
from fairlead.model.names import DEFAULT_TENANT, check_tenant, full_id
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.broker import Store
    from fairlead.broker.explanation import Explanation
    from fairlead.broker.records import TaskRecord
    from fairlead.broker.standing import Standing
    from fairlead.client.history import TaskHistory

_LONGEST_LINE = 2_500  # characters of a line of the log
_LONGEST_ERROR = 200
_RUNS = frozenset(("running", "held", "completed"))  # nothing is in its way


_tenant = click.option(
    "--tenant", help="Whose task it is; needed for ids that were chosen, checked for others."
)


@click.command(
    "explain",
    cls=Command,
    examples=(
        ("fairlead task explain 01f3…", "the reasons, the most decisive one first"),
        ("fairlead task explain order-7 --tenant acme", "an id that was chosen"),
        ("fairlead task explain 01f3… --json", "for programs: codes and figures"),
    ),
)
@click.argument("id")
@_tenant
@url_option
@json_option
def explain_task(id: str, tenant: str | None, url: str | None, as_json: bool) -> int:
    """Say why a task is not running, and where it can be said, when it will.

    Exit codes: 0 the task is known, 1 it is not, 3 the broker cannot be reached.
    """
    found = with_store(url, partial(_explained, id=id, tenant=tenant))
    if as_json:
        print_json(_as_dict(found))
    else:
        click.echo(f"{found.id}  {found.state or 'unknown'}")
        for reason in found.reasons:
            click.echo(f"  {reason.code:18} {reason.text}")
        if found.estimate is not None and found.code not in _RUNS:
            click.echo(f"  {'estimate':18} starts in about {found.estimate:.3g} s")
    return OK if found.state is not None else FAILURE


@click.command(
    cls=Command,
    examples=(
        ("fairlead task show 01f3…", "state, attempts, times, the last error"),
        ("fairlead task show 01f3… --payload", "with its arguments and its result"),
        ("fairlead task show 01f3… --json", "for programs"),
    ),
)
@click.argument("id")
@_tenant
@click.option("--payload", is_flag=True, help="Its arguments and its result, too.")
@url_option
@json_option
def show(id: str, tenant: str | None, payload: bool, url: str | None, as_json: bool) -> int:
    """Show all that is known of a task; its arguments and its result only if asked for.

    Exit codes: 0 the task is known, 1 it is not, 3 the broker cannot be reached.
    """
    import json

    import msgspec

    from fairlead.client.task_info import info_of

    found = with_store(url, partial(_record, id=id, tenant=tenant, payload=payload))
    record, log = found or (None, None)
    if record is None:
        talk(
            f"task {id!r} of tenant {tenant or DEFAULT_TENANT!r} is not known, or forgotten "
            "(next: fairlead task list)"
        )
        return FAILURE
    info = info_of(record)
    fields = plain(info)
    if payload:
        fields |= _payload(record)
    fields |= _log(log)
    error = None if info.error is None else msgspec.structs.asdict(info.error)
    if as_json:
        print_json({**fields, "error": error})
        return OK
    del fields["error"]
    lines, dropped = fields.pop("log"), fields.pop("log_dropped")
    for name, value in fields.items():
        if value not in (None, "", [], {}, False):
            click.echo(f"{name:13} {_shown(name, value)}")
    if error is not None:
        click.echo(f"{'error':13} {error['type']}: {error['message']}")
        click.echo(error["traceback"], nl=False)
    if dropped:
        click.echo(f"{'log':13} {dropped} older lines were dropped")
    for line in lines:
        said = "".join(f" {key}={json.dumps(value)}" for key, value in line["fields"].items())
        text = one_line(f"{line['text']}{said}", _LONGEST_LINE)
        click.echo(f"{'log':13} {moment_text(line['at'])} attempt {line['attempt']}: {text}")
    return OK


@click.command(
    cls=Command,
    examples=(
        ("fairlead task history 01f3…", "every attempt and every change of state"),
        ("fairlead task history order-7 --tenant acme --json", "for programs"),
    ),
)
@click.argument("id")
@_tenant
@url_option
@ledger_option
@json_option
def history(id: str, tenant: str | None, url: str | None, ledger: str | None, as_json: bool) -> int:
    """Show every attempt of a task, with its worker and its error, and every change of its state.

    Without a ledger the broker answers with what it still keeps, which is the last attempt. Exit
    codes: 0 the task is known, 1 it is not, 3 the broker or the ledger cannot be reached.
    """
    found = with_history(url, ledger, partial(_history, id=id, tenant=tenant))
    if found is None:
        talk(
            f"task {id!r} of tenant {tenant or DEFAULT_TENANT!r} is not known, or forgotten "
            "(next: fairlead task list)"
        )
        return FAILURE
    if as_json:
        print_json(found)
        return OK
    one = found.task
    click.echo(f"{one.id}  {one.task or '?'}  {one.state}  {one.reason}".rstrip())
    for attempt in found.attempts:
        where = f"{attempt.host}:{attempt.pid}" if attempt.host else attempt.worker or "?"
        times = f"{moment_text(attempt.started_at)} to {moment_text(attempt.ended_at)}"
        click.echo(f"attempt {attempt.number}  {attempt.outcome or 'runs'}  {times}  on {where}")
        if attempt.error_type:
            click.echo(f"  {one_line(f'{attempt.error_type}: {attempt.error}', _LONGEST_ERROR)}")
    for change in found.changes:
        line = f"{moment_text(change.at)}  {change.kind:12} {change.state:10} {change.reason}"
        click.echo(line.rstrip())
    if found.source == "broker":
        talk("this is what the broker still keeps; the ledger does not have the task")
    return OK


async def _history(app: Fairlead, id: str, tenant: str | None) -> TaskHistory | None:
    from fairlead.client.history import history_of

    owner = check_tenant(DEFAULT_TENANT if tenant is None else tenant)
    clients, stored = app._clients, id if ":" in id else full_id(owner, id)
    found = await history_of(clients.ledger_or_none, clients.current(), stored)
    return None if found and tenant is not None and found.task.tenant != tenant else found


async def _standing(store: Store, id: str, tenant: str | None) -> Standing | None:
    """By an id that Fairlead made, that was chosen for this tenant, or as it is stored."""
    owner = check_tenant(DEFAULT_TENANT if tenant is None else tenant)
    found = await store.standing(id if ":" in id else full_id(owner, id))
    if found is not None and tenant is not None and found.record.message.tenant != tenant:
        return None
    return found


async def _record(
    store: Store, id: str, tenant: str | None, payload: bool
) -> tuple[TaskRecord, bytes | None] | None:
    """What is known of a task, and its log."""
    standing = await _standing(store, id, tenant)
    if standing is None:
        return None
    record = standing.record
    (more,) = await store.find([record.message.id], parts="all" if payload else "log")
    if more is None:
        return record, None
    return (more if payload else record), more.log


def _log(stored: bytes | None) -> dict[str, Any]:
    """The lines of a task, as plain data; none where a codec is needed for them."""
    import msgspec

    from fairlead.model.codecs import CodecError
    from fairlead.model.log_lines import LogLine, LogLines, read_log

    encoded: dict[str, Any] = {}
    try:
        found = read_log(stored)
    except CodecError as error:
        found, encoded = LogLines(), {"encoded": error.codec}
    names = LogLine.__struct_fields__
    lines = [{name: getattr(line, name) for name in names} for line in found]
    plain: Any = msgspec.to_builtins(lines, enc_hook=repr, str_keys=True)
    return {**encoded, "log": plain, "log_dropped": found.dropped}


def _payload(record: TaskRecord) -> dict[str, Any]:
    """The arguments and the result, as plain data; of a cancelled task nothing is kept.

    What a codec has encoded cannot be read here: the app has it, and is not known.
    """
    import msgspec

    from fairlead.model.argument_packing import unpack, unpack_arguments
    from fairlead.model.codecs import CodecError
    from fairlead.model.errors import InvalidInput
    from fairlead.model.message import Body

    found: dict[str, Any] = {"args": [], "kwargs": {}, "result": None}
    try:
        args, kwargs = unpack_arguments(Body.decode(record.message.body).arguments)
        found |= {"args": args, "kwargs": kwargs}
    except InvalidInput:
        pass
    except CodecError as error:
        found |= {"args": None, "kwargs": None, "encoded": error.codec}
    try:
        found["result"] = None if record.result is None else unpack(record.result)
    except CodecError as error:
        found["encoded"] = error.codec
    simple: dict[str, Any] = msgspec.to_builtins(found, enc_hook=repr, str_keys=True)
    return simple


async def _explained(store: Store, id: str, tenant: str | None) -> Explanation:
    from fairlead.broker.explanation import explain

    return explain(id, await _standing(store, id, tenant), await store.workers())


def _as_dict(found: Explanation) -> dict[str, Any]:
    return {**plain(found), "code": found.code, "text": found.text}


def _shown(name: str, value: Any) -> str:
    import json

    if name.endswith("_at"):
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds")
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
