"""The names of all keys of a shard, as the scripts spell them. Nowhere else in Python.

Everything of a shard has the same prefix, whose braces keep it together on one node of a cluster.
"""

from __future__ import annotations

from fairlead.model.errors import InvalidOption
from fairlead.model.names import check_queue

#: The same in every layout, so that each release finds what any other wrote, and can refuse it. The
#: digit is part of the name.
_FAMILY = "fl1"

#: What every key holds, by its name behind the prefix; one with a colon stands for a family.
KINDS: dict[str, str] = {
    **dict.fromkeys(
        (
            *("meta", "tasks", "records", "errors", "results", "progress", "checkpoints", "ties"),
            *("before", "watchers", "queues", "settings", "tenant-settings", "gates", "limiters"),
            "declared",
            *("unique", "answers", "workers", "xcom", "schedules", "readers", "tenants:"),
            "orders",
            *("flows", "reserved", "pins", "uses", "aside", "tally:", "tombs", "xcom-bytes"),
            *("documents:", "trails", "leaders"),
        ),
        "hash",
    ),
    **dict.fromkeys(
        (
            *("due", "deadlines", "alarms", "windows", "leases", "idle", "seen", "xcom-ends"),
            *("jobs", "gaps", "applying", "saved:", "ready:", "asleep:", "done:", "dead:"),
            *("lobby:", "held:", "handed", "offers:"),
            *("waiters:", "before:", "after:", "cancelling:", "stages", "layouts", "flow-ends"),
            "trims",
            *("undone:", "ticks", "tallies"),
            *("tombs:", "tomb-ends"),
            *("document-names:", "document-ends:", "document-ends", "trail:"),
            *("large-done:", "large-dead:", "heads-done:", "heads-dead:"),
        ),
        "zset",
    ),
    "active:": "set",
    "staged:": "set",
    **dict.fromkeys(
        ("marks", "bell", "bell:", "line:", "kept:", "mail:", "mailbell:", "outbox:", "unpins"),
        "list",
    ),
    **dict.fromkeys(("flow:", "edges:", "handed:"), "list"),
    "events": "stream",
}


