"""One call of a task, not yet made: what to run, with which arguments and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import (
    Any,
    Literal,
    TypedDict,
    TypeGuard,
    TypeVar,
    Unpack,
    cast,
    get_args,
)

from msgspec import UNSET, UnsetType

from fairlead.broker.requests import Durability, LeaseRef, Receipt, Submission
from fairlead.broker.submissions import filled
from fairlead.client.clients import Clients
from fairlead.client.errors import check_options
from fairlead.client.flow import Part
from fairlead.client.handle import Handle, handle_for
from fairlead.client.template import Template
from fairlead.client.transactions import Connection, Transaction, transaction_of
from fairlead.model.argument_packing import MAX_BODY, pack_arguments
from fairlead.model.argument_types import check_types
from fairlead.model.codecs import MAX_PLAIN, Codecs
from fairlead.model.errors import DependencyCycle, InvalidInput, InvalidOption, TooLarge
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.moments import Moment
from fairlead.model.names import DEFAULT_TENANT, check_tenant, scoped_id
from fairlead.model.options import (
    MAX_DEPENDENCIES,
    Dependency,
    Duration,
    HasId,
    Options,
    merged,
    resolved,
    seconds,
)
from fairlead.model.priorities import Priorities, Priority
from fairlead.model.registry import Registry, TaskSpec
from fairlead.model.result_refs import Output
from fairlead.runtime.ids import new_id

__all__ = ("CallOptions", "BoundTask", "TaskCall", "bounds_of", "call_of")

R = TypeVar("R", covariant=True)


class CallOptions(TypedDict, total=False):
    """What ``using`` takes. Durations are seconds, a timedelta, or text such as "5m" or "1h"."""

    queue: str
    """The queue of this call. Default: that of the task."""
    tenant: str
    """The tenant that the call belongs to. Default: that of the task."""
    priority: Priority | Callable[..., Priority]
    """A level ("critical", "high", "normal", "low"), a name or number of the app, or a function
    of the arguments that returns one. Default: that of the task."""
    delay: Duration
    """How long from now until it is due, in seconds or as a duration such as "5m". Default: 0."""
    at: Moment
    """When it is due, instead of ``delay``: a datetime with a time zone, or unix seconds. Default:
    now."""
    deadline: Duration
    """How long from now an attempt may start, in seconds or as a duration such as "1h"; after that
    the task is dead. Default: no deadline."""
    id: str
    """An id of your own, which belongs to the tenant: a call with an id that is known is the same
    task. Default: that of the task, else a new one."""
    unique: str
    """A unique key: while an unfinished task of this tenant and name has it, that one stands for
    further calls. Default: that of the task."""
    unique_until: Literal["started", "done"]
    """Until when the call holds its unique key: "started" or "done". Default: that of the task,
    else "done"."""
    unique_for: Duration
    """How long the call holds its unique key, in seconds or as a duration such as "10m", instead of
    ``unique_until``. Default: that of the task."""
    depends_on: Sequence[HasId | str]
    """Handles, calls of the same batch, or ids, up to 1,000: it waits until these are completed.
    Default: those of the task."""
    on_dependency_failure: DependencyPolicy
    """What becomes of the call if a dependency fails: "dead", "cancel", "wait" or "run". Default:
    that of the task."""
    correlation_id: str
    """What joins this task with others in logs and searches, up to 256 bytes. Default: that of the
    task or block that enqueues it, else its own id."""
    cost: float
    """What one dispatch takes from the tenant's share, 0.001 to 1000. Default: that of the task."""
    limiters: Sequence[str]
    """The names of up to 4 limiters that the call passes. Default: those of the task."""
    max_retries: int
    """How many attempts may follow the first, 0 to 1000. Default: that of the task."""
    timeout: Duration
    """How long one attempt may take, in seconds or as a duration such as "5m". Default: that of the
    task."""
    retention: Duration
    """How long the completed task is kept, in seconds or as a duration such as "1h". Default: that
    of the task."""
    enqueue_timeout: Duration
    """How long enqueueing may take until the broker has accepted the task, in seconds or as a
    duration such as "2s". Default: ``timeout`` of the app."""
    durability: Durability
    """"committed" raises while the broker is away, instead of keeping the task on disk. Default:
    "spooled"."""
    tx: Connection
    """Your connection, session or Django alias: the task exists if and only if its transaction
    commits. Default: none."""


