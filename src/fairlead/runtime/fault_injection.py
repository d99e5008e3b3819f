"""Places between two steps at which a test may end the process, to see what another makes of it.

Nothing happens unless the environment variable ``FAIRLEAD_FAULT`` names a place when the process
starts: ``site:n:kill`` ends it, as kill -9 does, when it comes to the place for the nth time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

from fairlead.model.errors import InvalidOption

VARIABLE = "FAIRLEAD_FAULT"

#: Between shards; a test sees to it that each place is come to, here and below.
CARRYING = (
    "stored",  # a child is, with its links in the outbox of its shard; nobody has carried them
    "read",  # the outbox was
    "received",  # the other shard has taken the entries in
    "confirming",  # about to remove them
    "confirmed",  # they are removed
)

#: Of a manager that sends what the ledger has to the broker.
DISPATCHING = (
    "leading",  # the broker says so; nobody else knows
    "fenced",  # the ledger has the term, and the broker a call of it
    "caught_up",  # all that happened before is recorded; claims of others still stand
    "released",  # these are pending again
    "claimed",  # rows are, and the broker was not told
    "pushed",  # the broker has the tasks; the rows do not say so
    "settled",  # they do
    "flow_claimed",
    "flow_pushed",
)

#: Of a process that sends what is in its spool to the broker.
DRAINING = (
    "drain_read",  # records were, and nothing is sent
    "drain_sent",  # the broker has the tasks; the spool does not say so
    "drain_rejected",  # it does not take one, and the spool says so
    "drain_confirmed",  # the spool says that it has them
)

#: Of a process that runs what is in its spool itself.
RUNNING_HERE = (
    "local_claiming",  # tasks are chosen, and the spool does not say so
    "local_claimed",  # it does; no handler has begun
    "local_ended",  # handlers have ended, and the spool does not say so
    "local_kept",  # it does
)

#: Of a manager that records what the broker tells.
RECORDING = (
    "placed",  # in the transaction the place is behind the events; the rows know nothing of them
    "written",  # there they do; nothing is committed
    "recorded",  # it is; the recorder has not heard of that
)

SITES = (*CARRYING, *DISPATCHING, *DRAINING, *RUNNING_HERE, *RECORDING)

_seen: Counter[str] = Counter()


def parse(text: str) -> tuple[str, int] | None:
    """The place, and how often it is passed; None for nothing."""
    if not text:
        return None
    site, _, rest = text.partition(":")
    count, _, what = rest.partition(":")
    if site not in SITES or not count.isdecimal() or what != "kill":
        raise InvalidOption(VARIABLE, text, "SITE:N:kill, with one of " + ", ".join(SITES))
    return site, int(count)


_fault = parse(os.environ.get(VARIABLE, ""))


def reached(site: str) -> None:
    """Say that a place was come to. Does nothing outside of tests."""
    if _fault is None or _fault[0] != site:
        return
    _seen[site] += 1
    if _seen[site] == _fault[1]:
        os.kill(os.getpid(), signal.SIGKILL)
