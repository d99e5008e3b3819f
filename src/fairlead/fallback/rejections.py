"""Tells those who have a handle of a spooled task that the broker will never get it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from fairlead.fallback.codec import decode_submission
from fairlead.fallback.threads import in_thread
from fairlead.model.errors import InvalidInput
from fairlead.spool import Kind, Record, Rejection, Spool

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

_PAGE = 1_000  # records in one read
_TOO_OLD = "too_old"  # the spool itself rejected it

log = logging.getLogger("fairlead.fallback")


class Rejections:
    """Reads each rejected record of a spool once: its own, and those of adopted folders."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._after = 0  # the last one that was read
        self._count = 0  # how many there were

    async def look(self, fallback: Fallback) -> None:
        """Take in what was rejected since the last look. Costs nothing if that is nothing."""
        count = self._spool.stats().rejected
        if count == self._count:
            return
        self._count, old = count, 0
        while page := await in_thread(lambda: self._spool.rejected(_PAGE, after=self._after)):
            self._after = page[-1].sequence
            old += sum(_take_in(record, fallback) for record in page)
        if old:
            fields = {"code": _TOO_OLD, "count": old}
            text = (
                "%d records were in the spool for too long, and are not sent; see `fairlead spool`"
            )
            log.error(text, old, extra=fields)


def _take_in(record: Record, fallback: Fallback) -> bool:
    """Note why a task was rejected; return whether it was too old."""
    ids = fallback.ids
    try:
        left = Rejection.decode(record.payload)
        if left.kind in (Kind.SUBMISSION, Kind.LOCAL_DONE):
            submission = decode_submission(left.payload).submission
            if submission.ended is not None:
                fallback.local.outcomes.gone([submission.message.id])
            if left.code == _TOO_OLD:
                ids.expire(submission, left.code)
            elif ids.refused(submission.message.id) is None:  # else more is known of it
                ids.refuse(submission.message.id, left.code)
    except (InvalidInput, msgspec.DecodeError):
        return False
    return left.code == _TOO_OLD
