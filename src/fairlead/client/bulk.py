"""Many tasks at once: in as few calls as the limits allow, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.broker.chunks import chunks
from fairlead.broker.dependency_order import ordered, redirected
from fairlead.broker.repeats import Limit
from fairlead.broker.verbs import Durability, Receipt, Submission
from fairlead.client.entrance import Entrances
from fairlead.model.errors import BrokerError

__all__ = ("enter_all",)


async def enter_all(
    entrances: Entrances,
    submissions: Sequence[Submission],
    limit: Limit | None,
    durability: Durability,
) -> list[Receipt]:
    """Enqueue tasks that may depend on each other; their receipts, in the order given."""
    if not any(submission.depends_on for submission in submissions):
        return await _enter(entrances, submissions, limit, durability)
    todo = ordered(submissions)
    receipts: dict[str, list[Receipt]] = {}
    while todo:
        sent = await _enter(entrances, todo, limit, durability)
        for submission, receipt in zip(todo, sent, strict=True):
            receipts.setdefault(submission.message.id, []).append(receipt)
        todo = redirected(todo, receipts)
    # Equal ids were submitted in the order given, so their receipts come in that order too.
    taken = {id: iter(found) for id, found in receipts.items()}
    return [next(taken[submission.message.id]) for submission in submissions]


async def _enter(
    entrances: Entrances,
    submissions: Sequence[Submission],
    limit: Limit | None,
    durability: Durability,
) -> list[Receipt]:
    """Enqueue tasks in their order: a call is made ready while the one before is under way."""
    receipts: list[Receipt] = []
    todo = list(chunks(submissions))
    ready: Sequence[Submission] = todo[0] if todo else ()
    for place, chunk in enumerate(todo, 1):
        try:
            call = entrances.choose(durability, chunk).enqueue(ready, limit)
            if place == len(todo):
                return receipts + await call
            under_way = asyncio.ensure_future(call)
            try:
                await asyncio.sleep(0)  # it is sent
                ready = entrances.packed(todo[place])
            finally:
                sent = await under_way
            receipts += sent
        except BrokerError as error:
            error.ids = tuple(submission.message.id for submission in chunk)
            error.add_note(
                "Some of the tasks may have been accepted. The same calls may be enqueued again: "
                "those that were accepted are recognized by their ids."
            )
            raise
    return receipts
