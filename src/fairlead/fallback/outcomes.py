"""Outcomes of attempts in the spool: what ended while the broker was away, for whoever is left.

A worker keeps an outcome here when an exchange has failed, and takes it off when the broker has
answered for it. If the worker's process dies first, its spool is adopted, and the adopter settles
what is left in the name of the dead worker. The broker checks id, incarnation and token as ever, so
an outcome is applied at most once, and ``fenced`` if the task was given to somebody else meanwhile.

Each outcome is kept with the number of the exchange that carries it, and the adopter repeats that
exchange: decision 0039 says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from fairlead.broker import LIMIT, Broker, destination_of
from fairlead.broker.requests import Call, Settled
from fairlead.fallback.codec import LaterVersion, moment_now
from fairlead.fallback.log_summary import LaterRecordsWarning, LogSummary
from fairlead.fallback.threads import in_thread
from fairlead.model.errors import BrokerError, InvalidInput, OutOfOrder
from fairlead.model.lifecycle import Settlement
from fairlead.model.outage import Moment, elapsed, remaining
from fairlead.model.spool_errors import SpoolFailed
from fairlead.spool import Entry, Kind, Record, Rejection, Spool

log = logging.getLogger("fairlead.fallback")

_VERSION = 1
_SETTLED = "outcome of a worker that is gone settled"
_DISK = 10.0  # seconds that it has to take outcomes
_OTHERS = 10.0  # seconds that another process has to settle what it has adopted
_PAUSE = 0.1  # seconds between two looks whether it has
_LOOK = 0.01  # seconds between two looks whether another thread is still settling


class KeptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of an OUTCOME record."""

    incarnation: str  # of the lease
    number: int  # of the exchange that carries it
    place: int  # among the settlements of that exchange
    count: int  # of those
    moment: Moment  # when the attempt ended: delays count from here
    settlement: Settlement
    version: int = _VERSION

    def encode(self) -> Entry:
        """Return it as something to append."""
        return Entry(Kind.OUTCOME, msgspec.msgpack.encode(self))

    @classmethod
    def decode(cls, payload: bytes) -> KeptOutcome:
        """Return what ``encode`` made a payload of.

        Raises ``LaterVersion``, or ``msgspec.DecodeError``.
        """
        version = msgspec.msgpack.decode(payload, type=_Head).version
        if version > _VERSION:
            text = f"an outcome of version {version}; this release reads {_VERSION}"
            raise LaterVersion(text)
        return msgspec.msgpack.decode(payload, type=cls)


class _Head(msgspec.Struct, frozen=True):
    """What every version has."""

    version: int


def due(settlement: Settlement, moment: Moment, now: Moment) -> Settlement:
    """Return a settlement of a moment with what is left of its delay now."""
    if not settlement.delay:
        return settlement
    delay, _ = remaining(settlement.delay, None, elapsed(moment, now))
    return msgspec.structs.replace(settlement, delay=delay)


#: Where the outcomes of one exchange stand in the spool: sequences by their places in it.
_Group = dict[int, int]


