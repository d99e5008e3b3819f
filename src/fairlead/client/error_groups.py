"""Dead tasks that died of the same thing: what their errors have in common. Pure."""

from __future__ import annotations

import hashlib
import re

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.model.message import task_name
from fairlead.model.safe_repr import one_line

_LONGEST = 300  # characters of a message that are looked at
# Each is one pass without going back: messages are written by whoever enqueues tasks.
_QUOTED = re.compile(r"'[^']{0,300}'|\"[^\"]{0,300}\"|`[^`]{0,300}`")
_IDS = re.compile(r"\b(?=[0-9a-fA-F-]*[0-9])[0-9a-fA-F][0-9a-fA-F-]{7,}\b|\b0x[0-9a-fA-F]+\b")
_NUMBERS = re.compile(r"\d+(?:[.,:]\d+)*")


class ErrorKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a dead task died of: tasks with the same name and kind of error are one group."""

    group: str  # a digest of the rest
    task: str
    type: str  # of the error; empty: it has none, and ``message`` is the reason
    message: str  # its first line, without what differs from task to task


def kind_of(record: TaskRecord) -> ErrorKind:
    """The group of a dead task."""
    error, name = record.error, task_name(record.message.body)
    kind = "" if error is None else one_line(error.type, 200)
    message = normalized(record.reason if error is None else error.message)
    digest = hashlib.sha256("\x00".join((name, kind, message)).encode(errors="replace"))
    return ErrorKind(group=digest.hexdigest()[:16], task=name, type=kind, message=message)


def normalized(message: str) -> str:
    """The first line of a message with a sign in the place of quotes, ids and numbers."""
    line = message[:_LONGEST].lstrip().partition("\n")[0]
    line = _QUOTED.sub("'…'", line)
    line = _IDS.sub("#", line)
    line = _NUMBERS.sub("#", line)
    return one_line(line, _LONGEST)
