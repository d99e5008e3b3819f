"""What the named statements answer. Moments are unix seconds, by the ledger's clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ClaimedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that the dispatcher is to send. ``deadline`` is in seconds from now."""

    id: str
    submission: bytes
    depends_on: list[str]
    deadline: float | None
    late: float  # seconds since it was due
    pushes: int


class ClaimedFlow(msgspec.Struct, frozen=True):
    """A flow that the dispatcher is to send."""

    id: str
    tenant: str
    name: str
    draft: bytes
    pushes: int
    age: float  # seconds since it was enqueued


class ParentRow(msgspec.Struct, frozen=True):
    """A task that others depend on. ``stands_for``: it was refused, and this one is there."""

    id: str
    state: str
    stands_for: str = ""


class Moved(msgspec.Struct, frozen=True):
    """A task and the state it is in."""

    id: str
    state: str


class Place(msgspec.Struct, frozen=True):
    """How far the recorder has read in a shard of the broker."""

    shard: str
    generation: str
    entry: int
    index: int
    replication: str = ""  # of the server that the rows were compared with; empty: none


class UnfinishedFlow(msgspec.Struct, frozen=True):
    """A flow to compare with the broker, and its place among them."""

    id: str
    checked_at: float


class LastEvent(msgspec.Struct, frozen=True, gc=False):
    """A task that has a row: the last event in it, and whether it lacks what the broker has."""

    id: str
    last_entry: int
    last_index: int
    is_named: bool
    is_sendable: bool


class UnfinishedTask(msgspec.Struct, frozen=True):
    """A row to compare with the broker: its last event, and its place among those in its state."""

    id: str
    last_entry: int
    last_index: int
    flow: str
    created_at: float
    seq: int


class WorkerRow(msgspec.Struct, frozen=True):
    """Who an incarnation was."""

    incarnation: str
    host: str
    pid: int
    started_at: float | None


class LeadershipRow(msgspec.Struct, frozen=True):
    """Who leads."""

    term: int
    holder: str
    since: float


class TaskRow(msgspec.Struct, frozen=True):
    """What the ledger knows of a task, for people. ``log`` comes with one task only."""

    id: str
    seq: int
    state: str
    queue: str
    tenant: str
    name: str
    level: int
    flow: str
    created_at: float
    due_at: float
    deadline_at: float | None
    updated_at: float
    started_at: float | None
    finished_at: float | None
    attempts: int
    worker: str
    reason: str
    error_type: str
    error: str
    stands_for: str
    pushes: int
    recoveries: int
    log: bytes = b""


class Standing(msgspec.Struct, frozen=True):
    """What stands in the row of a task or a flow, as far as a handle needs it."""

    state: str
    reason: str = ""
    stands_for: str = ""
    error_type: str = ""
    error: str = ""


class StatusRow(msgspec.Struct, frozen=True):
    """What a role of the leader has published; ``age`` is in seconds."""

    role: str
    term: int
    counts: dict[str, Any]
    age: float


class Lag(msgspec.Struct, frozen=True):
    """What is due and not sent yet, counted to 10,000."""

    due: int
    oldest_seconds: float | None
    claimed: int


def made(kind: type[R], row: Sequence[Any]) -> R:
    """Return a row as a struct of ``kind``, whose fields are its columns in their order."""
    return kind(*(_plain(value) for value in row))


def moment(seconds: float) -> datetime:
    """Return unix seconds as a moment, exact to the microsecond, as PostgreSQL keeps them."""
    return _EPOCH + timedelta(microseconds=round(seconds * 1_000_000))


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value
