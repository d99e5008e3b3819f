"""The tasks that ``fairlead bench worker`` runs: they do nothing, each in another way."""

from __future__ import annotations

import time

from fairlead.app import Fairlead

__all__ = ("app", "busy", "noop", "noop_sync")

BUSY = 200e-6  # seconds of pure Python

app = Fairlead()


@app.task(name="bench.noop")
async def noop(text: str) -> None:
    """Return at once."""


@app.task(name="bench.noop_sync")
def noop_sync(text: str) -> None:
    """Return at once, in a thread."""


@app.task(name="bench.busy")
async def busy(_text: str) -> None:
    """Keep the interpreter busy."""
    until = time.thread_time() + BUSY
    while time.thread_time() < until:
        pass