class Outcomes:
    """The outcomes in the spool of this process; one object for each spool.

    ``settled``, ``fenced`` and ``unknown`` count what became of those that were settled here for
    workers that are gone. May be used from every thread and loop.
    """

    def __init__(self, spool: Spool, used: Callable[[], None] = lambda: None) -> None:
        """``used`` is called when there is something in the spool that may need a drain."""
        self.spool = spool
        self.settled = self.fenced = self.unknown = 0
        self._used = used
        self._adopted = 0  # records that had been adopted when all outcomes were settled
        self._is_left = False  # there may be outcomes of workers that are gone
        self._living: set[tuple[int, str]] = set()  # workers by process, which forks
        self._told: set[int] = set()  # sequences of those that fail, which was logged
        self._later_records = LaterRecordsWarning(log)
        self._summary = LogSummary(log)
        self._locks: dict[int, threading.Lock] = {}  # by process: held by whoever settles

    # -- a worker's own ------------------------------------------------------------------------

    def enter(self, incarnation: str) -> None:
        """Leave the outcomes of this worker alone: it lives in this process and sends its own."""
        self._living.add((os.getpid(), incarnation))
        self._used()

    def leave(self, incarnation: str, *, is_left: bool) -> None:
        """Settle what is left of this worker from now on: it has ended."""
        self._living.discard((os.getpid(), incarnation))
        self._is_left |= is_left
        self._used()

    async def keep(self, outcomes: Sequence[KeptOutcome]) -> list[int]:
        """Append outcomes, and return their sequences once all are on the disk.

        Raises ``SpoolFull`` or ``SpoolFailed``; then none is kept, unless the disk hangs.
        """
        try:
            async with asyncio.timeout(_DISK):
                return await self.spool.aappend([outcome.encode() for outcome in outcomes])
        except TimeoutError:
            raise SpoolFailed(f"the disk of the spool did not answer for {_DISK:g} s") from None

    async def answered(self, answers: Iterable[tuple[int, Settled]]) -> None:
        """Take outcomes off that the broker has answered for; the sequence and answer of each.

        One of a task that the broker does not know stays to be seen, as a rejected record.
        """
        known = []
        for sequence, answer in answers:
            if answer == "unknown":
                why = "the broker does not know the task"
                await in_thread(partial(self._reject_at, sequence, "unknown_task", why))
            else:
                known.append(sequence)
        if known:
            self.spool.confirm(known)

    # -- those of workers that are gone --------------------------------------------------------

    async def adopt(self, store: Broker) -> None:
        """Take over what dead processes left, and settle the outcomes among it.

        Raises ``BrokerError`` as ``settle`` does; a disk that cannot be read is logged.
        """
        try:
            await in_thread(self.spool.adopt)
        except SpoolFailed as error:
            log.error("nothing adopted: %s", error)  # noqa: TRY400 - no trace needed
        await self.settle(store)

    async def await_others(self, store: Broker, incarnations: Collection[str]) -> None:
        """Wait until no other process has an outcome of these workers, which are gone.

        Call it before their leases are ended: who adopted their outcomes may not have sent them
        yet. Returns after ten seconds in any case. Raises ``BrokerError`` as ``settle`` does.
        """
        until = time.monotonic() + _OTHERS
        looks = 0  # a first one misses what is adopted while it reads
        while looks < 2 and time.monotonic() < until:
            if await in_thread(partial(self._others_have, incarnations)):
                looks = 0
                await asyncio.sleep(_PAUSE)
                await self.adopt(store)  # the other one may have died, too
            else:
                looks += 1

    def _others_have(self, incarnations: Collection[str]) -> bool:
        try:
            for record in self.spool.pending_of_others():
                if record.kind is Kind.OUTCOME:
                    with contextlib.suppress(LaterVersion, msgspec.DecodeError):
                        if KeptOutcome.decode(record.payload).incarnation in incarnations:
                            return True
        except OSError as error:
            log.error("spools of other processes not read: %s", error)  # noqa: TRY400 - no trace needed
        return False

    async def settle(self, store: Broker) -> int:
        """Settle all outcomes in the spool whose workers are gone; return how many are left.

        Call it before submissions are sent: every second that passes may cost a lease. Costs
        nothing if there are none. Outcomes of workers that live in this process are passed over,
        and so are those whose shard is away. Each that is answered for is confirmed at once. Raises
        ``BrokerError`` if the broker is away; what was not answered for is still in the spool.
        """
        lock = self._locks.setdefault(os.getpid(), threading.Lock())
        # No event: whoever has it may be a thread with another loop.
        while not lock.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        try:
            adopted = self.spool.stats().adopted
            if adopted == self._adopted and not self._is_left:
                return 0
            self._is_left = True  # until the end, which an error may come before
            left, trouble = 0, None
            groups = await in_thread(self._groups)
            for incarnation, number in sorted(groups):
                if (os.getpid(), incarnation) in self._living:
                    continue
                group = groups[incarnation, number]
                try:
                    left += await self._settle(store, incarnation, number, group)
                except BrokerError as error:
                    if not _has_several(store):
                        raise
                    trouble = error  # one shard that is away holds up no others
            if trouble is not None:
                raise trouble
            self._adopted, self._is_left = adopted, left > 0
            return left
        finally:
            self._summary.end()
            lock.release()

    def _groups(self) -> dict[tuple[str, int], _Group]:
        """Return where the outcomes stand, by worker and exchange. Payloads are read again later.

        All results together may be larger than what memory is good for.
        """
        groups: dict[tuple[str, int], _Group] = defaultdict(dict)
        after = 0
        while records := self.spool.pending(after):
            after = records[-1].sequence
            for record in records:
                if record.kind is Kind.OUTCOME and (kept := self._read(record)) is not None:
                    groups[kept.incarnation, kept.number][kept.place] = record.sequence
        return groups

    def _read(self, record: Record) -> KeptOutcome | None:
        """Return what a record holds; None if it cannot be read.

        One of a later release stays for that; any other is rejected.
        """
        try:
            return KeptOutcome.decode(record.payload)
        except LaterVersion as error:
            self._later_records.found(error)
        except msgspec.DecodeError as error:
            said = "an outcome in the spool cannot be read; see `fairlead spool`"
            self._summary.tell(logging.ERROR, said, "unreadable", {"code": "unreadable"})
            self._reject(record, "unreadable", f"not an outcome: {type(error).__name__}")
        return None

    async def _settle(self, store: Broker, incarnation: str, number: int, group: _Group) -> int:
        """Settle what one exchange carried, or would have; return how many are left."""
        kept = await in_thread(lambda: self._kept(group))
        if not kept:
            return 0
        try:
            answers = await _exchange(store, incarnation, number, kept)
        except BrokerError:
            raise
        except Exception as error:  # noqa: BLE001 - it must hold up nothing else in the spool
            return await self._settle_alone(store, incarnation, group, kept, error)
        if "later" in answers:  # all of it once more: the number stands for the whole exchange
            return len(kept)
        for outcome, answer in zip(kept, answers, strict=True):
            self._count(outcome, answer)
        places = [group[outcome.place] for outcome in kept]
        await self.answered(zip(places, answers, strict=True))
        return 0

    async def _settle_alone(
        self,
        store: Broker,
        incarnation: str,
        group: _Group,
        kept: Sequence[KeptOutcome],
        error: Exception,
    ) -> int:
        """Settle outcomes of which one cannot be digested; that one is rejected, or stays."""
        if len(kept) == 1:
            sequence, what = group[kept[0].place], type(error).__name__
            if sequence not in self._told:
                self._told.add(sequence)
                fields = {"task_id": kept[0].settlement.id, "error": what}
                log.error("outcome in the spool not settled", extra=fields, exc_info=error)
            if not isinstance(error, InvalidInput):
                return 1
            why = f"the broker cannot store it: {what}"
            await in_thread(partial(self._reject_at, sequence, "invalid", why))
            return 0
        left = 0
        for outcome in kept:
            alone = {outcome.place: group[outcome.place]}
            left += await self._settle(store, incarnation, _microseconds(), alone)
        return left

    def _kept(self, group: _Group) -> list[KeptOutcome]:
        """Return the outcomes of a group that are still in the spool, by their places."""
        found = []
        for place in sorted(group):
            record = self._record(group[place])
            if record is not None:
                found.append(KeptOutcome.decode(record.payload))
        return found

    def _count(self, outcome: KeptOutcome, answer: Settled) -> None:
        fields = {
            "task_id": outcome.settlement.id,
            "incarnation": outcome.incarnation,
            "token": outcome.settlement.token,
            "answer": answer,
        }
        if answer == "applied":
            self.settled += 1
            self._summary.tell(logging.INFO, _SETTLED, answer, fields)
            return
        self.unknown += answer == "unknown"
        self.fenced += 1
        self._summary.tell(logging.WARNING, "outcome fenced", answer, fields)

    def _record(self, sequence: int) -> Record | None:
        records = self.spool.pending(sequence - 1, 1)
        return records[0] if records and records[0].sequence == sequence else None

    def _reject_at(self, sequence: int, code: str, why: str) -> None:
        record = self._record(sequence)
        if record is not None:
            self._reject(record, code, why)

    def _reject(self, record: Record, code: str, why: str) -> None:
        left = Rejection(
            code=code, message=why, kind=record.kind, payload=record.payload, at=record.at
        )
        try:
            self.spool.reject(record.sequence, left.encode())
        except SpoolFailed as error:  # it is pending as before, and looked at again later
            said = f"record not rejected: {error}"
            self._summary.tell(logging.ERROR, said, code, {"code": code})


