"""``fairlead schedule``: what is enqueued by the clock, and changing it while everything runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from fairlead.cli.common.broker_option import quiet, store_of, url_option
from fairlead.cli.common.commands import Command, Group, json_option
from fairlead.cli.common.known_names import naming_schedules
from fairlead.cli.common.output import print_columns
from fairlead.model.errors import InvalidInput, ScheduleConflict

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.client import ScheduleInfo
    from fairlead.model.schedule import TimingOptions

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_NOTHING = "-"
_NAMES = click.argument("names", metavar="NAME...", nargs=-1, required=True)


def _all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Options that several commands have, as one decorator."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_when_options = _all_of(
    click.option("--cron", help="Five fields, or a name such as @daily."),
    click.option("--every", help='An interval: "90s", "5m", "1h".'),
    click.option("--at", help="One moment: ISO 8601, or unix seconds."),
    click.option("--tz", help="Time zone of --cron, and of moments without one.  [default: UTC]"),
    click.option("--gap", help="Times that clocks leave out: skip or after."),
    click.option("--fold", help="Times that come twice: first, second or both."),
    click.option("--missed", help="Missed slots: skip, latest or all.  [default: latest]"),
    click.option("--max-missed", type=int, help="How many --missed all makes up for."),
    click.option("--start", help="No slot before this moment."),
    click.option("--end", help="No slot after this moment."),
)
_task_options = _all_of(
    click.option("--queue", help="Instead of the task's own."),
    click.option("--tenant", help="Instead of the task's own."),
    click.option("--priority", help="Instead of the task's own."),
)


@click.group(
    cls=Group,
    examples=(
        ("fairlead schedule list", "all schedules, and when they are due next"),
        ("fairlead schedule pause nightly-report", "let no slot of it be fired"),
        ("fairlead schedule run nightly-report", "enqueue its task now, beside its slots"),
        ("fairlead schedule next nightly-report -n 3", "its next three slots"),
    ),
)
def schedule() -> None:
    """Schedules: list, make, change, pause and delete what is enqueued by the clock.

    All but create need only the broker: --url, FAIRLEAD_URL or fairlead.toml say which.
    """


@schedule.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead schedule list", "the broker of FAIRLEAD_URL or fairlead.toml"),
        ("fairlead schedule list --json", "for programs"),
    ),
)
@url_option
@json_option
def list_(url: str | None, as_json: bool) -> None:
    """Show all schedules by name: when they come, and their last and next slots."""
    found = _with(url, lambda app: app.schedules.alist())
    if as_json:
        click.echo(_json({"schedules": found}))
        return
    if not found:
        click.echo("there are no schedules", err=True)
        return
    rows = [("NAME", "WHEN", "TASK", "LAST", "NEXT")]
    rows += [
        (
            info.name,
            _when(info),
            info.task or _NOTHING,
            _moment(info.last_slot, info),
            "paused" if info.paused else _moment(info.next_at, info),
        )
        for info in found
    ]
    print_columns(rows)


@schedule.command(
    cls=Command,
    examples=(
        ("fairlead schedule show nightly-report", "all that is known of it"),
        ("fairlead schedule show nightly-report --json", "for programs"),
    ),
)
@click.argument("name")
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> None:
    """Show all that is known of a schedule."""
    info = _with(url, lambda app: app.schedules.aget(name))
    if as_json:
        click.echo(_json(info))
        return
    rule = info.timing
    rows = [
        ("name", info.name),
        ("when", _when(info)),
        ("task", f"{info.task or _NOTHING} in queue {info.queue}, tenant {info.tenant or '?'}"),
        ("arguments", ", ".join([*map(repr, info.args), *_keywords(info)]) or "none"),
        ("state", "paused" if info.paused else "active" if info.next_at else "over"),
        ("next slot", _moment(info.next_at, info)),
        ("last slot", _moment(info.last_slot, info)),
        ("made by", "a program" if info.declared else "hand"),
        ("changed", f"{_moment(info.changed_at, info)} (revision {info.revision})"),
    ]
    if rule is not None:
        missed = f"all, {rule.max_missed} at most" if rule.missed == "all" else rule.missed
        rows.insert(2, ("missed", missed))
        rows.insert(3, ("clock changes", f"forward: {rule.gap}; back: {rule.fold}"))
    if info.problem:
        rows.append(("problem", info.problem))
    print_columns(rows)


@schedule.command(
    cls=Command,
    examples=(
        (
            "fairlead schedule create shop:app nightly shop.report --cron '0 2 * * *'",
            "at two, in UTC",
        ),
        (
            "fairlead schedule create shop:app poll shop.poll --every 5m --args '[1]'",
            "with an argument",
        ),
        ("fairlead schedule create shop:app sale shop.sale --at 2027-01-01T00:00Z", "once"),
    ),
)
@click.argument("app", metavar="APP")
@click.argument("name")
@click.argument("task")
@_when_options
@click.option("--args", "positional", default="[]", help="Arguments, as a JSON list.")
@click.option("--kwargs", "keywords", default="{}", help="Arguments by name, as a JSON object.")
@_task_options
@json_option
def create(app: str, name: str, task: str, cron: str | None, as_json: bool, **said: Any) -> None:
    """Create a schedule of a task of APP, MODULE:ATTRIBUTE."""
    from fairlead.cli.common.app_loader import load_app

    args = _parsed("--args", said.pop("positional"), list)
    kwargs = _parsed("--kwargs", said.pop("keywords"), dict)
    options, when = _split(said)
    loaded = load_app(app)
    if (loaded._url or "").lower().startswith("memory:"):
        raise click.UsageError(f"{app} lives in memory, where no other process sees its schedules")
    call = loaded.registered(task).using(**options).call(*args, **kwargs)

    async def work(made: Fairlead) -> ScheduleInfo:
        return await made.schedules.acreate(name, call, cron, **when)

    info = _run(loaded, work)
    click.echo(_json(info) if as_json else f"{info.name}  next {_moment(info.next_at, info)}")


@schedule.command(
    cls=Command,
    examples=(
        ("fairlead schedule change nightly --cron '0 3 * * *'", "an hour later"),
        ("fairlead schedule change poll --every 1m --args '[2]'", "oftener, with another argument"),
        ("fairlead schedule change poll --queue slow --missed skip", "what is not named stays"),
    ),
)
@click.argument("name")
@_when_options
@click.option("--args", "positional", help="Arguments, as a JSON list.")
@click.option("--kwargs", "keywords", help="Arguments by name, as a JSON object.")
@_task_options
@url_option
@json_option
def change(name: str, cron: str | None, url: str | None, as_json: bool, **said: Any) -> None:
    """Change when a schedule comes, or what is enqueued; what is not named stays as it is.

    Arguments are not compared with the function, which only workers know.
    """
    from fairlead.client.schedule_spec import Amendment

    args, kwargs = said.pop("positional"), said.pop("keywords")
    options, when = _split(said)
    amendment = Amendment(
        args=None if args is None else _parsed("--args", args, list),
        kwargs=None if kwargs is None else _parsed("--kwargs", kwargs, dict),
        **options,
    )
    if amendment == Amendment() and not when and cron is None:
        raise click.UsageError("nothing to change was named")
    info = _with(url, lambda app: app.schedules._amend(name, amendment, cron, when))
    click.echo(_json(info) if as_json else f"{info.name}  next {_moment(info.next_at, info)}")


@schedule.command(
    cls=Command, examples=(("fairlead schedule pause nightly-report", "until it is resumed"),)
)
@_NAMES
@url_option
def pause(names: Sequence[str], url: str | None) -> int:
    """Fire no more slots of schedules until they are resumed."""
    return _each(url, names, "paused", lambda app, name: app.schedules.apause(name))


@schedule.command(
    cls=Command, examples=(("fairlead schedule resume nightly-report", "from its next slot on"),)
)
@_NAMES
@url_option
def resume(names: Sequence[str], url: str | None) -> int:
    """Go on with the next slot. Those that passed meanwhile are not made up for."""
    return _each(url, names, "resumed", lambda app, name: app.schedules.aresume(name))


@schedule.command(
    cls=Command,
    examples=(("fairlead schedule delete report-acme", "its tasks stay where they are"),),
)
@_NAMES
@url_option
def delete(names: Sequence[str], url: str | None) -> int:
    """Forget schedules. What a program declares comes back when its workers start."""
    return _each(url, names, "deleted", lambda app, name: app.schedules.adelete(name))


@schedule.command(
    cls=Command,
    examples=(("fairlead schedule run nightly-report", "prints the id of the task"),),
)
@click.argument("name")
@url_option
@json_option
def run(name: str, url: str | None, as_json: bool) -> None:
    """Enqueue the task of a schedule now. Its slots stay as they are."""
    handle = _with(url, lambda app: app.schedules.arun_now(name))
    click.echo(_json({"id": handle.id}) if as_json else handle.id)


@schedule.command(
    "next",
    cls=Command,
    examples=(
        ("fairlead schedule next nightly-report", "its next five slots"),
        ("fairlead schedule next nightly-report -n 100 --json", "unix seconds, for programs"),
    ),
)
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True)
@url_option
@json_option
def next_(name: str, count: int, url: str | None, as_json: bool) -> None:
    """Show the next slots of a schedule; of one that is paused, those it would have."""

    async def work(app: Fairlead) -> tuple[ScheduleInfo, Sequence[float]]:
        return await app.schedules.aget(name), await app.schedules.anext_runs(name, count)

    info, slots = _with(url, work)
    if as_json:
        click.echo(_json({"name": name, "next": slots}))
        return
    for slot in slots:
        click.echo(_moment(slot, info))


# -- what they share ---------------------------------------------------------------------------


def _with(url: str | None, work: Callable[[Fairlead], Awaitable[T]]) -> T:
    from fairlead.app import Fairlead

    return _run(Fairlead(store=store_of(url)), work)


def _run(app: Fairlead, work: Callable[[Fairlead], Awaitable[T]]) -> T:
    import asyncio

    async def all_of_it() -> T:
        async with app:
            return await naming_schedules(app, work(app))

    with quiet():
        return asyncio.run(all_of_it())


def _each(
    url: str | None,
    names: Sequence[str],
    done: str,
    work: Callable[[Fairlead, str], Awaitable[object]],
) -> int:
    """One line for each; one that is unknown does not keep the others from being done."""

    async def all_of_them(app: Fairlead) -> int:
        code = 0
        for name in names:
            try:
                await naming_schedules(app, work(app, name))
            except (click.UsageError, InvalidInput, ScheduleConflict) as error:
                click.echo(f"error: {error}", err=True)
                code = 1
            else:
                click.echo(f"{name}  {done}")
        return code

    return _with(url, all_of_them)


def _split(said: dict[str, Any]) -> tuple[dict[str, Any], TimingOptions]:
    """What was said about the task, and what about the times."""
    given = {key: value for key, value in said.items() if value is not None}
    options: dict[str, Any] = {}
    for key in ("queue", "tenant", "priority"):
        if key in given:
            options[key] = given.pop(key)
    for key in ("at", "start", "end"):
        if key in given:
            given[key] = _read_moment(f"--{key}", given[key])
    return options, cast("TimingOptions", given)


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value, enc_hook=repr).decode()


def _parsed(option: str, text: str, kind: type) -> Any:
    import json

    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option} {text!r} is not JSON: {error}") from None
    if not isinstance(value, kind):
        shape = "a list" if kind is list else "an object"
        raise click.UsageError(f"{option} {text!r} is not {shape} in JSON")
    return value


def _read_moment(option: str, text: str) -> datetime | float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r} is no moment such as 2027-01-01T02:00+01:00, nor unix seconds"
        ) from None


def _when(info: ScheduleInfo) -> str:
    return "cannot be read here" if info.timing is None else str(info.timing)


def _keywords(info: ScheduleInfo) -> list[str]:
    return [f"{name}={value!r}" for name, value in info.kwargs.items()]


def _moment(at: float | None, info: ScheduleInfo) -> str:
    """A moment in the schedule's own time zone."""
    from zoneinfo import ZoneInfo

    if at is None:
        return _NOTHING
    zone = UTC if info.timing is None else ZoneInfo(info.timing.tz)
    return datetime.fromtimestamp(at, zone).isoformat(sep=" ", timespec="seconds")
