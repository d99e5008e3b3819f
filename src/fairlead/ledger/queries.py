"""One method for each named statement of ``ledger/sql``, with the same name and parameters.

What takes a ``term`` is done for the leader only. If nothing came of it, the term in the ledger is
looked at, and another one raises ``LostLeadership``: a leader that was replaced learns so from its
first effect, and nothing of it is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from fairlead.ledger.pool import Answer, Executor

# isort: off
from fairlead.ledger.rows import (
    ClaimedFlow, ClaimedTask, Lag, LastEvent, LeadershipRow, Moved, ParentRow, Place, Standing,
    StatusRow, TaskRow, UnfinishedFlow, UnfinishedTask, WorkerRow, made, moment,
)  # fmt: skip

# isort: on
from fairlead.ledger.statements import statement
from fairlead.model.ledger_errors import LedgerRefused, LostLeadership

R = TypeVar("R", bound=msgspec.Struct)

_FEW = 10_000  # rows that may be sorted for a page


class Queries:
    """The statements, run by a pool or inside one transaction."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    # -- leadership -----------------------------------------------------------------------------

    async def take_leadership(self, *, term: int, holder: str) -> None:
        """Write a new term, behind every effect that is in flight under an older one."""
        await self._fenced("take_leadership", term=term, holder=holder)

    async def end_older_sessions(self, *, term: int) -> int:
        """End sessions that hold up a new term in a transaction of an earlier one; how many."""
        ended: int = (await self._run("end_older_sessions", term=term)).rows[0][0]
        return ended

    async def leadership(self) -> LeadershipRow:
        """Return who leads."""
        [row] = await self._rows(LeadershipRow, "leadership")
        return row

    # -- the dispatcher's -----------------------------------------------------------------------

    async def claim_tasks(self, *, term: int, limit: int) -> list[ClaimedTask]:
        """Make up to ``limit`` due rows ours, in the order in which they are due."""
        answer = await self._fenced("claim_tasks", term=term, limit=limit)
        return [ClaimedTask(*row) for row in answer.rows]

    async def confirm_tasks(self, *, term: int, ids: Sequence[str], state: str) -> int:
        """Note that the broker has them in this state; how many this term still had claimed."""
        given = {"ids": list(ids), "state": state}
        return (await self._fenced("confirm_tasks", term=term, **given)).count if ids else 0

    async def put_back_tasks(
        self, *, term: int, ids: Sequence[str], delays: Sequence[float], reasons: Sequence[str]
    ) -> list[str]:
        """Let claimed rows be pending again, due after so many seconds."""
        return await self._ids("put_back_tasks", term=term, ids=ids, delays=delays, reasons=reasons)

    async def refuse_tasks(
        self, *, term: int, ids: Sequence[str], reasons: Sequence[str], stands_for: Sequence[str]
    ) -> list[str]:
        """Note that the broker will never take them, and why."""
        return await self._ids(
            "refuse_tasks", term=term, ids=ids, reasons=reasons, stands_for=stands_for
        )

    async def release_claims(self, *, term: int, limit: int) -> list[str]:
        """Put back what leaders before this one had claimed; call it until it returns nothing."""
        return [r[0] for r in (await self._fenced("release_claims", term=term, limit=limit)).rows]

    async def next_due(self) -> float | None:
        """Return the seconds until the next row is due; None if none waits."""
        seconds: float | None = (await self._run("next_due")).rows[0][0]
        return seconds

    async def states_of(self, *, ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those that have a row."""
        return dict((await self._run("states_of", ids=list(ids))).rows)

    async def end_tasks(
        self, *, term: int, ids: Sequence[str], states: Sequence[str], reasons: Sequence[str]
    ) -> list[str]:
        """Note that they end unsent, because of what they depend on."""
        return await self._ids("end_tasks", term=term, ids=ids, states=states, reasons=reasons)

    async def parents_of(self, *, ids: Sequence[str]) -> list[ParentRow]:
        """Return those of these tasks that have a row."""
        return await self._rows(ParentRow, "parents_of", ids=list(ids)) if ids else []

    async def unsent_members(self, *, ids: Sequence[str]) -> set[str]:
        """Return those of these tasks whose flow is yet to be sent."""
        return {row[0] for row in (await self._run("unsent_members", ids=list(ids))).rows}

    async def claim_flow(self, *, term: int) -> ClaimedFlow | None:
        """Make the flow that is due first ours; None if none is due."""
        answer = await self._fenced("claim_flow", term=term)
        return made(ClaimedFlow, answer.rows[0]) if answer.rows else None

    async def end_flow_push(
        self, *, term: int, id: str, state: str, reason: str = "", delay: float = 0.0
    ) -> bool:
        """Note what the broker said of a flow: running, pending (again later) or refused."""
        given = {"id": id, "state": state, "reason": reason, "delay": delay}
        return (await self._fenced("end_flow_push", term=term, **given)).count > 0

    async def release_flow_claims(self, *, term: int) -> list[str]:
        """Put back the flows that leaders before this one had claimed."""
        return [row[0] for row in (await self._fenced("release_flow_claims", term=term)).rows]

    # -- the recorder's -------------------------------------------------------------------------

    async def places(self) -> dict[str, Place]:
        """Return how far each shard was read."""
        return {row.shard: row for row in await self._rows(Place, "places")}

    async def move_place(
        self,
        *,
        term: int,
        shard: str,
        generation: str,
        entry: int,
        index: int,
        replication: str = "",
        was_generation: str = "",
        was_entry: int = 0,
        was_index: int = 0,
    ) -> bool:
        """Move the place of a shard behind what is written in the same transaction.

        ``replication`` is of a place that is new. ``was_*`` is where it stood when it was read.
        Raises LedgerRefused (``place``) if another has moved it since: then nothing of the
        transaction may be kept.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "term")}
        answer = await self._fenced("move_place", term=term, **given)
        if not answer.count:
            raise LedgerRefused(
                "place", f"the place of shard {shard!r} was moved by another; read it again"
            )
        return True

    async def last_events(self, *, ids: Sequence[str]) -> list[LastEvent]:
        """Return the last event of those of these tasks that have a row."""
        rows = (await self._run("last_events", ids=list(ids))).rows if ids else ()
        return [LastEvent(*row) for row in rows]

    async def unfinished_tasks(
        self,
        *,
        state: str,
        limit: int,
        older: float | None = None,
        before: float | None = None,
        before_seq: int = 0,
    ) -> list[UnfinishedTask]:
        """Return a page of the rows in one state, newest first; see ``list_tasks``.

        ``older`` leaves out those that were made within so many seconds.
        """
        place = {"before": _moment(before), "before_seq": before_seq, "older": older}
        return await self._rows(
            UnfinishedTask, "unfinished_tasks", state=state, limit=limit, **place
        )

    async def forget_tasks(
        self, *, term: int, ids: Sequence[str], entries: Sequence[int], indexes: Sequence[int]
    ) -> list[str]:
        """Note that tasks ended unseen, where the row knows nothing newer."""
        return await self._ids("forget_tasks", term=term, ids=ids, entries=entries, indexes=indexes)

    async def unfinished_flows(
        self, *, limit: int, after: float | None = None, after_id: str = ""
    ) -> list[UnfinishedFlow]:
        """Return a page of the flows that run; ``after*`` are of the last page's last row."""
        place = {"after": _moment(after), "after_id": after_id}
        return await self._rows(UnfinishedFlow, "unfinished_flows", limit=limit, **place)

    async def record_flows(
        self, *, term: int, ids: Sequence[str], states: Sequence[str], at: Sequence[float]
    ) -> list[str]:
        """Write what became of flows; those that have a row here."""
        return await self._ids("record_flows", term=term, ids=ids, states=states, at=at)

    async def record_workers(
        self,
        *,
        incarnations: Sequence[str],
        hosts: Sequence[str],
        pids: Sequence[int],
        started: Sequence[float | None],
    ) -> None:
        """Note that these workers were seen."""
        columns = {name: list(value) for name, value in locals().items() if name != "self"}
        if incarnations:
            await self._run("record_workers", **columns)

    # -- the auditor's and the janitor's --------------------------------------------------------

    async def send_again(
        self, *, term: int, ids: Sequence[str], entries: Sequence[int], indexes: Sequence[int]
    ) -> list[Moved]:
        """Let what the broker has lost be sent again, or be dead if nobody can send it."""
        return await self._moved("send_again", term, ids, entries, indexes)

    async def follow_tasks(
        self,
        *,
        term: int,
        ids: Sequence[str],
        states: Sequence[str],
        attempts: Sequence[int],
        reasons: Sequence[str],
        error_types: Sequence[str],
        errors: Sequence[str],
        started: Sequence[float | None],
        finished: Sequence[float | None],
        entries: Sequence[int],
        indexes: Sequence[int],
    ) -> list[str]:
        """Write what the broker says of tasks, where the row knows nothing newer."""
        columns = {name: value for name, value in locals().items() if name not in ("self", "term")}
        return await self._ids("follow_tasks", term=term, **columns)

    async def settle_places(
        self, *, term: int, generations: Sequence[str], replications: Sequence[str]
    ) -> int:
        """Note that all unfinished rows were compared with these servers."""
        given = {"generations": list(generations), "replications": list(replications)}
        return (await self._fenced("settle_places", term=term, **given)).count

    async def unchecked_flows(self, *, older: float, limit: int) -> list[str]:
        """Return flows that were not compared with the broker for ``older`` seconds."""
        return [r[0] for r in (await self._run("unchecked_flows", older=older, limit=limit)).rows]

    async def flow_states(self, *, ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those flows that have a row."""
        return {row[0]: row[1] for row in (await self._run("flow_states", ids=list(ids))).rows}

    async def touch_flows(self, *, term: int, ids: Sequence[str]) -> int:
        """Note that flows were compared and found right."""
        return (await self._fenced("touch_flows", term=term, ids=list(ids))).count if ids else 0

    async def follow_flow(self, *, term: int, id: str, state: str, reason: str = "") -> bool:
        """Write what the broker says of a flow; whether its row was running."""
        given = {"id": id, "state": state, "reason": reason}
        return (await self._fenced("follow_flow", term=term, **given)).count > 0

    async def stuck_tasks(
        self, *, older: float, limit: int, before: float | None = None, before_seq: int = 0
    ) -> list[UnfinishedTask]:
        """Return a page of the rows that have been running for ``older`` seconds, newest first."""
        place = {"before": _moment(before), "before_seq": before_seq}
        return await self._rows(UnfinishedTask, "stuck_tasks", older=older, limit=limit, **place)

    async def recover_tasks(
        self, *, term: int, ids: Sequence[str], entries: Sequence[int], indexes: Sequence[int]
    ) -> list[Moved]:
        """Let what nobody runs be sent again, three times at most, and then be dead."""
        return await self._moved("recover_tasks", term, ids, entries, indexes)

    async def delete_old_tasks(self, *, term: int, keep: float, limit: int) -> int:
        """Delete up to ``limit`` rows that ended more than ``keep`` seconds ago; how many."""
        return (await self._fenced("delete_old_tasks", term=term, keep=keep, limit=limit)).count

    async def delete_old_flows(self, *, term: int, keep: float, limit: int) -> int:
        """Delete up to ``limit`` flows that ended more than ``keep`` seconds ago; how many."""
        return (await self._fenced("delete_old_flows", term=term, keep=keep, limit=limit)).count

    async def delete_old_workers(self, *, term: int, keep: float, limit: int) -> int:
        """Delete up to ``limit`` workers not heard of for twice ``keep`` seconds; how many."""
        return (await self._fenced("delete_old_workers", term=term, keep=keep, limit=limit)).count

    # -- those of handles -----------------------------------------------------------------------

    async def task_standing(self, *, id: str, tenant: str) -> Standing | None:
        """Return what stands in the row of a task; None if there is none."""
        rows = await self._rows(Standing, "task_standing", id=id, tenant=tenant)
        return rows[0] if rows else None

    async def flow_standing(self, *, id: str, tenant: str) -> Standing | None:
        """Return what stands in the row of a flow; None if there is none."""
        rows = await self._rows(Standing, "flow_standing", id=id, tenant=tenant)
        return rows[0] if rows else None

    async def cancel_pending(self, *, id: str, tenant: str) -> int | None:
        """Cancel a task that is not claimed; how often it was sent before, None if not done."""
        rows = (await self._run("cancel_pending", id=id, tenant=tenant)).rows
        return rows[0][0] if rows else None

    async def cancel_pending_flow(self, *, id: str, tenant: str) -> int | None:
        """Do the same with a flow."""
        rows = (await self._run("cancel_pending_flow", id=id, tenant=tenant)).rows
        return rows[0][0] if rows else None

    # -- for people -----------------------------------------------------------------------------

    async def list_tasks(
        self,
        *,
        before: float | None = None,
        before_seq: int = 0,
        limit: int = 50,
        state: str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        name: str | None = None,
        error: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> list[TaskRow]:
        """Return a page, newest first.

        ``before`` and ``before_seq`` are ``created_at`` and ``seq`` of the last page's last row.
        """
        given = {key: value for key, value in locals().items() if key not in ("self", "before")}
        count = None if state is None and error is None else 0  # a state alone has its own index
        if error is not None or (state and (queue or tenant or name)):
            some = await self._run("count_tasks", state=state, error=error, limit=_FEW + 1)
            count = some.rows[0][0]
        listing = "list_tasks" if count is None or count > _FEW else "list_few_tasks"
        return await self._rows(TaskRow, listing, before=_moment(before), **given)

    async def task(self, *, id: str) -> TaskRow | None:
        """Return one task, with its log; None if there is no row."""
        rows = await self._rows(TaskRow, "task", id=id)
        return rows[0] if rows else None

    async def workers_of(self, *, incarnations: Sequence[str]) -> dict[str, WorkerRow]:
        """Return who these incarnations were, as far as that was heard of."""
        given = {"incarnations": list(incarnations)}
        return {row.incarnation: row for row in await self._rows(WorkerRow, "workers_of", **given)}

    async def write_status(self, *, role: str, term: int, counts: Mapping[str, Any]) -> None:
        """Publish what a role has done."""
        text = msgspec.json.encode(counts).decode()
        await self._fenced("write_status", role=role, term=term, counts=text)

    async def status(self) -> dict[str, StatusRow]:
        """Return what each role has published."""
        return {row.role: row for row in await self._rows(StatusRow, "status")}

    async def lag(self) -> Lag:
        """Return how much is due and not sent yet."""
        [row] = await self._rows(Lag, "lag")
        return row

    # -- how they are run -----------------------------------------------------------------------

    async def _run(self, name: str, /, **parameters: Any) -> Answer:
        return await self._executor.run(statement(name), parameters)

    async def _rows(self, kind: type[R], name: str, /, **parameters: Any) -> list[R]:
        return [made(kind, row) for row in (await self._run(name, **parameters)).rows]

    async def _fenced(self, name: str, /, *, term: int, **parameters: Any) -> Answer:
        answer = await self._run(name, term=term, **parameters)
        if not answer.count:
            found = (await self.leadership()).term
            if found != term:
                raise LostLeadership(term, found)
        return answer

    async def _moved(
        self, name: str, term: int, ids: Sequence[str], entries: Sequence[int], last: Sequence[int]
    ) -> list[Moved]:
        if not ids:
            return []
        given = {"ids": list(ids), "entries": list(entries), "indexes": list(last)}
        return [made(Moved, row) for row in (await self._fenced(name, term=term, **given)).rows]

    async def _ids(
        self, name: str, /, *, term: int, ids: Sequence[str], **columns: Sequence[Any]
    ) -> list[str]:
        """Run what changes a row for each id; those whose row was changed."""
        if not ids:
            return []
        lists = {key: list(value) for key, value in columns.items()}
        answer = await self._fenced(name, term=term, ids=list(ids), **lists)
        return [row[0] for row in answer.rows]


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)
