"""One child process as its supervisor sees it, from its start until nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from fairlead.broker import Store, address_of
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import MAX_EXCHANGE, BeatReply, LeaseRef, StandingOrder
from fairlead.runtime.component import serving, within
from fairlead.runtime.identity import identity, is_stopped
from fairlead.telemetry.counters import Counted
from fairlead.worker.heartbeater import Heartbeater
from fairlead.worker.process.crash_recovery import give_back_tasks
from fairlead.worker.process.ipc import (
    Channel,
    CountersReport,
    HeartbeatReport,
    Introduction,
    Order,
    Plan,
    Refusal,
    Retiring,
    closing,
)
from fairlead.worker.process.shared_state import SharedState
from fairlead.worker.process.stack_dump import SIGNAL, StackFile, blamed
from fairlead.worker.process.subprocess_reaper import exit_text
from fairlead.worker.publisher import Publisher
from fairlead.worker.worker_record import child_record, state_of

log = logging.getLogger("fairlead.worker")

_LOOK = 0.25  # seconds between two looks at the child's counter
_ANSWER = 1.0  # seconds in which a child that hangs may say what it does
_START = 600.0  # seconds in which a child must have begun
_LAST_WORDS = 2.0  # seconds to give back in what a child held that was told to end
_UNREAD = 0.5  # seconds to read what a child said before it ended
_MOST_SHOWN = 100  # running tasks in a log line


class Child:
    """Starts a child, keeps its leases, ends it if it hangs, and cleans up after it."""

    def __init__(
        self,
        command: Sequence[str],
        plan: Plan,
        connect: Callable[[str], Store],
        *,
        stall_timeout: float,
    ) -> None:
        self.introduction: Introduction | None = None
        self.refusal: Refusal | None = None
        self.introduced = asyncio.Event()
        self.retiring = asyncio.Event()  # it asks to be replaced
        self.dismissed = asyncio.Event()  # it has to end, and nobody takes its place
        self.ordered = False  # it was told to end
        self._command = command
        self._connect = connect
        self._stall_timeout = stall_timeout
        self._stacks = StackFile()
        self.shared_state = SharedState.made(plan.concurrency + 4 * MAX_EXCHANGE)
        self._plan = msgspec.structs.replace(
            plan,
            rows=self.shared_state.rows,
            shared_state=self.shared_state.fd,
            stacks=self._stacks.fd,
        )
        self._process: Process | None = None
        self._channel: Channel | None = None
        self._store: Store | None = None
        self._beating: Heartbeater | None = None
        self._quiet = plan.quiet
        self._order: StandingOrder = "pause" if plan.paused else ""  # by an operator
        self._doomed = False  # it was killed, perhaps before there was a process
        self._closed = False
        self.life: asyncio.Task[int] | None = None  # set by whoever runs ``live``
        self._charged: list[str] | None = None  # whom its end is charged to, if that is known
        self._blocked: list[str] = []  # of these, whose handler kept the loop from going round
        self.moved_at = time.monotonic()  # when its counter last moved
        self.counted = Counted()  # what it last said of its attempts
        self._final: dict[str, int] = {}  # its counters, once it has ended
        self._late = 0  # outcomes in its spool that did not count
        self._silent = asyncio.Event()  # it has said all that it will say

    @property
    def pid(self) -> int:
        """Of the process; 0 before it is started."""
        return 0 if self._process is None else self._process.pid

    @property
    def broker(self) -> str:
        """Where its tasks come from, as people may see it; empty before it has said so."""
        return "" if self.introduction is None else address_of(self.introduction.url)

    async def live(self) -> int:
        """Run the child until it ends, and clean up; its exit code, negative for a signal."""
        try:
            code = await self._run()
            self._kill_group()  # what is left of it
            await self._release_leases(code)
            return code
        finally:
            if self.alive:
                self._kill_group()
            self._closed, self._final = True, self.shared_state.counters
            self._final["fenced"] += self._late
            if self._channel is not None:
                self._channel.close()
            self.shared_state.close()
            self._stacks.close()

    @property
    def is_paused(self) -> bool:
        """Whether an operator ordered it to pause, and so whoever takes its place."""
        return self._order == "pause"

    @property
    def counters(self) -> dict[str, int]:
        """The counters of its worker by name."""
        return self._final if self._closed else self.shared_state.counters

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.returncode is None

    def order(self, what: Literal["quiet", "resume", "stop", "leave"]) -> None:
        """Tell it what to do. One that has not introduced itself has nothing to bring to an end."""
        if what in ("quiet", "resume"):
            self._quiet = what == "quiet"
        else:
            self.ordered = True
        if self.ordered and self.introduction is None:
            self.kill()
        elif self._channel is not None:
            self._channel.send(Order(what))

    def kill(self) -> None:
        """End it now. What it held is charged to nobody."""
        self.ordered = self._doomed = True
        self._charged = []
        if self.alive:
            self._kill_group()

    async def stacks(self) -> str:
        """Where its code is right now; empty while it starts, and once it has ended."""
        if not self.alive or self._is_over() or not self.shared_state.ticks:
            return ""
        await self._ask()
        if self._is_over():
            return ""
        text = self._stacks.read()
        self._stacks.clear()  # or it would be taken for the stack of a crash
        return text

    def _is_over(self) -> bool:
        return self._closed

    # -- its life ------------------------------------------------------------------------------

    async def _run(self) -> int:
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), self.shared_state.fd, self._stacks.fd]
        with theirs, closing(ours):
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, str(fds[0]), pass_fds=fds, stdin=DEVNULL, start_new_session=True
            )
            self._channel = await Channel.over(ours)
        self._channel.send(msgspec.structs.replace(self._plan, quiet=self._quiet))
        self.moved_at = time.monotonic()
        ending = asyncio.ensure_future(process.wait())
        helpers = [
            asyncio.ensure_future(self._watch()),
            asyncio.ensure_future(self._listen(self._channel)),
        ]
        try:
            if self._doomed:
                self._kill_group()
            await asyncio.wait([ending, *helpers], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():  # it hangs, or we do: nobody would look after it any more
                self._failed(helpers)
                self._kill_group()
            code = await ending
            await within(_UNREAD, self._silent)
            return code
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.wait(helpers)

    def _failed(self, helpers: Sequence[asyncio.Future[None]]) -> None:
        for task in helpers:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                log.error("supervision failed", extra={"pid": self.pid}, exc_info=error)
                self._charged = []  # whatever it is, no task did it

    async def _listen(self, channel: Channel) -> None:
        async with contextlib.AsyncExitStack() as stack:
            while (message := await channel.receive()) is not None:
                if isinstance(message, Introduction):
                    self.introduction = message
                    self._store = self._connect(message.url)
                    publishing = Publisher(self._store, message.incarnation, message.catalog)
                    self._beating = self._heartbeater(message, self._store, publishing.digest)
                    await stack.enter_async_context(serving(self._beating, publishing))
                    self.introduced.set()
                elif isinstance(message, Refusal):
                    self.refusal = message
                elif isinstance(message, CountersReport):
                    self.counted = message.counted
                elif isinstance(message, Retiring):
                    log.info("child retires", extra={"pid": self.pid, "why": message.why})
                    (self.retiring if message.replaced else self.dismissed).set()
            self._silent.set()
            await asyncio.Event().wait()  # it closes its end before it ends: keep on beating

    # -- its leases ----------------------------------------------------------------------------

    def _heartbeater(self, who: Introduction, store: Store, catalog: str) -> Heartbeater:
        born = identity(self.pid)

        def describe() -> WorkerRecord:
            state = state_of(quiet=self._quiet, paused=self.is_paused, stopping=self.ordered)
            return child_record(
                who,
                self.pid,
                self.shared_state,
                born=born,
                catalog=catalog,
                state=state,
                order=self._order,
            )

        return Heartbeater(
            store,
            incarnation=who.incarnation,
            answered=lambda: self.shared_state.last_answered,
            held=lambda: [
                LeaseRef(row.id, who.incarnation, row.token) for row in self.shared_state.lent()
            ],
            describe=describe,
            heard=self._on_heartbeat,
            lease=who.lease,
        )

    def _on_heartbeat(self, reply: BeatReply | None) -> None:
        if self._channel is None:
            return
        if reply is not None:
            self._order = reply.order
            if reply.order == "stop":
                self.dismissed.set()
        began = 0.0 if self._beating is None else self._beating.kept_at
        self._channel.send(HeartbeatReport(reply=reply, took=time.monotonic() - began))

    # -- its end -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """End it when its counter stands still."""
        ticks, still, looked = self.shared_state.ticks, 0.0, time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            # If this process stood still itself, that is no fault of the child.
            still += min(now - looked, 2 * _LOOK)
            looked = now
            # Before the first tick it imports the app, which may take as long as it likes to.
            limit = self._stall_timeout if ticks else max(self._stall_timeout, _START)
            if self.shared_state.ticks != ticks:
                ticks, still, self.moved_at = self.shared_state.ticks, 0.0, now
            elif still > limit and await self._stalled():
                return

    async def _stalled(self) -> bool:
        """Report that it hangs and end it; False if it goes on after all."""
        stopped, ticks = is_stopped(self.pid), self.shared_state.ticks
        answered = await self._ask()
        if self.shared_state.ticks != ticks:
            return False
        if self.shared_state.ticks and not stopped and self.introduction is not None:
            guilty = self.shared_state.on_stack() if answered else None
            self._charged = [guilty] if guilty else self._blamed(self._stacks.read())
            begun = [row.id for row in self.shared_state.lent() if row.started]
            if len(self._charged) < len(begun) or len(begun) == 1:  # or nobody knows who it was
                self._blocked = self._charged
        else:
            self._charged = []  # somebody stopped it, or it never ran: not the fault of a task
        rows = {row.id: row for row in self.shared_state.lent()}
        task_of = self.introduction.task_of if self.introduction is not None else str
        names = [task_of(rows[id].task) for id in self._charged if id in rows]
        fields = {
            "pid": self.pid,
            "seconds": round(time.monotonic() - self.moved_at, 1),
            "task": names[0] if names else "",
            "task_id": self._charged[0] if self._charged else "",
            "stopped": stopped,
            "stack": self._stacks.read(),
        }
        log.error("child stalled", extra=fields)
        self._kill_group()
        return True

    async def _ask(self) -> bool:
        """Have it write down where it is; whether it said so itself."""
        before = self.shared_state.answers
        self._stacks.clear()
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                os.kill(self.pid, SIGNAL)
        until = time.monotonic() + _ANSWER
        while not self._is_over() and time.monotonic() < until:
            if self.shared_state.answers != before:
                return True
            await asyncio.sleep(0.01)  # shared memory has no event
        return False

    def _blamed(self, stack: str) -> list[str]:
        places = self.introduction.places if self.introduction is not None else ()
        return blamed(stack, places, self.shared_state.lent())

    async def _release_leases(self, code: int) -> None:
        """Give back what it held; say so if nobody had told it to end."""
        rows = self.shared_state.lent()
        clean = self.ordered and code == 0
        charged = self._charged
        if charged is None:
            charged = [] if clean else self._blamed(self._stacks.read())
        charged = [*charged, *(row.id for row in rows if row.charged and row.id not in charged)]
        # Before it was introduced it had nothing: it said why it cannot start, or was told to end.
        unborn = self.introduction is None and (self.refusal is not None or self.ordered)
        if not clean and not unborn:
            self._log_death(code, [row.id for row in rows if row.started], charged)
        if (who := self.introduction) is not None and self._store is not None:
            seconds = _LAST_WORDS if self.ordered else who.lease
            self._late = await give_back_tasks(
                self._store, who, rows, charged, self._blocked, pid=self.pid, seconds=seconds
            )

    def _log_death(self, code: int, running: list[str], charged: list[str]) -> None:
        end: dict[str, object] = {"exit_code": code}
        if code < 0:
            end = {"signal": exit_text(code).rpartition(" ")[2]}
        fields = {
            "pid": self.pid,
            **end,
            "running": running[:_MOST_SHOWN],
            "tasks": len(running),
            "charged": charged[:_MOST_SHOWN],
        }
        who, stack = self.introduction, self._stacks.read()
        if who is not None:
            fields["incarnation"] = who.incarnation
        if stack:
            fields["stack"] = stack
        log.error("child died", extra=fields)

    def _kill_group(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
