"""``fairlead task``: one task, or all that match.

Start with ``show`` and ``list``; ``changes`` retries, cancels and deletes.
"""

from __future__ import annotations

import click

from fairlead.cli.common.commands import Group


@click.group(
    cls=Group,
    places={
        "list": "fairlead.cli.task.list:list_",
        "show": "fairlead.cli.task.show:show",
        "watch": "fairlead.cli.task.watch:watch",
        "explain": "fairlead.cli.task.show:explain_task",
        "history": "fairlead.cli.task.show:history",
        "types": "fairlead.cli.task.types:types",
        "enqueue": "fairlead.cli.task.enqueue:enqueue",
        "retry": "fairlead.cli.task.changes:retry",
        "cancel": "fairlead.cli.task.changes:cancel",
        "delete": "fairlead.cli.task.changes:delete",
    },
    former={"requeue": "retry"},
    examples=(
        ("fairlead task list --state dead --since 1h", "what failed in the last hour"),
        ("fairlead task explain ID", "why is it not running?"),
        ("fairlead task show order-7 --tenant acme", "an id that was chosen, of this tenant"),
        ("fairlead task watch ID", "its states and its progress, until it has ended"),
        ("fairlead task enqueue shop.mail to=ann@example.com", "by name"),
        ("fairlead task retry --all-matching --error Timeout --dry-run", "how many would it be?"),
    ),
)
def task() -> None:
    """Tasks: find, watch, explain, retry, cancel, delete and enqueue them."""
