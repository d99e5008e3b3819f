"""The program of a worker's child process: ``python -m fairlead.cli.worker_child SOCKET``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from fairlead.app import Fairlead
from fairlead.broker import address_of
from fairlead.cli.common.app_loader import check_named, load_app
from fairlead.cli.common.exit_codes import exit_code
from fairlead.model.errors import BrokerError, FairleadError, InvalidInput, Refused
from fairlead.runtime.component import Outage, serving, within
from fairlead.runtime.event_loop import new_runner
from fairlead.runtime.garbage import collect_less
from fairlead.runtime.terminals import end_without_outputs
from fairlead.settings import FILE, VARIABLE
from fairlead.telemetry.log import configure
from fairlead.worker.emptiness import until_empty
from fairlead.worker.process.ipc import (
    Channel,
    Plan,
    Refusal,
    Retiring,
    SlotPlan,
    framed,
    receive_now,
)
from fairlead.worker.process.retirement import Retirement
from fairlead.worker.process.shared_state import SharedState
from fairlead.worker.process.stack_dump import dump_on_signal
from fairlead.worker.process.subprocess_reaper import end_programs, when_alone
from fairlead.worker.process.supervisor_link import SupervisorLink
from fairlead.worker.worker import Worker

log = logging.getLogger("fairlead.worker")

_ALONE = 10.0  # seconds that a child without a supervisor may take to end
_PAUSE = 1.0  # seconds between two tries to reach the broker at the start
_SILENCE = 1.0  # seconds after which it says that it waits for the broker


def main(fd: int) -> int:
    """Serve as the supervisor says; the exit code."""
    end_without_outputs()
    end = socket.socket(fileno=fd)
    plan = receive_now(end)
    if not isinstance(plan, Plan):
        return 1
    for each in (fd, plan.shared_state, plan.stacks):
        os.set_inheritable(each, False)  # programs of the handlers have no business with them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    when_alone(end, _end)
    configure(plan.log_format, plan.log_level)
    # The supervisor talks to the same server and warns of its settings: once for each worker.
    logging.getLogger("fairlead.broker.redis.handshake").setLevel(logging.ERROR)
    try:
        app = load_app(plan.app)
        url = _url_of(app, plan)
    except FairleadError as error:
        level = logging.ERROR if plan.debug else logging.DEBUG
        log.log(level, "app not loaded", exc_info=error)
        end.sendall(framed(Refusal(str(error), exit_code(error))))
        return exit_code(error)
    collect_less()
    with new_runner() as runner:
        return runner.run(_serve(app, url, plan, end))


def _url_of(app: Fairlead, plan: Plan) -> str:
    """The URL that all processes of the worker open, or an error that says why there is none."""
    if app._url is None:
        raise InvalidInput(
            f"{plan.app!r} was given a store that is open, which other processes cannot open as "
            "well; give the app a URL (and shards), or use `async with app.worker():`"
        )
    if plan.url is not None:
        check_named(app, plan.app, plan.url)
    if app._url.lower().startswith("memory:"):
        raise InvalidInput(
            f"{plan.app!r} keeps its tasks inside of one process, where no other can run "
            "them; give the app the URL of a server, or use `async with app.worker():`"
        )
    if not (app._is_named or plan.terminal):
        raise InvalidInput(
            f"nobody named a broker for {plan.app!r}, and without a terminal a worker takes no "
            f"private one, which others may not see: set {VARIABLE} to a URL (embedded:// for a "
            f"server in ./.fairlead), or write url into {str(Path(FILE).absolute())!r}"
        )
    return app._url


async def _serve(app: Fairlead, url: str, plan: Plan, end: socket.socket) -> int:
    life = asyncio.current_task()
    assert life is not None  # noqa: S101 - this is a coroutine

    def hurry() -> None:
        worker.grace = 0.0
        if link.alone:  # nobody else will: no program of a handler may outlive its lease
            worker.runner.cut_off()
            end_programs()
        life.cancel()

    channel = await Channel.over(end)
    shared_state = SharedState(plan.shared_state, plan.rows)
    link = SupervisorLink(
        channel,
        shared_state,
        url=url,
        retirement=Retirement(max_tasks=plan.max_tasks, max_rss=plan.max_rss, max_age=plan.max_age),
        overdue=plan.overdue,
        quiet=plan.quiet,
        paused=plan.paused,
        is_first=plan.first,
        counters=app.counters if plan.metrics else None,
        hurry=hurry,
    )
    if plan.metrics:
        app.counters.begin()

    def slot_plan() -> SlotPlan:
        return SlotPlan(
            app=plan.app, path=sys.path, log_format=plan.log_format, log_level=plan.log_level
        )

    worker = app._worker(
        queues=plan.queues,
        strict=plan.strict,
        concurrency=plan.concurrency,
        threads=plan.threads,
        slots=plan.slots,
        grace=plan.grace,
        lease=plan.lease,
        task_timeout=plan.task_timeout,
        slot_plan=slot_plan,
        link=link,
        log_tasks=plan.log_tasks,
        log_errors=plan.log_errors,
        hooks=plan.hooks,
    )
    dump_on_signal(plan.stacks, shared_state, worker.inflight)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, link.ordered.set)
    try:
        async with serving(link):
            with contextlib.suppress(asyncio.CancelledError):
                if await _reachable(app, address_of(url), link.ordered):
                    async with worker, _ending_when_empty(worker, plan, channel):
                        await link.ordered.wait()
        link.report_counters()
        await channel.flush()
        if link.alone:
            logging.shutdown()
            os.killpg(0, signal.SIGKILL)  # with whatever was started since
        if worker.inflight.left:  # handlers that go on, and would keep the loop from closing
            log.warning(
                "child ends with handlers that go on", extra={"count": worker.inflight.left}
            )
            logging.shutdown()
            os._exit(0)
    except Exception as error:
        no_entry = isinstance(error, Refused) and error.cause == "auth"
        if link.introduced or (isinstance(error, BrokerError) and not no_entry):
            raise  # it may go better the next time
        told = no_entry or isinstance(error, InvalidInput)  # it is for people, and enough
        log.log(logging.DEBUG if told else logging.ERROR, "worker did not start", exc_info=error)
        why = str(error) if told else f"{type(error).__name__}: {error}"
        channel.send(Refusal(f"the worker did not start: {why}", exit_code(error)))
        await channel.flush()
        return exit_code(error)
    return 0


@contextlib.asynccontextmanager
async def _ending_when_empty(worker: Worker, plan: Plan, channel: Channel) -> AsyncIterator[None]:
    """Ask the supervisor to be dismissed once there is nothing left to do, if that is the plan."""

    async def watch() -> None:
        await until_empty(worker._store, worker.processor)
        channel.send(Retiring("its queues are empty", replaced=False))

    watching = asyncio.ensure_future(watch()) if plan.until_empty else None
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()


async def _reachable(app: Fairlead, address: str, ordered: asyncio.Event) -> bool:
    """Wait for the broker: whoever starts everything at once may start the worker first.

    False if it has to stop before that. Raises ``Refused`` if the broker refuses the login: no
    other try would go better.
    """
    outage = Outage("worker", repeats=True)
    slow = asyncio.get_running_loop().call_later(
        _SILENCE, log.warning, "waiting for the broker at %s", address
    )
    try:
        while not ordered.is_set():
            try:
                await app._clients.store.hello()
            except BrokerError as error:
                if isinstance(error, Refused) and error.cause == "auth":
                    raise
                outage.failed(error)
            else:
                outage.over()
                return True
            await within(_PAUSE, ordered)
    finally:
        slow.cancel()
    return False


def _end() -> None:
    """End this process after its supervisor, even if its loop hangs."""
    time.sleep(_ALONE)  # the loop has seen it too, and hands back what it has
    end_programs()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
