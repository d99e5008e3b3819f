"""Options that set limits: a number, or `none` to lift the limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fairlead.model.rates import in_rate

_LIFTED = "none"


class _Limit(click.ParamType[Any]):
    """A number, or ``none``. A rate may be said as 300/m."""

    def __init__(self, kind: type[int] | type[float], *, is_rate: bool = False) -> None:
        self.name = "RATE" if is_rate else "N"
        self._kind = kind
        self._is_rate = is_rate

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, ``none``, or a usage error that names the value."""
        if str(value).lower() == _LIFTED:
            return _LIFTED
        number: float | None
        if self._is_rate:
            number = in_rate(str(value))
        else:
            try:
                number = self._kind(value)
            except ValueError:
                number = None
        if number is None:
            rule = "a rate such as 5, 300/m or 1000/h" if self._is_rate else "a number"
            self.fail(f"{value!r} is not {rule}, nor none.", param, ctx)
        return number


def setting(name: str, about: str, kind: type[int] | type[float] = int) -> Callable[[Any], Any]:
    """An option whose value is a number, or ``none``."""
    return click.option(name, type=_Limit(kind, is_rate=name == "--rate"), help=about)


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of everything that has a limit."""
    for option in (
        setting("--burst", "How many may start at once before the rate counts."),
        setting("--rate", "How many may start: 5 (a second), 300/m, 1000/h; none lifts it.", float),
        setting("--concurrency", "How many may run at a time, over all workers; none lifts it."),
    ):
        command = option(command)
    return command


def said_limits(said: dict[str, Any]) -> dict[str, Any]:
    """What was said, as the settings of a change: None lifts a limit."""
    given = {name: value for name, value in said.items() if value is not None}
    if not given:
        raise click.UsageError("nothing to set was named")
    return {name: None if value == _LIFTED else value for name, value in given.items()}
