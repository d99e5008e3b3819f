"""Processes that run one attempt at a time, for handlers that must not hurt anybody else.

A slot process can be killed, which a thread cannot, and when it dies there is no doubt whose fault
it was. It is used again for the next attempt if the last one left it whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import ErrorInfo
from fairlead.model.retries import Crashed, Failed
from fairlead.runtime.process_memory import resident
from fairlead.worker.handler_router import Assignment
from fairlead.worker.inflight import Kind
from fairlead.worker.process.ipc import (
    Channel,
    Outcome,
    Ready,
    Refusal,
    Run,
    SlotPlan,
    Stop,
    closing,
)
from fairlead.worker.process.subprocess_reaper import exit_text, has_children
from fairlead.worker.run.attempt import Attempt, ExecutionEnv
from fairlead.worker.run.context import Context
from fairlead.worker.run.error_text import describe

if TYPE_CHECKING:
    from fairlead.worker.worker import Worker

log = logging.getLogger("fairlead.worker")

_LAST_WORDS = 0.1  # seconds in which a message of a process that has ended arrives
_LOOK = 0.02  # seconds between two looks at the memory of an attempt
_START = 60.0  # seconds in which a slot process must be ready


class SlotProcesses:
    """At most ``count`` slot processes; attempts beyond that wait for their turn."""

    def __init__(
        self,
        command: Sequence[str],
        plan: Callable[[], SlotPlan],
        incarnation: str,
        *,
        count: int,
        dice: Callable[[], float],
        patience: float,
        task_timeout: float | None = None,
    ) -> None:
        self._task_timeout = task_timeout
        self._command = command
        self._find = plan  # may raise, where other processes cannot find the app
        self._incarnation = incarnation
        self._patience = patience
        self._count = count
        self._dice = dice
        self._told = False  # that the app cannot be found
        self._slots: set[_SlotProcess] = set()
        self._waiting: deque[SlotAttempt] = deque()

    def begin(self, assignment: Assignment, context: Context, env: ExecutionEnv) -> SlotAttempt:
        """Run an attempt as soon as a slot process is free."""
        attempt = SlotAttempt(assignment, context, env, self)
        self._waiting.append(attempt)
        self._next()
        return attempt

    def can_find_app(self) -> bool:
        """Return whether slot processes can run this app; says once why they cannot."""
        try:
            self._find()
        except InvalidInput as error:
            if not self._told:
                self._told = True
                log.warning("tasks that crashed run beside others here, not alone: %s", error)
            return False
        return True

    def withdraw(self, attempt: SlotAttempt) -> bool:
        """Take back an attempt that has not begun; False if it has."""
        try:
            self._waiting.remove(attempt)
        except ValueError:
            return False
        return True

    async def close(self) -> None:
        """End all slot processes."""
        slots = list(self._slots)
        for slot in slots:
            slot.kill()
        if slots:
            await asyncio.wait([slot.life for slot in slots])

    def _plan(self) -> SlotPlan:
        return msgspec.structs.replace(
            self._find(),
            incarnation=self._incarnation,
            patience=self._patience,
            task_timeout=self._task_timeout,
        )

    def run_message(self, attempt: SlotAttempt) -> Run:
        """What a slot process is told."""
        return Run(lease=attempt.lease, dice=self._dice())

    def idle(self, slot: _SlotProcess) -> None:
        """It is ready for another attempt."""
        self._next()

    def gone(self, slot: _SlotProcess, why: str) -> None:
        """It has ended. ``why`` says what kept it from starting, if it never was ready."""
        self._slots.discard(slot)
        if why and self._waiting:  # otherwise it would be tried for ever
            self._waiting.popleft().refused(why)
        self._next()

    def _next(self) -> None:
        idle = [slot for slot in self._slots if slot.free]
        while self._waiting and idle:
            idle.pop().run(self._waiting.popleft())
        starting = sum(not slot.ready for slot in self._slots)
        while len(self._waiting) > starting and len(self._slots) < self._count:
            self._slots.add(_SlotProcess(self._command, self._plan, self))
            starting += 1


class _SlotProcess:
    """One slot process, from its start to its end."""

    def __init__(
        self, command: Sequence[str], plan: Callable[[], SlotPlan], owner: SlotProcesses
    ) -> None:
        self.ready = False
        self.attempt: SlotAttempt | None = None
        self._owner = owner
        self._process: Process | None = None
        self._channel: Channel | None = None
        self._killed = False
        self._swept = False  # nothing of it can be left
        self.life = asyncio.get_running_loop().create_task(self._live(command, plan), name="slot")

    @property
    def free(self) -> bool:
        return self.ready and self.attempt is None and not self._killed

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def run(self, attempt: SlotAttempt) -> None:
        """Have it run an attempt."""
        assert self._channel is not None  # noqa: S101 - it said that it is ready
        self.attempt = attempt
        attempt.begin(self)
        self._channel.send(self._owner.run_message(attempt))

    def stop(self, stop: Stop) -> None:
        """Ask it to end what it runs."""
        if self._channel is not None:
            self._channel.send(stop)

    def kill(self) -> None:
        """End it now, with whatever its handler has started."""
        self._killed = True
        process = self._process
        if process is None or self._swept:
            return
        # It makes the group itself, as its first act. What it leaves there keeps the number of the
        # group; once that is killed as well, the number may be somebody else's.
        self._swept = process.returncode is not None
        for end in (os.killpg,) if self._swept else (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS, of a zombie
                end(process.pid, signal.SIGKILL)

    async def _live(self, command: Sequence[str], plan: Callable[[], SlotPlan]) -> None:
        why = ""
        try:
            why = await self._serve(command, plan())
        except OSError as error:  # no more processes, or no such program
            why = f"{type(error).__name__}: {error}"
        except InvalidInput as error:  # there is no way to find the app
            why = str(error)
        finally:
            self.kill()
            code = await self._process.wait() if self._process is not None else -1
            if self._channel is not None:
                self._channel.close()
            attempt, self.attempt = self.attempt, None
            if attempt is not None:
                attempt.died(code)
            self._owner.gone(self, why)

    async def _serve(self, command: Sequence[str], plan: SlotPlan) -> str:
        """Carry messages until it ends; what it says if it cannot begin."""
        ours, theirs = socket.socketpair()
        with theirs, closing(ours):
            self._process = await asyncio.create_subprocess_exec(
                *command, str(theirs.fileno()), pass_fds=[theirs.fileno()], stdin=DEVNULL
            )
            self._channel = channel = await Channel.over(ours)
        if self._killed:
            return ""
        channel.send(plan)
        try:
            async with asyncio.timeout(_START):
                first = await channel.receive()
        except TimeoutError:
            return f"it was not ready within {_START:g} s"
        if not isinstance(first, Ready):
            return first.text if isinstance(first, Refusal) else exit_text(await self._ended())
        self.ready = True
        self._owner.idle(self)
        while (message := await self._message(channel)) is not None:
            attempt, self.attempt = self.attempt, None
            if message.last:  # something of it goes on: not beside the next attempt
                self.kill()
                await self._ended()
            if attempt is not None and isinstance(message, Outcome):
                attempt.ended(message)
            if message.last:
                break
            self._owner.idle(self)
        return ""

    async def _message(self, channel: Channel) -> Any:
        """The next message; None once the process has ended.

        The end of the socket does not tell: a program that the handler started may hold it open.
        """
        receiving = asyncio.ensure_future(channel.receive())
        ending = asyncio.ensure_future(self._ended())
        try:
            await asyncio.wait([receiving, ending], return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():  # what it said last may still be on its way
                await asyncio.wait([receiving], timeout=_LAST_WORDS)
            return receiving.result() if receiving.done() else None
        finally:
            receiving.cancel()
            ending.cancel()

    async def _ended(self) -> int:
        assert self._process is not None  # noqa: S101 - it was started
        return await self._process.wait()


class SlotAttempt(Attempt):
    """An attempt in a slot process: asked by message, then killed."""

    __slots__ = ("_began_with", "_slot", "_slots", "_took_too_much", "decided")

    kind: Kind = "process"

    def __init__(
        self, assignment: Assignment, context: Context, env: ExecutionEnv, slots: SlotProcesses
    ) -> None:
        super().__init__(assignment, context, env)
        self.decided: Settlement | None = None
        self._slots = slots
        self._slot: _SlotProcess | None = None
        self._began_with = 0  # bytes of memory that the process had before it
        self._took_too_much = False

    def begin(self, slot: _SlotProcess) -> None:
        """It goes to this slot process."""
        self._slot = slot
        self._begun()
        if self.assignment.spec.max_memory is not None:
            self._began_with = resident(slot.pid)
            self._loop.call_later(_LOOK, self._weigh)

    def _weigh(self) -> None:
        """See how much memory it has taken, and end it if that is too much."""
        most = self.assignment.spec.max_memory
        if self.over or self._slot is None or most is None:
            return
        if resident(self._slot.pid) - self._began_with > most:
            self._took_too_much = True
            log.error("slot process killed: it takes too much memory", extra=self.fields())
            self._slot.kill()
        else:
            self._loop.call_later(_LOOK, self._weigh)

    def ended(self, told: Outcome) -> None:
        """The slot process says how it went."""
        self.decided = told.settlement if self.why != "lost" else None
        self._finish(None)

    def died(self, code: int) -> None:
        """The slot process ended in the middle of it."""
        if self.over:
            return
        if self.why is not None:
            self._finish(self._stopped())
            return
        if self._took_too_much:
            most = self.assignment.spec.max_memory
            self._finish(self._failed(MemoryError(f"the attempt took more than {most:,} bytes")))
            return
        text = f"the process of the attempt {exit_text(code)}"
        log.error("slot process died", extra={**self.fields(), "exit": exit_text(code)})
        self._finish(Crashed(ErrorInfo("ProcessDied", text)))

    def refused(self, why: str) -> None:
        """No slot process could be had for it."""
        error = RuntimeError(f"no slot process could be started: {why}")
        self._finish(Failed(error, describe(error)))

    def _withdraw(self) -> bool:
        return self._slot is None and self._slots.withdraw(self)

    def _interrupt(self) -> None:
        if self._slot is not None and self.why is not None:
            self._slot.stop(Stop(self.why))

    def _stack(self) -> str:
        return "" if self._slot is None else f"  in slot process {self._slot.pid}\n"

    def _let_go(self) -> None:
        if self._slot is not None:
            self._slot.kill()

    def _abandon(self) -> None:
        log.error("slot process killed: its attempt does not stop", extra=self.fields())
        self._let_go()  # its end is told by ``died``, when nothing of it goes on


# -- inside of a slot process ------------------------------------------------------------


async def serve_attempts(channel: Channel, worker: Worker) -> None:
    """Run what the worker process sends, until it is gone."""
    async with worker.detached():
        channel.send(Ready())
        receiving: asyncio.Future[Any] = asyncio.ensure_future(channel.receive())
        try:
            while True:
                run = await receiving
                if run is None:
                    return
                receiving = asyncio.ensure_future(channel.receive())
                if isinstance(run, Run):  # a late Stop is for the attempt before
                    outcome, receiving = await _run_one(run, worker, channel, receiving)
                    channel.send(outcome)
                    if outcome.last:
                        await channel.flush()
                        return
        finally:
            receiving.cancel()


async def _run_one(
    run: Run,
    worker: Worker,
    channel: Channel,
    receiving: asyncio.Future[Any],
) -> tuple[Outcome, asyncio.Future[Any]]:
    """One attempt; what it comes to, and who listens for the next message by then."""
    runner = worker.runner
    runner.dice = lambda: run.dice
    runner.start(run.lease)
    worker.syncer.forget_marks()
    over = asyncio.ensure_future(worker.inflight.none())
    while not over.done():
        await asyncio.wait([over, receiving], return_when=asyncio.FIRST_COMPLETED)
        if receiving.done() and not over.done():
            message = receiving.result()
            if message is None:  # nobody is left to tell
                os._exit(1)
            receiving = asyncio.ensure_future(channel.receive())
            if isinstance(message, Stop):
                worker.inflight.stop(run.lease.message.id, run.lease.token, message.why)
    last = worker.abandoned > 0 or has_children()
    return Outcome(settlement=worker.syncer.take(), last=last), receiving
