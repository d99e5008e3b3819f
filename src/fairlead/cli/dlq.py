"""``fairlead dlq``: dead letters, by what they died of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.bulk_changes import BulkOptions, bulk_options, carry_out
from fairlead.cli.common.commands import Command, Group, json_option, talk
from fairlead.cli.common.exit_codes import INTERRUPTED, OK
from fairlead.cli.common.output import moment_text, print_columns, print_json
from fairlead.cli.common.progress import Progress, interruptible
from fairlead.cli.common.task_filter import TaskQuery, each_once, filter_options, hint_of, query_of
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.client.bulk_actions import Action

_AT_ONCE = 200  # dead letters of one read, so that it never takes long
_WIDEST = 40  # characters of a name
_LONGEST = 100  # characters of an error
_GROUP = click.option(
    "--group", help="Those that died of the same: the id that `dlq list` shows, or its beginning."
)


@click.group(
    cls=Group,
    examples=(
        ("fairlead dlq list", "dead letters, by what they died of"),
        ("fairlead dlq list --group 1f0c9a", "the tasks of one group"),
        ("fairlead dlq retry --group 1f0c9a", "after the cause was mended"),
        ("fairlead dlq delete --error 'no mailbox' --until 30d", "old ones"),
    ),
)
def dlq() -> None:
    """Dead letters: what failed for good, by what it failed of."""


@dlq.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead dlq list", "by what they died of, the largest group first"),
        ("fairlead dlq list --queue mail --since 1d", "of a queue, since yesterday"),
        ("fairlead dlq list --group 1f0c9a", "the tasks of one group"),
        ("fairlead dlq list --json", "for programs"),
    ),
)
@filter_options
@_GROUP
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many."
)
@url_option
@json_option
def list_(limit: int, url: str | None, as_json: bool, **said: Any) -> int:
    """List dead letters in groups: the same task, and the same error but for ids and numbers.

    With --group its tasks are listed. Exit codes: 0 fine, 3 the broker cannot be reached, 130
    interrupted: what was read so far is shown.
    """
    query = query_of(said, state="dead")
    if query.group is not None:
        from fairlead.cli.task.list import print_tasks, read_tasks, task_fields

        tasks, more, hint = with_client(url, lambda client: read_tasks(client, query, limit))
        if as_json:
            print_json({"tasks": [task_fields(each) for each in tasks], "more": more})
        else:
            print_tasks(tasks, more, hint, limit)
        return OK
    groups, finished, hint = with_client(url, lambda client: _groups(client, query))
    groups.sort(key=lambda each: (-each["count"], each["group"]))
    if as_json:
        more = len(groups) > limit
        print_json({"groups": groups[:limit], "more": more, "finished": finished})
    elif not groups:
        talk("there are no dead letters" if query == TaskQuery(state="dead") else hint)
    else:
        _print_groups(groups[:limit])
    if not finished:
        talk("interrupted: these are the groups among those that were read so far")
        return INTERRUPTED
    return OK


def _print_groups(groups: list[dict[str, Any]]) -> None:
    rows = [("COUNT", "TASK", "NEWEST", "GROUP", "ERROR")]
    for each in groups:
        kind, message = each["error_type"], each["message"]
        rows.append(
            (
                f"{each['count']:,}",
                one_line(each["task"] or "?", _WIDEST),
                moment_text(each["newest_at"]),
                each["group"],
                one_line(f"{kind}: {message}" if kind else message, _LONGEST),
            )
        )
    print_columns(rows)


async def _groups(client: Client, query: TaskQuery) -> tuple[list[dict[str, Any]], bool, str]:
    """The groups, whether all dead letters were read, and a hint if there are none."""
    from fairlead.client.bulk_actions import begin
    from fairlead.client.error_groups import kind_of
    from fairlead.client.task_pages import found_tasks

    groups: dict[str, dict[str, Any]] = {}
    selection, matches = query.selection, each_once(query.matches)
    progress, read = Progress("dead letters read"), 0
    pages = (await begin(client, query.queue)).pages  # it ends, however fast new ones come in
    with interruptible() as interruption:
        while not interruption.came:
            page = await found_tasks(client, selection, matches, limit=_AT_ONCE, calls=1)
            for record in page.records:
                kind, at = kind_of(record), record.finished_at or 0.0
                group = groups.setdefault(
                    kind.group,
                    {
                        "group": kind.group,
                        "task": kind.task,
                        "error_type": kind.type,
                        "message": kind.message,
                        "count": 0,
                        "newest_at": -1.0,
                        "sample": "",
                    },
                )
                group["count"] += 1
                if at > group["newest_at"]:
                    group.update(newest_at=at, sample=record.message.id)
            selection["cursor"] = page.cursor
            read, pages = read + page.examined, pages - 1
            progress.show(read)
            if page.cursor is None or pages <= 0:
                break
    progress.clear()
    hint = "" if groups else await hint_of(client, query)
    return [*groups.values()], not interruption.came, hint


def _order(action: Action, about: str, *examples: tuple[str, str]) -> None:
    """Add the command that gives one order about dead letters."""

    @dlq.command(
        action,
        cls=Command,
        examples=examples,
        help=f"{about}\n\nThey are counted first, and you are asked. To do it with some by their "
        f"ids, use `fairlead task {action}`. It goes in short steps; Ctrl-C ends it after the one "
        "under way and says what was done. Exit codes: 0 done, 2 wrong usage, 3 the broker cannot "
        "be reached, 130 interrupted.",
    )
    @click.option("--all-matching", is_flag=True, help="All dead letters, if nothing else is said.")
    @filter_options
    @_GROUP
    @bulk_options
    @url_option
    @json_option
    def command(
        all_matching: bool,
        dry_run: bool,
        yes: bool,
        url: str | None,
        as_json: bool,
        **said: Any,
    ) -> int:
        query = query_of(said, state="dead")
        if query == TaskQuery(state="dead") and not all_matching:
            raise click.UsageError(
                "say which: --group, a filter such as --queue, or --all-matching for all of them"
            )
        return carry_out(url, action, query, BulkOptions(dry_run, yes, as_json))


_order(
    "retry",
    "Put dead letters back to work, with all their attempts.",
    ("fairlead dlq retry --group 1f0c9a", "after the cause was mended"),
    ("fairlead dlq retry --queue mail --error Timeout --yes", "without a question"),
    ("fairlead dlq retry --all-matching --dry-run", "how many are there?"),
)
_order(
    "delete",
    "Forget dead letters.",
    ("fairlead dlq delete --group 1f0c9a", "of one kind"),
    ("fairlead dlq delete --until 30d --yes", "enqueued more than a month ago"),
)
