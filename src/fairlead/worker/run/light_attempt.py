"""Attempts of handlers that are not expected to wait: from the lease to the settlement in one step.

A light attempt takes a slot like any other, and runs in a lane. If its handler returns at once and
nothing else is to be done, its settlement is all that comes of it. In every other case (the handler
waits after all, raises, asked for a cleanup, was told to stop) it becomes a full attempt of
``executors``, which goes on from there. What a light one settles is what a full one would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context as Variables
from types import CoroutineType
from typing import Any, ClassVar, cast

import msgspec

from fairlead.model.argument_packing import pack
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import UNREADABLE, Leased, Trace, read_trace
from fairlead.model.states import COMPLETED
from fairlead.runtime.correlation import correlation_id
from fairlead.worker.app_services import AppServices
from fairlead.worker.handler_router import Plan, Router
from fairlead.worker.inflight import Inflight, Kind, Stop
from fairlead.worker.run.attempt import TOO_LARGE, ExecutionEnv, Settler
from fairlead.worker.run.context import Context, current
from fairlead.worker.run.error_text import stack_of_coroutine
from fairlead.worker.run.executors import LoopAttempt
from fairlead.worker.run.progress_writer import Writes

_NO_TRACE = Trace(correlation_id="")
# How a context is made: in Python 3.11 to call its class takes twice as long as these two together.
_new, _fill = object.__new__, Context.__init__


class LightAttempts:
    """Makes light attempts, and full ones of them."""

    def __init__(
        self,
        env: ExecutionEnv,
        router: Router,
        inflight: Inflight,
        writer: Writes,
        services: AppServices,
        settler: Settler,
        *,
        over: Callable[[Kind], None],
    ) -> None:
        """``over`` is called when an attempt is over."""
        self.env = env
        self.router = router
        self.inflight = inflight
        self.numbers: dict[str, int] = {}  # of tasks, in the shared state
        self.codecs = services.codecs
        self._writer = writer
        self._services = services
        self._settler = settler
        self._over = over

    def attempt(self, lease: Leased) -> LightAttempt | None:
        """A light attempt, if the handler is not expected to wait, and nothing is around it."""
        env = self.env
        if not env.executor.quick or env.around or self._services.log_tasks or lease.crashes:
            return None
        found = self.router.plain(lease)
        if found is None or found[0].spec not in env.executor.quick:
            return None
        return LightAttempt(self, lease, *found)

    def settle(self, attempt: LightAttempt, settlement: Settlement) -> None:
        """Take what follows from an attempt that returned, and free its slot."""
        self.inflight.remove(attempt)
        counters = self._services.counters
        if counters.on:
            queue = attempt.lease.message.queue
            counters.attempted(queue, attempt.task, "completed", settlement.run_time)
        self._settler.add(settlement)
        self._over("loop")

    def context(self, lease: Leased, task: str) -> Context:
        """What the handler sees of the attempt."""
        message = lease.message
        trace = _NO_TRACE
        if message.trace:
            try:
                trace = read_trace(message.trace)
            except UNREADABLE:  # written by a later release: not worth a failed task
                trace = _NO_TRACE
        correlation = trace.correlation_id or message.id
        context = _new(Context)
        _fill(
            context, lease, task, self._writer, self.env.loop, correlation, trace.headers,
            self._services,
        )  # fmt: skip
        return context


class LightAttempt(msgspec.Struct, eq=False):
    """One run of a handler that will probably be over at once."""

    kind: ClassVar[Kind] = "loop"

    _lights: LightAttempts
    lease: Leased
    plan: Plan
    _args: list[Any]
    _kwargs: dict[str, Any]
    _timeout: float | None
    _keep: float | None
    over: bool = False  # a full attempt has taken its place
    _context: Context | None = None  # since its handler has begun
    _steps: Coroutine[Any, Any, Any] | None = None
    _why: Stop | None = None
    _began: float = 0.0

    @property
    def handler(self) -> object:
        """What it is an attempt of."""
        return self.plan.spec

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.plan.spec.name

    def stop(self, why: Stop) -> None:
        """Have the attempt end soon."""
        if self._context is None:
            self._full(None).stop(why)
        else:  # by its own first step: the full attempt is told
            self._context._cancelled = True
            if self._why != "lost":
                self._why = why

    def withdraw(self) -> None:
        """Hand it back if its handler has not begun."""
        if self._context is None:
            self._full(None).withdraw()

    def where(self) -> str:
        """Which attempt it is and where its code is right now, for people."""
        return f"{self.task} {self.lease.message.id}\n{stack_of_coroutine(self._steps)}"

    def run(self) -> LoopAttempt | None:
        """Run the handler; None if all is settled, or the full attempt that has to go on."""
        lights, lease = self._lights, self.lease
        env = lights.env
        name = self.plan.spec.name
        self._context = context = lights.context(lease, name)
        if lights.numbers:
            lights.inflight.begun(lease, lights.numbers.get(name, 0))
        self._began = began = env.loop.time()
        if self._timeout is not None:
            context.deadline = time.time() + self._timeout
        variables = env.variables.copy()
        try:
            waits = variables.run(self._first_step, context)
        except StopIteration as stop:
            if self._steps is None:  # raised by a handler that is no coroutine yet
                return self._full(variables, _raised(stop))
            value = stop.value
        except BaseException as error:  # noqa: BLE001 - the full attempt raises it again
            return self._full(variables, _raised(error))
        else:
            return self._full(variables, _Rest(self._steps, waits))
        if self._why is not None or env.cut or context._cleanups or context._lines:
            return self._full(variables, _returned(value))
        result: bytes | None = None
        if value is not None:
            try:
                result = pack(value, "the result", advice=TOO_LARGE, codecs=lights.codecs)
            except BaseException:  # noqa: BLE001 - it fails for the full attempt as well
                return self._full(variables, _returned(value))
        context._cancelled = context._over = True
        settlement = Settlement(
            id=lease.message.id,
            token=lease.token,
            to=COMPLETED,
            result=result,
            run_time=env.loop.time() - began,
            keep=self._keep,
        )
        lights.settle(self, settlement)
        return None

    def _first_step(self, context: Context) -> Any:
        """What the handler waits for; StopIteration if it returns. In variables of its own."""
        current.set(context)
        correlation_id.set(context.correlation_id)
        spec, args, kwargs = self.plan.spec, self._args, self._kwargs
        if args or kwargs:
            args, kwargs = spec.convert(args, kwargs)
        if self.plan.takes_context:
            args = [context, *args]
        steps = spec.handler(*args, **kwargs)
        if steps.__class__ is not CoroutineType:
            steps = _awaited(steps)
        self._steps = steps
        return steps.send(None)

    def _full(self, variables: Variables | None, rest: Any = None) -> LoopAttempt:
        """The full attempt that takes the place of this one, before or after it has begun."""
        lights, lease = self._lights, self.lease
        assignment = lights.router.assignment(lease)
        context = self._context or lights.context(lease, self.plan.spec.name)
        full = LoopAttempt(assignment, context, lights.env, begins=False)
        if variables is not None:
            full.take_over(variables, self._began, rest, self._why)
        self.over = True
        lights.inflight.add(full)
        return full


class _Rest:
    """The rest of a handler that has begun to wait: it waits for the same still."""

    __slots__ = ("_is_told", "_steps", "_waits")

    def __init__(self, steps: Any, waits: Any) -> None:
        self._steps, self._waits = steps, waits
        self._is_told = False

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast(Generator[Any, Any, Any], self)  # as far as an await uses one

    def __iter__(self) -> _Rest:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if self._is_told:
            return self._steps.send(value)
        self._is_told = True
        waits, self._waits = self._waits, None
        return waits

    def throw(self, *error: Any) -> Any:
        self._is_told = True
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()

    # Where it waits, for whoever looks through the coroutines from outside.

    @property
    def cr_frame(self) -> Any:
        return getattr(self._steps, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        return getattr(self._steps, "cr_await", None)


async def _returned(value: Any) -> Any:
    return value


async def _raised(error: BaseException) -> Any:
    raise error


async def _awaited(steps: Any) -> Any:
    return await steps
