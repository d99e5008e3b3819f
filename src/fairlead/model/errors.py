"""Everything Fairlead raises on purpose.

    FairleadError
    ├── InvalidInput (ValueError)       the call was wrong; nothing was written
    │   ├── InvalidName                 a queue, tenant, id, key or limiter name
    │   ├── InvalidOption               an option outside its limits
    │   ├── InvalidArgument             an argument that the task would not take
    │   ├── InvalidCron                 a cron expression; says which part, and where it stands
    │   ├── UnknownPriority
    │   ├── UnknownTask                 the name is not registered here, nor known to a worker
    │   ├── NotSerializable             arguments, result or value of a kind we do not store
    │   ├── TooLarge                    over its limit in bytes, depth or count
    │   ├── DependencyCycle
    │   ├── UnknownDependency           a bare id that the broker does not know
    │   └── UnknownSchedule             no schedule of this name is stored
    ├── Conflict                        the id is taken by a task with other content
    ├── ScheduleConflict                the name is taken, or somebody else changed it meanwhile
    ├── BrokerError
    │   ├── Unreachable                 not executed; try again
    │   ├── Ambiguous                   perhaps executed; repeat the same exchange
    │   ├── OutOfOrder                  an exchange number older than the last one
    │   └── Refused                     understood and refused, nothing changed
    │       ├── QueueFull               back off and try again
    │       └── QueueInUse              a queue that is to be deleted has tasks to run
    ├── Fenced                          a worker wrote with a lease it no longer holds
    └── TaskError                       asked for a result that there is not
        ├── TaskFailed                  the task is dead; ``error`` says why
        ├── TaskCancelled
        ├── FlowFailed                  some of the flow's tasks are dead
        ├── FlowCancelled
        ├── ResultGone                  finished, but past its retention
        └── ResultTimeout (TimeoutError)

Errors say what happened in a sentence and carry the facts as fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.model.exception_copies import copied
from fairlead.model.safe_repr import one_line
from fairlead.model.safe_repr import safe_repr as _show

_LONGEST_NAME = 80  # characters, where several names stand in one message
_LONGEST_ERROR = 500  # characters of a dead task's error
_MOST_NAMES = 20
_MOST_NODES = 12  # of a cycle, half of them from either end


class FairleadError(Exception):
    """The root of all errors that Fairlead raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copied(self)


class InvalidInput(FairleadError, ValueError):
    """The call cannot be carried out as it stands; nothing was written."""


class InvalidName(InvalidInput):
    """A name breaks the rules of its kind."""

    def __init__(self, kind: str, value: object, rule: str) -> None:
        super().__init__(f"{kind} {_show(value)} is not valid: it must be {rule}")
        self.kind, self.value, self.rule = kind, value, rule


class InvalidOption(InvalidInput):
    """An option lies outside its limits."""

    def __init__(self, option: str, value: object, rule: str) -> None:
        super().__init__(f"{option}={_show(value)} is not valid: it must be {rule}")
        self.option, self.value, self.rule = option, value, rule


class InvalidArgument(InvalidInput):
    """An argument does not fit what the task takes. ``field`` says where: ``order.items[2]``.

    ``stored``: a worker found it. The text has the type of the value then, and not the value.
    """

    def __init__(
        self, task: str, field: str, value: object, rule: str, *, stored: bool = False
    ) -> None:
        given = "" if value is None and rule.startswith("given") else f" ({_show(value)})"
        if stored:
            given = f" ({type(value).__name__})"
        super().__init__(f"{field}{given} does not fit task {_show(task)}: it must be {rule}")
        self.task, self.field, self.rule, self.stored = task, field, rule, stored
        self.value = None if stored else value
        """What was given; None where a worker found it stored."""


class InvalidCron(InvalidInput):
    """A cron expression that cannot be read, or never comes.

    ``field`` is the number of the field, from 1; ``column`` that of the character where ``part``
    begins, from 1. They are 0 where the expression as a whole is wrong.
    """

    def __init__(
        self, expression: str, why: str, *, field: int = 0, part: str = "", column: int = 0
    ) -> None:
        super().__init__(f"cron expression {_show(expression)} is not valid: {why}")
        self.expression, self.why = expression, why
        self.field, self.part, self.column = field, part, column


