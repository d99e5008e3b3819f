"""What goes into the verbs of a broker and what comes out: plain structs, one answer per item."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from fairlead.model.lifecycle import DependencyPolicy, Settlement, State
from fairlead.model.message import Leased, Message
from fairlead.model.options import Dependency, Unique

LAYOUT = 4  # of what a server stores; see lua/lib/call for what another one means
LEAST_LAYOUT = 4  # that a release must know in order to write to a shard that this one began
MOVING = 1_000_000  # in the place of a layout while a shard is being migrated
SHARD = "0"  # where every queue lives unless the configuration says otherwise
LEASE = 30.0  # seconds that one heartbeat keeps all leases of an incarnation
HEARTBEAT = 10.0  # seconds between two of them
MAX_ENQUEUE = 500  # submissions in one call
MAX_TENANTS = 200  # distinct tenants in one such call
MAX_EXCHANGE = 128  # settlements, started marks, and fetched tasks in one call
MAX_TOMBS = 10_000  # chosen ids of one tenant that are known without their tasks
MAX_TENANT_BYTES = 256 * 1024 * 1024  # of unfinished tasks of a tenant in a queue, by default
MAX_TENANT_PINNED = 128 * 1024 * 1024  # of its completed tasks that are kept for others
MAX_XCOM_BYTES = 64 * 1024 * 1024  # that XCom values of one tenant count for
MAX_STEP = 50  # tasks that one call of upkeep, or one batch of orders, moves
MAX_BYTES = 4 * 1024 * 1024  # of messages or results that one call moves; at least one of them
MAX_PAGE = 1_000  # entries that one page examines
MAX_XCOM = 64 * 1024  # bytes of one XCom value
MAX_LETTERS = 10_000  # unconfirmed, in one mailbox
MAX_MOVES = 63  # times that a task may be given another level
MAX_READERS = 1_000  # of events, with a name
READER_SILENCE = 7 * 86_400  # seconds after which such a reader makes room for another
READER_SEEN = 86_400  # seconds after which it is noted that one has read, if its place is the same


class Call(msgspec.Struct, frozen=True):
    """Whose call this is and which: numbers grow, and the last one may be repeated."""

    incarnation: str
    number: int
    #: When its caller stops to wait for it, by the clock of the running loop; None: whenever the
    #: broker gives up by itself. Not part of what the broker remembers.
    until: float | None = None
    #: Try it a single time, and open a lost connection for it without a pause: the caller counts
    #: its rounds, and has another way. Not part of what the broker remembers either.
    hasty: bool = False
    #: Send it over the connection of the incarnation's first such call, and over no other: raises
    #: ``OtherConnection``. So the last number that a server knows of an incarnation stays what it
    #: was when the connection was lost.
    bound: bool = False


class LeaseRef(msgspec.Struct, frozen=True, gc=False):
    """The proof that comes with every write of a worker; all three must match."""

    id: str
    incarnation: str
    token: int


# -- enqueue ----------------------------------------------------------------------------------


class Submission(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message and where it should go first. The broker's clock rules."""

    message: Message
    delay: float = 0.0  # seconds until due
    #: The moment when it is due, by the broker's clock. It counts instead of the delay, which is
    #: then what the clock of the client leaves until it, for a ledger and a spool.
    at: float | None = None
    deadline: float | None = None  # seconds by which it must have started
    depends_on: tuple[Dependency, ...] = ()
    on_dependency_failure: DependencyPolicy = "dead"
    #: It will read what it depends on: what completed of that is kept until it is over.
    uses_results: bool = False
    unique: Unique | None = None
    fence: LeaseRef | None = None  # a child of a running task: accepted only under its lease
    #: It ran where it was enqueued, while the broker was away: how that ended, completed or dead.
    ended: Settlement | None = None


