"""Putting calls together: ``a >> b``, ``a << b``, ``a | b``, and lists for several at a time.

A flow is a value. Putting parts together only notes how, so that a chain of ten thousand calls is
built in as many steps; what depends on what is worked out once, when the flow is enqueued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar, overload

from fairlead.model.errors import DependencyCycle, InvalidInput, TooLarge
from fairlead.model.options import MAX_DEPENDENCIES
from fairlead.model.topological_sort import topological_sort

R = TypeVar("R", covariant=True)
S = TypeVar("S")


class Part(Generic[R]):
    """What a flow can be made of: calls of tasks, and flows.

    ``R`` is what the last task returns: Any where several may be last.
    """

    __slots__ = ()

    @overload
    def __rshift__(self, other: Part[S]) -> Flow[S]: ...
    @overload
    def __rshift__(self, other: Iterable[Parts]) -> Flow[Any]: ...
    def __rshift__(self, other: Parts) -> Flow[Any]:
        """This first, then the other. Of a list each one waits for each one before it."""
        return _then(self, other)

    def __rrshift__(self, other: Iterable[Parts]) -> Flow[R]:
        return _then(other, self)

    def __lshift__(self, other: Parts) -> Flow[R]:
        """The other first, then this."""
        return _then(other, self)

    def __rlshift__(self, other: Iterable[Parts]) -> Flow[Any]:
        return _then(self, other)

    def __or__(self, other: Parts) -> Flow[Any]:
        """Both, side by side."""
        return Flow(self, _part(other))

    def __ror__(self, other: Iterable[Parts]) -> Flow[Any]:
        return Flow(_part(other), self)


#: A part, or a list of them, which may hold lists.
Parts: TypeAlias = "Part[Any] | Iterable[Parts]"


class Flow(Part[R]):
    """Parts side by side: ``Flow(a >> b, a >> c)``. A call that stands in several is one task."""

    __slots__ = ("_chained", "_parts")

    @overload
    def __init__(self, part: Part[R], /) -> None: ...
    @overload
    def __init__(self: Flow[Any], *parts: Parts) -> None: ...
    def __init__(self, *parts: Parts) -> None:
        self._parts: tuple[Part[Any], ...] = tuple(_part(part) for part in parts)
        self._chained = False  # the second part comes after the first

    def __repr__(self) -> str:
        return f"<Flow of {len(plan_of(self).calls)} calls>"


class Plan:
    """A flow, worked out: its calls, each behind those it waits for, and which come last."""

    __slots__ = ("calls", "last", "waits")

    def __init__(self, calls: dict[str, Any], waits: dict[str, dict[str, None]]) -> None:
        self.calls = calls  # by id
        self.waits = waits  # id -> ids of what it waits for in the flow
        waited_for = {id for ids in waits.values() for id in ids}
        self.last = [id for id in calls if id not in waited_for]


def plan_of(flow: Part[Any], own: Callable[[Any], Iterable[str]] = lambda _: ()) -> Plan:
    """Work a flow out. Raises for a cycle, with its path, and for what is too wide.

    ``own`` says which ids a call names itself; those of the flow are waited for like the others.
    """
    calls: dict[str, Any] = {}
    waits: dict[str, dict[str, None]] = {}
    for left, right in _steps(flow, calls):
        for second in right:
            waits.setdefault(second, {}).update(dict.fromkeys(left))
    if not calls:
        raise InvalidInput("a flow needs at least one call: task.call(...) >> other.call(...)")
    for id, call in calls.items():
        among = waits.setdefault(id, {})
        among.update((each, None) for each in own(call) if each in calls)
        if len(among) > MAX_DEPENDENCIES:
            raise TooLarge(f"what {call!r} waits for", len(among), MAX_DEPENDENCIES, "tasks")
    try:
        order = topological_sort(waits)
    except DependencyCycle as error:
        path = [f"{calls[id].spec.name} ({id})" for id in error.path]
        raise DependencyCycle(path) from None
    return Plan({id: calls[id] for id in order}, {id: waits[id] for id in order})


def calls_in(flow: Part[Any]) -> list[Any]:
    """The calls of a flow, in no order; one that stands in several parts comes once."""
    calls: dict[str, Any] = {}
    _steps(flow, calls)
    return list(calls.values())


def _steps(flow: Part[Any], calls: dict[str, Any]) -> list[tuple[list[str], list[str]]]:
    """What comes right before what, from the bottom up; adds the calls it meets.

    Without recursion: a long chain is a deep tree.
    """
    ends: dict[int, tuple[list[str], list[str]]] = {}  # of each part: the ids it begins, ends with
    steps: list[tuple[list[str], list[str]]] = []
    todo = [flow]
    while todo:
        part = todo[-1]
        if not isinstance(part, Flow):
            call: Any = part
            calls.setdefault(call.id, call)
            ends[id(part)] = ([call.id], [call.id])
        else:
            missing = [each for each in part._parts if id(each) not in ends]
            if missing:
                todo.extend(reversed(missing))
                continue
            if part._chained:
                (first, left), (right, last) = (ends[id(each)] for each in part._parts)
                _check_step(left, right, calls)
                steps.append((left, right))
                ends[id(part)] = (first, last)
            else:
                both = [ends[id(each)] for each in part._parts]
                ends[id(part)] = (_joined(pair[0] for pair in both), _joined(p[1] for p in both))
        todo.pop()
    return steps


def _joined(lists: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(id for each in lists for id in each))


def _check_step(left: list[str], right: list[str], calls: dict[str, Any]) -> None:
    if not (left and right):
        raise InvalidInput("an empty list in a flow: nothing comes before or after it")
    if len(left) > MAX_DEPENDENCIES:  # before the product of the two is written out
        what = f"what {calls[right[0]]!r} waits for"
        error = TooLarge(what, len(left), MAX_DEPENDENCIES, "tasks")
        error.add_note("Join them in groups first: a task for each group, then one for all groups.")
        raise error


def _then(first: Parts, second: Parts) -> Flow[Any]:
    flow: Flow[Any] = Flow(first, second)
    flow._chained = True
    return flow


def _part(value: object) -> Part[Any]:
    if isinstance(value, Part):
        return value
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return Flow(*value)
    raise InvalidInput(
        f"{type(value).__name__} is not a call, a flow or a list of them; use task.call(...)"
    )
