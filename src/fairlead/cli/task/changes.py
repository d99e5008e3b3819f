"""``fairlead task retry``, ``cancel`` and ``delete``: by id, or all tasks that match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.audit_trail import note
from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.bulk_changes import DONE, BulkOptions, bulk_options, carry_out
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import print_json
from fairlead.cli.common.task_filter import TaskQuery, filter_options, query_of, state_option

if TYPE_CHECKING:
    from fairlead.broker.requests import Altered
    from fairlead.client import Client
    from fairlead.client.bulk_actions import Action

_RULES = {
    "retry": "only dead tasks can be retried",
    "cancel": "it has ended",
    "delete": "only tasks that have ended can be deleted; cancel it first",
}
_MANY = (
    "\n\nWith --all-matching it is about all tasks that match and were there when it began: they "
    "are counted first, and you are asked. It goes in short steps; Ctrl-C ends it after the one "
    "under way and says what was done. Exit codes: 0 done, 1 a task is unknown or was not in the "
    "right state, 2 wrong usage, 3 the broker cannot be reached, 130 interrupted."
)


def _order(action: Action, about: str, *examples: tuple[str, str]) -> click.Command:
    """The command that gives one order."""

    @click.command(action, cls=Command, examples=examples, help=about + _MANY)
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @click.option("--all-matching", is_flag=True, help="All tasks that the options choose.")
    @state_option
    @filter_options
    @bulk_options
    @url_option
    @json_option
    def command(
        ids: tuple[str, ...],
        all_matching: bool,
        dry_run: bool,
        yes: bool,
        url: str | None,
        as_json: bool,
        **said: Any,
    ) -> int:
        query = query_of(said)
        if all_matching:
            if ids:
                raise click.UsageError(f"{ids[0]!r} is one task, --all-matching is many: which?")
            _check_state(action, query)
            return carry_out(url, action, query, BulkOptions(dry_run, yes, as_json))
        if not ids:
            raise click.UsageError("name tasks by their ids, or give --all-matching and a filter")
        if query != TaskQuery(tenant=query.tenant):
            raise click.UsageError("filters go with --all-matching, not with ids")
        return order_ids(url, action, ids, query.tenant, dry_run=dry_run, as_json=as_json)

    return command


def _check_state(action: Action, query: TaskQuery) -> None:
    from fairlead.client.bulk_actions import STATES

    states = sorted(STATES[action])
    if query.state is not None and query.state not in states:
        raise click.UsageError(
            f"--state {query.state}: {action} is for tasks that are {' or '.join(states)}"
        )


def order_ids(
    url: str | None,
    action: Action,
    ids: Sequence[str],
    tenant: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Give an order about each of these tasks; the exit code."""
    if dry_run:
        raise click.UsageError("--dry-run goes with --all-matching: these tasks are named already")
    answers = with_client(url, lambda client: _given(client, action, ids, tenant))
    done = [answer.code in ("done", "requested") for answer in answers]
    if as_json:
        told = {id: answer.code for id, answer in zip(ids, answers, strict=True)}
        print_json({"action": action, "tasks": told, "changed": sum(done)})
    for id, answer in zip(ids, answers, strict=True):
        if answer.code == "unknown":
            whose = "" if tenant is None else f" of tenant {tenant!r}"
            talk(f"error: task {id!r}{whose} is not known (next: fairlead task list)")
        elif answer.code == "unchanged":
            talk(f"error: task {id!r} is {answer.state}: {_RULES[action]}")
        elif not as_json:
            asked = "asked to stop" if answer.code == "requested" else DONE[action]
            click.echo(f"{id}  {asked}")
    return OK if all(done) else FAILURE


async def _given(
    client: Client, action: Action, ids: Sequence[str], tenant: str | None
) -> list[Altered]:
    from fairlead.broker.requests import Alter
    from fairlead.client.bulk_actions import VERBS
    from fairlead.model.names import DEFAULT_TENANT, full_id

    owner = DEFAULT_TENANT if tenant is None else tenant
    stored = [id if ":" in id else full_id(owner, id) for id in ids]
    orders = [Alter(id=id, action=VERBS[action], tenant=tenant) for id in stored]
    answers = await client.alter(orders)
    changed = [each.id for each in answers if each.code in ("done", "requested")]
    if changed:
        await note(client, f"tasks.{action}", changed[0] if len(changed) == 1 else "*", ids=changed)
    return answers


retry = _order(
    "retry",
    "Put dead tasks back to work, with all their attempts.",
    ("fairlead task retry 01f3…", "one of them"),
    ("fairlead task retry --all-matching --error TimeoutError --since 1d", "by error and time"),
    ("fairlead task retry --all-matching --queue mail --dry-run", "how many would it be?"),
)
cancel = _order(
    "cancel",
    "Cancel tasks: what waits at once, what runs as soon as its handler stops.",
    ("fairlead task cancel 01f3…", "one of them"),
    ("fairlead task cancel order-7 order-8 --tenant acme", "ids that were chosen"),
    ("fairlead task cancel --all-matching --name shop.report --yes", "all of a name"),
)
delete = _order(
    "delete",
    "Forget tasks that have ended, and their results.",
    ("fairlead task delete 01f3…", "one of them"),
    ("fairlead task delete --all-matching --state dead --until 30d", "dead for a month"),
)
