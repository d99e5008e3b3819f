"""Runs everything of ``fairlead up``: servers first, then processes, and the other way round."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING

from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.up.process import PartProcess

if TYPE_CHECKING:
    from fairlead.cli.up.output import Output
    from fairlead.cli.up.process import Part

_END_IN = 2.0  # seconds that processes have to end before they are killed
_READY_IN = 60.0  # seconds until something is wrong
_LOOK = 0.05  # seconds between two looks at a worker that starts
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stack:
    """The processes of one ``fairlead up``, from their start to their end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._lifeline, self._alive = os.pipe()  # only this process has the other end
        self._is_ready = False
        self._processes: list[PartProcess] = []
        self._runs: list[asyncio.Task[int]] = []

    def listen_to_signals(self) -> None:
        """Stop at the first signal; kill what is left at the second."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: it outlives its terminal
                loop.add_signal_handler(number, self._signalled)

    @property
    def is_stopping(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stopping.is_set()

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()

    def start(self, parts: list[Part], environment: dict[str, str]) -> None:
        """Start processes; each ends when this one does, however that happens."""
        for part in parts:
            process = PartProcess(
                part, output=self._output, lifeline=self._lifeline, environment=environment
            )
            self._processes.append(process)
            self._runs.append(asyncio.create_task(process.run(lambda: self._is_ready)))

    async def wait_ready(self, listener: socket.socket) -> int | None:
        """Wait until the page answers and the workers fetch.

        Returns an exit code if something ended instead, or somebody asked for the end.
        """
        ready = asyncio.create_task(self._all_ready(listener))
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait(
            [ready, stop, *self._runs], timeout=_READY_IN, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (ready, stop):
            task.cancel()
        if ready.done() and not ready.cancelled():
            ready.result()
            self._is_ready = True
            return None
        if self._stopping.is_set():
            return OK
        ended = [each.result() for each in self._runs if each.done()]
        if not ended:
            self._output.say("up", f"not ready after {_READY_IN:g} s; the lines above may say why")
        return next((code for code in ended if code > 0), FAILURE)

    async def wait_stopped(self) -> None:
        """Wait until somebody asks for the end."""
        await self._stopping.wait()

    async def end(self) -> None:
        """End all processes: those that make work first, those that do it last."""
        for process in reversed(self._processes):
            process.end()
        if self._runs:
            await self._wait_ended()
        os.close(self._alive)
        os.close(self._lifeline)

    async def _wait_ended(self) -> None:
        hurried = asyncio.create_task(self._hurried.wait())
        everything = asyncio.create_task(asyncio.wait(self._runs))
        await asyncio.wait(
            {hurried, everything}, timeout=_END_IN, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        for process in self._processes:
            if process.pid:
                self._output.say(process.part.name, "killed: it did not end in time")
            process.kill()
        await everything

    async def _all_ready(self, listener: socket.socket) -> None:
        await _answers(listener)
        pids = [each for each in self._processes if each.part.name == "worker"]
        while not await asyncio.to_thread(_fetch, [each.pid for each in pids]):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)  # a file is all that tells


async def _answers(listener: socket.socket) -> None:
    """Return when the API says that it is ready."""
    host, port = listener.getsockname()[:2]
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % port)
                if b" 200 " in await reader.readline():
                    return
            finally:
                writer.close()
        await asyncio.sleep(_LOOK)


def _fetch(supervisors: list[int]) -> bool:
    """Whether each of these workers has a child that fetches."""
    if not supervisors:
        return True
    from fairlead.worker.process.status import read_all

    working = {
        status.pid
        for status in read_all()
        if any(child.state == "working" and child.broker for child in status.children)
    }
    return working.issuperset(supervisors)
