"""What the memory broker remembers: of a task, of an incarnation, of a client's mail."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.broker.memory.wakeups import Sleeper
from fairlead.broker.records import BODY_BEGIN, Parts, TaskRecord
from fairlead.broker.requests import MAX_LETTERS, Mail
from fairlead.model.lifecycle import DependencyPolicy, State
from fairlead.model.log_lines import kept_parts
from fairlead.model.message import ErrorInfo, Message
from fairlead.model.names import is_made
from fairlead.model.options import Unique
from fairlead.model.states import COMPLETED, QUEUED, RUNNING

if TYPE_CHECKING:
    from fairlead.broker.memory.fair import Tenant
    from fairlead.broker.memory.flow_state import Flow
    from fairlead.broker.memory.limits import Limiter

_OVERHEAD = 100  # bytes that a task counts for beside what is stored of it


def message_bytes(message: Message) -> int:
    """What a message counts for as a task."""
    return _OVERHEAD + len(message.body) + len(message.trace)


def xcom_bytes(value: bytes, writer: str) -> int:
    """What an XCom value counts for, with what a server stores beside it: a time and a length."""
    return _OVERHEAD + 10 + len(writer.encode()) + len(value)


class Task:
    """One task. What few tasks need is a class attribute until it is set on one."""

    attempts = 0  # burnt
    crashes = 0
    unroutable = 0
    generation = 0
    moves = 0  # how often it was given another level
    due_at: float | None = None
    deadline_at: float | None = None
    since: float | None = None  # when it became runnable; None: when it was accepted
    started_at: float | None = None
    finished_at: float | None = None
    expires_at: float | None = None  # when a finished task is forgotten
    pins = 0  # tasks that will still read its result
    over = False  # it is pinned, but there was no room for it: it is kept like any other
    keep: float | None = None  # of a finished task that is pinned: for how long afterwards
    kept_since: float | None = None  # since its last pin, if it had one after its end
    uses: tuple[tuple[str, int], ...] = ()  # ids and sequences of those whose results it reads
    reason = ""
    error: ErrorInfo | None = None
    result: bytes | None = None
    progress: bytes | None = None
    kept: bytes | None = None  # the checkpoint and the log: see model/log_lines.py
    token = 0
    incarnation = ""
    lent_by = 0  # the number of the exchange that lent it
    cancelling = False
    held: tuple[Limiter, ...] = ()  # named limiters it holds room in while it runs
    policy: DependencyPolicy = "dead"
    blocked_by: dict[str, None] | None = None  # ids of parents it waits for
    wide = False  # it waits for very many, or did until the last of them
    dependents: dict[str, Task] | None = None  # tasks that wait for it
    flow: Flow | None = None  # that it is a member of
    unique: Unique | None = None
    watchers: dict[str, None] | None = None  # in the order in which they are told
    digest = b""  # of the body, when it was dropped
    entry: list[Task | None] | None = None  # its place in a level; emptied when it leaves it early

    def __init__(self, message: Message, tenant: Tenant, sequence: int, now: float) -> None:
        self.id = message.id
        self.message = message  # as it was accepted
        self.level = message.level  # where it stands, or will
        self.tenant = tenant
        self.sequence = sequence  # order of acceptance
        self.enqueued_at = now
        self.size = message_bytes(message)  # it counts for now: for its tenant, or on a shelf
        self.state: State = QUEUED

    @property
    def due_key(self) -> tuple[int, str]:
        """Where it stands among tasks that are due at the same time: in the order they came.

        Ids that Fairlead makes are in that order themselves.
        """
        return (0 if is_made(self.id) else self.sequence, self.id)

    @property
    def aside(self) -> bool:
        """Whether it is kept because it is pinned: it stands on no shelf."""
        return self.pins > 0 and not self.over and self.state is COMPLETED

    def eases_one(self) -> bool:
        """Let the only one that waits for this go on waiting for others; False if it has none.

        Not if this may have ended before: who waits is told of that first.
        """
        if self.generation or self.dependents is None or len(self.dependents) > 1:
            return False
        (child,) = self.dependents.values()
        if child.blocked_by is None or len(child.blocked_by) < 2 or self.id not in child.blocked_by:
            return False
        del child.blocked_by[self.id]
        self.dependents = None
        return True

    def leased_as(self, incarnation: str, token: int) -> bool:
        """Whether this lease of the task is in force."""
        return self.state is RUNNING and self.token == token and self.incarnation == incarnation

    @property
    def runnable_since(self) -> float:
        """When it became runnable."""
        return self.enqueued_at if self.since is None else self.since

    def counted_bytes(self) -> int:
        """What it counts for, wherever bytes are counted."""
        message = self.message
        # As ``message_bytes``, but a call costs more than all this.
        size = _OVERHEAD + len(message.body) + len(message.trace)
        if self.result is not None:
            size += len(self.result)
        if self.progress is not None:
            size += len(self.progress)
        if self.kept is not None:
            size += len(self.kept)
        if self.error is not None:
            size += len(self.error.message) + len(self.error.traceback)
        return size

    def drop_body(self) -> None:
        """Nothing will ever run it: keep only what tells its content from another."""
        self.digest = blake2b(self.message.body, digest_size=16).digest()
        self.message = self.message.without_body()

    def same_content(self, message: Message) -> bool:
        """Whether a message asks for the same work as this task."""
        if self.digest:
            if blake2b(message.body, digest_size=16).digest() != self.digest:
                return False
            message = message.without_body()
        return self.message.same_content(message)

    def record(self, parts: Parts = "all") -> TaskRecord:
        """What is asked for of it, for people."""
        message = self.message
        if parts != "all" and len(message.body) > BODY_BEGIN:
            message = msgspec.structs.replace(message, body=message.body[:BODY_BEGIN])
        if self.level != message.level:
            message = msgspec.structs.replace(message, level=self.level)
        checkpoint, log = kept_parts(self.kept) if parts in ("all", "log") else (None, None)
        running = self.state is State.RUNNING
        waits = self.state in (State.SCHEDULED, State.RETRYING)
        return TaskRecord(
            message=message,
            state=self.state,
            attempts=self.attempts,
            generation=self.generation,
            crashes=self.crashes,
            reason=self.reason,
            error=self.error if parts != "log" else None,
            result=self.result if parts in ("all", "result") else None,
            progress=self.progress if parts in ("all", "info") else None,
            checkpoint=checkpoint,
            log=log,
            enqueued_at=self.enqueued_at,
            due_at=self.due_at if waits else None,
            deadline_at=self.deadline_at,
            started_at=self.started_at if running else None,
            finished_at=self.finished_at,
            token=self.token if running else 0,
            incarnation=self.incarnation if running else "",
            cancelling=self.cancelling and running,
            waiting_for=tuple(id for id in self.blocked_by or () if not id.startswith("\x1e")),
            dependents=len(self.dependents or ()),
            flow=self.flow.id if self.flow is not None else "",
        )


class Incarnation:
    """One life of a worker: what it has on loan, and until when."""

    __slots__ = ("lease_end", "leases")

    def __init__(self) -> None:
        self.leases: dict[str, Task] = {}
        self.lease_end = 0.0


class Mailbox:
    """What a client or worker has to be told, until it says that it knows."""

    __slots__ = ("letters", "sleepers")

    def __init__(self) -> None:
        self.letters: deque[Mail] = deque()
        self.sleepers: list[Sleeper] = []

    @property
    def listened_to(self) -> bool:
        """Whether somebody waits for a letter right now."""
        return any(sleeper.listens for sleeper in self.sleepers)

    def put(self, letter: Mail) -> None:
        """Add a letter and wake whoever waits for one; of too many the oldest is dropped."""
        self.letters.append(letter)
        if len(self.letters) > MAX_LETTERS:
            self.letters.popleft()
        self.sleepers[:] = [sleeper for sleeper in self.sleepers if sleeper.wake()]

    def confirm(self, number: int) -> None:
        """Drop the letters up to this number."""
        while self.letters and self.letters[0].number <= number:
            self.letters.popleft()


class Answered:
    """The last numbered call of an incarnation and what was answered: ids and codes, no bodies."""

    __slots__ = ("answer", "number", "verb")

    def __init__(self, number: int, verb: str, answer: Any) -> None:
        self.number = number
        self.verb = verb
        self.answer = answer
