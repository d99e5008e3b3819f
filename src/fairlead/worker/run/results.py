"""What the dependencies of a task returned, as its handler sees it: ``ctx.results``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.model.argument_packing import unpack
from fairlead.model.errors import InvalidName, ResultGone, TaskCancelled, TaskError, TaskFailed
from fairlead.model.lifecycle import State
from fairlead.model.names import full_id
from fairlead.model.options import HasId
from fairlead.model.safe_repr import safe_repr

_GONE = (
    "it was deleted, belongs to another tenant, or its retention was over before the task that "
    "reads it was accepted: keep it longer (retention=...), or enqueue both together"
)
_MOST_IDS = 10  # in one message


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a dependency stands, with what it returned; of one that is gone there is no state."""

    task: str = ""
    state: State | None = None
    result: bytes | None = None  # packed; None if it returned None
    reason: str = ""
    error: str = ""


def error_of(id: str, ended: Ended) -> TaskError | None:
    """Why there is no result of a dependency; None if there is one."""
    if ended.state is State.COMPLETED:
        return None
    if ended.state is None:
        return ResultGone(id, _GONE)
    if ended.state is State.DEAD:
        return TaskFailed(id, ended.reason, ended.error)
    if ended.state is State.CANCELLED:
        return TaskCancelled(id)
    return TaskError(id, f"task {safe_repr(id)} is {ended.state}: it was put to work again")


class Results(Mapping[str, Any]):
    """By id, in the order of ``depends_on``: what the tasks returned that this one depends on.

    Also by handle, and by the name of the task (in full or behind its last dot) if it is that of
    one dependency only. A dependency that did not complete raises ``TaskFailed`` or
    ``TaskCancelled``, one that the broker no longer knows ``ResultGone``; whatever is no
    dependency raises ``KeyError``.
    """

    __slots__ = ("_ended", "_tenant", "_values")

    def __init__(self, tenant: str, ended: Mapping[str, Ended]) -> None:
        self._tenant = tenant
        self._ended = ended
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str | HasId) -> Any:
        return self._value(self._id(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._ended)

    def __len__(self) -> int:
        return len(self._ended)

    def __contains__(self, key: object) -> bool:
        try:
            self._id(key)
        except KeyError:
            return False
        return True

    def named(self, task: str) -> list[Any]:
        """Return what all dependencies of this name returned, in the order of ``depends_on``."""
        return [self._value(id) for id in self._of(task)]

    def _of(self, task: object) -> list[str]:
        """Dependencies by the name of their task, in full or behind its last dot."""
        named = [(id, ended.task) for id, ended in self._ended.items() if ended.task]
        full = [id for id, name in named if name == task]
        return full or [id for id, name in named if name.rpartition(".")[2] == task]

    def _id(self, key: object) -> str:
        id = getattr(key, "id", key)
        if isinstance(id, str):
            if id in self._ended:
                return id
            try:
                chosen = full_id(self._tenant, id)
            except InvalidName:
                chosen = id
            if chosen in self._ended:
                return chosen
        same = self._of(id)
        if len(same) == 1:
            return same[0]
        raise KeyError(_ambiguous(key, same) if same else _unknown(key))

    def _value(self, id: str) -> Any:
        ended = self._ended[id]
        error = error_of(id, ended)
        if error is not None:
            raise error
        if id not in self._values:
            self._values[id] = None if ended.result is None else unpack(ended.result)
        return self._values[id]

    def __repr__(self) -> str:
        return f"<Results of {len(self)} tasks>"


def _ambiguous(key: object, same: Sequence[str]) -> str:
    ids = ", ".join(same[:_MOST_IDS]) + (", …" if len(same) > _MOST_IDS else "")
    return (
        f"{safe_repr(key)} is the name of {len(same)} dependencies; use named({safe_repr(key)}) "
        f"for all of them, or one of the ids: {ids}"
    )


def _unknown(key: object) -> str:
    return (
        f"{safe_repr(key)} is neither the id nor the name of a dependency of this task; results "
        "are there for tasks in depends_on, if the handler's first parameter is a Context"
    )


NO_RESULTS = Results("", {})
