"""``fairlead task``: one task, or all that match."""

from __future__ import annotations

import click

from fairlead.cli.commands import Group

__all__ = ("task",)


@click.group(
    cls=Group,
    places={
        "list": "fairlead.cli.task_list:list_",
        "show": "fairlead.cli.task_show:show",
        "watch": "fairlead.cli.task_watch:watch",
        "explain": "fairlead.cli.task_show:explain_task",
        "history": "fairlead.cli.task_show:history",
        "types": "fairlead.cli.task_types:types",
        "enqueue": "fairlead.cli.task_enqueue:enqueue",
        "retry": "fairlead.cli.task_orders:retry",
        "cancel": "fairlead.cli.task_orders:cancel",
        "delete": "fairlead.cli.task_orders:delete",
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
