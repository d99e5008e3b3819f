"""Outputs: what another task will return, used as an argument before it has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from fairlead.model.errors import InvalidInput
from fairlead.model.safe_repr import safe_repr


class Output:
    """Stands in the arguments of a call for what another task returns.

    The call depends on that task, and its handler gets the plain value. There is nothing else to be
    done with it: the value is not known yet.
    """

    __slots__ = ("id", "known", "task", "tenant")

    def __init__(self, id: str, *, task: str = "", tenant: str = "", known: bool = False) -> None:
        self.id = id
        """The id of the task that returns it."""
        self.task = task
        """The name of that task, where it is known."""
        self.tenant = tenant
        """Whose task that is."""
        self.known = known
        """True: the task was accepted once, as with a handle; False for a call."""

    def __bool__(self) -> NoReturn:
        raise InvalidInput(
            f"what task {safe_repr(self.id)} returns is not known yet; its output can only be "
            "handed on as an argument of another task"
        )

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Output) else NotImplemented

    def __hash__(self) -> int:
        return hash((Output, self.id))

    def __repr__(self) -> str:
        return f"<Output of {f'{self.task} ' if self.task else ''}{self.id}>"


def outputs_in(value: Any) -> dict[str, Output]:
    """The outputs inside of plain data, by id, in the order in which they stand there."""
    found: dict[str, Output] = {}
    with_results(value, lambda output: found.setdefault(output.id, output))
    return found


def with_results(value: Any, result: Callable[[Output], Any]) -> Any:
    """Plain data with the value of each output in its place; the data itself stays as it is."""
    if isinstance(value, Output):
        return result(value)
    if isinstance(value, list):
        return [with_results(item, result) for item in value]
    if isinstance(value, dict):
        return {key: with_results(item, result) for key, item in value.items()}
    return value
