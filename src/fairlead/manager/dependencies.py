"""What the ledger knows of the tasks that others depend on, before and after these are sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from fairlead.broker.dependency_order import depending
from fairlead.broker.requests import Submission
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.rows import ParentRow
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.options import Dependency

#: States of a row whose task has not ended.
UNFINISHED = frozenset(
    {"pending", "claimed", "scheduled", "deferred", "queued", "running", "retrying"}
)
_AT_ONCE = 5_000  # ids in one question
_ENDS = {"dead": "dead", "cancel": "cancelled"}


class Parents(msgspec.Struct, frozen=True):
    """Rows by id, and those without one whose flow waits to be sent."""

    rows: Mapping[str, ParentRow] = {}
    unsent: frozenset[str] = frozenset()

    def state(self, id: str) -> str | None:
        """The state of a task; None if there is no row."""
        row = self.rows.get(id)
        return None if row is None else row.state

    def may_come(self, id: str) -> bool:
        """Whether a task that the broker does not know may be known to it, or be done, later."""
        row = self.rows.get(id)
        if row is None:
            return id in self.unsent
        return row.state in UNFINISHED or row.state == "completed" or bool(row.stands_for)

    def end(self, id: str, policy: DependencyPolicy) -> str | None:
        """The state in which a task ends that depends on one that ended badly; None: refused."""
        return None if self.state(id) is None else _ENDS.get(policy)


async def parents_in(ledger: Ledger, ids: Collection[str], *, unsent: bool = False) -> Parents:
    """Look tasks up, and those that stand for them; ``unsent``: in flows that wait, too."""
    rows = await _rows(ledger, list(ids))
    others = {row.stands_for for row in rows.values() if row.stands_for} - rows.keys()
    rows |= await _rows(ledger, list(others))
    missing = [id for id in ids if id not in rows] if unsent else []
    return Parents(rows, frozenset(await ledger.unsent_members(ids=missing) if missing else ()))


async def _rows(ledger: Ledger, ids: list[str]) -> dict[str, ParentRow]:
    found: dict[str, ParentRow] = {}
    for start in range(0, len(ids), _AT_ONCE):
        some = await ledger.parents_of(ids=ids[start : start + _AT_ONCE])
        found.update((row.id, row) for row in some)
    return found


def with_parents(submission: Submission, parents: Parents) -> Submission:
    """The submission with what the ledger knows of its parents.

    A parent that was refused for another task is that task. One that is completed counts as done,
    also if the broker has forgotten it. One that is not finished has to be known to the broker
    before: otherwise a task whose parent waits to be sent, or was lost, would run at once. One that
    ended badly is left to the broker for as long as it knows it; if it does not, only a task that
    runs whatever becomes of its parents goes on.
    """
    if not submission.depends_on:
        return submission
    stated = tuple(_stated(submission, each, parents) for each in submission.depends_on)
    made = depending(submission, stated)
    once = {each.id: each for each in stated}  # one task may stand for several
    return (
        made
        if len(once) == len(stated)
        else msgspec.structs.replace(made, depends_on=tuple(once.values()))
    )


def _stated(submission: Submission, parent: Dependency, parents: Parents) -> Dependency:
    row = parents.rows.get(parent.id)
    if row is not None and row.stands_for:
        parent = Dependency(row.stands_for, known=True)  # the broker has had it
        row = parents.rows.get(parent.id)
    if row is None:
        return parent  # the ledger does not know either: as its caller said
    if row.state in UNFINISHED:
        return Dependency(parent.id)
    is_done = row.state == "completed" or submission.on_dependency_failure == "run"
    return Dependency(parent.id, is_done)
