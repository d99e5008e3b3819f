"""``fairlead queue``: the queues of a broker.

Start with ``list``; ``settings`` pauses, resumes and limits, ``removal`` purges and deletes.
"""

from __future__ import annotations

import click

from fairlead.cli.common.commands import Group


@click.group(
    cls=Group,
    places={
        "list": "fairlead.cli.queue.list:list_",
        "show": "fairlead.cli.queue.list:show",
        "pause": "fairlead.cli.queue.settings:pause",
        "resume": "fairlead.cli.queue.settings:resume",
        "limit": "fairlead.cli.queue.settings:limit",
        "purge": "fairlead.cli.queue.removal:purge",
        "delete": "fairlead.cli.queue.removal:delete",
    },
    examples=(
        ("fairlead queue list", "what waits, runs and is dead in each"),
        ("fairlead queue show mail", "its counts, its settings and its tenants"),
        ("fairlead queue pause mail", "let nothing of it start"),
        ("fairlead queue limit mail --rate 300/m --concurrency 20", "for all workers together"),
        ("fairlead queue purge mail --tenant acme", "cancel what waits"),
    ),
)
def queue() -> None:
    """Queues: look at them, pause, limit, purge and delete them."""
