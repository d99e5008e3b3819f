"""Submissions that depend on each other: their order, and what stands for a refused parent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.broker.redirection import redirected as redirected_body
from fairlead.broker.requests import Receipt, Submission
from fairlead.model.options import Dependency
from fairlead.model.topological_sort import topological_sort


def ordered(submissions: Sequence[Submission]) -> list[Submission]:
    """The submissions, each behind those it depends on."""
    if not any(submission.depends_on for submission in submissions):
        return list(submissions)
    members: dict[str, list[Submission]] = {}
    for submission in submissions:
        members.setdefault(submission.message.id, []).append(submission)
    order = topological_sort(
        {id: {d.id for s in same for d in s.depends_on} for id, same in members.items()}
    )
    return [_within(submission, members) for id in order for submission in members[id]]


def _within(submission: Submission, members: dict[str, list[Submission]]) -> Submission:
    """The submission with its dependencies on other members as ids that must exist.

    A handle that the broker does not know counts as completed. A member is not known yet, and if
    it is refused, what depends on it must not run as if it had completed.
    """
    return depending(
        submission,
        tuple(Dependency(d.id) if d.id in members else d for d in submission.depends_on),
    )


def redirected(
    submissions: list[Submission], receipts: dict[str, list[Receipt]]
) -> list[Submission]:
    """Of those refused for a dependency, the ones that can be tried again, with it put right.

    A unique key may have turned a parent into another task, which its children did not name.
    Their receipts are taken back.
    """
    again: list[Submission] = []
    ids: set[str] = set()
    for submission in submissions:
        id = submission.message.id
        if receipts[id][-1].code != "unknown_dependency":
            continue
        dependencies = tuple(_standing(d, receipts) for d in submission.depends_on)
        if dependencies != submission.depends_on or any(d.id in ids for d in dependencies):
            again.append(depending(submission, dependencies))
            ids.add(id)
    for id in ids:
        del receipts[id]
    return again


def _standing(dependency: Dependency, receipts: dict[str, list[Receipt]]) -> Dependency:
    for receipt in receipts.get(dependency.id, ()):
        if receipt.code == "duplicate" and receipt.id != dependency.id:
            return Dependency(receipt.id, known=True)
    return dependency


def depending(submission: Submission, dependencies: tuple[Dependency, ...]) -> Submission:
    """The submission with other dependencies, one for each; its body reads their results."""
    if dependencies == submission.depends_on:
        return submission
    new = {
        old.id: now.id
        for old, now in zip(submission.depends_on, dependencies, strict=True)
        if old.id != now.id
    }
    message = submission.message
    if new and submission.uses_results:
        message = msgspec.structs.replace(message, body=redirected_body(message.body, new))
    return msgspec.structs.replace(submission, message=message, depends_on=dependencies)