class UnknownPriority(InvalidInput):
    """The priority is none of the configured names or numbers."""

    def __init__(self, value: object, known: Sequence[object]) -> None:
        names = [
            one_line(name, _LONGEST_NAME) if isinstance(name, str) else _show(name)
            for name in known[:_MOST_NAMES]
        ]
        if len(known) > _MOST_NAMES:
            names.append(f"… {len(known) - _MOST_NAMES:,} more")
        super().__init__(
            f"priority {_show(value)} is not known; configured are: {', '.join(names)}"
        )
        self.value, self.known = value, tuple(known)


class UnknownTask(InvalidInput):
    """No task of this name is registered with the app, nor known to a worker if it was asked."""

    def __init__(
        self,
        name: str,
        closest: Sequence[str] = (),
        *,
        missing: str = "is not registered",
        advice: str = "import the module that defines it before it is used",
    ) -> None:
        hint = f"; did you mean {' or '.join(closest)}?" if closest else ""
        super().__init__(f"task {_show(name)} {missing}{hint} ({advice})")
        self.name, self.closest = name, tuple(closest)


class NotSerializable(InvalidInput):
    """A value of a kind that is not stored. Names where it stands and its type, not its content."""

    def __init__(
        self, where: str, value: object, why: str, *, what: str = "cannot be stored", at: str = ""
    ) -> None:
        super().__init__(f"{where} {what}: {why}{f', at {at}' if at else ''}")
        self.where, self.type, self.why, self.at = where, type(value).__name__, why, at


class TooLarge(InvalidInput):
    """Something is over its limit."""

    def __init__(
        self, what: str, size: int, limit: int, unit: str = "bytes", advice: str = "", how: str = ""
    ) -> None:
        then, verb = f"; {advice}" if advice else "", "are" if what.endswith("arguments") else "is"
        super().__init__(f"{what} {verb} {size} {unit}{how}; the limit is {limit} {unit}{then}")
        self.what, self.size, self.limit, self.unit = what, size, limit, unit


class DependencyCycle(InvalidInput):
    """Tasks would wait for each other for ever."""

    def __init__(self, path: Sequence[str]) -> None:
        half = _MOST_NODES // 2
        nodes = [*path] if len(path) <= _MOST_NODES else [*path[:half], *path[-half:]]
        nodes = [one_line(node, _LONGEST_NAME) for node in nodes]
        if len(path) > _MOST_NODES:
            nodes.insert(half, f"… {len(path) - _MOST_NODES:,} more …")
        super().__init__(f"dependencies form a cycle: {' -> '.join(nodes)}")
        self.path = tuple(path)
        """The ids or tasks of the cycle; the first is also the last."""


class UnknownDependency(InvalidInput):
    """A dependency was given by an id that the broker does not know."""

    def __init__(self, task: str, dependency: str) -> None:
        super().__init__(
            f"task {_show(task)} depends on {_show(dependency)}, which the broker does not know; "
            "give the handle of the task if it may be finished and forgotten already"
        )
        self.task, self.dependency = task, dependency


class UnknownSchedule(InvalidInput):
    """No schedule of this name is stored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {_show(name)}")
        self.name = name
        """The name that was asked for."""


class ScheduleConflict(FairleadError):
    """The name belongs to another schedule, or somebody else changed this one meanwhile."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"schedule {_show(name)} {why}")
        self.name = name
        """The name that is taken."""


class Conflict(FairleadError):
    """The id belongs to a task with other content; the first one stands."""

    def __init__(self, id: str) -> None:
        super().__init__(f"task id {_show(id)} exists already with other content")
        self.id = id
        """The id that is taken."""


class BrokerError(FairleadError):
    """The broker did not do what was asked; the subclass says what may be assumed.

    ``ids`` are the tasks that the call was about, as far as it was about tasks. ``passes`` says
    that it is likely to go better a while later, without anybody doing anything.
    """

    ids: tuple[str, ...] = ()
    """The ids of the tasks that it is about, where they are known."""
    passes = False

    @property
    def id(self) -> str | None:
        """The task that the call was about; None if it was about none, or about several."""
        return self.ids[0] if len(self.ids) == 1 else None


class Unreachable(BrokerError):
    """The call was not executed."""

    passes = True


class Ambiguous(BrokerError):
    """The call may have been executed: repeat it with the same number."""

    passes = True