#: Who has a task: the broker, or a spool that will send it there.
Durability = Literal["committed", "spooled"]


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one submission.

    ``accepted``: a new task. ``duplicate``: ``id`` is the task that stands for it. The others
    changed nothing: ``conflict`` (the id has other content), ``queue_full`` and ``tenant_full``
    (``limit`` says how many may wait), ``tenant_bytes`` (``limit``: how much there may be),
    ``unknown_dependency`` (``detail`` names it), ``fenced`` (the parent's lease is over, or what
    came as ended runs or ended otherwise), ``stale`` (a slot that its schedule does not have, or
    no more), ``closed``.
    """

    id: str
    code: Literal[
        "accepted",
        "duplicate",
        "conflict",
        "queue_full",
        "tenant_full",
        "tenant_bytes",
        "unknown_dependency",
        "fenced",
        "stale",
        "closed",
    ]
    state: State | None = None  # where the task is now, when there is one
    durability: Durability = "committed"
    limit: int = 0
    detail: str = ""


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of a schedule and what to enqueue for it.

    ``revision`` is the one of the record that this was worked out from.
    """

    schedule: str
    slot: float  # unix seconds
    submission: Submission
    revision: int = 0
    next_at: float | None = None  # the slot after it; None: there is none


# -- exchange ---------------------------------------------------------------------------------


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """How much a worker asks for, and from where: queues in the order to look into them."""

    queues: tuple[str, ...]
    max: int
    start: int | None = None  # of these, how many it will run at once; None: all
    lease: float = LEASE  # seconds


#: ``full``, of XCom values only: the tenant has no room for more. ``later``, from a broker of
#: several shards only: that of the task is away, send it again.
Settled = Literal["applied", "fenced", "unknown", "full", "later"]


class ExchangeReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one exchange."""

    now: float  # the broker's time
    settled: list[Settled] = []
    started: list[Settled] = []
    leased: list[Leased] = []
    more: bool = False  # there was more to look at than one call may; call again at once
    due_in: float | None = None  # seconds until there is something to promote or deliver


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What came of waiting for a task."""

    found: bool = False  # there may be something to fetch
    leased: list[Leased] = []  # what was handed over, already started: one task at most


#: What an operator may order a worker to do; ``resume`` takes the order back that stands.
WorkerOrder = Literal["pause", "resume", "stop"]
StandingOrder = Literal["", "pause", "stop"]


class BeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know after a heartbeat."""

    now: float
    lost: list[LeaseRef] = []  # named in the call, but no longer its own: stop these
    cancelled: list[LeaseRef] = []  # its own, and cancel was asked for: stop these
    paused: list[str] = []  # of the queues it serves
    unclaimed: int = 0  # its own, but not named: so many went back
    more: bool = False  # there is more to take back; beat again at once
    order: StandingOrder = ""  # what an operator ordered, until it is taken back


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a maintenance step moved, and whether it should be called again."""

    now: float
    count: int = 0
    more: bool = False
    guarded: bool = False  # sweep only: the jump guard was up, no lease was ended
    ticks: bool = False  # promote only: schedules are due; call tick


# -- waiters, signals, writes -----------------------------------------------------------------


class Watched(msgspec.Struct, frozen=True):
    """The state of a watched task: final, unfinished (mail will follow), or None if unknown."""

    id: str
    state: State | None


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """Something an incarnation asked or has to be told; kept until it is confirmed."""

    number: int
    kind: Literal["finished", "cancel", "lent"]
    id: str
    state: State | None = None  # finished: the final state
    token: int = 0  # cancel and lent: the lease under which the task runs


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's write for a running task, under its lease."""

    lease: LeaseRef
    kind: Literal["progress", "xcom", "checkpoint", "log"]
    key: str = ""  # xcom only
    value: bytes
    ttl: float = 86_400.0  # seconds, xcom only


# -- operators --------------------------------------------------------------------------------


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """How a task stood when it was read: what changes whenever anything happens to it."""

    state: State
    generation: int = 0
    attempts: int = 0


