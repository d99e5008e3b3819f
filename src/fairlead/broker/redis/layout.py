"""The formats of all that is stored on a server, and of what its scripts answer.

Decoders, listings and the audit take them from here. The scripts have them in their own words;
``tests/broker/redis/test_layout.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Literal

from fairlead.broker.requests import StandingOrder
from fairlead.model.lifecycle import State

US, RS, GS = b"\x1f", b"\x1e", b"\x1d"

#: By the digit that stands for it; 0 is none.
STATES: tuple[State | None, ...] = (
    None,
    State.SCHEDULED,
    State.DEFERRED,
    State.QUEUED,
    State.RUNNING,
    State.RETRYING,
    State.COMPLETED,
    State.DEAD,
    State.CANCELLED,
)
DIGITS: dict[State, str] = {state: str(i) for i, state in enumerate(STATES) if state is not None}
#: By the letter that stands for it.
ORDERS: dict[bytes, StandingOrder] = {b"": "", b"p": "pause", b"s": "stop"}

# -- tasks -------------------------------------------------------------------------------------

# A task is a message (STORED, head, SIZES, body, trace, extra) and, unless it is simply queued for
# the first time, a record: FATE, HOLD, four texts with their lengths before them (incarnation,
# unique key, reason, head; of 1, 2, 2 and 2 bytes), SIZE. The head is that of the message but for
# the level.
STORED = Struct("<dIH")  # accepted at, life, bytes of the head
SIZES = Struct("<II")  # bytes of body and trace; what is left behind these is the extra
# State, flags, policy, attempts, crashes, unroutable, generation, token, started, due, deadline,
# finished, expires.
FATE = Struct("<BBBIBHHdddddd")
HOLD = Struct("<B")  # the unique hold, and MOVED times how often it was given another level
MOVED = 4
CANCELLING, BODY_GONE = 128, 16  # flags
SIZE = Struct("<III")  # life, bytes of body and trace, bytes of parts
ERROR_SIZE = Struct("<I")  # what an error counts for in the retention; then the error
TOMB = Struct("<dB")  # until when, how it ended; then a digest in hex, and the tenant
XCOM = Struct("<d")  # when its TTL is over; then who wrote it, its length of 2 bytes before it

# -- queues, tenants, limiters -----------------------------------------------------------------

# Virtual clock, weight of the ready, tasks by state, what the rate remembers (2), what a task costs
# on average, whether somebody was warned, bytes of finished and of dead tasks, until when it is
# kept, tenants with orders of their own (finished, dead), when tidy looks at it, when it became
# empty; then perhaps COUNTERS and three histograms with their lengths of 2 bytes before them: each
# is TIMES, or nothing.
QUEUE = Struct("<dd8IdddBdddIIdd")
COUNTERS = Struct("<12d")  # nine counts; a minute, attempts that began in it and the one before
TIMES = Struct("<27d")  # buckets, sum and largest in microseconds
# Paused, five caps, concurrency, rate, burst, switches in one byte (charge, and twice strict); what
# is kept.
CONF = Struct("<BdddddddIBddddd")
# Counts by state, lengths of four levels, special; tag, weight, status, turn, pause, whether it has
# a limit, and work; then the hour and what was counted in it, bytes that are finished and not.
TENANT, TENANT_HOUR, TENANT_BYTES = Struct("<13IdIBBBBB"), Struct("<I5Id"), Struct("<dd")
TENANT_LENGTH = TENANT.size + TENANT_HOUR.size + TENANT_BYTES.size
# Behind that stands what few have: two texts with their lengths of 1 byte before them (the limiter
# that it waits at, the limiter it was woken for), bytes of dead and of pinned tasks, where it has
# orders of its own; and, of even fewer, the lengths of levels 4 to 7.
TENANT_RARE, TENANT_LOWER = Struct("<ddB"), Struct("<4I")
AT_LIMITER = 3  # a status
PARKED: dict[int, Literal["tenant", "limiter"]] = {2: "tenant", AT_LIMITER: "limiter"}  # by status
TALLY = Struct("<5Id")  # counts of a tenant in an hour, longest wait in seconds
GATE = Struct("<ddIdd")  # concurrency, rate, burst, what the rate remembers (2)
LIMITER = Struct("<ddIddd")  # the same, and room in use; then perhaps BREAKER
# Failures, cooldown and probes, how many failed, when it opened, after which token, running probes.
BREAKER = Struct("<7d")

# -- the rest ----------------------------------------------------------------------------------

DOCUMENT = Struct("<ddd")  # revision, changed at, expires at (0: never); then the value
# Phase, what is being done and comes next, members, rows of further edges, parts, place, members by
# final state, life, committed, finished; then four texts with their lengths before them (tenant,
# name, who writes it, shares; of 1, 2, 1 and 4 bytes).
FLOW = Struct("<BBB8Idd")
MEMBER = Struct("<BBH")  # 1, whether more edges follow elsewhere, bytes of the id
ROW = Struct("<BH")  # 0, bytes of the id

#: The shard's own numbers, one packed field of ``meta``. A later layout may put more behind them.
NUMBERS = (
    *("now", "ahead", "token", "letters", "entry", "entries", "bytes", "life", "edges", "jobs"),
    *("sweep", "guard", "alarm", "settings", "next", "laying", "flows_kept", "members_kept"),
    *("unpins", "aside", "orphans", "tombs", "reserved"),
)
NUMBERS_FIELD = "numbers"
_NUMBERS = Struct(f"<{len(NUMBERS)}d")


def unpack_numbers(stored: bytes | None) -> dict[str, float]:
    """Return the numbers by name, zeros if nothing is stored; raises ``ValueError``."""
    if stored is None:
        return dict.fromkeys(NUMBERS, 0.0)
    if len(stored) < _NUMBERS.size:
        raise ValueError(f"{len(stored)} bytes are no numbers of a shard")
    return dict(zip(NUMBERS, _NUMBERS.unpack_from(stored), strict=True))


def pack_numbers(numbers: Mapping[str, float]) -> bytes:
    """Return what the server stores of these numbers."""
    return _NUMBERS.pack(*(numbers[name] for name in NUMBERS))


def text_at(stored: bytes, place: int, length: int) -> tuple[bytes, int]:
    """Return a text with its length, of so many bytes, before it, and where it ends."""
    start = place + length
    end = start + int.from_bytes(stored[place:start], "little")
    if end > len(stored):
        raise ValueError("a text is cut off")
    return stored[start:end], end
