"""wait, take, collect, events: the verbs that sleep, on whatever event loop."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fairlead.broker import checks
from fairlead.broker.memory import dependencies, maintenance
from fairlead.broker.memory.flows import see_to
from fairlead.broker.memory.schedules import ticks_due
from fairlead.broker.memory.session import Session
from fairlead.broker.memory.wakeups import Sleeper
from fairlead.broker.records import EventPage
from fairlead.broker.requests import LEASE, Call, Mail, Taken
from fairlead.broker.waits import Woken
from fairlead.model.events import EventId


async def take(
    session: Session,
    call: Call,
    queues: Sequence[str],
    timeout: float,
    _: Woken,
    *,
    lease: float = LEASE,
    mail_for: str = "",
) -> Taken:
    """Wait, and hand nothing over; see ``fairlead.broker.protocol``."""
    return await session.takes.take(call, lease, wait(session, queues, timeout, mail_for=mail_for))


async def wait(
    session: Session, queues: Sequence[str], timeout: float, *, mail_for: str = ""
) -> bool:
    """Return when there may be something to fetch; see ``fairlead.broker.protocol``."""
    ends = time.monotonic() + timeout
    with session.lock:
        _promote(session)
        if _runnable(session, queues) or ticks_due(session.shard) or _has_mail(session, mail_for):
            return True
        sleeper = Sleeper()
        session.bell.add(sleeper, queues)
        if mail_for:
            session.shard.mailbox(mail_for).sleepers.append(sleeper)
    found = False
    try:
        while not session.shard.closed and (left := ends - time.monotonic()) > 0.0:
            with session.lock:
                due = session.shard.next_due() if session.bell.holds_alarm(sleeper) else None
            await sleeper.sleep(left if due is None else min(left, due))
            with session.lock:
                if _has_mail(session, mail_for):
                    return True
                if session.bell.holds_alarm(sleeper):
                    _promote(session)  # and ring: perhaps for this one
                    if ticks_due(session.shard):
                        return True
                if sleeper.rung and _runnable(session, queues):
                    found = True
                    return True
                sleeper.rung = False  # somebody else was faster
        return False
    except GeneratorExit:
        # Thrown away with its loop, by the garbage collector, perhaps in the middle of a verb
        # of this very thread: the lock must not be touched.
        sleeper.gone = True
        raise
    finally:
        if not sleeper.gone:
            with session.lock:
                session.bell.remove(sleeper)
                if mail_for and (box := session.shard.mailboxes.get(mail_for)) is not None:
                    box.sleepers[:] = [each for each in box.sleepers if each is not sleeper]
                if sleeper.rung and not found:  # in vain: somebody else must hear of the work
                    session.shard.rung.update(set(queues).intersection(session.shard.queues))
                    session.conclude(session.shard.next_due())


async def collect(session: Session, incarnation: str, after: int, timeout: float) -> list[Mail]:
    ends = time.monotonic() + timeout
    while True:
        with session.lock:
            session.set_clock(None)
            session.shard.touch(incarnation)
            box = session.shard.mailbox(incarnation)
            box.confirm(after)
            left = ends - time.monotonic()
            if box.letters or left <= 0.0 or session.shard.closed:
                return list(box.letters)
            sleeper = Sleeper()
            box.sleepers.append(sleeper)
        await _slept(session, sleeper, left, box.sleepers)


async def events(
    session: Session,
    *,
    after: EventId | None = None,
    reader: str | None = None,
    limit: int = 500,
    timeout: float = 0.0,
    latest: bool = False,
) -> EventPage:
    checks.check_reader(reader, limit)
    ends = time.monotonic() + timeout
    while True:
        with session.lock:
            session.set_clock(None)
            stream = session.shard.stream
            if latest:
                return EventPage(now=session.shard.now, last=stream.latest())
            events, gap, last = stream.read(stream.start(reader, after, session.shard.now), limit)
            left = ends - time.monotonic()
            if events or gap or left <= 0.0 or session.shard.closed:
                return EventPage(now=session.shard.now, events=events, gap=gap, last=last)
            sleeper = Sleeper()
            session.event_sleepers.append(sleeper)
        await _slept(session, sleeper, left, session.event_sleepers)


async def _slept(session: Session, sleeper: Sleeper, seconds: float, among: list[Sleeper]) -> None:
    """Sleep, and leave the list again, unless thrown away: then ``wake`` finds it gone."""
    try:
        await sleeper.sleep(seconds)
    except GeneratorExit:
        sleeper.gone = True
        raise
    finally:
        if not sleeper.gone:
            with session.lock:
                if sleeper in among:
                    among.remove(sleeper)


def _promote(session: Session) -> None:
    session.set_clock(None)
    before = session.shard.next_due()
    maintenance.promote(session.shard)
    if session.shard.layouts:
        see_to(session.shard)
        dependencies.follow_up(session.shard)
    session.conclude(before)


def _runnable(session: Session, queues: Sequence[str]) -> bool:
    known = session.shard.queues
    return any(name in known and session.shard.runnable(known[name]) for name in queues)


def _has_mail(session: Session, incarnation: str) -> bool:
    box = session.shard.mailboxes.get(incarnation) if incarnation else None
    return box is not None and bool(box.letters)
