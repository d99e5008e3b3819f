"""A ledger, a broker and the parts of a manager between them, one step at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg

from fairlead.broker import Caller, Store
from fairlead.broker.requests import Call, Fetch, Submission
from fairlead.client.flow_submit import Draft
from fairlead.client.stored_submissions import flow_text, tasks_text
from fairlead.ledger.ledger import Ledger
from fairlead.manager.auditor import Auditor
from fairlead.manager.comparison import Comparison
from fairlead.manager.counts import Counts
from fairlead.manager.dispatcher import Dispatcher
from fairlead.manager.janitor import Janitor
from fairlead.manager.leader import Leader
from fairlead.manager.leader_term import Term
from fairlead.manager.recorder import Recorder
from fairlead.model.argument_packing import pack_arguments
from fairlead.model.lifecycle import DependencyPolicy, Settlement, State
from fairlead.model.message import Body, Leased, Message
from fairlead.model.options import Dependency, Unique
from fairlead.runtime.ids import new_id

__all__ = ("ENQUEUE", "Bench", "submission", "until")

ENQUEUE = "select task_id, code from fairlead.enqueue_tasks(%s::json)"
_BODY = Body(task="work", arguments=pack_arguments((), {})).encode()


def submission(
    id: str | None = None,
    *,
    queue: str = "default",
    tenant: str = "t",
    after: Sequence[str] = (),
    known: bool = False,
    policy: DependencyPolicy = "dead",
    unique: str | None = None,
    delay: float = 0.0,
    deadline: float | None = None,
    body: bytes = _BODY,
) -> Submission:
    """A task as a client would have made it."""
    return Submission(
        message=Message(id=id or new_id(), queue=queue, tenant=tenant, body=body),
        depends_on=tuple(Dependency(each, known) for each in after),
        on_dependency_failure=policy,
        unique=None if unique is None else Unique(key=unique),
        delay=delay,
        deadline=deadline,
    )


class Bench:
    """What most tests of the manager need."""

    def __init__(self, store: Store, ledger: Ledger, dsn: str) -> None:
        self.store, self.ledger, self.dsn = store, ledger, dsn
        self.worker = Caller(new_id())
        self.counts = Counts("test")

    # -- a term and its roles -------------------------------------------------------------------

    async def lead(self, holder: str = "") -> Term:
        """Take the leadership from whoever has it."""
        await self.give_up_leadership()
        term = await Leader(self.store, self.ledger, holder).take()
        assert term is not None
        return term

    async def give_up_leadership(self) -> None:
        """Let the next one lead at once, as if the lease of whoever leads were over."""
        found = await self.store.lead("manager", "nobody")
        await self.store.lead("manager", found.holder, release=True)

    def recorder(self, term: Term, **options: int) -> Recorder:
        return Recorder(self.store, self.ledger, term, self.counts, **options)

    def dispatcher(self, term: Term, **options: Any) -> Dispatcher:
        catch_up = options.pop("catch_up", None) or self.recorder(term).catch_up
        return Dispatcher(self.store, self.ledger, term, catch_up, self.counts, **options)

    def janitor(self, term: Term, **options: Any) -> Janitor:
        return Janitor(self.ledger, term, self.comparison(term), self.counts, **options)

    def auditor(self, term: Term, **options: Any) -> Auditor:
        comparison = options.pop("comparison", None) or self.comparison(term)
        return Auditor(self.store, self.ledger, term, comparison, self.counts, **options)

    def comparison(self, term: Term) -> Comparison:
        return Comparison(self.store, self.ledger, term, self.recorder(term).catch_up)

    # -- the ledger -----------------------------------------------------------------------------

    async def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            cursor = await connection.execute(text, values or None)
            return await cursor.fetchall() if cursor.description else []

    async def add(self, *submissions: Submission, count: int = 0) -> list[str]:
        """Commit tasks to the ledger; their ids."""
        made = [*submissions, *(submission() for _ in range(count))]
        for start in range(0, len(made), 500):
            await self.sql(ENQUEUE, tasks_text(made[start : start + 500]))
        return [each.message.id for each in made]

    async def add_flow(self, *members: Submission) -> list[str]:
        """Commit a flow to the ledger; without members three, each behind the one before."""
        ids = [f"t:{new_id()}-{number}" for number in range(3)]
        made = members or [
            submission(id, after=ids[number - 1 : number]) for number, id in enumerate(ids)
        ]
        draft = Draft(id=new_id(), tenant="t", name="f", calls=[], submissions=[*made], last=[])
        await self.sql("select fairlead.enqueue_flow(%s::json)", flow_text(draft, made))
        return [each.message.id for each in made]

    async def rows(self, *columns: str) -> dict[str, Any]:
        """Columns of all rows by id; the value alone if it is one column."""
        found = await self.sql(f"select id, {', '.join(columns)} from fairlead.tasks")
        return {id: rest[0] if len(columns) == 1 else tuple(rest) for id, *rest in found}

    async def states(self) -> Counter[str]:
        return Counter((await self.rows("state")).values())

    async def age(self, seconds: float) -> None:
        """Let all rows be so much older: they were made, changed and ended earlier."""
        await self.sql(
            "update fairlead.tasks set created_at = created_at - make_interval(secs => %s),"
            " updated_at = updated_at - make_interval(secs => %s),"
            " finished_at = finished_at - make_interval(secs => %s)",
            *[seconds] * 3,
        )
        await self.sql(
            "update fairlead.flows set checked_at = checked_at - make_interval(secs => %s)", seconds
        )

    # -- the broker -----------------------------------------------------------------------------

    async def fetch(self, count: int = 100, queues: Sequence[str] = ("default",)) -> list[Leased]:
        def verb(call: Call) -> Any:
            return self.store.exchange(call, fetch=Fetch(queues=tuple(queues), max=count))

        leased: list[Leased] = (await self.worker.call(verb)).leased
        return leased

    async def complete(self, leases: Sequence[Leased]) -> None:
        for start in range(0, len(leases), 100):
            some = [
                Settlement(id=each.message.id, token=each.token, to=State.COMPLETED)
                for each in leases[start : start + 100]
            ]
            await self.worker.call(partial(self.store.exchange, settlements=some))

    async def run_all(self, queues: Sequence[str] = ("default",)) -> list[str]:
        """Run whatever is queued, as a worker would; the ids in the order they were lent."""
        ran: list[str] = []
        while leases := await self.fetch(100, queues):
            ran += [each.message.id for each in leases]
            await self.complete(leases)
        return ran


async def until(check: Any, seconds: float = 20.0) -> Any:
    """Look until an awaited check is true; what it said."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not (found := await check()):
        assert loop.time() < end, f"waited {seconds:g} s"
        await asyncio.sleep(0.02)
    return found
