"""The contract between Fairlead and a store of tasks.

A broker moves tasks; it decides nothing that ``fairlead.model`` decides. Each sentence in a
docstring below has a test in ``tests/broker/conformance`` that every broker passes, and what is not
in those tests is not in the contract. The rules that hold for all verbs:

* **Atomic.** A verb happens as a whole or not at all, and no verb sees half of another.
* **Batches.** One answer per item, in order; the items of a batch are carried out in order. A batch
  over its limit, or input that breaks its type's rules, raises and changes nothing.
* **Numbered calls.** Verbs that take a ``Call`` keep the last number of each incarnation and the
  answers to it, until an hour after its last call, and for as long as it has leases. The last
  number again returns the same answers
  and changes nothing (as another verb it raises); an older one raises ``OutOfOrder``. So a lost
  reply is simply asked again.
* **Fencing.** A worker's write names id, incarnation and token. All three must match a lease that
  is in force; otherwise the answer is ``fenced`` (or ``unknown``) and nothing changes.
* **Time** is the broker's, in unix seconds, and never goes backwards. It follows the clock of its
  machine; when that is set back, or forward by more than 20 seconds beyond what a caller saw pass,
  time goes on from where it was, a tenth slower or faster, until both agree again. Whatever a
  caller can observe is compared with it. ``now`` is accepted only by a broker opened with a test
  clock; a moment before the last one counts as the last one.
* **Numbers** that callers remember (tokens, letters, entries of events, revisions of schedules
  and documents, numbers of notes, terms of leaders) grow, and are at least the broker's time in
  microseconds. So a broker that was emptied, or lost its last writes, does not give one out again.
* **Bounded.** What may be large (fan-out, promotion, recovery, purge) is done in steps with
  ``more`` in the answer, and every step leaves a consistent state.
* **Errors** say what may be assumed: ``Unreachable`` (not executed), ``Ambiguous`` (repeat the same
  call), ``Refused`` (nothing changed).

A broker may be wrapped by another; nothing outside this package asks for its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairlead.broker.documents import DocumentVerbs
from fairlead.broker.flows import FlowVerbs
from fairlead.broker.leadership import LeadershipVerbs
from fairlead.broker.records import (
    EventPage,
    Hello,
    WorkerRecord,
)
from fairlead.broker.requests import (
    Alter,
    Altered,
    BeatReply,
    Call,
    Change,
    Deleted,
    ExchangeReply,
    Fetch,
    Firing,
    LeaseRef,
    Mail,
    Moved,
    Receipt,
    Settled,
    Submission,
    Watched,
    WorkerOrder,
    Write,
)
from fairlead.broker.schedules import ScheduleVerbs
from fairlead.broker.transfers import TransferVerbs
from fairlead.broker.waits import WaitVerbs
from fairlead.model.events import EventId
from fairlead.model.lifecycle import Settlement


class Broker(
    WaitVerbs,
    FlowVerbs,
    ScheduleVerbs,
    DocumentVerbs,
    LeadershipVerbs,
    TransferVerbs,
    Protocol,
):
    """What a task store must do, and nothing it merely could do."""

    async def hello(self) -> Hello:
        """Say who the broker is: time, generation and layout."""
        ...

    async def enqueue(
        self, call: Call, submissions: Sequence[Submission], *, now: float | None = None
    ) -> list[Receipt]:
        """Take in up to 500 tasks of at most 200 tenants.

        An id the broker knows with the same content is a ``duplicate``, with other content a
        ``conflict``, and the first one stands. A unique key that is held makes a ``duplicate`` that
        names the holder: until the holder started, until it is done, or for a window of time from
        its acceptance; keys belong to their tenant. A queue, or a tenant's part of it, that is at
        its limit refuses (``queue_full``, ``tenant_full``, ``tenant_bytes``), while items that fit
        are accepted.

        A delay makes a task ``scheduled``. Unfinished dependencies make it ``deferred``; finished
        ones are settled at once by its policy: ``dead`` (the reason names the parent), ``cancel``,
        ``wait`` (until the parent completes after all; dead once the parent is forgotten) or
        ``run``. A dependency may be an earlier item of the same batch. One that is unknown counts
        as completed if it was given as a handle, and refuses the task if it was a bare id. A
        deferred task whose delay is not over when its dependencies are met becomes scheduled.

        With ``uses_results`` every dependency that the broker knows is pinned from now until the
        task has ended for good: no age, count or size of the retention makes it forgotten, it
        counts for none of them, and XCom values that it wrote outlive their TTL. When its last pin
        goes it is kept as if it had ended at that moment. A requeue pins again what is still known;
        ``delete`` of a pinned task is obeyed.

        With a ``fence`` the task is accepted only while that lease is in force.

        With ``ended`` the task ran elsewhere, and is stored with its end, completed or dead: it is
        never lent, no limit refuses it, and it is kept, told of and counted like any other but for
        the times of attempts. If the broker knows it and it waits, it ends now. If it runs, or
        has ended otherwise (by state and reason), the answer is ``fenced`` and nothing changes; the
        same end again is a ``duplicate``. Only a task without delay, dependencies, unique key and
        fence may have ended.
        """
        ...

    async def exchange(
        self,
        call: Call,
        settlements: Sequence[Settlement] = (),
        *,
        started: Sequence[LeaseRef] = (),
        fetch: Fetch | None = None,
        now: float | None = None,
    ) -> ExchangeReply:
        """Settle up to 128 attempts, then mark held tasks as started, then lend up to 128 more.

        **Settle.** Applied if the lease is in force, ``fenced`` if the task is known but the lease
        is not, ``unknown`` if the task is not known. An applied settlement ends the lease, returns
        what the task held of limits exactly once, tells watchers if the new state is final, and
        releases dependents (at most 50 in the call, the rest by ``deliver``). If cancel was asked
        for, only success stands; anything else becomes ``cancelled``. A burnt attempt counts. Any
        settlement clears the crash count, but one with the reason ``crashed`` adds one to it. A
        released task goes to the front of its level, and one that never began has waited since it
        first could run. Finished tasks (cancelled ones count with the
        completed) beyond the queue's retention in age, count or bytes are forgotten, at most two
        per settlement. Beyond count or bytes the tenant that holds most of them, if it is more than
        a 32nd of the room, loses its oldest; else the oldest of all goes. What is dead and goes
        before its time leaves the event ``dropped``.

        **Breakers.** A limiter with ``failures`` opens after so many in a row: tasks that were
        retried or are dead for an error of their handler. A success begins the row anew; whatever
        else ends an attempt only makes room. An open one has no room until its ``cooldown`` is
        over, then it is half open: ``probes`` at a time may go, and the first that succeeds closes
        it, the first that fails opens it again. What was lent before it opened has no say.

        **Fetch.** What is due is promoted first, see ``promote``; and a tenant that has no queued
        task left while it is served goes on with what is due of it. So tenants share what is due as
        they share what is queued, however much of it there is. Queues are looked into in the order
        given; inside a queue tenants are served by stride scheduling: each dispatch moves the
        tenant's tag on by ``cost / weight``, the lowest tag goes next, ties go by tenant name, and
        a tenant that comes back starts at the queue's virtual clock or its old tag, whichever is
        later. **One fetch of n gives the same sequence as n fetches of one.** Inside a tenant
        ``critical`` goes first; of its other dispatches at least one in eight goes to each lower
        level that has work waiting; each level is first in, first out. A tenant at its concurrency
        or rate limit, or whose next task finds no room in one of its named limiters, is parked
        until an event makes room; nothing is taken from any limit unless there is room in all of
        them. Paused queues and tenants are passed over. A task past its deadline is not handed out
        but ``dead`` (``expired``), be it the first attempt or a later one. Cancelled entries are
        dropped, at most 256 in a call. The task whose message fills 4 MiB is the last of a call.
        ``more`` says that the call stopped before it had seen everything.

        All leases of a call share a token, which is greater than any token before it and at least
        the broker's time in microseconds. The first ``fetch.start`` tasks count as started at
        once; the others are held until a ``started`` mark, or an outcome that says that they ran,
        and a crash is not charged to them until then.
        Fetching moves the incarnation's lease end forward, never back.
        """
        ...

    async def beat(
        self,
        incarnation: str,
        held: Sequence[LeaseRef] = (),
        *,
        answered: int | None = None,
        worker: WorkerRecord | None = None,
        lease: float = 30.0,
        now: float | None = None,
    ) -> BeatReply:
        """Keep all leases of an incarnation for another ``lease`` seconds, never for less.

        Of the leases named in ``held`` the answer tells which are lost, and of all its leases for
        which cancel was asked. ``worker`` is kept in the registry for 15 seconds, and then for as
        long as the incarnation has leases. ``order`` in the answer is what stands for it, see
        ``order_worker``; a worker that is not registered brings the order along that it is under.

        ``answered`` is the number of the last exchange whose reply the incarnation had when it put
        ``held`` together. What exchanges up to that number lent and ``held`` does not name is known
        to nobody: it goes back as after ``give_back``, charged to nobody and with the reason
        ``unclaimed``, at most 50 in a call. What later ones lent stays: their replies may be on
        their way. Without ``answered`` nothing goes back.
        """
        ...

    async def give_back(
        self,
        incarnation: str,
        started: Sequence[str] | None = None,
        *,
        blocked: Sequence[str] = (),
        now: float | None = None,
    ) -> Moved:
        """End all leases of an incarnation whose process is gone (at most 50 in a call).

        A crash is charged to the ids in ``started``, or if None to those marked as started. It
        burns the attempt. The third crash in a row makes a task ``dead`` (``poison``), and so does
        the last attempt that the flags of its message allow (``exhausted``); flags with a limit of
        crashes ask for nothing but that. The others go to the front of their level in their old
        order. One in ``blocked``, which kept its neighbors from running, goes to the back of its
        level, and its crash counts for two: it is to run alone from now on. A task for which cancel
        was asked is ``cancelled``. With its last lease goes the incarnation's mail and its worker's
        record.
        """
        ...

    async def sweep(self, *, now: float | None = None) -> Moved:
        """Give back what belongs to incarnations whose lease is over (at most 50 tasks).

        After a silence of more than one heartbeat since the last sweep, a jump of the clock, or at
        the very first, no lease is ended for one heartbeat: the silence may have been ours.
        """
        ...

    async def promote(self, *, now: float | None = None) -> Moved:
        """Make due tasks queued, and tasks past their deadline dead.

        The latter first, at most 50. Then what is due, at most 250 tasks of at most 50 tenants: of
        each tenant in the order of time, equal times by id, and of each the same number at most.
        Tenants take turns: those first whose next task is due the longest, or of which more was due
        than a call promotes and that were looked at the longest ago. A task that is due later never
        holds back one that is ready. ``ticks`` in the answer: schedules are due, see ``tick``.
        """
        ...

    async def deliver(self, *, now: float | None = None) -> Moved:
        """Go on with releasing dependents and taking pins away (at most 50 of each).

        When nobody is left to be told: see to up to 50 members of a flow.
        """
        ...

    async def tidy(self, *, now: float | None = None) -> Moved:
        """Forget what is past its retention or TTL (at most 50 things).

        Of finished tasks the one whose time is over first goes first; of those whose time is over
        at one moment, any. Verbs that end tasks forget as well, up to two for each that they end.
        A queue that nobody configured goes an hour after the last task that was known of it.
        """
        ...

    async def watch(
        self, incarnation: str, ids: Sequence[str], *, now: float | None = None
    ) -> list[Watched]:
        """Answer at once for final and unknown tasks; mail follows for the others."""
        ...

    async def collect(self, incarnation: str, after: int, timeout: float) -> list[Mail]:
        """The incarnation's mail with numbers above ``after``; what is up to it is confirmed.

        Waits up to ``timeout`` seconds for the first. Unconfirmed mail is returned again. A mailbox
        holds 10,000 letters; of more the oldest are dropped, and whoever still waits asks again.
        """
        ...

    async def write(
        self, call: Call, writes: Sequence[Write], *, now: float | None = None
    ) -> list[Settled]:
        """Record progress, checkpoints, log lines and XCom values under the lease of their task.

        A task keeps 500 lines or 64 KiB of them: of more the oldest are dropped, and counted.
        The call may be that of another process than the one that has the lease.
        """
        ...

    async def pull(
        self, tenant: str, keys: Sequence[str], *, now: float | None = None
    ) -> list[bytes | None]:
        """XCom values of one tenant; None where there is none or its TTL is over.

        A value outlives its TTL while the task that wrote it is pinned.
        """
        ...

    async def alter(
        self, call: Call, orders: Sequence[Alter], *, now: float | None = None
    ) -> list[Altered]:
        """Cancel, requeue, delete, run or prioritize up to 50 tasks.

        Cancel of a waiting task ends it at once and drops its body (of the bodies of a call up to
        1 MiB, and that of the first); of a running one it is
        ``requested`` and its worker told; of a finished one ``unchanged``. Requeue puts a dead task
        back with a new generation, no attempts, no crashes and no deadline; it does not take its
        unique key again, and whoever went on without it does not wait for it again. Delete forgets
        a finished task. Run makes a scheduled or retrying task queued, as if it were due now.
        Prioritize gives a waiting task another level for as long as it is known: one that is queued
        goes to the back of that level. That can be done 63 times with a task. Its content stays
        what it was, by which duplicates are known. What an order has no use for is ``unchanged``,
        and so is a task that stands otherwise than the order has ``seen`` it. A task of another
        tenant than the order names is ``unknown``. Where a server is slow, those behind the first
        may be ``later``: the call has done its share, and they are to be ordered again.
        """
        ...

    async def configure(
        self, call: Call, changes: Sequence[Change], *, now: float | None = None
    ) -> None:
        """Set limits, weights and pauses; they hold for the existing backlog from now on.

        What is set for a tenant in all queues comes to them a part at a time, and to all of them
        before this returns; if the caller goes away, ``tidy`` goes on with it. Raises ``Ambiguous``
        if it is set, and the broker goes away before all have it.

        A ``Declaration`` is made unless the last one about the same queue, tenant or limiter was
        the same: so what is set at run time outlives it until it is changed, and an emptied broker
        takes it again.

        A breaker keeps its state under other settings: another ``cooldown`` counts from when it
        opened, and it opens at once if as many failed already. None for ``failures`` ends it.
        """
        ...

    async def purge(
        self, call: Call, queue: str, tenant: str | None = None, *, now: float | None = None
    ) -> Moved:
        """Cancel what waits in a queue, or one tenant's part of it (at most 50 tasks).

        Members of a flow that is still being laid out are no tasks yet: they are neither cancelled
        nor counted in ``more``, and come later. ``alter_flow`` cancels those.
        """
        ...

    async def delete_queue(self, call: Call, queue: str, *, now: float | None = None) -> Deleted:
        """Forget a queue, its settings and the finished tasks that it keeps (at most 50 of them).

        Refused while tasks wait or run there, or results are kept there for tasks of other queues.
        What was set for tenants in this queue stays. A queue that nobody knows is deleted.
        """
        ...

    async def order_worker(
        self, call: Call, incarnation: str, order: WorkerOrder, *, now: float | None = None
    ) -> bool:
        """Order a worker to pause or to stop, or take the order back; false if it is unknown.

        The last order stands, and each answer to its heartbeats says so, until the worker is no
        longer registered. It is for the worker to obey: its leases are not touched.
        """
        ...

    async def fire(
        self, call: Call, firings: Sequence[Firing], *, now: float | None = None
    ) -> list[Receipt]:
        """Enqueue for slots of schedules, and set when each is due next, in one step.

        ``stale``: the schedule is unknown, paused or has another revision, or the slot is not later
        than the last one fired, or lies before the next one. A slot whose task was refused (for
        lack of room, for example) is not fired, nor are later ones of the same schedule in the same
        call, which get the same answer; the schedule is due again in 5 seconds. What is not refused
        is fired, be it a ``duplicate`` or a ``conflict``: another try would not help.
        """
        ...

    async def events(
        self,
        *,
        after: EventId | None = None,
        reader: str | None = None,
        limit: int = 500,
        timeout: float = 0.0,
        latest: bool = False,
    ) -> EventPage:
        """Events behind ``after``; without it, behind a named reader's place, else the oldest kept.

        ``after`` moves a named reader's place, and 1,000 readers may have one; a new one takes the
        place of the one that has been silent for longest, if that is 7 days. Events are kept up to
        16 MB; ``gap`` tells a reader that some it had not seen were dropped, that the event it
        read last was lost with the broker's last writes, or that the generation is another. It then
        reads from the oldest kept.

        With ``latest`` there are no events in the answer, and ``last`` is the place of the newest:
        to read on from now. It is not for readers with a name.
        """
        ...

    async def close(self) -> None:
        """Take in and lend nothing more, and wake everyone who waits.

        ``enqueue`` and ``fire`` answer ``closed`` from now on; what runs can still be settled.
        """
        ...
