"""Replies of the scripts, as structs; ``lua/<verb>.lua`` says what it returns.

What is read for every task is written out in one loop per batch: a call per task would cost as much
as the work itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice, repeat
from typing import Any, Literal, cast

from fairlead.broker.records import EventPage
from fairlead.broker.redis.decode import Head, parse_head, parsed_heads, read_extra
from fairlead.broker.redis.layout import GS, ORDERS, RS, SIZES, STATES, STORED, US
from fairlead.broker.requests import (
    Alter,
    Altered,
    BeatReply,
    Deleted,
    ExchangeReply,
    LeaseRef,
    Mail,
    Moved,
    Receipt,
    Settled,
)
from fairlead.broker.transfers import Transferred
from fairlead.model.events import Event, EventId, EventKind
from fairlead.model.message import Leased, Message

_SETTLED: dict[int, Settled] = {
    ord("a"): "applied",
    ord("f"): "fenced",
    ord("u"): "unknown",
    ord("l"): "full",
}
_ALTERED: dict[int, Literal["done", "requested", "unchanged", "unknown", "later"]] = {
    ord("d"): "done",
    ord("r"): "requested",
    ord("n"): "unchanged",
    ord("u"): "unknown",
    ord("l"): "later",
}
_NO_HEAD: Head = ("", "", 0, 0.0, (), 0, 0, "")
_TRANSFERRED: dict[str, Transferred] = {"m": "moved", "f": "fenced", "n": "full"}
_ACCEPTED = {b"a%d" % digit: state for digit, state in enumerate(STATES) if state is not None}


def receipts(reply: bytes, ids: Sequence[str]) -> list[Receipt]:
    """One receipt for each id that was sent, or was sent when the number was used first."""
    accepted = _ACCEPTED.get
    text = reply[:2]
    if (state := accepted(text)) is not None and reply == _each(text, len(ids)):  # as a rule
        return [Receipt(id=id, code="accepted", state=state) for id in ids]
    texts, ids = _answers(reply, ids)
    return [
        Receipt(id=id, code="accepted", state=state)
        if (state := accepted(text)) is not None
        else _receipt(id, text)
        for id, text in zip(ids, texts, strict=True)
    ]


@lru_cache(maxsize=1024)
def _each(text: bytes, count: int) -> bytes:
    return RS.join([text] * count)


def _answers(reply: bytes, ids: Sequence[str]) -> tuple[list[bytes], Sequence[str]]:
    """The answers to a batch; a repeated number gets those to the batch it was first used for."""
    answers, again, about = reply.partition(GS)
    if again:
        ids = about.decode().split("\x1f") if about else []
    return (answers.split(RS) if answers else []), ids


def _receipt(id: str, text: bytes) -> Receipt:
    """A receipt that is no plain acceptance: a letter, a state, and behind US what it is about."""
    first, _, rest = text.partition(US)
    about = rest.decode()
    match first[:1]:
        case b"a":
            return Receipt(id=about or id, code="accepted", state=STATES[int(first[1:])])
        case b"d":
            return Receipt(id=about or id, code="duplicate", state=STATES[int(first[1:])])
        case b"c":
            return Receipt(id=id, code="conflict", state=STATES[int(first[1:])])
        case b"q":
            return Receipt(id=id, code="queue_full", limit=int(about))
        case b"t":
            return Receipt(id=id, code="tenant_full", limit=int(about))
        case b"b":
            return Receipt(id=id, code="tenant_bytes", limit=int(about))
        case b"u":
            return Receipt(id=id, code="unknown_dependency", detail=about)
        case b"f":
            return Receipt(id=id, code="fenced")
        case b"s":
            return Receipt(id=id, code="stale")
    raise ValueError(f"a receipt that nobody knows: {text!r}")


# -- exchange ----------------------------------------------------------------------------------


def exchange_reply(reply: Sequence[Any]) -> ExchangeReply:
    """The answers, and the loans with their messages."""
    now, settles, starts, more, due, token, text = reply[0].split(RS)
    ids = text.decode().split("\x1f") if text else []
    notes = reply[1].split(RS) if reply[1] else repeat(b"1", len(ids))
    return ExchangeReply(
        now=float(now),
        settled=settled(settles),
        started=settled(starts),
        leased=_loans(zip(ids, islice(reply, 2, None), notes, strict=True), int(token))
        if ids
        else [],
        more=more == b"1",
        due_in=float(due) if due else None,
    )


def settled(codes: bytes) -> list[Settled]:
    """A letter for each answer."""
    if codes.count(b"a") == len(codes):  # as a rule
        return ["applied"] * len(codes)
    return [_SETTLED[code] for code in codes]


def _loans(lent: Iterable[tuple[str, bytes, bytes]], token: int) -> list[Leased]:
    """The loans: of each its id, what is stored of it, and what is said of the loan."""
    loans: list[Leased] = []
    known, open_stored, open_sizes = parsed_heads, STORED.unpack_from, SIZES.unpack_from
    begin, between = STORED.size, SIZES.size
    queue, tenant, level, cost, limiters, version, bits, _ = _NO_HEAD
    # Head and sizes of the one before, mostly those of the next one as well.
    last, last_size = b"", -1
    start = middle = end = 0
    for id, stored, note in lent:
        at, _, size = open_stored(stored)
        if size != last_size or stored[begin:start] != last:
            cut = begin + size
            head = stored[begin:cut]
            queue, tenant, level, cost, limiters, version, bits, _ = known.get(head) or parse_head(
                head
            )
            body, trace = open_sizes(stored, cut)
            start = cut + between
            middle = start + body
            end = middle + trace
            last, last_size = stored[begin:start], size
        message = Message(
            id=id,
            queue=queue,
            tenant=tenant,
            level=level,
            cost=cost,
            limiters=limiters,
            version=version,
            flags=bits,
            body=stored[start:middle],
            trace=stored[middle:end] if end > middle else b"",
            extra=read_extra(stored[end:]) if end < len(stored) else (),
        )
        if len(note) == 1:
            loans.append(
                Leased(
                    message=message, token=token, attempt=1, started=note == b"1", enqueued_at=at
                )
            )
        else:
            loans.append(_marked(message, token, at, note))
    return loans


def handed(entry: bytes) -> tuple[int, Leased]:
    """A task that was handed over: the number of the wait that it is for, and the loan."""
    number, token, id, stored = entry.split(US, 3)
    (loan,) = _loans(((id.decode(), stored, b"1"),), int(token))
    return int(number), loan


def _marked(message: Message, token: int, at: float, note: bytes) -> Leased:
    """A loan of a task that something happened to before."""
    started, attempts, generation, crashes, unroutable, deadline = note.split(US)
    return Leased(
        message=message,
        token=token,
        attempt=int(attempts) + 1,
        generation=int(generation),
        crashes=int(crashes),
        unroutable=int(unroutable),
        started=started == b"1",
        enqueued_at=at,
        deadline_at=float(deadline) or None,
    )


# -- the other verbs ---------------------------------------------------------------------------


def transferred(reply: bytes) -> list[Transferred]:
    """What became of loans that another incarnation was to have."""
    return [_TRANSFERRED[code] for code in reply.decode()]


def moved(reply: bytes) -> Moved:
    """What a step of maintenance came to; sweep says whether it was guarded as well."""
    now, count, more, *guarded = reply.split(RS)
    return Moved(now=float(now), count=int(count), more=more == b"1", guarded=guarded == [b"1"])


def deleted_queue(reply: bytes) -> Deleted:
    """How many kept tasks went with a queue, or what stands in the way."""
    now, count, more, *refused = reply.split(RS)
    waiting, running, pinned = map(int, refused) if refused else (0, 0, 0)
    return Deleted(
        now=float(now),
        count=int(count),
        more=more == b"1",
        waiting=waiting,
        running=running,
        pinned=pinned,
    )


def promoted(reply: bytes) -> Moved:
    """What a step of promotion came to, and whether schedules are due."""
    now, count, more, ticks = reply.split(RS)
    return Moved(now=float(now), count=int(count), more=more == b"1", ticks=ticks == b"1")


def altered(reply: bytes, orders: Sequence[Alter]) -> list[Altered]:
    """One answer for each order."""
    texts, ids = _answers(reply, [order.id for order in orders])
    return [
        Altered(id=id, code=_ALTERED[text[0]], state=STATES[int(text[1:])])
        for id, text in zip(ids, texts, strict=True)
    ]


def beat_reply(reply: bytes, incarnation: str) -> BeatReply:
    """What a worker must know after a heartbeat."""
    now, lost, cancelled, paused, count, more, order = reply.decode().split("\x1e")
    return BeatReply(
        now=float(now),
        lost=_refs(lost, incarnation),
        cancelled=_refs(cancelled, incarnation),
        paused=paused.split("\x1f") if paused else [],
        unclaimed=int(count),
        more=more == "1",
        order=ORDERS[order.encode()],
    )


def _refs(text: str, incarnation: str) -> list[LeaseRef]:
    if not text:
        return []
    pairs = (each.split("\x1d") for each in text.split("\x1f"))
    return [LeaseRef(id, incarnation, int(token)) for id, token in pairs]


# -- mail and events ---------------------------------------------------------------------------


def event_page(reply: Sequence[Any], shard: str, limit: int) -> EventPage:
    """A page of events, from its first new row on."""
    now, generation, gap, entry, index, *rest = reply
    name = generation.decode()
    events: list[Event] = []
    for i in range(0, len(rest), 4):
        _add_rows(events, name, shard, rest[i : i + 4], limit)
    last = events[-1].id if events else EventId(name, shard, int(entry), int(index))
    return EventPage(now=float(now), events=events, gap=gap == 1, last=last)


def _add_rows(
    events: list[Event], generation: str, shard: str, stored: Sequence[Any], limit: int
) -> None:
    """Add the rows of one entry, from its first new one on, up to the limit.

    Rows are grouped by all that they have in common; in a group FS and a tenant go before its ids.
    """
    number, at, first, text = stored
    entry, moment, skipped = int(number), float(at), int(first)
    place = -1
    for group in text.decode().split("\x1e"):
        kind, digit, queue, token, attempt, reason, *items = group.split("\x1f")
        found = STATES[int(digit)]
        state = "" if found is None else found.value
        lease, count = int(token), int(attempt)
        tenant = ""
        for item in items:
            if item.startswith("\x1c"):
                tenant = item[1:]
                continue
            place += 1
            if place < skipped:
                continue
            if len(events) >= limit:
                return
            events.append(
                Event(
                    id=EventId(generation, shard, entry, place),
                    at=moment,
                    kind=cast(EventKind, kind),
                    task=item,
                    queue=queue,
                    tenant=tenant,
                    state=state,
                    token=lease,
                    attempt=count,
                    reason=reason,
                )
            )


def letters(reply: Sequence[bytes]) -> list[Mail]:
    """An incarnation's mail."""
    found: list[Mail] = []
    for text in reply:
        number, kind, id, digit, token = text.decode().split("\x1f")
        found.append(
            Mail(
                number=int(number),
                kind=cast(Literal["finished", "cancel", "lent"], kind),
                id=id,
                state=STATES[int(digit)],
                token=int(token),
            )
        )
    return found
