"""One process of ``fairlead up``: started, heard, started again when it dies, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable

import msgspec

from fairlead.cli.up.output import Output
from fairlead.runtime.component import within

_PROGRAM = (sys.executable, "-m", "fairlead.cli.up.lifeline")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before one that died is started again
_SOUND = 30.0  # seconds after which one that dies was all right
_CHUNK = 64 * 1024  # bytes


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and under which name its lines are shown."""

    name: str
    module: str = "fairlead"
    arguments: tuple[str, ...] = ()
    fds: tuple[int, ...] = ()  # that it inherits


class PartProcess:
    """Keeps one process running until it is told to end."""

    def __init__(
        self, part: Part, *, output: Output, lifeline: int, environment: dict[str, str]
    ) -> None:
        self.part = part
        self._output = output
        self._lifeline = lifeline
        self._environment = environment
        self._process: Process | None = None
        self._ending = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id of the one that runs; 0 if none does."""
        process = self._process
        return 0 if process is None or process.returncode is not None else process.pid

    async def run(self, is_ready: Callable[[], bool]) -> int:
        """Run it until ``end``, starting it again if it dies; return its exit code.

        One that dies before everything is ready would only die again: its code is returned.
        """
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            code = await self._run_once()
            if self._ending.is_set() or not is_ready():
                return code
            if time.monotonic() - began > _SOUND:
                pause = _FIRST_PAUSE
            said = f"signal {-code}" if code < 0 else f"code {code}"
            self._output.say(self.part.name, f"ended with {said}; starts again in {pause:g} s")
            await within(pause, self._ending)
            if self._ending.is_set():
                return code
            pause = min(2 * pause, _LONGEST_PAUSE)

    def end(self) -> None:
        """Ask it to end, and start none after it."""
        self._ending.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group at once."""
        self._ending.set()
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.pid:
            # Not by the process's own `send_signal`: it looks whether the process has ended, and
            # takes the exit code from under asyncio, which then reports 255.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _run_once(self) -> int:
        part = self.part
        process = self._process = await asyncio.create_subprocess_exec(
            *(*_PROGRAM, str(self._lifeline), part.module, *part.arguments),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=self._environment,
            pass_fds=(self._lifeline, *part.fds),
            start_new_session=True,  # Ctrl-C is for `fairlead up`, which ends all in their order
        )
        if self._ending.is_set():  # while it was started
            self._signal(signal.SIGTERM)
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        reading = asyncio.create_task(self._read(process.stdout))
        try:
            return await process.wait()
        finally:
            # A process that outlives this one may keep the pipe open: what is there was read.
            await asyncio.wait([reading], timeout=0.2)
            reading.cancel()
            self._output.end(part.name)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(_CHUNK):
            self._output.take(self.part.name, data)
