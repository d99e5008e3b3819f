"""What an app adds to the attempts of its workers. A worker without an app has none of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fairlead.broker import LIMIT
from fairlead.broker.requests import LeaseRef, Receipt, Submission
from fairlead.model.codecs import Codecs
from fairlead.telemetry.counters import Counters
from fairlead.worker.hooks import Hook
from fairlead.worker.run.lifespan import Lifespan

if TYPE_CHECKING:
    from fairlead.fallback.outcomes import Outcomes
    from fairlead.worker.run.context import Context

H = TypeVar("H")
H_co = TypeVar("H_co", covariant=True)

#: Makes a context manager that is entered before the handler of an attempt and left after it.
AroundRun = Callable[["Context"], AbstractAsyncContextManager[Any]]


class Enqueueable(Protocol[H_co]):
    """A call of a task that a handler may enqueue: what ``task.call(...)`` returns."""

    def accepted(self, clients: Any, receipt: Receipt, submission: Submission) -> H_co:
        """The handle of the task that was made of it."""
        ...


class Enqueuer(Protocol):
    """Enqueues calls of tasks under the lease of an attempt, which the broker checks."""

    def limit(self, calls: Iterable[object]) -> float:
        """How many seconds these calls have, enqueued together."""
        ...

    async def one(self, call: Enqueueable[H], fence: LeaseRef) -> H:
        """Enqueue a call; Fenced if the lease is over."""
        ...

    async def many(self, calls: Iterable[Enqueueable[H]], fence: LeaseRef) -> list[H]:
        """Enqueue calls, which may depend on each other; Fenced if the lease is over."""
        ...


class AppServices:
    """How handlers enqueue, what is around them, what they find open, and what is said of them."""

    __slots__ = (
        "around", "catalog", "codecs", "counters", "declare", "enqueuer", "hooks", "lifespan",
        "limit", "log_errors", "log_tasks", "outcomes",
    )  # fmt: skip

    def __init__(
        self,
        *,
        enqueuer: Enqueuer | None = None,
        around: Sequence[AroundRun] = (),
        lifespan: Lifespan | None = None,
        log_tasks: bool = False,
        log_errors: bool = False,
        declare: Callable[[], Awaitable[object]] | None = None,
        limit: float = LIMIT,
        counters: Counters | None = None,
        catalog: Callable[[float | None], bytes] | None = None,
        hooks: Sequence[Hook] = (),
        outcomes: Outcomes | None = None,
        codecs: Codecs | None = None,
    ) -> None:
        self.codecs = codecs  # of arguments, results and what handlers write
        self.enqueuer = enqueuer
        self.around = around  # the first is outermost; may still grow
        self.counters = counters or Counters()  # of attempts, for whoever collects metrics
        self.lifespan = lifespan or Lifespan()
        self.log_tasks = log_tasks  # a line for each attempt that succeeds
        self.log_errors = log_errors  # the text and the traceback of what a handler raised
        self.limit = limit  # seconds that a call of a handler may take that does not say so itself
        self.catalog = catalog  # tells of its tasks, whose time limit is this if they say nothing
        self.hooks = hooks  # functions that a worker calls for events
        self.outcomes = outcomes  # the spool that takes outcomes while the broker is away
        self.declare = declare  # writes the schedules and limits that the program declares


NO_SERVICES = AppServices()
