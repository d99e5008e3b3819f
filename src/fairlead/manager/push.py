"""What is sent to the broker for claimed rows, and what its answers mean for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from fairlead.broker.call_sizes import chunks
from fairlead.broker.requests import Receipt, Submission
from fairlead.manager.dependencies import Parents, with_parents
from fairlead.model.backoff import Backoff

#: What a task waits that was refused for now: from about a second to a minute.
BACKOFF = Backoff(initial=1.0, factor=2.0, max=50.0, jitter="plus_minus", spread=0.2)
_PASSING = frozenset({"queue_full", "tenant_full", "tenant_bytes", "closed"})
_REMEMBERED = 30.0  # seconds that tasks are sent apart after a failure
_LEAST_DEADLINE = 0.001  # seconds: what is late is sent all the same, so that it dies there


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A claimed row, ready to be sent."""

    submission: Submission
    pushes: int

    @property
    def id(self) -> str:
        """The id of the task."""
        return self.submission.message.id


class Settlement(msgspec.Struct):
    """What the rows of one batch become."""

    confirmed: dict[str, list[str]] = {}  # ids by state
    put_back: list[tuple[str, float, str]] = []  # id, seconds, reason
    refused: list[tuple[str, str, str]] = []  # id, reason, the task that stands for it
    ended: list[tuple[str, str, str]] = []  # id, state, reason

    @property
    def total(self) -> int:
        """How many rows."""
        return len(self.ids())

    def ids(self) -> set[str]:
        """Which rows."""
        found = {id for ids in self.confirmed.values() for id in ids}
        found.update(id for id, *_ in self.refused)
        found.update(id for id, *_ in self.ended)
        return found | {back[0] for back in self.put_back}


def resolved(submission: Submission, parents: Parents, deadline: float | None) -> Submission:
    """The submission with the time that is left, and with what the ledger knows of its parents."""
    if deadline is not None:
        left = max(deadline, _LEAST_DEADLINE)
        submission = msgspec.structs.replace(submission, deadline=left)
    return with_parents(submission, parents)


class Failures:
    """Where tasks could not be sent lately, by queue and level: these may lie on other servers.

    While there are any, tasks are sent apart, and those that may fail again come last: a server
    that is away holds up no tasks but its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[tuple[str, int], float] = {}

    def add(self, items: Sequence[Sent]) -> None:
        """Remember for a while that these were not sent."""
        self._until |= dict.fromkeys(map(_target, items), self._clock() + _REMEMBERED)

    def forget(self, items: Sequence[Sent]) -> None:
        """These were sent: what is like them goes through."""
        for item in items:
            self._until.pop(_target(item), None)

    def parts(self, items: Sequence[Sent]) -> list[tuple[list[Sent], bool]]:
        """Return what is to be sent apart, in order, and whether it may well fail again."""
        now = self._clock()
        self._until = {target: until for target, until in self._until.items() if until > now}
        if not self._until:
            return [(list(items), False)]
        parts: dict[tuple[str, int], list[Sent]] = {}
        for item in items:
            parts.setdefault(_target(item), []).append(item)
        made = [(part, target in self._until) for target, part in parts.items()]
        return sorted(made, key=lambda pair: pair[1])


def _target(item: Sent) -> tuple[str, int]:
    message = item.submission.message
    return message.queue, message.level


def batches(items: Sequence[Sent]) -> Iterator[list[Sent]]:
    """What one call takes in each, in order.

    A task never goes in one call with a parent of another queue: that may lie in another shard, and
    such a call has further lines of numbers, which a later term does not shut out.
    """
    by_id = {each.id: each for each in items}
    for chunk in chunks([each.submission for each in items]):
        begun: dict[str, str] = {}  # queue by id
        batch: list[Sent] = []
        for submission in chunk:
            message = submission.message
            parents = (begun.get(each.id, message.queue) for each in submission.depends_on)
            if any(queue != message.queue for queue in parents):
                yield batch
                begun, batch = {}, []
            begun[message.id] = message.queue
            batch.append(by_id[message.id])
        yield batch


def fate(item: Sent, receipt: Receipt, parents: Parents, dice: float, into: Settlement) -> None:
    """Add what the row of a task becomes after the broker's answer.

    ``parents`` are those that the broker does not know, as the ledger knows them by now.
    """
    id, code = item.id, receipt.code
    if code == "accepted" or (code == "duplicate" and receipt.id == id):
        into.confirmed.setdefault(str(receipt.state or "queued"), []).append(id)
    elif code == "duplicate":
        into.refused.append((id, code, receipt.id))
    elif code in _PASSING or (code == "unknown_dependency" and parents.may_come(receipt.detail)):
        into.put_back.append((id, BACKOFF.delay(max(item.pushes - 1, 0), dice), code))
    elif code == "unknown_dependency":
        parent = receipt.detail
        state = parents.end(parent, item.submission.on_dependency_failure)
        if state is None:
            into.refused.append((id, f"{code}: {parent}", ""))
        else:  # as it would end at the broker
            into.ended.append((id, state, f"dependency_failed: {parent}"))
    else:
        into.refused.append((id, code, ""))
