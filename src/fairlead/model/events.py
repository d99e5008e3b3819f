"""What can be said to have happened. The broker writes these; everything else only reads them."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from fairlead.model.errors import InvalidInput

EventKind = Literal[
    "enqueued",  # accepted; ``state`` says whether queued, scheduled or deferred
    "queued",  # became due, or its last dependency finished; ``reason`` "run": by an order
    "scheduled",  # its last dependency finished, but it is due later
    "started",  # an attempt began; ``reason`` is the incarnation of the worker that runs it
    "completed",
    "retrying",  # an attempt failed, another will follow
    "snoozed",
    "released",  # handed back without an attempt used up
    # Its worker was gone; ``reason`` is "crash" if it had started. "unclaimed": its worker lives
    # but did not know of it, since a reply was lost.
    "recovered",
    "dead",
    "cancelling",  # cancel was asked for while it ran
    "cancelled",
    "requeued",  # an operator put it back from the dead
    "prioritized",  # an operator gave it another level; ``reason`` is its name
    "deleted",  # an operator removed a finished task, or a queue with the dead ones that it kept
    "dropped",  # a dead task was forgotten before its time; ``reason`` names the setting
    "fenced",  # a write with a lease that was over; nothing changed
    "progress",
    "configured",  # limits, weights or pause of a queue, tenant or limiter changed
    "warned",  # a queue reached its warn depth
    "worker_joined",  # a worker was heard of for the first time; ``task`` is its incarnation
    "worker_left",  # it ended, or was not heard of for too long
    "worker_paused",  # an operator ordered it to take no tasks
    "worker_resumed",  # the order that stood for it was taken back
    "flow_committed",  # a flow exists from now on; ``task`` is its id
    "flow_completed",  # every member of a flow completed
    "flow_dead",  # every member is final, and some are dead
    "flow_cancelled",  # every member is final, some are cancelled and none is dead
]
EVENT_KINDS: tuple[str, ...] = get_args(EventKind)


# Thousands come at once, and no cycle can be made of them: the collector need not know them.
class EventId(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where an event stands: never reused, not even by a server that was emptied."""

    generation: str
    shard: str  # without a dash, or the text could not be taken apart again
    entry: int  # one entry per call that changed something
    index: int  # its place among the events of that call

    def __str__(self) -> str:
        return f"{self.generation}-{self.shard}-{self.entry}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> EventId:
        """The id that ``str()`` wrote."""
        try:
            generation, shard, entry, index = text.rsplit("-", 3)
            id = cls(generation, shard, int(entry), int(index))
        except ValueError:
            id = None
        # int() takes spaces, signs, underscores and other alphabets' digits; str() writes none.
        if id is None or str(id) != text:
            raise InvalidInput(
                f"{text[:80]!r} is not an event id; it looks like GENERATION-SHARD-ENTRY-INDEX"
            )
        return id


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that happened, at the broker's time."""

    id: EventId
    at: float
    kind: EventKind
    task: str = ""  # empty for events of queues, tenants and limiters
    queue: str = ""
    tenant: str = ""
    state: str = ""  # the state it went to
    token: int = 0  # the lease it happened under
    attempt: int = 0
    reason: str = ""
