"""Sends flows that were enqueued in a transaction to the broker, whole; and again what is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from fairlead.broker import Store
from fairlead.broker.requests import Submission
from fairlead.client.flow_submit import send
from fairlead.client.stored_submissions import decode_draft
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.rows import ClaimedFlow
from fairlead.manager.counts import Counts
from fairlead.manager.dependencies import UNFINISHED, parents_in, with_parents
from fairlead.manager.leader_term import Term, lost
from fairlead.manager.push import BACKOFF
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    Conflict,
    InvalidInput,
    OutOfOrder,
    QueueFull,
    UnknownDependency,
)
from fairlead.model.ledger_errors import LostLeadership
from fairlead.model.options import Dependency
from fairlead.runtime import fault_injection

_AT_ONCE = 5_000  # ids in one question

log = logging.getLogger("fairlead.manager")


class FlowDispatcher:
    """Sends one flow after the other, under the line of the term."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        term: Term,
        counts: Counts,
        *,
        dice: Callable[[], float],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._term = term
        self._counts = counts
        self._dice = dice

    async def dispatch_all(self, stopping: Callable[[], bool]) -> int:
        """Send all flows that are due; how many."""
        count = 0
        while not stopping() and await self.dispatch_once():
            count += 1
        return count

    async def dispatch_once(self) -> bool:
        """Send one flow; False if none is due."""
        flow = await self._ledger.claim_flow(term=self._term.number)
        if flow is None:
            return False
        fault_injection.reached("flow_claimed")
        error: BrokerError | None = None
        try:
            state, delay, reason = await self._push(flow)
        except (Ambiguous, LostLeadership):
            raise  # it stays claimed until somebody can say what became of it
        except BrokerError as caught:
            error, state, delay, reason = caught, "pending", 0.0, type(caught).__name__.lower()
        fault_injection.reached("flow_pushed")
        await self._ledger.end_flow_push(
            term=self._term.number, id=flow.id, state=state, delay=delay, reason=reason
        )
        if error is not None:
            self._counts.add("failed")
            raise error
        names = {"running": "flows_pushed", "pending": "put_back", "refused": "refused"}
        self._counts.add(names.get(state, "flows_pushed"))
        return True

    async def _push(self, flow: ClaimedFlow) -> tuple[str, float, str]:
        """Send a flow; the state of its row, and in how many seconds again if it is pending."""
        later = BACKOFF.delay(max(flow.pushes - 1, 0), self._dice())
        try:
            draft = decode_draft(flow.draft, age=flow.age)
        except InvalidInput:
            return "refused", 0.0, "unreadable"
        own = {each.message.id for each in draft.submissions}
        asked = {each.id for sub in draft.submissions for each in sub.depends_on} - own
        if flow.pushes > 1:  # what ran before the broker lost it is not run again
            states = await states_in_parts(self._ledger, list(own))
            members = remaining(draft.submissions, states)
            if not members:
                return ended(states.get(id, "dead") for id in own), 0.0, ""
        else:
            members = list(draft.submissions)
        parents = await parents_in(self._ledger, asked)
        draft = msgspec.structs.replace(
            draft, submissions=[with_parents(each, parents) for each in members]
        )
        try:
            await send(self._store, self._term.caller, (), draft, None)
        except OutOfOrder as error:
            raise lost(self._term.number, "the broker has calls of a later one") from error
        except QueueFull as error:
            return "pending", later, error.setting
        except UnknownDependency as error:
            missing = await parents_in(self._ledger, [error.dependency], unsent=True)
            if missing.may_come(error.dependency):
                return "pending", later, "unknown_dependency"
            return "refused", 0.0, f"unknown_dependency: {error.dependency}"
        except (Conflict, InvalidInput) as error:
            log.warning("flow refused", extra={"flow": flow.id, "reason": str(error)})
            return "refused", 0.0, "conflict" if isinstance(error, Conflict) else "invalid"
        return "running", 0.0, ""


async def states_in_parts(ledger: Ledger, ids: Sequence[str]) -> dict[str, str]:
    """The states of rows, of any number."""
    found: dict[str, str] = {}
    for start in range(0, len(ids), _AT_ONCE):
        found.update(await ledger.states_of(ids=list(ids[start : start + _AT_ONCE])))
    return found


def ended(states: Iterable[str]) -> str:
    """What a flow is whose members have all ended so."""
    found = set(states)
    if found & {"dead", "refused"}:
        return "dead"
    return "cancelled" if "cancelled" in found else "completed"


def remaining(submissions: Sequence[Submission], states: Mapping[str, str]) -> list[Submission]:
    """The members of a lost flow that are to be sent again, each behind those it waits for.

    Those that have not ended, and completed ones whose results they will read: the results are
    lost. What waits for a member that ended badly, and does not run in that case, is left out.
    """
    by_id = {each.message.id: each for each in submissions}
    again: set[str] = set()
    for id, each in reversed(by_id.items()):
        if states.get(id, "pending") in UNFINISHED:
            again.add(id)
        if id in again and each.uses_results:
            again.update(parent.id for parent in each.depends_on if parent.id in by_id)
    kept: dict[str, Submission] = {}
    for id, each in by_id.items():
        parents = tuple(
            parent if parent.id in kept or parent.id not in by_id else Dependency(parent.id, True)
            for parent in each.depends_on
        )
        fine = all(
            parent.id in kept or parent.id not in by_id or states.get(parent.id) == "completed"
            for parent in each.depends_on
        )
        if id in again and (fine or each.on_dependency_failure == "run"):
            kept[id] = msgspec.structs.replace(each, depends_on=parents)
    return list(kept.values())
