"""How far work is that takes a while, and what becomes of it when it is interrupted."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import click

_REFRESH = 0.1  # seconds between two pictures on a terminal
_LINE = 5.0  # seconds between two lines elsewhere
_WIDTH = 30  # characters of a bar


class Progress:
    """A bar on a terminal, a line now and then elsewhere; on stderr."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._live = sys.stderr.isatty()
        self._shown_at = 0.0 if self._live else time.monotonic()

    def show(self, done: int) -> None:
        """Tell how far it is, if it was not told just now."""
        now = time.monotonic()
        if now - self._shown_at < (_REFRESH if self._live else _LINE):
            return
        self._shown_at = now
        if self._live:
            click.echo(f"\r\x1b[K{self._bar(done)}{self._text(done)}", nl=False, err=True)
        else:
            click.echo(self._text(done), err=True)

    def clear(self) -> None:
        """Take the bar away, so that the next line begins at the left."""
        if self._live:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _bar(self, done: int) -> str:
        if not self._total:
            return ""
        filled = min(round(_WIDTH * done / self._total), _WIDTH)
        return f"[{'#' * filled}{'-' * (_WIDTH - filled)}] "

    def _text(self, done: int) -> str:
        of = "" if self._total is None else f" of {self._total:,}"
        return f"{done:,}{of} {self._what}"


class Interruption:
    """Whether somebody pressed Ctrl-C: work looks at it between two steps."""

    def __init__(self) -> None:
        self.came = False


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Let the first Ctrl-C end work after the step that is under way; the next ends it at once."""
    import asyncio
    import signal

    interruption = Interruption()
    loop = asyncio.get_running_loop()

    def came() -> None:
        interruption.came = True
        loop.remove_signal_handler(signal.SIGINT)

    with contextlib.ExitStack() as stack:
        # Where a loop takes no signals, or not in this thread, Ctrl-C stays a KeyboardInterrupt.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGINT, came)
            stack.callback(loop.remove_signal_handler, signal.SIGINT)
        yield interruption
