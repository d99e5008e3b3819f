"""The ends of tasks that ran here, from the disk until the broker has them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import Receipt, Submission
from fairlead.fallback.codec import SpooledTask, decode_submission, encode_submission
from fairlead.fallback.log_summary import LogSummary
from fairlead.fallback.threads import in_thread
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Message
from fairlead.spool import Kind, Spool

_PAGE = 256  # records in a read
_MOST, _MOST_BYTES = 10_000, 16 * 1024 * 1024  # ends that handles can read, and their results
_REASON = "local"  # of what was completed here: so it is told from what a worker completed
_TAKEN = ("accepted", "duplicate")


def end_here(settlement: Settlement) -> Settlement:
    """Return the end of an attempt that no broker lent."""
    reason = _REASON if settlement.to is State.COMPLETED else settlement.reason
    return msgspec.structs.replace(settlement, token=0, delay=0.0, reason=reason)


def encode_end(task: SpooledTask, end: Settlement) -> bytes:
    """Return what stands in the spool for a task that has ended."""
    ended = Submission(message=task.submission.message, ended=end)
    return encode_submission(SpooledTask(ended, task.moment))


def is_taken(submission: Submission, receipt: Receipt) -> bool:
    """Whether the broker has the task. If that came with its end, another end may stand there."""
    if receipt.code in _TAKEN:
        return True
    return receipt.code == "fenced" and submission.ended is not None


class LocalOutcomes:
    """Those that are in the spool of this process, by the ids of their tasks."""

    def __init__(self, spool: Spool) -> None:
        self.fenced = 0  # tasks that a worker ran as well, since the process began
        self._spool = spool
        self._ids: set[str] = set()
        self._records: dict[str, TaskRecord] = {}  # of some of these, for handles
        self._bytes = 0  # of their results
        self._indexed = 0  # records that had been adopted when these were last looked for

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, message: Message, end: Settlement) -> None:
        """Note that an end is in the spool."""
        self._ids.add(message.id)
        self._records[message.id] = TaskRecord(
            message=message.without_body(),
            state=end.to,
            attempts=1,
            reason=end.reason,
            error=end.error,
            result=end.result,
        )
        self._bytes += len(end.result or b"")
        while len(self._records) > _MOST or self._bytes > _MOST_BYTES:
            self._forget(next(iter(self._records)))

    def find(self, id: str) -> TaskRecord | None:
        """Return how a task ended here, if that is still in the spool and known."""
        return self._records.get(id)

    def gone(self, ids: Iterable[str]) -> None:
        """Note that the broker has these ends, or will never get them."""
        for id in ids:
            self._ids.discard(id)
            self._forget(id)

    def sent(self, answered: Iterable[tuple[Submission, Receipt]], summary: LogSummary) -> None:
        """Take in that the broker has tasks, and with some of them the ends, or ends of its own."""
        for submission, receipt in answered:
            if submission.ended is None:
                continue
            self.gone([submission.message.id])
            if receipt.code == "fenced":
                self.fenced += 1
                text = "a task ran in a process without the broker, and by a worker as well"
                fields = {"id": submission.message.id}
                summary.tell(logging.WARNING, text, receipt.code, fields)

    async def index(self) -> None:
        """Find the ends that dead processes left. Costs nothing if there can be none."""
        adopted = self._spool.stats().adopted
        if adopted != self._indexed:
            if self._spool.has_links:
                self._ids.update(await in_thread(self._read))
            self._indexed = adopted

    def _read(self) -> set[str]:
        found: set[str] = set()
        after = 0
        while records := self._spool.pending(after, _PAGE):
            after = records[-1].sequence
            for record in records:
                if record.kind is Kind.LOCAL_DONE:
                    try:
                        found.add(decode_submission(record.payload).submission.message.id)
                    except InvalidInput:  # the drain rejects it, visibly
                        continue
        return found

    def _forget(self, id: str) -> None:
        gone = self._records.pop(id, None)
        if gone is not None:
            self._bytes -= len(gone.result or b"")
