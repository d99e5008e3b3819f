"""What is sent to the broker for claimed rows, and what its answers mean for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from fairlead.broker.verbs import Receipt, Submission
from fairlead.client.chunks import chunks
from fairlead.model.backoff import Backoff
from fairlead.model.options import Dependency

__all__ = ("BACKOFF", "UNFINISHED", "Failures", "Sent", "Settlement", "batches", "fate", "resolved")

#: What a task waits that was refused for now: from about a second to a minute.
BACKOFF = Backoff(initial=1.0, factor=2.0, max=50.0, jitter="plus_minus", spread=0.2)
#: States of a row whose task has not ended.
UNFINISHED = frozenset(
    {"pending", "claimed", "scheduled", "deferred", "queued", "running", "retrying"}
)
_PASSING = frozenset({"queue_full", "tenant_full", "tenant_bytes", "closed"})
_REMEMBERED = 30.0  # seconds that tasks are sent apart after a failure
_LEAST_DEADLINE = 0.001  # seconds: what is late is sent all the same, so that it dies there


class Sent(msgspec.Struct, frozen=True):
    """A claimed row, ready to be sent."""

    submission: Submission
    pushes: int

    @property
    def id(self) -> str:
        """The id of the task."""
        return self.submission.message.id


class Settlement(msgspec.Struct):
    """What the rows of one batch become."""

    confirmed: list[tuple[str, str]] = []  # id and state
    put_back: list[tuple[str, float, str]] = []  # id, seconds, reason
    refused: list[tuple[str, str, str]] = []  # id, reason, the task that stands for it

    @property
    def ids(self) -> set[str]:
        """The tasks of these rows."""
        found = {id for id, _ in self.confirmed}
        found.update(id for id, *_ in self.put_back)
        found.update(id for id, *_ in self.refused)
        return found

    @property
    def total(self) -> int:
        """How many rows."""
        return len(self.confirmed) + len(self.put_back) + len(self.refused)


def resolved(
    submission: Submission, states: Mapping[str, str], deadline: float | None
) -> Submission:
    """The submission with the time that is left, and with what the ledger knows of its parents.

    A parent that is completed counts as done, also if the broker has forgotten it. One that is not
    finished has to be known to the broker before: otherwise a task whose parent waits to be sent,
    or was lost, would run at once. One that ended badly is left to the broker for as long as it
    knows it; if it does not, only a task that runs whatever becomes of its parents goes on.
    """
    changes: dict[str, object] = {}
    if deadline is not None:
        changes["deadline"] = max(deadline, _LEAST_DEADLINE)
    if submission.depends_on:
        changes["depends_on"] = tuple(
            Dependency(each.id, _counts_as_done(submission, each, states.get(each.id)))
            for each in submission.depends_on
        )
    return msgspec.structs.replace(submission, **changes) if changes else submission


def _counts_as_done(submission: Submission, parent: Dependency, state: str | None) -> bool:
    if state is None:
        return parent.known  # the ledger does not know either: as its caller said
    if state in UNFINISHED:
        return False
    return state == "completed" or submission.on_dependency_failure == "run"


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


def fate(
    item: Sent, receipt: Receipt, states: Mapping[str, str], dice: float, into: Settlement
) -> None:
    """Add what the row of a task becomes after the broker's answer.

    ``states`` are those of the rows that the refused ones of a batch depend on.
    """
    id, code = item.id, receipt.code
    if code == "accepted" or (code == "duplicate" and receipt.id == id):
        into.confirmed.append((id, str(receipt.state or "queued")))
    elif code == "duplicate":
        into.refused.append((id, code, receipt.id))
    elif code in _PASSING or (
        code == "unknown_dependency" and states.get(receipt.detail) in UNFINISHED
    ):
        into.put_back.append((id, BACKOFF.delay(max(item.pushes - 1, 0), dice), code))
    elif code == "unknown_dependency":
        into.refused.append((id, f"{code}: {receipt.detail}", ""))
    else:
        into.refused.append((id, code, ""))