class Keys:
    """Where one shard keeps its things."""

    def __init__(self, shard: str, namespace: str = "") -> None:
        """``shard`` is named like a queue, but without a dash: event ids are taken apart at it.

        A ``namespace`` stands inside of the braces, so that installations which share a cluster
        are not all on the same node. No shard has a slash in its name.
        """
        if "-" in check_queue(shard):
            raise InvalidOption("shard", shard, "a name without a dash")
        place = f"{namespace}/{shard}" if namespace else shard
        self.prefix = prefix = f"{_FAMILY}:{{{place}}}:"
        # The shard itself: hash.
        self.meta = f"{prefix}meta"
        # Tasks: hashes by id.
        self.tasks = f"{prefix}tasks"  # as they were accepted
        self.records = f"{prefix}records"  # what became of them
        self.errors = f"{prefix}errors"
        self.results = f"{prefix}results"
        self.progress = f"{prefix}progress"
        self.ties = f"{prefix}ties"  # who waits for a task; its dependents, if they are few
        self.before = f"{prefix}before"  # what deferred tasks wait for, if it is not much
        self.watchers = f"{prefix}watchers"
        # Queues, tenants and limits: hashes by name.
        self.queues = f"{prefix}queues"
        self.settings = f"{prefix}settings"
        self.tenant_settings = f"{prefix}tenant-settings"
        self.declared = f"{prefix}declared"
        self.gates = f"{prefix}gates"
        self.limiters = f"{prefix}limiters"
        # Moments: sorted sets.
        self.due = f"{prefix}due"
        self.deadlines = f"{prefix}deadlines"
        self.alarms = f"{prefix}alarms"
        self.ticks = f"{prefix}ticks"  # when to look at schedules
        self.windows = f"{prefix}windows"
        self.leases = f"{prefix}leases"
        self.idle = f"{prefix}idle"
        self.seen = f"{prefix}seen"
        self.xcom_ends = f"{prefix}xcom-ends"
        self.gaps = f"{prefix}gaps"  # tenants whose lines are mostly entries of tasks that are gone
        self.jobs = f"{prefix}jobs"  # ends that dependents have to be told of, in order
        # The rest of the hashes.
        self.unique = f"{prefix}unique"
        self.answers = f"{prefix}answers"
        self.workers = f"{prefix}workers"
        self.xcom = f"{prefix}xcom"
        self.schedules = f"{prefix}schedules"
        # Events: a stream, a list of places where it may be cut, and readers by name.
        self.events = f"{prefix}events"
        self.marks = f"{prefix}marks"
        self.readers = f"{prefix}readers"
        # Rung when the alarm has to be set anew: a list of at most one token.
        self.bell = f"{prefix}bell"

    # -- of a queue --------------------------------------------------------------------------------

    def bell_of(self, queue: str) -> str:
        """Rung when there is something to fetch: a list of at most one token."""
        return f"{self.prefix}bell:{queue}"

    def bell_suffix(self, queue: str) -> bytes:
        """The same as the script ``ring`` is told of it: without the prefix."""
        return f"bell:{queue}".encode()

    def tenants(self, queue: str) -> str:
        """Hash: the tenants' parts of a queue."""
        return f"{self.prefix}tenants:{queue}"

    def active(self, queue: str) -> str:
        """Set: tenants that have work."""
        return f"{self.prefix}active:{queue}"

    def saved(self, queue: str) -> str:
        """Sorted set: tags of tenants that have nothing, until the clock has passed them."""
        return f"{self.prefix}saved:{queue}"

    def ready(self, queue: str) -> str:
        """Sorted set: runnable tenants by tag."""
        return f"{self.prefix}ready:{queue}"

    def line(self, queue: str, level: int, tenant: str) -> str:
        """List: queued tasks of one tenant and level."""
        return f"{self.prefix}line:{queue}:{level}:{tenant}"

    def asleep(self, queue: str, tenant: str) -> str:
        """Sorted set: what waits without standing in a line."""
        return f"{self.prefix}asleep:{queue}:{tenant}"

    # What is kept of finished tasks: of all tenants, or of one that holds much of it.

    def kept(self, queue: str, tenant: str = "") -> str:
        """List: tasks that completed in the usual way, in the order they are forgotten in."""
        return self._shelf("kept", queue, tenant)

    def done(self, queue: str, tenant: str = "") -> str:
        """Sorted set: other completed and cancelled tasks by when they are forgotten."""
        return self._shelf("done", queue, tenant)

    def dead(self, queue: str, tenant: str = "") -> str:
        """Sorted set: dead tasks by when they are forgotten."""
        return self._shelf("dead", queue, tenant)

    def large(self, shelf: str, queue: str) -> str:
        """Sorted set: tenants with an order of their own by the share they hold, largest first."""
        return f"{self.prefix}large-{shelf}:{queue}"

    def heads(self, shelf: str, queue: str) -> str:
        """Sorted set: the same by a moment before which nothing in that order is over."""
        return f"{self.prefix}heads-{shelf}:{queue}"

    def _shelf(self, name: str, queue: str, tenant: str) -> str:
        return f"{self.prefix}{name}:{queue}:{tenant}" if tenant else f"{self.prefix}{name}:{queue}"

    # -- of a limiter ------------------------------------------------------------------------------

    def waiters(self, limiter: str, queue: str) -> str:
        """Sorted set: the tenants of one queue that wait for room, by tag."""
        return f"{self.prefix}waiters:{limiter}:{queue}"

    # -- of a task ---------------------------------------------------------------------------------

    def after(self, life: int, id: str) -> str:
        """Sorted set: what waits for a task; of an id that comes again each life has its own."""
        return f"{self.prefix}after:{life}:{id}"

    # -- of an incarnation -------------------------------------------------------------------------

    def held(self, incarnation: str) -> str:
        """Hash: by token, how many of its loans are left, and the ids that were lent."""
        return f"{self.prefix}held:{incarnation}"

    def cancelling(self, incarnation: str) -> str:
        """Sorted set: its loans for which cancel was asked, by token."""
        return f"{self.prefix}cancelling:{incarnation}"

    def handed(self, incarnation: str) -> str:
        """List: the task that was handed over to it, until it collects it."""
        return f"{self.prefix}handed:{incarnation}"

    def mail(self, incarnation: str) -> str:
        """List: its letters."""
        return f"{self.prefix}mail:{incarnation}"

    def mail_bell(self, incarnation: str) -> str:
        """Rung when it has mail: a list of at most one token."""
        return f"{self.prefix}mailbell:{incarnation}"

    # -- of another shard --------------------------------------------------------------------------

    def outbox(self, shard: str) -> str:
        """List: what it has to be told."""
        return f"{self.prefix}outbox:{shard}"

    def suffix(self, key: bytes) -> bytes:
        """A key without the prefix."""
        return key[len(self.prefix.encode()) :]
