"""What the memory broker remembers: of a task, of an incarnation, of a client's mail."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from fairlead.broker.memory.bell import Sleeper
from fairlead.broker.verbs import Mail, TaskRecord
from fairlead.model.lifecycle import DependencyPolicy, State
from fairlead.model.message import ErrorInfo, Message
from fairlead.model.options import Unique

if TYPE_CHECKING:
    from fairlead.broker.memory.fair import Tenant
    from fairlead.broker.memory.limits import Limiter

__all__ = ("Answered", "Incarnation", "Mailbox", "Task")


class Task:
    """One task. What few tasks need is a class attribute until it is set on one."""

    attempts = 0  # burnt
    crashes = 0
    unroutable = 0
    generation = 0
    due_at: float | None = None
    deadline_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    expires_at: float | None = None  # when a finished task is forgotten
    size = 0  # bytes it counts for while it is kept
    reason = ""
    error: ErrorInfo | None = None
    result: bytes | None = None
    progress: bytes | None = None
    checkpoint: bytes | None = None
    token = 0
    incarnation = ""
    cancelling = False
    held: tuple[Limiter, ...] = ()  # named limiters it holds room in while it runs
    policy: DependencyPolicy = "dead"
    blocked_by: dict[str, None] | None = None  # ids of parents it waits for
    dependents: dict[str, Task] | None = None  # tasks that wait for it
    unique: Unique | None = None
    watchers: set[str] | None = None
    entry: list[Task | None] | None = None  # its place in a level; emptied when it leaves it early

    def __init__(self, message: Message, tenant: Tenant, sequence: int, now: float) -> None:
        self.id = message.id
        self.message = message
        self.tenant = tenant
        self.sequence = sequence  # order of acceptance
        self.enqueued_at = now
        self.state: State = State.QUEUED

    def leased_as(self, incarnation: str, token: int) -> bool:
        """Whether this lease of the task is in force."""
        return (
            self.state is State.RUNNING and self.token == token and self.incarnation == incarnation
        )

    def record(self) -> TaskRecord:
        """All of it, for people."""
        running = self.state is State.RUNNING
        waits = self.state in (State.SCHEDULED, State.RETRYING)
        return TaskRecord(
            message=self.message,
            state=self.state,
            attempts=self.attempts,
            generation=self.generation,
            crashes=self.crashes,
            reason=self.reason,
            error=self.error,
            result=self.result,
            progress=self.progress,
            checkpoint=self.checkpoint,
            enqueued_at=self.enqueued_at,
            due_at=self.due_at if waits else None,
            deadline_at=self.deadline_at,
            started_at=self.started_at if running else None,
            finished_at=self.finished_at,
            token=self.token if running else 0,
            incarnation=self.incarnation if running else "",
            cancelling=self.cancelling and running,
            waiting_for=tuple(self.blocked_by or ()),
            dependents=len(self.dependents or ()),
        )


class Incarnation:
    """One life of a worker: what it has on loan, and until when."""

    __slots__ = ("lease_end", "leases")

    def __init__(self) -> None:
        self.leases: dict[str, Task] = {}
        self.lease_end = 0.0


class Mailbox:
    """What a client or worker has to be told, until it says that it knows."""

    __slots__ = ("_last", "letters", "sleepers")

    def __init__(self) -> None:
        self._last = 0
        self.letters: deque[Mail] = deque()
        self.sleepers: list[Sleeper] = []

    def put(self, **letter: Any) -> None:
        """Add a letter and wake whoever waits for one."""
        self._last += 1
        self.letters.append(Mail(number=self._last, **letter))
        for sleeper in self.sleepers:
            sleeper.wake()

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
