"""Lines of several processes on one stream, each behind the name of its process."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

_COLORS = {"api": "34", "demo": "35", "manager": "33", "postgres": "36", "valkey": "31",
           "worker": "32"}  # fmt: skip
_WIDTH = max(map(len, _COLORS))
_LONGEST = 64 * 1024  # bytes of a line that has not ended


class Output:
    """Writes whole lines; colors the names on a terminal, NO_COLOR permitting.

    Holds them back until ``release``: what people are to do next stands before all of them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colors = stream.isatty() and not os.environ.get("NO_COLOR")
        self._begun: dict[str, bytes] = {}  # by name: what came since the last line ended
        self._held: list[str] | None = []  # lines until ``release``

    def release(self) -> None:
        """Write what was held back, and from now on every line at once."""
        held, self._held = self._held, None
        self._write("".join(held or ()))

    def say(self, name: str, text: str) -> None:
        """Write one line."""
        head = f"{name:<{_WIDTH}} |"
        color = _COLORS.get(name) if self._colors else None
        if color is not None:
            head = f"\x1b[{color}m{head}\x1b[0m"
        line = f"{head} {text}\n"
        if self._held is None:
            self._write(line)
        else:
            self._held.append(line)

    def take(self, name: str, data: bytes) -> None:
        """Write the lines of what a process wrote, and keep the one that has not ended."""
        *lines, rest = (self._begun.pop(name, b"") + data).split(b"\n")
        if len(rest) > _LONGEST:
            lines.append(rest)
        elif rest:
            self._begun[name] = rest
        for line in lines:
            self.say(name, line.decode(errors="replace").rstrip("\r"))

    def end(self, name: str) -> None:
        """Write what a process that has ended left without an end of line."""
        if name in self._begun:
            self.take(name, b"\n")

    def _write(self, text: str) -> None:
        # A terminal that is gone is told by a signal as well.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
