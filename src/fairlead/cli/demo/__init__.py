"""``fairlead demo``: four tenants, one worker, and what each of them got.

``run`` plays it, ``stats`` computes, ``screen`` shows; ``ledger`` is the demo of transactions.
"""

from __future__ import annotations

import click

from fairlead.cli.common.commands import Command, Number, talk
from fairlead.cli.common.output import print_json


@click.command(
    cls=Command,
    examples=(
        ("fairlead demo", "watch it, live on a terminal"),
        ("fairlead demo --tasks-scale 0.2", "a shorter one"),
        ("fairlead demo --concurrency 50 --task-ms 5", "a faster worker"),
        ("fairlead demo --url redis://localhost", "on your own server"),
        ("fairlead demo --ledger", "tasks in transactions, and a broker that is emptied"),
        ("fairlead demo --json", "only the figures"),
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Tasks that run at a time.",
)
@click.option(
    "--tasks-scale",
    type=Number(0.001, 100.0),
    default=1.0,
    show_default=True,
    help="Multiply the number of tasks.",
)
@click.option(
    "--task-ms",
    type=Number(0.0, 10_000.0),
    default=20.0,
    show_default=True,
    help="Milliseconds that a task takes.",
)
@click.option("--memory", "in_memory", is_flag=True, help="Run it in memory, without a server.")
@click.option(
    "--url", metavar="URL", help="Run it on this broker, in a queue of its own. Leaves no tasks."
)
@click.option(
    "--ledger",
    is_flag=True,
    help="Show PostgreSQL as the record instead. Only --tasks-scale and --json go with it.",
)
def demo(
    as_json: bool,
    concurrency: int,
    tasks_scale: float,
    task_ms: float,
    in_memory: bool,
    url: str | None,
    ledger: bool,
) -> None:
    """Watch small tenants get their turn while others flood the queue.

    One tenant enqueues 5,000 tasks and one with three times its weight 2,000. Two quiet ones come
    with a few at a time while these are worked off. It starts a Valkey server for itself, and ends
    with it after about ten seconds; nothing is left behind. Waits are measured from enqueue to
    start; "fair" is the share that the weights promise.
    """
    if in_memory and url is not None:
        raise click.UsageError("--memory and --url exclude each other")
    if ledger:
        if in_memory or url is not None:
            raise click.UsageError(
                "--ledger starts servers of its own; leave --memory and --url out"
            )
        _play_ledger(tasks_scale, as_json)
        return
    from fairlead.cli.demo.run import Run, planned, play, staged

    with staged(url, in_memory) as stage:
        play(Run(planned(tasks_scale, concurrency, task_ms), stage), as_json)


def _play_ledger(scale: float, as_json: bool) -> None:
    from fairlead.cli.demo.ledger import play_ledger, sentences_of_ledger

    def say(text: str) -> None:
        if not as_json:
            talk(f"demo: {text}")

    figures = play_ledger(scale, say)
    if as_json:
        print_json(figures)
        return
    for sentence in sentences_of_ledger(figures):
        click.echo(sentence)