class Alter(msgspec.Struct, frozen=True, kw_only=True):
    """An order about one task. ``tenant``, if given, must be the task's own.

    With ``seen`` a task that stands otherwise by now is ``unchanged``: whoever chose it by what was
    read of it might not choose it any more.
    """

    id: str
    action: Literal["cancel", "requeue", "delete", "run", "prioritize"]
    tenant: str | None = None
    level: int | None = None  # prioritize: from 0, the first, to 7
    seen: Seen | None = None


class Altered(msgspec.Struct, frozen=True, kw_only=True):
    """``done``; ``requested`` (cancel of a running task); ``unchanged``, ``state`` says why.

    ``later``: nobody has looked at it, because the call had taken long enough; give it again.
    """

    id: str
    code: Literal["done", "requested", "unchanged", "unknown", "later"]
    state: State | None = None


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """How many kept tasks went with a queue; nothing did if others stand in the way."""

    now: float
    count: int = 0
    more: bool = False  # there is more to forget; call again
    waiting: int = 0  # refused: tasks that wait, members of flows that are no tasks yet among them
    running: int = 0
    pinned: int = 0  # completed, and others will read their results

    @property
    def refused(self) -> bool:
        """Whether the queue is still in use."""
        return self.waiting + self.running + self.pinned > 0


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and switches of one queue; what is UNSET stays, None lifts a limit."""

    queue: str
    paused: bool | UnsetType = UNSET
    max_waiting: int | UnsetType | None = UNSET  # tasks not yet running, in all
    max_tenant_waiting: int | UnsetType | None = UNSET  # and of one tenant
    max_tenant_bytes: int | UnsetType | None = UNSET  # what a tenant's unfinished tasks count for
    max_tenant_pinned_bytes: int | UnsetType | None = UNSET  # and what others will read
    warn_depth: int | UnsetType | None = UNSET
    concurrency: int | UnsetType | None = UNSET  # running at a time, over all workers
    rate: float | UnsetType | None = UNSET  # dispatched a second, over all workers
    burst: int | UnsetType = UNSET
    charge_run_time: bool | UnsetType = UNSET  # shares are of run time, not of task count
    keep_completed: float | UnsetType = UNSET  # seconds
    keep_completed_count: int | UnsetType = UNSET
    keep_completed_bytes: int | UnsetType = UNSET
    keep_dead: float | UnsetType = UNSET  # seconds
    keep_dead_bytes: int | UnsetType = UNSET
    strict_priorities: bool | UnsetType = UNSET  # no turns for lower levels


class TenantChange(msgspec.Struct, frozen=True, kw_only=True):
    """Weight, limits and pause of one tenant, in one queue or (None) in all of them.

    What is set for one queue goes before what is set for all. Acts on the existing backlog at once.
    """

    tenant: str
    queue: str | None = None
    paused: bool | UnsetType = UNSET
    weight: float | UnsetType = UNSET  # 0.001 to 1000
    concurrency: int | UnsetType | None = UNSET
    rate: float | UnsetType | None = UNSET
    burst: int | UnsetType = UNSET


class LimiterChange(msgspec.Struct, frozen=True, kw_only=True):
    """A named limiter, shared by all queues of the shard; with ``failures`` it has a breaker."""

    name: str
    concurrency: int | UnsetType | None = UNSET
    rate: float | UnsetType | None = UNSET
    burst: int | UnsetType = UNSET
    failures: int | UnsetType | None = UNSET  # in a row, which open it; None: no breaker
    cooldown: float | UnsetType = UNSET  # seconds that it stays open
    probes: int | UnsetType = UNSET  # at a time, while it is half open


Setting = QueueChange | TenantChange | LimiterChange


class Declaration(msgspec.Struct, frozen=True):
    """A change that a program declares: it is made unless the last declaration was the same."""

    change: Setting


Change = Setting | Declaration
