"""What a worker says once, because nobody would guess it: why nothing happens, or not yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from msgspec import UNSET

from fairlead.broker import Inspector
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.model.registry import Registry
from fairlead.worker.board import Board

__all__ = ("notice_idle", "stopping_text")

log = logging.getLogger("fairlead.worker")

_MOST_QUEUES = 20  # that the broker is asked about


def stopping_text(boards: Iterable[Board], grace: float) -> str:
    """Return what a worker waits for that was told to stop, and how to leave at once."""
    count = sum(row.started for board in boards for row in board.lent())
    if not count:
        return "worker stops: no task runs"
    tasks = "1 task has" if count == 1 else f"{count} tasks have"
    back = "hands it back" if count == 1 else "hands them back"
    return f"worker stops: {tasks} {grace:g} s to finish; Ctrl-C (or TERM) again {back} at once"


async def notice_idle(store: Inspector, registry: Registry, queues: Sequence[str]) -> None:
    """Warn if a worker will hardly get anything to do: it has no tasks, or a queue is not filled.

    A queue is suspected if no task of the app names it and the broker has never heard of it.
    """
    if not list(registry):
        log.warning(
            "this app has no tasks: a module that declares some with @app.task has to be imported "
            "by the one that the worker loads"
        )
        return
    named = {spec.options.queue for spec in registry if spec.options.queue is not UNSET}
    known = sorted({DEFAULT_QUEUE, *map(str, named)})
    for queue in [each for each in queues if each not in known][:_MOST_QUEUES]:
        if not (await store.snapshot(queue, tenants=False)).queues:
            close = get_close_matches(queue, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            log.warning(
                "nothing was ever sent to queue %s, and no task of this app names it%s",
                queue, hint, extra={"queue": queue},
            )  # fmt: skip
