"""Enqueues in the caller's own transaction: the tasks exist if and only if it commits.

What is written here is sent to the broker by a manager. Middleware and counters apply as in every
other enqueue. Statements run where the caller is: on its thread or its event loop, never elsewhere,
because its connection may be bound to them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from fairlead.broker.dependency_order import ordered
from fairlead.broker.requests import Receipt, Submission
from fairlead.client.clients import Clients
from fairlead.client.flow_submit import Draft
from fairlead.client.middleware import AroundEnqueue, through
from fairlead.client.stored_submissions import batches, decode_draft, flow_text, tasks_text
from fairlead.client.submit_path import count_accepted, dated
from fairlead.client.transactions import Rows, Transaction
from fairlead.ledger.statements import statement
from fairlead.model.errors import Conflict
from fairlead.model.message import task_name
from fairlead.runtime.portal import portal

#: Yields statements with their parameter, is sent their rows, and returns the receipts.
_Steps = Generator[tuple[str, str], Rows, list[Receipt]]


def write_tasks(
    clients: Clients, tx: Transaction, submissions: Sequence[Submission]
) -> list[Receipt]:
    """Write tasks from sync code; one receipt for each, in the order given."""
    tx.check_sync()
    receipts = _through(clients.around, submissions, lambda given: _run(tx, _task_steps(given)))
    count_accepted(clients.counters, submissions, receipts)
    return receipts


async def awrite_tasks(
    clients: Clients, tx: Transaction, submissions: Sequence[Submission]
) -> list[Receipt]:
    """Write tasks; one receipt for each, in the order given."""

    async def send(given: Sequence[Submission]) -> list[Receipt]:
        return await _arun(tx, _task_steps(given))

    receipts = await through(clients.around, submissions, send)
    count_accepted(clients.counters, submissions, receipts)
    return receipts


def write_flow(clients: Clients, tx: Transaction, draft: Draft) -> list[Receipt]:
    """Write a flow from sync code; a receipt for each member, with the id that it has."""
    tx.check_sync()
    receipts = _through(
        clients.around, draft.submissions, lambda given: _run(tx, _flow_steps(draft, given))
    )
    count_accepted(clients.counters, draft.submissions, receipts)
    return receipts


async def awrite_flow(clients: Clients, tx: Transaction, draft: Draft) -> list[Receipt]:
    """Write a flow; a receipt for each member, with the id that it has."""

    async def send(given: Sequence[Submission]) -> list[Receipt]:
        return await _arun(tx, _flow_steps(draft, given))

    receipts = await through(clients.around, draft.submissions, send)
    count_accepted(clients.counters, draft.submissions, receipts)
    return receipts


# -- what is said to the database ----------------------------------------------------------------


def _task_steps(submissions: Sequence[Submission]) -> _Steps:
    submissions = dated(submissions)
    written = ordered(submissions)
    todo = [tasks_text(batch) for batch in batches(written)]  # all are checked first
    receipts: list[Receipt] = []
    for text in todo:
        rows = yield statement("enqueue_tasks").text, text
        receipts += [Receipt(id=id, code=code) for id, code in rows]
    if written == submissions:
        return receipts
    # Equal ids were written in the order given, so their receipts come in that order too.
    taken: dict[str, deque[Receipt]] = {}
    for receipt in receipts:
        taken.setdefault(receipt.id, deque()).append(receipt)
    return [taken[submission.message.id].popleft() for submission in submissions]


def _flow_steps(draft: Draft, submissions: Sequence[Submission]) -> _Steps:
    ((code,),) = yield statement("enqueue_flow").text, flow_text(draft, submissions)
    if code == "accepted":
        return [Receipt(id=each.message.id, code="accepted") for each in submissions]
    ((stored,),) = yield statement("stored_draft").text, draft.id
    before = decode_draft(b64decode(stored)).submissions
    names = [task_name(each.message.body) for each in before]
    if names != [task_name(each.message.body) for each in submissions]:
        raise Conflict(draft.id)
    return [Receipt(id=each.message.id, code="duplicate") for each in before]


def _run(tx: Transaction, steps: _Steps) -> list[Receipt]:
    try:
        asked = next(steps)
        while True:
            asked = steps.send(tx.rows(*asked))
    except StopIteration as end:
        receipts: list[Receipt] = end.value
        return receipts


async def _arun(tx: Transaction, steps: _Steps) -> list[Receipt]:
    try:
        asked = next(steps)
        while True:
            asked = steps.send(await tx.arows(*asked))
    except StopIteration as end:
        receipts: list[Receipt] = end.value
        return receipts


# -- around it ------------------------------------------------------------------------------------


def _through(
    around: Sequence[AroundEnqueue],
    submissions: Sequence[Submission],
    write: Callable[[Sequence[Submission]], list[Receipt]],
) -> list[Receipt]:
    """``through`` for sync code: the middleware runs on the portal's loop, ``write`` here."""
    if not around:
        return write(submissions)
    written: concurrent.futures.Future[list[Receipt]] = concurrent.futures.Future()

    async def begin() -> tuple[asyncio.Task[list[Receipt]], Sequence[Submission] | None]:
        ready: asyncio.Future[Sequence[Submission]] = asyncio.get_running_loop().create_future()

        async def send(given: Sequence[Submission]) -> list[Receipt]:
            ready.set_result(given)
            return await asyncio.wrap_future(written)

        # One task from begin to end: context managers may insist on being left where entered.
        task = asyncio.create_task(through(around, submissions, send), name="around enqueue")
        try:
            both: list[asyncio.Future[Any]] = [task, ready]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task, ready.result() if ready.done() else None

    task, given = portal.run(begin)
    if given is not None:
        try:
            written.set_result(write(given))
        except Exception as error:  # noqa: BLE001 - the middleware raises it again
            written.set_exception(error)
        except BaseException:  # Ctrl-C would end the portal's loop
            written.cancel()
            portal.run(lambda: asyncio.wait([task]))
            raise
    return portal.run(lambda: task)
