"""Which tasks a command is about: the options that say so, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fairlead.cli.common.commands import closest
from fairlead.cli.common.output import read_moment
from fairlead.model.states import State

if TYPE_CHECKING:
    from fairlead.broker.records import TaskRecord
    from fairlead.client import Client, PageSelection

F = Callable[..., Any]

state_option: Callable[[F], F] = click.option(
    "--state", type=click.Choice([state.value for state in State]), help="In this state."
)


def filter_options(command: F) -> F:
    """Add the options that choose tasks, whatever their state."""
    for option in reversed(
        (
            click.option("--queue", help="Of this queue."),
            click.option("--tenant", help="Of this tenant."),
            click.option("--name", help="Of this task; shop.* is all whose names begin so."),
            click.option("--error", help="A part of `type: message` of its error, or the reason."),
            click.option("--since", help="Enqueued since: 2026-11-17T08:00:00Z, or 2h ago."),
            click.option("--until", help="Enqueued before: the same."),
        )
    ):
        command = option(command)
    return command


class TaskQuery(NamedTuple):
    """Which tasks are meant; None does not matter."""

    state: str | None = None
    queue: str | None = None
    tenant: str | None = None
    name: str | None = None
    error: str | None = None
    since: float | None = None
    until: float | None = None
    group: str | None = None  # of errors, or the beginning of it

    @property
    def selection(self) -> PageSelection:
        """Return what the broker sees to."""
        said = {"state": self.state, "queue": self.queue, "tenant": self.tenant}
        found: Any = {name: value for name, value in said.items() if value is not None}
        selection: PageSelection = found
        return selection

    def matches(self, record: TaskRecord) -> bool:
        """Return whether a task is meant that the broker found."""
        from fairlead.client.error_groups import kind_of
        from fairlead.client.task_pages import has_error, has_name

        at = record.enqueued_at
        return (
            (self.name is None or has_name(record, self.name))
            and (self.error is None or has_error(record, self.error))
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
            and (self.group is None or kind_of(record).group.startswith(self.group))
        )


def each_once(matches: Callable[[TaskRecord], bool]) -> Callable[[TaskRecord], bool]:
    """Admit each task once: pages may list one that was there all the time twice."""
    seen: set[str] = set()

    def is_new(record: TaskRecord) -> bool:
        if record.message.id in seen or not matches(record):
            return False
        seen.add(record.message.id)
        return True

    return is_new


def query_of(said: dict[str, Any], **more: str | None) -> TaskQuery:
    """The query that the options stand for; they are taken out of ``said``."""
    given = {field: said.pop(field, None) for field in TaskQuery._fields}
    for field in ("since", "until"):
        if given[field] is not None:
            given[field] = read_moment(field, given[field])
    if given["queue"] is not None:
        from fairlead.model.names import check_queue

        check_queue(given["queue"])
    return TaskQuery(**{**given, **more})


async def hint_of(client: Client, query: TaskQuery) -> str:
    """Return what to say where nothing matched: perhaps a name is nearly right."""
    from fairlead.client import known_tasks

    if query.queue is not None:
        known = (await client.store.snapshot(tenants=False)).queues
        if query.queue not in known:
            return f"there is no queue {query.queue!r}{closest(query.queue, known)}"
    if query.name is not None and not query.name.endswith("*"):
        names = [each.name for each in await known_tasks(client)]
        if query.name not in names:
            hint = closest(query.name, names)
            return f"task {query.name!r} is not known to any worker{hint}"
    return "no task matches"