class OutOfOrder(BrokerError):
    """An incarnation used an exchange number that is older than its last one."""

    def __init__(self, incarnation: str, number: int, last: int) -> None:
        found = f"exchange {number} of incarnation {_show(incarnation)} comes after exchange {last}"
        super().__init__(f"{found}; numbers must grow, and only the last one may be repeated")
        self.incarnation, self.number, self.last = incarnation, number, last


# Causes of ``Refused`` that pass by themselves: whoever has time waits for their end.
_PASSING = frozenset(
    {"busy", "clusterdown", "forgetful", "loading", "misconf", "moving", "noreplicas"}
)


class Refused(BrokerError):
    """The broker understood and refused; nothing changed. ``cause`` is one word."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        """The kind of refusal, for programs."""
        self.passes = cause in _PASSING
        """True: it may work later."""


class QueueFull(Refused):
    """The queue, or the tenant's part of it, is at the limit that ``setting`` names."""

    def __init__(
        self, queue: str, limit: int, tenant: str | None = None, setting: str = ""
    ) -> None:
        whose = f" for tenant {_show(tenant)}" if tenant is not None else ""
        most = f"{limit} waiting tasks"
        if setting == "max_tenant_bytes":
            most = f"{setting}: {limit} bytes of tasks that are not finished"
        super().__init__("full", f"queue {queue!r} is full{whose} ({most})")
        self.queue, self.tenant, self.limit = queue, tenant, limit
        self.setting = setting or ("max_waiting" if tenant is None else "max_tenant_waiting")
        """The setting that is reached."""


class QueueInUse(Refused):
    """The queue cannot be deleted: there is work in it. ``purge`` cancels what waits."""

    def __init__(self, queue: str, waiting: int, running: int, pinned: int = 0) -> None:
        found = f"{waiting} wait, {running} run, {pinned} are kept for others; purge it, or wait"
        super().__init__("in_use", f"queue {queue!r} still has tasks: {found}")
        self.queue, self.waiting, self.running, self.pinned = queue, waiting, running, pinned


class Fenced(FairleadError):
    """A worker tried to write for a task whose lease it no longer holds; nothing changed."""

    def __init__(self, id: str, token: int) -> None:
        super().__init__(f"the lease {token} of task {_show(id)} is over; the write was refused")
        self.id, self.token = id, token


class TaskError(FairleadError):
    """There is no result to be had for a task."""

    def __init__(self, id: str, message: str) -> None:
        super().__init__(message)
        self.id = id
        """The id of the task."""


class TaskFailed(TaskError):
    """The task is dead. ``reason`` is why, ``error`` the last error as text."""

    def __init__(self, id: str, reason: str, error: str = "") -> None:
        why = f": {one_line(error, _LONGEST_ERROR)}" if error else ""
        super().__init__(id, f"task {_show(id)} is dead ({reason}){why}")
        self.reason, self.error = reason, error


class TaskCancelled(TaskError):
    """The task was cancelled."""

    def __init__(self, id: str) -> None:
        super().__init__(id, f"task {_show(id)} was cancelled")


class FlowFailed(TaskError):
    """A flow has ended, and some of its tasks are dead. ``reason`` names the first of them."""

    def __init__(self, id: str, dead: int, total: int, reason: str = "") -> None:
        why = f"; the first: {one_line(reason, _LONGEST_ERROR)}" if reason else ""
        found = f"{dead:,} of the {total:,} tasks of flow {_show(id)} are dead{why}"
        super().__init__(id, f"{found}; retry() of its handle puts them back to work")
        self.dead, self.total, self.reason = dead, total, reason


class FlowCancelled(TaskError):
    """A flow has ended, and tasks of it were cancelled."""

    def __init__(self, id: str, cancelled: int, total: int) -> None:
        found = f"{cancelled:,} of the {total:,} tasks of flow {_show(id)} were cancelled"
        super().__init__(id, found)
        self.cancelled, self.total = cancelled, total


class ResultGone(TaskError):
    """The broker does not know the task (any more): past its retention, deleted, never there."""

    def __init__(self, id: str, advice: str = "", *, what: str = "task") -> None:
        why = advice or f"finished {what}s are kept for the retention of their queue only"
        super().__init__(id, f"the broker does not know {what} {_show(id)}; {why}")


class ResultTimeout(TaskError, TimeoutError):
    """The task was not finished in time; it goes on."""

    def __init__(self, id: str, timeout: float) -> None:
        super().__init__(id, f"task {_show(id)} was not finished within {timeout:g} s")
        self.timeout = timeout
        """How many seconds were waited."""