class BoundTask:
    """A task with what was said about its calls so far."""

    __slots__ = (
        "codecs", "durability", "enqueue_timeout", "is_named", "is_usual", "options", "priorities",
        "quick", "ready", "said", "spec", "tx",
    )  # fmt: skip

    def __init__(
        self,
        spec: TaskSpec,
        priorities: Priorities,
        said: Options | None = None,
        enqueue_timeout: float | None = None,
        tx: Transaction | None = None,
        durability: Durability = "spooled",
        codecs: Codecs | None = None,
    ) -> None:
        self.spec = spec
        self.codecs = codecs  # of the app
        self.priorities = priorities
        self.said = said or Options()
        self.enqueue_timeout = enqueue_timeout  # seconds; None: that of the app
        self.tx = tx  # where it is enqueued; None: at the broker
        self.durability = durability  # the least that will do
        self.options = merged(spec.options, self.said)
        self.is_named = self.options.id is not UNSET  # by the caller
        self.is_usual = tx is None and not self.is_named
        self.ready: Template | None = None  # once there was a call, and if they do not differ
        self.quick: Template | None = None  # the same, if each call is a new task at the broker

    def template(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Template:
        """What calls have in common, checked. Only a priority function makes them differ."""
        if self.ready is not None:
            return self.ready
        found = resolved(self.options, self.priorities, args, kwargs, task=self.spec.name)
        template = Template(self.spec, self.said, found, self.codecs)
        if not callable(self.options.priority):
            self.ready = template
            self.quick = None if self.is_named or self.tx is not None else template
        return template

    def using(self, options: CallOptions) -> BoundTask:
        """The same with more said. Values are checked together, when a call is enqueued."""
        check_options(options, CallOptions, "task.using")
        limit = self.enqueue_timeout
        if "enqueue_timeout" in options:
            limit = seconds("enqueue_timeout", options["enqueue_timeout"], least=0.001)
        tx = transaction_of(options["tx"]) if "tx" in options else self.tx
        durability = options.get("durability", self.durability)
        if durability not in get_args(Durability):
            raise InvalidOption("durability", durability, "committed or spooled")
        said = merged(self.said, _stated(options))
        return BoundTask(self.spec, self.priorities, said, limit, tx, durability, self.codecs)

    def on(self, spec: TaskSpec, said: Options | None = None) -> BoundTask:
        """The same, of a task of which more is known."""
        said = self.said if said is None else said
        limit, durability = self.enqueue_timeout, self.durability
        return BoundTask(spec, self.priorities, said, limit, self.tx, durability, self.codecs)

    @property
    def declares_dependencies(self) -> bool:
        """Whether its calls depend on what was declared with the task."""
        return self.spec.options.depends_on is not UNSET and self.said.depends_on is UNSET

    def for_call(self) -> BoundTask:
        """The same, to make a call that others enqueue: they say in which transaction."""
        if self.tx is not None:
            raise InvalidInput(
                f"a call of task {self.spec.name!r} has no transaction of its own; say tx= where "
                "it is enqueued: app.enqueue_many([...], tx=...) or app.enqueue_flow(..., tx=...)"
            )
        return self


class TaskCall(Part[R]):
    """A call to be enqueued with others. Its ``id`` is known at once, so others may depend on it.

    The same call enqueued twice is one task.
    """

    __slots__ = ("_bound", "args", "id", "kwargs", "spec")

    id: str
    """The id that the task will have."""
    args: tuple[Any, ...]
    """The arguments by position."""
    kwargs: dict[str, Any]
    """The arguments by keyword."""
    _bound: BoundTask
    spec: TaskSpec
    """The task to be called."""

    def check_registered(self, registry: Registry) -> None:
        """Refuse a task of another app; UnknownTask names the closest that this one has."""
        registry.get(self.spec.name)

    @property
    def enqueue_timeout(self) -> float | None:
        """How many seconds it may take until the broker has accepted it; None: as the app says."""
        return self._bound.enqueue_timeout

    @property
    def codecs(self) -> Codecs | None:
        """What encodes its arguments."""
        return self._bound.codecs

    @property
    def is_dated(self) -> bool:
        """Whether the moment was said at which it is due."""
        return self._bound.options.at is not UNSET

    @property
    def durability(self) -> Durability:
        """The least that will do, while the broker is away."""
        return self._bound.durability

    @property
    def output(self) -> R:
        """What the call returns, to be used as an argument of another call that depends on it."""
        tenant = self._bound.options.tenant
        tenant = DEFAULT_TENANT if tenant is UNSET else tenant
        return cast(R, Output(self.id, task=self.spec.name, tenant=tenant))

    def using(self, **options: Unpack[CallOptions]) -> TaskCall[R]:
        """Return another call, with an id of its own, to which these options apply as well."""
        return call_of(self._bound.using(options).for_call(), self.args, self.kwargs)

    def submission(
        self, fence: LeaseRef | None = None, after: Sequence[TaskCall[Any]] = ()
    ) -> Submission:
        """Check everything and return what the broker gets; errors name the value.

        ``after`` are calls that it waits for because a flow says so.
        """
        return self._made(self._bound, fence, after)

    def _made(
        self, bound: BoundTask, fence: LeaseRef | None, after: Sequence[TaskCall[Any]]
    ) -> Submission:
        if bound.ready is not None and fence is None and not after:
            plain = bound.ready.plain(self.id, self.args, self.kwargs)
            if plain is not None:
                return filled(plain)
        spec = bound.spec
        spec.check_call(self.args, self.kwargs)
        template = bound.template(self.args, self.kwargs)
        found = template.found
        outputs: dict[str, Output] = {}
        codecs = bound.codecs
        most = MAX_BODY if codecs is None else MAX_PLAIN
        arguments = pack_arguments(self.args, self.kwargs, outputs, limit=most)
        if not spec.fits_plainly(self.args, self.kwargs):
            check_types(spec, arguments)
        elif not self.kwargs:
            template.note_types(self.args)
        if codecs is not None:
            arguments = codecs.encode(arguments, "the arguments", MAX_BODY)
        if not (found.depends_on or after or outputs):
            return template.submission(self.id, arguments, fence, (), None)
        depends_on = _dependencies(bound.said.depends_on, found.depends_on)
        if after:
            edges = {each.id: Dependency(each.id) for each in after}
            depends_on = (*edges.values(), *(d for d in depends_on if d.id not in edges))
        if outputs:
            depends_on = _with_outputs(depends_on, outputs, found.tenant)
        if any(dependency.id == self.id for dependency in depends_on):
            raise DependencyCycle([self.id, self.id])
        results_of = None
        if outputs or spec.takes_context:
            results_of = _named(depends_on, bound.options, outputs, after)
        return template.submission(self.id, arguments, fence, depends_on, results_of)

    def accepted(
        self,
        clients: Clients,
        receipt: Receipt,
        submission: Submission,
        kind: Callable[..., Handle[Any]] = Handle,
    ) -> Handle[R]:
        """Return the handle, of some kind, of the task that was made of it, or stands for it."""
        return handle_for(clients, self.spec, receipt, submission, kind)

    def __repr__(self) -> str:
        return f"<TaskCall {self.spec.name} {self.id}>"


def call_of(
    bound: BoundTask,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kind: type[TaskCall[Any]] = TaskCall,
) -> TaskCall[Any]:
    """Return a call with these arguments. An ``__init__`` would take twice as long."""
    made = kind()
    made.args, made.kwargs, made._bound = args, kwargs, bound
    made.spec = bound.spec
    made.id = _chosen_id(bound.options) if bound.is_named else new_id()
    return made


def bounds_of(calls: Iterable[TaskCall[Any]]) -> set[BoundTask]:
    """What calls were made of: of many, as a rule, one."""
    return {call._bound for call in calls}


def _stated(options: CallOptions) -> Options:
    if options.get("timeout", UNSET) is None:
        raise InvalidOption("timeout", None, "a duration; leave it out for the task's own")
    if "depends_on" in options and not isinstance(options["depends_on"], str):
        try:  # a copy: it is read more than once, and a generator can be read only once
            options["depends_on"] = tuple(options["depends_on"])
        except TypeError:
            raise InvalidOption(
                "depends_on", options["depends_on"], "a list of handles or ids"
            ) from None
    said: dict[str, Any] = {**options}
    for option in ("enqueue_timeout", "tx", "durability"):  # not about the task
        said.pop(option, None)
    return Options(**said)


def _chosen_id(options: Options) -> str:
    tenant = DEFAULT_TENANT if options.tenant is UNSET else check_tenant(options.tenant)
    return scoped_id(tenant, "" if options.id is UNSET else options.id)


def _dependencies(
    given: Sequence[HasId | str] | UnsetType, found: tuple[Dependency, ...]
) -> tuple[Dependency, ...]:
    """A call is no handle: it may never have been accepted, so its id has to be known.

    Nor has the broker accepted what was enqueued in a transaction, or not yet.
    """
    unsure = () if given is UNSET else {item.id for item in given if _is_unsure(item)}
    if not unsure:
        return found
    return tuple(Dependency(d.id) if d.id in unsure else d for d in found)


def _is_unsure(item: HasId | str) -> TypeGuard[HasId]:
    return isinstance(item, TaskCall) or (isinstance(item, Handle) and not item.is_accepted)


def _with_outputs(
    given: tuple[Dependency, ...], outputs: dict[str, Output], tenant: str
) -> tuple[Dependency, ...]:
    """The dependencies, and behind them those that the arguments name."""
    found = {dependency.id: dependency for dependency in given}
    for id, output in outputs.items():
        if output.tenant != tenant:
            raise InvalidInput(
                f"{output!r} belongs to tenant {output.tenant!r}: a task of tenant {tenant!r} "
                "cannot read it"
            )
        if output.known or id not in found:
            found[id] = Dependency(id, known=output.known)
    if len(found) > MAX_DEPENDENCIES:
        raise TooLarge(
            "depends_on, with the outputs among the arguments,",
            len(found),
            MAX_DEPENDENCIES,
            "tasks",
        )
    return tuple(found.values())


def _named(
    depends_on: tuple[Dependency, ...],
    options: Options,
    outputs: dict[str, Output],
    after: Sequence[TaskCall[Any]],
) -> tuple[tuple[str, str], ...]:
    """Ids of dependencies, with the names of their tasks as far as they are known here."""
    names = {id: output.task for id, output in outputs.items()}
    for item in (*after, *(() if options.depends_on is UNSET else options.depends_on)):
        if isinstance(item, TaskCall):
            names[item.id] = item.spec.name
        elif isinstance(item, Handle):
            names[item.id] = item.task
    return tuple((dependency.id, names.get(dependency.id, "")) for dependency in depends_on)