async def settle_left(root: Path, store: Broker) -> Outcomes:
    """Settle the outcomes that dead processes left below a root; what there was, counted.

    For a process that has no spool itself, such as a supervisor. Whatever else was left can be
    adopted by others when this returns.
    """
    spool = Spool.open(root, broker=destination_of(store))
    try:
        outcomes = Outcomes(spool)
        await outcomes.adopt(store)
        return outcomes
    finally:
        await in_thread(spool.close)


async def _exchange(
    store: Broker, incarnation: str, number: int, kept: Sequence[KeptOutcome]
) -> Sequence[Settled]:
    """Send outcomes under their number, which may have been carried out; an answer for each."""
    now = moment_now()
    settlements = [due(each.settlement, each.moment, now) for each in kept]
    until = asyncio.get_running_loop().time() + LIMIT
    try:
        # Nothing is fetched. What the exchange lent, if it was carried out, is claimed by nobody.
        reply = await store.exchange(Call(incarnation, number, until), settlements)
    except OutOfOrder as error:
        last = error.last
    except ValueError:  # a broker of several shards: other outcomes of the exchange are not here
        last = number
    else:
        if len(reply.settled) == len(kept):
            return reply.settled
        if len(reply.settled) == kept[0].count:  # it was carried out, and some are off already
            return [reply.settled[outcome.place] for outcome in kept]
        last = number
    number = max(last + 1, _microseconds())
    return (await store.exchange(Call(incarnation, number, until), settlements)).settled


def _has_several(store: Broker) -> bool:
    """Return whether it is made of several shards."""
    return len(getattr(store, "stores", ())) > 1


def _microseconds() -> int:
    return int(time.time() * 1e6)
