"""Events in the shapes that clients get: each is encoded once, however many clients there are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from fairlead.api.views.timestamps import moment_text
from fairlead.client import EventInfo

_encode = msgspec.json.Encoder().encode


class _Data(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an event of the broker is about. What says nothing is left out."""

    task_id: str = ""
    type: str = ""  # the name of the task
    queue: str = ""
    tenant: str = ""
    state: str = ""
    attempt: int = 0
    duration_ms: float | None = None
    reason: str = ""
    flow_id: str = ""
    worker: str = ""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str = ""  # empty: it is no place to read on from
    type: str
    timestamp: str
    data: Any


class EncodedEvent:
    """One event, as JSON and as a part of a stream of server-sent events."""

    def __init__(self, type: str, json: bytes, id: str = "") -> None:
        self.type = type
        self.json = json
        self.id = id

    @cached_property
    def text(self) -> str:
        """The JSON as text, for a frame of a socket."""
        return self.json.decode()

    @cached_property
    def sent_event(self) -> bytes:
        """The lines of a server-sent event. JSON has no line breaks, and ids have none either."""
        id = b"id: %s\n" % self.id.encode() if self.id else b""
        return b"%sevent: %s\ndata: %s\n\n" % (id, self.type.encode(), self.json)


class EventBatch:
    """Items that go to clients together; all who want the same share one."""

    def __init__(self, items: Sequence[EncodedEvent]) -> None:
        self.items = items
        self.size = sum(len(item.json) for item in items)

    @cached_property
    def sent_events(self) -> bytes:
        """All of them as server-sent events."""
        return b"".join(item.sent_event for item in self.items)

    @cached_property
    def array(self) -> str:
        """All of them as one JSON array."""
        return f"[{','.join(item.text for item in self.items)}]"

    @property
    def last_id(self) -> str:
        """The last place in it to read on from; empty if there is none."""
        return next((item.id for item in reversed(self.items) if item.id), "")


def encoded_data(type: str, at: float, data: Any, id: str = "") -> EncodedEvent:
    """An item of our own: figures, a snapshot, a gap."""
    return EncodedEvent(
        type, _encode(_Event(id=id, type=type, timestamp=moment_text(at), data=data)), id
    )


def encoded(event: EventInfo, *, workers: bool = True) -> EncodedEvent:
    """The item of an event of the broker; ``workers``: it may name one."""
    data = _Data(
        task_id=event.task_id,
        type=event.task,
        queue=event.queue,
        tenant=event.tenant,
        state=event.state,
        attempt=event.attempt,
        duration_ms=event.duration_ms,
        reason=event.reason,
        flow_id=event.flow,
        worker=event.worker if workers else "",
    )
    return encoded_data(event.type, event.at, data, event.id)
