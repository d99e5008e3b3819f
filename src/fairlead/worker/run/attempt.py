"""One attempt, from the lease to its outcome: what all kinds of handlers share.

An attempt that has to stop is asked once and then given a moment. One that does not end by then is
*overdue*: it keeps its slot, its lease and its room in limits until it has ended, so that it never
runs beside its successor. A child of a supervisor is replaced when that takes too long. Only a
worker that stops waits no longer: what goes on is *abandoned*.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from typing import Any, Protocol

from fairlead.model.argument_packing import pack
from fairlead.model.codecs import CodecError
from fairlead.model.errors import InvalidArgument, InvalidOption, TaskCancelled
from fairlead.model.lifecycle import Settlement
from fairlead.model.options import seconds
from fairlead.model.retries import Cancelled, Failed, Outcome, Released, Succeeded
from fairlead.model.signals import Reject, Retry, Snooze
from fairlead.worker.app_services import AroundRun
from fairlead.worker.handler_router import Assignment
from fairlead.worker.inflight import Kind, Stop
from fairlead.worker.run.async_executor import AsyncExecutor
from fairlead.worker.run.context import Context
from fairlead.worker.run.deadlines import Deadlines
from fairlead.worker.run.error_text import describe
from fairlead.worker.run.threads import Threads

log = logging.getLogger("fairlead.worker")

_NOTHING = Succeeded()
TOO_LARGE = "store what is large elsewhere, and return where it is"

#: Called on the loop when an attempt is over, with its outcome; None: there is nothing to say,
#: because the task belongs to somebody else by now.
Finished = Callable[["Attempt", Outcome | None], None]


class Settler(Protocol):
    """Takes what follows from attempts."""

    fenced: int  # attempts whose outcomes changed nothing

    @property
    def add(self) -> Callable[[Settlement], None]:
        """Take one; it is decided."""

    def mark(self, attempt: Attempt) -> bool:
        """Note that a held task has begun; return whether it is the first to be told of."""


class ExecutionEnv:
    """Where attempts run: what all attempts of a worker share."""

    __slots__ = (
        "abandons", "around", "begun", "cut", "deadlines", "executor", "finished", "leaves", "loop",
        "overdue", "own_process", "patience", "quick", "threads", "variables",
    )  # fmt: skip

    loop: asyncio.AbstractEventLoop  # both are set before the first attempt begins
    variables: Variables  # what every attempt begins with a copy of

    def __init__(
        self,
        threads: Threads,
        deadlines: Deadlines,
        finished: Finished,
        *,
        begun: Callable[[Attempt], None],
        patience: float,
        around: Sequence[AroundRun] = (),
        own_process: bool = False,
        abandons: bool = False,
        leaves: bool = False,
    ) -> None:
        self.around = around  # middleware; the first is outermost
        self.begun = begun  # called when the handler is about to run
        self.own_process = own_process  # a program of ours: nobody presses Ctrl-C for it
        self.abandons = abandons  # a slot process: what does not stop ends with it
        self.leaves = leaves  # a child: what it leaves running ends before its lease does
        self.cut = False  # programs of handlers were ended: what comes of these is worth nothing
        self.overdue: dict[Attempt, float] = {}  # what does not stop, and since when
        self.executor = AsyncExecutor()
        self.quick: set[object] = set()  # sync handlers whose last attempt ended at once
        self.threads = threads
        self.deadlines = deadlines
        self.finished = finished
        self.patience = patience  # seconds between being told to stop and being abandoned


class Attempt(ABC):
    """One run of a handler that is under way, or over."""

    __slots__ = (
        "_ending", "_env", "_loop", "assignment", "context", "error", "excused", "late", "lease",
        "left_behind", "over", "started", "why",
    )  # fmt: skip

    #: What it needs besides a slot.
    kind: Kind = "loop"

    #: What follows, where somebody else has decided that.
    decided: Settlement | None = None

    def __init__(self, assignment: Assignment, context: Context, env: ExecutionEnv) -> None:
        self.assignment = assignment
        self.lease = assignment.lease
        self.context = context
        self.started: float | None = None  # when the handler began, by the loop's clock
        self.over = False
        self.why: Stop | None = None  # it was told to stop
        self.late = False  # its time is up, whatever else it was told
        self.excused = False  # that was because it waited for the broker
        self.error: BaseException | None = None  # what the handler raised
        self.left_behind = False  # it goes on; given back when it or its process ends
        self._env = env
        self._loop = env.loop
        self._ending: asyncio.TimerHandle | None = None  # until it is abandoned

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.assignment.spec.name

    @property
    def run_time(self) -> float:
        """Seconds since the handler began."""
        return 0.0 if self.started is None else self._loop.time() - self.started

    def stop(self, why: Stop) -> None:
        """Have the attempt end soon. Of several reasons the last one counts, but ``lost`` stays."""
        if self.over:
            return
        first = self.why is None
        if self.why != "lost":
            self.why = why
        self.context._cancelled = True
        if self._withdraw():
            self._finish(self._stopped())
            return
        if first:
            self._interrupt()
        self._limit()

    def withdraw(self) -> None:
        """Hand it back if its handler has not begun."""
        if not self.over and self._withdraw():
            self._finish(Released())

    def expire(self) -> None:
        """Its time is up."""
        self.late = True
        failures, limit = self.context._failures, self.assignment.timeout
        self.excused = failures is not None and failures.cost(limit or 0.0)
        self.stop("timeout")

    def where(self) -> str:
        """Which attempt it is and where its code is right now, for people."""
        message = self.lease.message
        return f"{self.assignment.spec.name} {message.id}\n{self._stack()}"

    # -- what the two kinds of handler do differently ----------------------------------------

    @abstractmethod
    def _withdraw(self) -> bool:
        """Take it back if the handler has not begun."""

    def _interrupt(self) -> None:  # noqa: B027 - a thread cannot be told; it may look
        """Tell the handler to stop."""

    def _cancelled_by_others(self) -> bool:
        """Whether the asyncio task was cancelled behind the worker's back."""
        return False

    def _must_end(self) -> bool:
        """Whether it is abandoned if it goes on."""
        return True

    @abstractmethod
    def _stack(self) -> str:
        """Where the handler is."""

    @abstractmethod
    def _let_go(self) -> None:
        """Wait no longer for the handler."""

    # -- shared ------------------------------------------------------------------------------

    def _begun(self) -> None:
        """The handler is about to run: its time starts now."""
        self._env.begun(self)
        self.started = self._loop.time()
        timeout = self.assignment.timeout
        if timeout is not None:
            self.context.deadline = time.time() + timeout
            self._env.deadlines.add(self, self.started + timeout)

    def _limit(self) -> None:
        """Give it a moment to end, if it was told to stop and must."""
        if self.why is not None and self._ending is None and self._must_end():
            # Not asyncio.wait_for: it waits for ever for a handler that swallows its cancellation.
            self._ending = self._loop.call_later(self._env.patience, self._abandon)

    def _abandon(self) -> None:
        """It was told to stop, and did not."""
        self._ending = None
        env = self._env
        if self.over:
            return
        where = self._stack()
        if self.why != "release" and not env.abandons:
            if self not in env.overdue:
                env.overdue[self] = self._loop.time()
                fields = {**self.fields(), "stack": where}
                log.error("handler goes on: it keeps its slot and its lease", extra=fields)
            if self.why != "lost" or not self.late:  # its lease is gone, its room in limits as well
                return
        self._let_go()
        log.error("handler abandoned", extra=self.fields())
        self.left_behind = env.leaves
        self._finish(None if self.left_behind else self._stopped(stack=where))

    def _finish(self, outcome: Outcome | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        if self._env.overdue:
            self._env.overdue.pop(self, None)
        if self.assignment.timeout is not None:
            self._env.deadlines.remove(self)
        if self.over:
            log.warning("abandoned handler ended", extra=self.fields())
            if self.left_behind:  # the process goes on, and nobody else would do it
                self.left_behind = False
                self._env.finished(self, self._stopped())
            return
        self.over = True
        self.context._cancelled = self.context._over = True
        self._env.finished(self, outcome)

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        assignment = self.assignment
        args, kwargs = assignment.args, assignment.kwargs
        if args or kwargs:
            args, kwargs = assignment.spec.convert(args, kwargs)
        return ([self.context, *args] if assignment.takes_context else args), kwargs

    def _returned(self, value: Any) -> Outcome | None:
        if self.why == "lost":
            return None
        if self._env.cut:
            return Released()
        if value is None:
            return _NOTHING
        try:
            codecs = self.context._services.codecs
            return Succeeded(pack(value, "the result", advice=TOO_LARGE, codecs=codecs))
        except BaseException as error:  # noqa: BLE001 - a value may run its own code when it is read
            # It would return the same again: no retry, and the effects have happened.
            self.error = error
            info = describe(error)
            return Failed(Reject(info.message), info)

    def _raised(self, error: BaseException) -> Outcome | None:
        try:
            return self._judged(error)
        except BaseException as worse:  # noqa: BLE001 - an error may run its own code when it is read
            unreadable = f"the handler's {type(error).__name__} cannot be read"
            return self._failed(_chained(RuntimeError(unreadable), worse))

    def _judged(self, error: BaseException) -> Outcome | None:
        failures = self.context._failures
        stopped = self.why is not None and not (self.why == "timeout" and self.excused)
        if failures is not None and failures.caused(error) and not stopped:
            # The broker failed a call of the handler's context: not the task's fault.
            log.warning("attempt released in an outage", extra=self.fields())
            return Released(delay=failures.pause(error))
        if self.why is not None and (self.why != "timeout" or self._obeyed(error)):
            return self._stopped(error)
        if isinstance(error, CancelledError):
            if self._cancelled_by_others():
                log.warning("attempt cancelled from outside", extra=self.fields())
                return Released()
            # Something that it awaited was cancelled; nobody had asked for this attempt to stop.
            error = _chained(RuntimeError("the handler ended with CancelledError"), error)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            # Of a program that the handler calls: it ends the attempt, not the worker.
            text = f"the handler ended with {type(error).__name__}: {error}"
            error = _chained(RuntimeError(text), error)
        if isinstance(error, Snooze) or (isinstance(error, Retry) and error.delay is not None):
            try:
                error.delay = seconds("delay", error.delay)  # somebody may have set it since
            except InvalidOption as wrong:
                error = _chained(wrong, error)
        return self._failed(error)

    def _obeyed(self, error: BaseException) -> bool:
        if isinstance(error, TaskCancelled):  # that of another task may have come out of a handle
            return error.id == self.lease.message.id
        return isinstance(error, CancelledError)

    def _stopped(self, error: BaseException | None = None, stack: str = "") -> Outcome | None:
        if self.why == "lost":
            return None
        if self.why == "cancel":
            return Cancelled()
        if self.why == "release" and not self.late:
            return Released()
        if self.excused:
            log.warning("attempt released: it waited for the broker", extra=self.fields())
            return Released()
        late = TimeoutError(f"the attempt took longer than {self.assignment.timeout:g} s")
        return self._failed(_chained(late, error), stack)

    def _failed(self, error: BaseException, stack: str = "") -> Failed:
        if not isinstance(error, Retry | Snooze):  # these say how it goes on, and are no errors
            self.error = error
        info = describe(error, stack)
        # Neither would fit the next time, nor would a codec be there that is not.
        if isinstance(error, CodecError) or (isinstance(error, InvalidArgument) and error.stored):
            return Failed(Reject(info.message), info)
        return Failed(error, info)

    def fields(self) -> dict[str, object]:
        return {
            "task_id": self.lease.message.id,
            "task": self.assignment.spec.name,
            "attempt": self.lease.attempt,
            "why": self.why,
        }


def _chained(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error
