"""The program of a slot process: ``python -m fairlead.cli.worker_slot SOCKET``."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys

from fairlead.app import Fairlead
from fairlead.cli.common.app_loader import load_app
from fairlead.model.errors import FairleadError
from fairlead.runtime.ids import new_id
from fairlead.runtime.terminals import end_without_outputs
from fairlead.telemetry.log import configure
from fairlead.worker.process.ipc import Channel, Refusal, SlotPlan, framed, receive_now
from fairlead.worker.process.subprocess_reaper import die_with_parent, when_alone
from fairlead.worker.run.isolated_process import serve_attempts


def main(fd: int) -> int:
    """Run attempts as the worker says; the exit code."""
    end_without_outputs()
    os.setpgrp()  # killed as a whole, with all that a handler starts
    die_with_parent()
    faulthandler.enable()
    os.set_inheritable(fd, False)  # programs of the handlers have no business with it
    end = socket.socket(fileno=fd)
    when_alone(end, _die)  # where the system does not do it
    plan = receive_now(end)
    if not isinstance(plan, SlotPlan):
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = plan.path
    if plan.log_format:
        configure(plan.log_format, plan.log_level)
    try:
        app = load_app(plan.app)
    except FairleadError as error:
        end.sendall(framed(Refusal(str(error), 1)))
        return 1
    asyncio.run(_serve(app, plan, end))
    return 0


def _die() -> None:
    os.killpg(0, signal.SIGKILL)  # with the programs of the handler: nobody else would end them


async def _serve(app: Fairlead, plan: SlotPlan, end: socket.socket) -> None:
    channel = await Channel.over(end)
    worker = app._worker(
        incarnation=plan.incarnation,
        caller_id=new_id(),
        concurrency=1,
        threads=1,
        slots=0,
        patience=plan.patience,
        task_timeout=plan.task_timeout,
    )
    await serve_attempts(channel, worker)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
