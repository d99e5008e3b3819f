"""Attempts of handlers that are not expected to wait: from the lease to the settlement in one step.

A light attempt takes a slot like any other, and runs in a lane. If its handler returns at once and
nothing else is to be done, its settlement is all that comes of it. In every other case (the handler
waits after all, raises, asked for a cleanup, was told to stop) it becomes a full attempt of
``executors``, which goes on from there. What a light one settles is what a full one would.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
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
_NO_HEADERS = _NO_TRACE.headers
_TOLD = 16  # attempts that may be over before the worker is told, which begins others then
_RETURNED = object()  # what a stepper yields for a handler that did not wait
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
        over: Callable[[Kind, int], None],
    ) -> None:
        """``over`` is called when some attempts are over, with how many."""
        self.env = env
        self.router = router
        self.inflight = inflight
        self.numbers: dict[str, int] = {}  # of tasks, in the shared state
        self.codecs = services.codecs
        self.writer = writer
        self.services = services
        self.counters = services.counters
        self.settler = settler
        # One of them is in its first step at a time, as there is one lane that runs them. These are
        # of that one: who it is, what it sees, its coroutine, and what that has returned.
        self.running: LightAttempt | None = None
        self.seen: Context | None = None
        self.steps: Coroutine[Any, Any, Any] | None = None
        self.returned: Any = None
        self._over = over
        self.ended = 0  # attempts since the worker was last told
        self.stepper = _begun(self)
        env.executor.drained = self.tell

    def attempt(self, lease: Leased) -> LightAttempt | None:
        """A light attempt, if the handler is not expected to wait, and nothing is around it."""
        env = self.env
        quick = env.executor.quick
        if not quick or env.around or self.services.log_tasks or lease.crashes:
            return None
        found = self.router.plain(lease, quick)
        if found is None:
            return None
        plan, args, kwargs, timeout, keep = found
        return LightAttempt(self, lease, plan, args, kwargs, timeout, keep)

    def leave(self) -> Stepper:
        """The one in its first step goes on elsewhere, with its stepper; another takes the next."""
        stepper, self.stepper = self.stepper, _begun(self)
        self.running = self.seen = self.steps = None
        return stepper

    def tell(self) -> None:
        """Tell the worker of attempts that are over, whose slots are free."""
        ended, self.ended = self.ended, 0
        if ended:
            self._over("loop", ended)

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
            context, lease, task, self.writer, self.env.loop, correlation, trace.headers,
            self.services,
        )  # fmt: skip
        return context


class LightAttempt(msgspec.Struct, eq=False):
    """One run of a handler that will probably be over at once."""

    kind: ClassVar[Kind] = "loop"

    _lights: LightAttempts
    lease: Leased
    plan: Plan
    args: Sequence[Any]
    kwargs: dict[str, Any]
    _timeout: float | None
    _keep: float | None
    over: bool = False  # a full attempt has taken its place
    _why: Stop | None = None

    @property
    def handler(self) -> object:
        """What it is an attempt of."""
        return self.plan.spec

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.plan.name

    def stop(self, why: Stop) -> None:
        """Have the attempt end soon."""
        lights = self._lights
        if lights.running is not self or lights.seen is None:
            self._full(None).stop(why)
        else:  # by its own first step: the full attempt is told
            lights.seen._cancelled = True
            if self._why != "lost":
                self._why = why

    def withdraw(self) -> None:
        """Hand it back if its handler has not begun."""
        if self._lights.running is not self:
            self._full(None).withdraw()

    def where(self) -> str:
        """Which attempt it is and where its code is right now, for people."""
        steps = self._lights.steps if self._lights.running is self else None
        return f"{self.task} {self.lease.message.id}\n{stack_of_coroutine(steps)}"

    def run(self) -> LoopAttempt | None:
        """Run the handler; None if all is settled, or the full attempt that has to go on."""
        lights, lease, name = self._lights, self.lease, self.plan.name
        if lights.running is not None:  # whose handler runs the loop within its first step
            return self._full(None)
        env, message = lights.env, lease.message
        if message.trace:
            context = lights.context(lease, name)
        else:  # mostly: the same without the call
            context = _new(Context)
            _fill(
                context, lease, name, lights.writer, env.loop, message.id, _NO_HEADERS,
                lights.services,
            )  # fmt: skip
        lights.running, lights.seen = self, context
        if lights.numbers:
            lights.inflight.begun(lease, lights.numbers.get(name, 0))
        began = env.loop.time()
        if self._timeout is not None:
            context.deadline = time.time() + self._timeout
        variables = env.variables.copy()
        try:
            waits = variables.run(lights.stepper, context)
        except BaseException as error:  # noqa: BLE001 - the full attempt raises it again
            lights.leave()
            return self._full(context, (variables, began, _raised(error)))
        if waits is not _RETURNED:
            steps = lights.steps
            rest = _Rest(lights.leave(), steps, waits)
            return self._full(context, (variables, began, rest))
        value = lights.returned
        lights.steps = lights.returned = None
        result = None if value is None else self._packed(value)
        lights.running = lights.seen = None  # not before: what packs the value is the user's, too
        is_unfit = value is not None and result is None
        if is_unfit or self._why is not None or env.cut or context._cleanups or context._lines:
            return self._full(context, (variables, began, _returned(value)))
        context._cancelled = context._over = True
        run_time = env.loop.time() - began
        inflight = lights.inflight
        inflight.running.pop((message.id, lease.token), None)
        if not inflight.running:
            inflight.emptied()
        if lights.counters.on:
            lights.counters.attempted(message.queue, name, "completed", run_time)
        lights.settler.add(
            Settlement(
                id=message.id,
                token=lease.token,
                to=COMPLETED,
                result=result,
                run_time=run_time,
                keep=self._keep,
            )
        )
        lights.ended = ended = lights.ended + 1
        if ended >= _TOLD:
            lights.tell()
        return None

    def _packed(self, value: Any) -> bytes | None:
        """A result as it is stored; None if it cannot be, as the full attempt will find as well."""
        try:
            return pack(value, "the result", advice=TOO_LARGE, codecs=self._lights.codecs)
        except BaseException:  # noqa: BLE001 - it is raised again there
            return None

    def _full(
        self, context: Context | None, begun: tuple[Variables, float, Any] | None = None
    ) -> LoopAttempt:
        """The full attempt that takes the place of this one, before or after it has begun.

        ``begun``: its variables, since when it runs, and the rest of its handler.
        """
        lights, lease = self._lights, self.lease
        assignment = lights.router.assignment(lease)
        if context is None:
            context = lights.context(lease, self.plan.name)
        full = LoopAttempt(assignment, context, lights.env, begins=False)
        if begun is not None:
            full.take_over(*begun, self._why)
        self.over = True
        lights.inflight.add(full)
        return full


#: Sends to a stepper: what an attempt sees, and then whatever its handler waits for.
Stepper = Callable[[Any], Any]


def _begun(lights: LightAttempts) -> Stepper:
    stepper = _stepper(lights)
    stepper.send(None)
    return stepper.send


@types.coroutine
def _stepper(lights: LightAttempts) -> Generator[Any, Any, Any]:
    """Run the first steps of handlers, one after the other, each in variables of its own.

    It yields ``_RETURNED`` for one that returned. As it awaits them, that costs no exception: to
    send into a coroutine until it raises ``StopIteration`` costs as much as all else here. When a
    handler waits for something, the stepper is its own from then on, and yields and returns what
    it does.
    """
    context = yield
    while True:
        attempt: Any = lights.running
        current.set(context)
        correlation_id.set(context.correlation_id)
        plan, args, kwargs = attempt.plan, attempt.args, attempt.kwargs
        try:
            if kwargs or (args.__class__ is list and list(map(type, args)) != plan.scalars):
                args, kwargs = plan.spec.convert([*args], kwargs)
            if plan.takes_context:
                args = context, *args
            steps = plan.handler(*args, **kwargs) if kwargs else plan.handler(*args)
        except StopIteration as stop:  # of a handler that is no coroutine yet: it has not returned
            steps = _raised(stop)
        if steps.__class__ is not CoroutineType:
            steps = _awaited(steps)
        lights.steps = steps
        value = yield from steps
        if lights.steps is not steps:
            return value
        lights.returned = value
        # Nothing of a finished task is kept until the next one comes.
        context = attempt = plan = args = kwargs = steps = value = None
        context = yield _RETURNED


class _Rest:
    """The rest of a handler that has begun to wait: it waits for the same still."""

    __slots__ = ("_is_told", "_stepper", "_steps", "_waits")

    def __init__(self, stepper: Stepper, steps: Any, waits: Any) -> None:
        self._stepper: Any = stepper.__self__  # type: ignore[attr-defined]
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
            return self._stepper.send(value)
        self._is_told = True
        waits, self._waits = self._waits, None
        return waits

    def throw(self, *error: Any) -> Any:
        self._is_told = True
        return self._stepper.throw(*error)

    def close(self) -> None:
        self._stepper.close()

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
