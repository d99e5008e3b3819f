"""How handlers are run: on the loop, in threads, with middleware around them.

Nothing here raises or touches the broker: whatever a handler does becomes an outcome.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Coroutine
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

from fairlead.model.retries import Outcome, Released
from fairlead.runtime.correlation import correlation_id
from fairlead.worker.handler_router import Assignment
from fairlead.worker.inflight import Kind, Stop
from fairlead.worker.run.attempt import Attempt, ExecutionEnv
from fairlead.worker.run.attempt_middleware import surrounded
from fairlead.worker.run.cleanup import clean_up, clean_up_in_thread
from fairlead.worker.run.context import Context, current
from fairlead.worker.run.error_text import stack_of_coroutine, stack_of_thread

_QUICK = 0.0005  # seconds; sync handlers whose last attempt took no longer share a thread


def begin(assignment: Assignment, context: Context, env: ExecutionEnv) -> Attempt:
    """Start an attempt: async handlers on the loop, sync ones in a thread.

    ``env.finished`` is never called before this returns.
    """
    if assignment.spec.is_async:
        return LoopAttempt(assignment, context, env)
    kind = _HostedAttempt if env.around else _ThreadAttempt
    return kind(assignment, context, env)


class LoopAttempt(Attempt):
    """An async handler: in a lane, and in a task of its own once it waits for something."""

    __slots__ = ("_outcome", "_rest", "_since", "_steps", "_task", "handler", "variables")

    def __init__(
        self, assignment: Assignment, context: Context, env: ExecutionEnv, *, begins: bool = True
    ) -> None:
        super().__init__(assignment, context, env)
        self.handler: object = assignment.spec
        self.variables = env.variables.copy()
        self._outcome: Outcome | None = None
        self._steps: Coroutine[Any, Any, None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._rest: Awaitable[Any] | None = None  # of a handler that has begun elsewhere
        self._since = 0.0  # when that was
        if begins:
            env.executor.submit(self)

    def take_over(
        self, variables: Variables, since: float, rest: Awaitable[Any], why: Stop | None
    ) -> None:
        """Go on with an attempt whose handler has begun, in these variables, at this moment.

        ``why``: it was told to stop meanwhile.
        """
        self.variables, self._since, self._rest = variables, since, rest
        self.why = why

    def run(self) -> LoopAttempt:
        return self

    def steps(self) -> Coroutine[Any, Any, None]:
        self._steps = steps = self._run()
        return steps

    def suspended(self, task: asyncio.Task[None]) -> None:
        self._task = task
        task.set_name(self.assignment.spec.name)
        if self.why is not None:  # told to stop by its own first step
            task.cancel()

    def _begun(self) -> None:
        deadline = self.context.deadline
        super()._begun()
        if self._rest is not None:  # its time started when it began
            self.started, self.context.deadline = self._since, deadline
            if self.assignment.timeout is not None:
                self._env.deadlines.add(self, self._since + self.assignment.timeout)

    async def _run(self) -> None:
        self._begun()
        current.set(self.context)  # in variables of its own
        correlation_id.set(self.context.correlation_id)
        outcome: Outcome | None
        try:
            if self._rest is not None:
                value = await self._rest
            elif self._env.around:
                value = await surrounded(self._env.around, self.context, self._handled)
            else:
                args, kwargs = self._arguments()
                value = await self.assignment.spec.handler(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self._env.own_process:
                self._finish(Released())  # meant for the program: not the fault of the task
                raise
            if isinstance(error, GeneratorExit) and not self._loop.is_running():
                raise  # thrown away with its loop: nobody is left to hear of it
            outcome = self._raised(error)
        else:
            outcome = self._returned(value)
        if self.context._cleanups:
            try:
                await clean_up(self.context)
            except KeyboardInterrupt:
                self._finish(outcome)
                raise
        self._outcome = outcome

    def ended(self) -> None:
        self._finish(self._outcome)

    async def _handled(self) -> Any:
        """What the handler returns; the middleware closes what it may have used afterwards."""
        args, kwargs = self._arguments()
        try:
            return await self.assignment.spec.handler(*args, **kwargs)
        finally:
            if self.context._cleanups:
                await clean_up(self.context)

    def _withdraw(self) -> bool:
        return self.started is None  # its lane passes over it

    def _interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _cancelled_by_others(self) -> bool:
        # All tasks of the loop at once, as some programs do when they end.
        return self._task is not None and self._task.cancelling() > 0

    def _stack(self) -> str:
        return stack_of_coroutine(self._steps)

    def _let_go(self) -> None:
        if self._task is not None:
            _abandoned.add(self._task)
            self._task.add_done_callback(_abandoned.discard)


class _ThreadAttempt(Attempt):
    """A sync handler: asked by ``ctx.cancelled``, which it may look at or not."""

    __slots__ = ("_outcome", "_took", "_vars", "abandoned", "ident", "left", "quick")

    kind: Kind = "thread"

    def __init__(self, assignment: Assignment, context: Context, env: ExecutionEnv) -> None:
        super().__init__(assignment, context, env)
        # A time limit is watched on the loop, which must know when the handler begins.
        self.quick = assignment.timeout is None and assignment.spec in env.quick
        self._took = 0.0
        self.abandoned = False
        self.left = False
        self.ident: int | None = None
        self._vars = env.variables.copy()
        self._outcome: Outcome | None = None
        env.threads.submit(self)

    def begin(self) -> None:
        self._begun()

    def work(self) -> None:
        began = time.perf_counter()
        try:
            value = self._vars.run(self._call)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            self._outcome = self._raised(error)
        else:
            self._outcome = self._returned(value)
        if self.context._cleanups:
            self._vars.run(clean_up_in_thread, self.context)
        self._took = time.perf_counter() - began

    def end(self) -> None:
        if self._took > _QUICK:
            self._env.quick.discard(self.assignment.spec)
        else:
            self._env.quick.add(self.assignment.spec)
        self._finish(self._outcome)

    def _call(self) -> Any:
        current.set(self.context)
        correlation_id.set(self.context.correlation_id)
        args, kwargs = self._arguments()
        return self.assignment.spec.handler(*args, **kwargs)

    def _withdraw(self) -> bool:
        return self._env.threads.withdraw(self)

    def _must_end(self) -> bool:
        # One that is cancelled may go on: there is no hurry, and nobody else runs it.
        return self.late or self.why in ("timeout", "release", "lost")

    def _stack(self) -> str:
        return stack_of_thread(self.ident)

    def _let_go(self) -> None:
        self._env.threads.abandon(self)


class _HostedAttempt(_ThreadAttempt):
    """A sync handler with middleware, which runs on the loop while the thread waits for it."""

    __slots__ = ("_host", "_inside")

    def __init__(self, assignment: Assignment, context: Context, env: ExecutionEnv) -> None:
        self._host: asyncio.Task[Any] | None = None  # runs the middleware
        self._inside = False  # it waits, and the handler runs
        super().__init__(assignment, context, env)

    def _call(self) -> Any:
        current.set(self.context)
        correlation_id.set(self.context.correlation_id)
        entered: concurrent.futures.Future[Variables | None] = concurrent.futures.Future()
        handled: concurrent.futures.Future[_Ended] = concurrent.futures.Future()
        handled.set_running_or_notify_cancel()  # nobody can take it back from now on
        hosted = asyncio.run_coroutine_threadsafe(self._surround(entered, handled), self._loop)
        variables = entered.result()
        if variables is not None:
            handled.set_result(variables.run(self._handle))
        error, value = hosted.result()
        if error is not None:
            raise error
        return value

    def _handle(self) -> _Ended:
        # Errors travel as values: raised by a future, they would carry its frames as well.
        try:
            return None, super()._call()
        except BaseException as error:  # noqa: BLE001 - raised again at the middleware's yield
            return error, None
        finally:
            if self.context._cleanups:
                clean_up_in_thread(self.context)

    async def _surround(
        self,
        entered: concurrent.futures.Future[Variables | None],
        handled: concurrent.futures.Future[_Ended],
    ) -> _Ended:
        self._host = asyncio.current_task()

        async def in_thread() -> Any:
            self._inside = True
            entered.set_result(copy_context())
            try:
                raised, value = await asyncio.wrap_future(handled)
            finally:
                self._inside = False
                self._limit()  # it may have been told to stop meanwhile
            if raised is not None:
                raise raised
            return value

        try:
            if self.why is not None:  # told to stop before there was anything to tell
                raise CancelledError
            return None, await surrounded(self._env.around, self.context, in_thread)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread
            return error, None
        finally:
            if not entered.done():
                entered.set_result(None)

    def _interrupt(self) -> None:
        if self._host is not None and not self._inside:
            self._host.cancel()

    def _cancelled_by_others(self) -> bool:
        return self._host is not None and self._host.cancelling() > 0

    def _must_end(self) -> bool:
        return not self._inside or super()._must_end()

    def _stack(self) -> str:
        if self._host is None or self._inside:
            return super()._stack()
        return stack_of_coroutine(self._host.get_coro())


#: What came of a handler: what it raised, or else what it returned.
_Ended = tuple[BaseException | None, Any]

#: Tasks that did not end when they were told to. The loop itself holds tasks only weakly.
_abandoned: set[asyncio.Task[None]] = set()


def abandoned() -> int:
    """How many async handlers of this process go on although they were told to end."""
    return len(_abandoned)
