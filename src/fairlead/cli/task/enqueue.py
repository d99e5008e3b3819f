"""``fairlead task enqueue``: a task by its name, without its code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import url_option, with_app
from fairlead.cli.common.commands import Command, UnknownName, json_option, talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.output import print_json
from fairlead.model.errors import UnknownTask

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.client import Handle

_KEYWORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)


@click.command(
    cls=Command,
    examples=(
        ("fairlead task enqueue shop.mail to=ann@example.com count=2", "arguments by name"),
        ("""fairlead task enqueue shop.mail '["ann@example.com", 2]'""", "as JSON"),
        ("fairlead task enqueue shop.report --tenant acme --delay 5m", "due in five minutes"),
        ("fairlead task enqueue shop.report --wait --timeout 60s", "and print its result"),
    ),
)
@click.argument("name")
@click.argument("arguments", metavar="[KEY=VALUE | VALUE | JSON]...", nargs=-1)
@click.option("--queue", help="Instead of the task's own.")
@click.option("--tenant", help="Instead of the task's own.")
@click.option("--priority", help="critical, high, normal or low, instead of the task's own.")
@click.option("--delay", help="How long from now it is due: 90s, 5m, 1h.")
@click.option("--deadline", help="How long from now it must have started.")
@click.option("--id", "chosen", metavar="ID", help="An id of your own; twice is one task.")
@click.option("--wait", is_flag=True, help="Wait for its end, and print its result as JSON.")
@click.option("--timeout", help="How long to wait: 60s.  [default: no end]")
@click.option("--unknown", is_flag=True, help="Also if no worker has a task of this name.")
@url_option
@json_option
def enqueue(
    name: str,
    arguments: tuple[str, ...],
    wait: bool,
    timeout: str | None,
    unknown: bool,
    chosen: str | None,
    url: str | None,
    as_json: bool,
    **said: str | None,
) -> int:
    """Enqueue a task by its name, and print its id.

    Workers tell its queue, its options and its parameters (fairlead task types), so the arguments
    are checked. A VALUE is JSON if it can be read as such, and text otherwise; one list in JSON is
    all arguments by place, one object all by name. Exit codes: 0 enqueued, or with --wait
    completed; 1 it failed; 2 the name or the arguments are wrong; 3 the broker cannot be reached;
    4 it had not ended in time.
    """
    if timeout is not None and not wait:
        raise click.UsageError(f"--timeout {timeout} is for --wait")
    args, kwargs = read_arguments(arguments)
    options: Any = {key: value for key, value in {**said, "id": chosen}.items() if value}
    options["durability"] = "committed"  # nobody is there later who would empty a spool

    async def send(app: Fairlead) -> tuple[Handle[Any], Any]:
        sender = app.named(name, strict=False if unknown else None).using(**options)
        try:
            handle = await sender.aenqueue(*args, **kwargs)
        except UnknownTask as error:
            hint = f"; did you mean {' or '.join(error.closest)}?" if error.closest else ""
            raise UnknownName(
                f"task {name!r} is not known to any worker{hint} --unknown sends it all the same",
                "fairlead task types",
            ) from None
        warning = await _unserved(app, handle)
        if warning:
            talk(warning)
        if wait and not as_json:
            talk(handle.id)
        return handle, await handle.aresult(timeout) if wait else None

    handle, result = with_app(url, send)
    if as_json:
        shown = {"id": handle.id, "tenant": handle.tenant, "duplicate": handle.duplicate}
        print_json({**shown, "result": result} if wait else shown)
    else:
        click.echo(_json(result) if wait else handle.id)
        if handle.duplicate:
            talk(f"task {handle.id} was there already")
    return OK


def read_arguments(texts: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that words of a command line stand for."""
    if len(texts) == 1 and texts[0][:1] in ("[", "{"):
        try:
            whole = _parsed(texts[0])
        except ValueError as error:
            raise click.UsageError(f"{texts[0]!r} is not JSON: {error}") from None
        return (whole, {}) if isinstance(whole, list) else ([], whole)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        found = _KEYWORD.match(text)
        if found is not None:
            kwargs[found[1]] = _value(found[2])
        elif kwargs:
            raise click.UsageError(f"{text!r} stands behind arguments that have names")
        else:
            args.append(_value(text))
    return args, kwargs


def _parsed(text: str) -> Any:
    import json

    return json.loads(text)


def _value(text: str) -> Any:
    try:
        return _parsed(text)
    except ValueError:
        return text


def _json(value: object) -> str:
    import json

    return json.dumps(value, default=str)


async def _unserved(app: Fairlead, handle: Handle[Any]) -> str:
    """A warning if no worker has the task, or none serves its queue."""
    info = await handle.ainfo()
    serving = [each for each in await app.aworkers() if info.queue in each.queues]
    if any(info.task in worker.tasks for worker in serving):
        return ""
    if serving:
        return f"no worker of queue {info.queue!r} has task {info.task!r}: it waits for one"
    return f"no live worker serves queue {info.queue!r}: the task waits until one does"
