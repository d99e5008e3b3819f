"""``fairlead worker``: processes that run the tasks of an app."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.commands import Number, in_size, is_debugging, log_options, talk
from fairlead.cli.common.configured_command import ConfiguredCommand

if TYPE_CHECKING:
    from fairlead.worker.process.ipc import Plan

_CHILD = (sys.executable, "-m", "fairlead.cli.worker_child")


@click.command(
    cls=ConfiguredCommand,
    table="worker",
    prefix="FAIRLEAD_WORKER",
    examples=(
        ("fairlead worker shop.tasks:app", "ten tasks at a time, in one process"),
        ("fairlead worker shop.tasks:app --reload", "new code as soon as it is saved"),
        ("fairlead worker shop.tasks:app -c 100 -p 2", "a hundred in each of two processes"),
        ("fairlead worker shop.tasks:app -q high=6,low=1", "two queues, shared six to one"),
        ("fairlead worker shop.tasks:app -q high,low --strict", "low only while high is empty"),
    ),
)
@click.argument("app", metavar="APP")
@click.option(
    "--url",
    allow_from_autoenv=False,
    help="The broker, if APP does not name one itself; without it, as APP is configured.",
)
@click.option("-q", "--queues", metavar="NAME[=WEIGHT],...", help="Without it: all that APP names.")
@click.option("--strict", is_flag=True, help="Empty heavier (else earlier) queues before others.")
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 10_000), default=10, show_default=True,
    help="Tasks at a time, in each process.",
)  # fmt: skip
@click.option(
    "-p", "--processes", type=click.IntRange(1, 256), default=1, show_default=True,
    help="Child processes.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, 10_000), default=10, show_default=True,
    help="Threads for sync handlers, in each process.",
)  # fmt: skip
@click.option(
    "--slots", type=click.IntRange(1, 1_000), default=2, show_default=True,
    help='Slot processes for isolation="process", of each process.',
)  # fmt: skip
@click.option(
    "--grace", type=Number(0, 86_400), default=30.0, show_default=True,
    help="Seconds that running tasks have to finish when the worker stops.",
)  # fmt: skip
@click.option(
    "--lease", type=Number(1, 3_600), default=None,
    help="Seconds that a task is kept for a worker nobody hears of.  [default: the broker's, 30]",
)  # fmt: skip
@click.option(
    "--task-timeout", type=Number(0.001, 30 * 86_400), default=None,
    help="Seconds that an attempt may take whose task does not say.  [default: as the app says]",
)  # fmt: skip
@click.option(
    "--max-tasks", type=click.IntRange(0), default=0,
    help="Replace a process after so many tasks.  [default: never]",
)  # fmt: skip
@click.option(
    "--max-rss", callback=in_size, default=None, metavar="SIZE",
    help="Replace a process that takes so much memory, such as 512MB.  [default: never]",
)  # fmt: skip
@click.option(
    "--max-age", type=Number(0, 365 * 86_400), default=0.0, metavar="SECONDS",
    help="Replace a process after so many seconds.  [default: never]",
)  # fmt: skip
@click.option(
    "--stall-timeout", type=Number(1, 86_400), default=60.0, show_default=True,
    help="Seconds after which a process whose loop hangs is ended, or in which a handler does not"
    " stop.",
)  # fmt: skip
@log_options
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), default=None, metavar="PORT",
    help="Serve metrics for Prometheus on this port; 0: on one that is free.  [default: do not]",
)  # fmt: skip
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="The address for that; whoever reaches it can read them.",
)  # fmt: skip
@click.option(
    "--reload", is_flag=True,
    help="Replace the processes when a Python or TOML file below this folder changes.",
)  # fmt: skip
@click.option(
    "--until-empty", "--burst", "until_empty", is_flag=True,
    help="End once nothing is queued any more; what is due later stays.",
)  # fmt: skip
@click.option("--no-hooks", is_flag=True, help="Call none of the app's hooks (@app.on) here.")
@click.option(
    "--log-errors/--no-log-errors", default=None,
    help="Log the text and the traceback of what handlers raise.  [default: on a console only]",
)  # fmt: skip
@click.option("--log-tasks", is_flag=True, help="Log a line for each task that succeeds, too.")
def worker(
    app: str,
    url: str | None,
    queues: str | None,
    strict: bool,
    concurrency: int,
    processes: int,
    threads: int,
    slots: int,
    grace: float,
    lease: float | None,
    task_timeout: float | None,
    max_tasks: int,
    max_rss: int | None,
    max_age: float,
    stall_timeout: float,
    log_format: str,
    log_level: str,
    metrics_port: int | None,
    metrics_host: str,
    reload: bool,
    until_empty: bool,
    no_hooks: bool,
    log_errors: bool | None,
    log_tasks: bool,
) -> int:
    """Run the tasks of APP, which is MODULE:ATTRIBUTE, until a signal says to stop.

    TERM and INT stop in good time, a second INT at once; either way nothing is lost and no attempt
    used up. TSTP fetches no more, CONT fetches again, HUP replaces the processes one after the
    other (a worker that was started from a terminal it stops: the terminal is gone), USR1 shows
    where their code is. `fairlead check` tells a probe how the worker is. Exit codes: 0 stopped, 1
    the app cannot be imported, 2 wrong usage, 3 the broker refuses the login.
    """
    from fairlead.cli.common.app_loader import check_target
    from fairlead.model.queue_order import parse_queues
    from fairlead.runtime.event_loop import new_runner
    from fairlead.telemetry.log import configure, is_console
    from fairlead.worker.process.ipc import Plan

    if url is not None:
        from fairlead.settings import VARIABLE

        os.environ[VARIABLE] = url  # the children load the app, and find it there
    plan = Plan(
        app=check_target(app),
        url=url,
        terminal=any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)),
        queues=None if queues is None else parse_queues(queues),
        strict=strict,
        concurrency=concurrency,
        threads=threads,
        slots=slots,
        grace=grace,
        lease=lease,
        task_timeout=task_timeout,
        max_tasks=max_tasks,
        max_rss=max_rss or 0,
        max_age=max_age,
        overdue=stall_timeout,
        log_format=log_format,
        log_level=log_level,
        log_tasks=log_tasks,
        log_errors=is_console(log_format, sys.stderr) if log_errors is None else log_errors,
        debug=is_debugging(),
        metrics=metrics_port is not None,
        hooks=not no_hooks,
        until_empty=until_empty,
    )
    configure(log_format, log_level)
    with new_runner() as runner:
        return runner.run(
            _supervise(plan, processes, stall_timeout, metrics_host, metrics_port, reload)
        )


async def _supervise(
    plan: Plan, processes: int, stall_timeout: float, host: str, port: int | None, reload: bool
) -> int:
    from fairlead.broker import connect
    from fairlead.runtime.component import serving
    from fairlead.runtime.systemd import notifying
    from fairlead.runtime.terminals import ends_with_terminal
    from fairlead.worker.process.status import StatusWriter
    from fairlead.worker.process.supervisor import Supervisor
    from fairlead.worker.process.unix_signals import UnixSignals

    supervisor = Supervisor(
        _CHILD,
        plan,
        connect,
        count=processes,
        stall_timeout=stall_timeout,
        tied=ends_with_terminal(),
    )
    async with AsyncExitStack() as stack:
        if port is not None:
            from fairlead.telemetry.metrics_server import serving_metrics
            from fairlead.worker.process.exporter import Exporter

            show = Exporter(supervisor).show
            await stack.enter_async_context(serving_metrics(show, host=host, port=port))
        await stack.enter_async_context(serving(StatusWriter(supervisor, plan.app)))
        if reload:
            from pathlib import Path

            from fairlead.worker.process.reloader import Reloader

            reloader = Reloader(Path.cwd(), supervisor.renew)
            await stack.enter_async_context(serving(reloader))
        # Ready to supervise. Children may wait for a broker, for longer than systemd waits for us.
        await stack.enter_async_context(notifying())
        with UnixSignals(supervisor):
            code = await supervisor.run()
    if supervisor.refusal is not None:
        talk(f"error: {supervisor.refusal.text}")
    return code
