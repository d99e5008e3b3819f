"""Options as callers state them by keyword: only those that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fairlead.client.habits import OPTIONS
from fairlead.model.errors import InvalidInput

__all__ = ("check_stated",)


def check_stated(stated: Iterable[str], known: type, where: str) -> None:
    """Refuse a keyword that the TypedDict ``known`` does not have; the error names a close one."""
    options = known.__annotations__
    for option in stated:
        if option not in options:
            close = difflib.get_close_matches(option, options, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            if option in OPTIONS:
                hint = f"; here it is {OPTIONS[option]}"
            raise InvalidInput(
                f"{option!r} is no option of {where}{hint} (there are: {', '.join(options)})"
            )
