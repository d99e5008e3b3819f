"""Short forms for tests of brokers: a numbered client, and builders of what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.broker import Store
from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import (
    Alter,
    Altered,
    Call,
    Change,
    ExchangeReply,
    Fetch,
    Firing,
    LeaseRef,
    Moved,
    Receipt,
    Settled,
    Submission,
    Taken,
    Write,
)
from fairlead.broker.schedules import Scheduled, ScheduleOrder
from fairlead.model.events import Event
from fairlead.model.lifecycle import DependencyPolicy, Settlement, State
from fairlead.model.message import ErrorInfo, Leased, Message
from fairlead.model.options import Dependency, Unique

NOW = 1_800_000_000.0  # unix seconds; a broker with a test clock lives from here on
ERROR = ErrorInfo("ValueError", "it did not work")


class Client:
    """One incarnation: its name, and the numbers of its calls."""

    def __init__(self, broker: Store, incarnation: str = "w1") -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.number = 0

    def call(self) -> Call:
        """The next number; the last one again is ``Call(c.incarnation, c.number)``."""
        self.number += 1
        return Call(self.incarnation, self.number)

    async def enqueue(self, *submissions: Submission, now: float = NOW) -> list[Receipt]:
        return await self.broker.enqueue(self.call(), submissions, now=now)

    async def exchange(
        self,
        settlements: Sequence[Settlement] = (),
        *,
        started: Sequence[LeaseRef] = (),
        fetch: Fetch | None = None,
        now: float = NOW,
    ) -> ExchangeReply:
        return await self.broker.exchange(
            self.call(), settlements, started=started, fetch=fetch, now=now
        )

    async def fetch(
        self,
        n: int = 1,
        queues: Sequence[str] = ("default",),
        *,
        start: int | None = None,
        lease: float = 30.0,
        now: float = NOW,
    ) -> list[Leased]:
        order = Fetch(queues=tuple(queues), max=n, start=start, lease=lease)
        return (await self.exchange(fetch=order, now=now)).leased

    async def settle(self, *settlements: Settlement, now: float = NOW) -> list[Settled]:
        return (await self.exchange(settlements, now=now)).settled

    async def alter(self, *orders: Alter, now: float = NOW) -> list[Altered]:
        return await self.broker.alter(self.call(), orders, now=now)

    async def cancel(self, id: str, *, tenant: str | None = None, now: float = NOW) -> Altered:
        (answer,) = await self.alter(Alter(id=id, action="cancel", tenant=tenant), now=now)
        return answer

    async def requeue(self, id: str, *, tenant: str | None = None, now: float = NOW) -> Altered:
        (answer,) = await self.alter(Alter(id=id, action="requeue", tenant=tenant), now=now)
        return answer

    async def delete(self, id: str, *, tenant: str | None = None, now: float = NOW) -> Altered:
        (answer,) = await self.alter(Alter(id=id, action="delete", tenant=tenant), now=now)
        return answer

    async def configure(self, *changes: Change, now: float = NOW) -> None:
        await self.broker.configure(self.call(), changes, now=now)

    async def purge(
        self, queue: str = "default", tenant: str | None = None, *, now: float = NOW
    ) -> Moved:
        return await self.broker.purge(self.call(), queue, tenant, now=now)

    async def write(self, *writes: Write, now: float = NOW) -> list[Settled]:
        return await self.broker.write(self.call(), writes, now=now)

    async def fire(self, *firings: Firing, now: float = NOW) -> list[Receipt]:
        return await self.broker.fire(self.call(), firings, now=now)

    async def plan(self, *orders: ScheduleOrder, now: float = NOW) -> list[Scheduled]:
        return await self.broker.plan(self.call(), orders, now=now)

    async def planned(self, *names: str, next_at: float | None = 0.0, now: float = NOW) -> int:
        """Create schedules that may be fired for any slot; the revision of the last."""
        answers = await self.plan(
            *(
                ScheduleOrder(name=name, action="create", queue="default", next_at=next_at)
                for name in names
            ),
            now=now,
        )
        assert {answer.code for answer in answers} == {"done"}
        return answers[-1].revision

    async def run(
        self, *submissions: Submission, now: float = NOW, queues: Sequence[str] = ("default",)
    ) -> list[Leased]:
        """Enqueue and fetch as many: for tests that begin with running tasks."""
        for receipt in await self.enqueue(*submissions, now=now):
            assert receipt.code == "accepted", receipt
        leases = await self.fetch(len(submissions), queues, now=now)
        assert len(leases) == len(submissions)
        return leases

    def ref(self, lease: Leased) -> LeaseRef:
        """The proof of a lease that this incarnation holds."""
        return ref(lease, self.incarnation)


# -- what is sent -----------------------------------------------------------------------------


class Taking:
    """A worker that waits by ``take``."""

    def __init__(
        self,
        broker: Store,
        call: Call,
        queues: Sequence[str] = ("default",),
        timeout: float = 30.0,
    ) -> None:
        self.woken = asyncio.Event()
        self.task = asyncio.create_task(broker.take(call, queues, timeout, self.woken.set))

    async def told(self) -> Taken:
        """What it is told first: a wake-up, or how the wait ended."""
        woken = asyncio.create_task(self.woken.wait())
        either = (woken, self.task)
        await asyncio.wait(either, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()
        if self.task.done():
            return self.task.result()
        assert self.woken.is_set()
        return Taken(found=True)

    async def over(self) -> Taken:
        """How it ended."""
        return await asyncio.wait_for(self.task, 10)


def message(
    id: str,
    tenant: str = "a",
    queue: str = "default",
    *,
    level: int = 2,
    cost: float = 1.0,
    limiters: tuple[str, ...] = (),
    flags: int = 0,
    body: bytes = b"x",
    trace: bytes = b"",
) -> Message:
    return Message(
        id=id,
        queue=queue,
        tenant=tenant,
        level=level,
        cost=cost,
        limiters=limiters,
        flags=flags,
        body=body,
        trace=trace,
    )


def submit(
    id: str,
    tenant: str = "a",
    queue: str = "default",
    *,
    level: int = 2,
    cost: float = 1.0,
    limiters: tuple[str, ...] = (),
    flags: int = 0,
    body: bytes = b"x",
    trace: bytes = b"",
    delay: float = 0.0,
    at: float | None = None,
    deadline: float | None = None,
    after: Sequence[str | Dependency] = (),
    policy: DependencyPolicy = "dead",
    uses: bool = False,
    unique: Unique | None = None,
    fence: LeaseRef | None = None,
) -> Submission:
    """One submission; ``after`` takes bare ids and, for handles, ``Dependency(id, known=True)``."""
    return Submission(
        message=message(
            id,
            tenant,
            queue,
            level=level,
            cost=cost,
            limiters=limiters,
            flags=flags,
            body=body,
            trace=trace,
        ),
        delay=delay,
        at=at,
        deadline=deadline,
        depends_on=tuple(Dependency(d) if isinstance(d, str) else d for d in after),
        on_dependency_failure=policy,
        uses_results=uses,
        unique=unique,
        fence=fence,
    )


def completed(
    lease: Leased,
    result: bytes | None = None,
    *,
    keep: float | None = None,
    run_time: float = 0.0,
) -> Settlement:
    return Settlement(
        id=lease.message.id,
        token=lease.token,
        to=State.COMPLETED,
        result=result,
        keep=keep,
        run_time=run_time,
    )


def failed(lease: Leased, delay: float = 1.0) -> Settlement:
    """A failed attempt that is to be retried after ``delay`` seconds."""
    return Settlement(
        id=lease.message.id, token=lease.token, to=State.RETRYING, delay=delay, error=ERROR
    )


def dead(lease: Leased, reason: str = "exhausted", *, keep: float | None = None) -> Settlement:
    return Settlement(
        id=lease.message.id,
        token=lease.token,
        to=State.DEAD,
        reason=reason,
        error=ERROR,
        keep=keep,
    )


def released(lease: Leased, *, run_time: float = 0.0) -> Settlement:
    return Settlement(
        id=lease.message.id,
        token=lease.token,
        to=State.QUEUED,
        burn=False,
        reason="released",
        run_time=run_time,
    )


def snoozed(lease: Leased, delay: float) -> Settlement:
    return Settlement(
        id=lease.message.id,
        token=lease.token,
        to=State.SCHEDULED,
        delay=delay,
        burn=False,
        reason="snoozed",
    )


def cancelled(lease: Leased) -> Settlement:
    """The attempt was ended because somebody cancelled the task."""
    return Settlement(id=lease.message.id, token=lease.token, to=State.CANCELLED)


def ref(lease: Leased, incarnation: str = "w1") -> LeaseRef:
    return LeaseRef(lease.message.id, incarnation, lease.token)


# -- what is read -----------------------------------------------------------------------------


async def record(broker: Store, id: str, *, now: float = NOW) -> TaskRecord:
    """What is known of one task that must be known."""
    (found,) = await broker.find([id], now=now)
    assert found is not None, f"{id} is unknown"
    return found


async def states(broker: Store, *ids: str, now: float = NOW) -> list[State | None]:
    """The states of tasks; None for unknown ones."""
    found = await broker.find(ids, now=now)
    return [None if one is None else one.state for one in found]


async def events(broker: Store, *kinds: str) -> list[Event]:
    """All events that are kept, or those of some kinds, in order."""
    found: list[Event] = []
    page = await broker.events()
    while page.events:
        found += [event for event in page.events if not kinds or event.kind in kinds]
        page = await broker.events(after=page.last)
    return found


async def drain(broker: Store, *, now: float = NOW) -> int:
    """Deliver until there is no more, and say how many were delivered."""
    count, more = 0, True
    while more:
        moved = await broker.deliver(now=now)
        count, more = count + moved.count, moved.more
    return count


async def complete_all(c: Client, queues: Sequence[str] = ("default",), *, now: float = NOW) -> int:
    """Run everything that is ready, and say how many tasks that were."""
    count = 0
    while leases := await c.fetch(128, queues, now=now):
        assert set(await c.settle(*map(completed, leases), now=now)) == {"applied"}
        count += len(leases)
    return count


def ids(leases: Sequence[Leased]) -> list[str]:
    return [lease.message.id for lease in leases]


def codes(receipts: Sequence[Receipt]) -> list[str]:
    return [receipt.code for receipt in receipts]
