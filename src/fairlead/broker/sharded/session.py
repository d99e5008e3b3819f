"""What the verbs of a sharded broker share: where things are, and calls to several shards."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from fairlead.broker import checks
from fairlead.broker.parts import destination_of
from fairlead.broker.records import Hello
from fairlead.broker.requests import SHARD, Call, LeaseRef, Moved
from fairlead.broker.sharded.away import Away
from fairlead.broker.sharded.mailboxes import Mailboxes
from fairlead.broker.sharded.outbox_relay import OutboxRelay
from fairlead.broker.sharded.places import Places
from fairlead.broker.sharded.shard_store import ShardStore
from fairlead.broker.waits import Takes
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    OutOfOrder,
    Refused,
    Unreachable,
)
from fairlead.model.lifecycle import Settlement, State

K = TypeVar("K")
T = TypeVar("T")

HURRY = 2.0  # seconds that one of several shards has to answer while the others wait for it
_MOST_LINES = 1_000  # incarnations whose last call is remembered
_MOST_LEASES = 100_000  # tasks whose shard is remembered

_log = logging.getLogger(__name__)


class Line(msgspec.Struct):
    """The last call of an incarnation: how it was split, and what the shards have answered."""

    verb: str
    number: int
    plan: Any = None
    kept: dict[Any, Any] = {}
    answer: Any = None  # once all have answered


class Doubt(msgspec.Struct):
    """An exchange with a shard of which nobody knows whether it was carried out."""

    number: int
    settlements: list[Settlement]
    started: list[LeaseRef]


class Session:
    """Several shards behind one broker."""

    def __init__(
        self,
        stores: Mapping[str, ShardStore],
        routes: Mapping[str, str] | None = None,
        *,
        default: str = SHARD,
        levels: Mapping[int, str] | None = None,
        drained: Sequence[str] = (),
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """``routes`` says in which shard a queue lives; all others live in ``default``.

        ``levels`` and ``drained`` are those of ``places``. ``addresses`` says where each shard is,
        for people.
        """
        self.stores = dict(stores)
        self.places = Places(
            self.stores, routes or {}, default=default, levels=levels, drained=drained
        )
        self.default = default
        self.addresses = dict(addresses or {})
        self.carrier = OutboxRelay(self.stores)
        self.away = Away(self.stores, self.addresses)
        self.met: dict[str, Hello] = {}  # by shard: what it said of itself last
        self.is_registered = False  # the first server knows of the others
        self.woken: set[str] = set()  # shards whose wake-up was taken by a wait
        self.takes = Takes()
        self.now = 0.0  # the latest time that an exchange was told
        self.lock = threading.Lock()  # around what is below: loops of several threads share it
        self._lines: dict[str, Line] = {}  # by incarnation
        self.leases: dict[str, str] = {}  # by task: the shard that lent it
        # By incarnation and flow that is being written: its shard, and its members so far.
        self.writing: dict[tuple[str, str], tuple[str, set[str]]] = {}
        self.doubts: dict[tuple[str, str], Doubt] = {}  # by incarnation and shard
        self.mailboxes = Mailboxes()
        self.turn = 0  # how many fetches there were

    # -- where things are ----------------------------------------------------------------------

    @property
    def destination(self) -> str:
        """Which broker this is; see ``fairlead.broker.destination_of``."""
        parts = (f"{name}={destination_of(self.stores[name])}" for name in sorted(self.stores))
        return f"{', '.join(parts)} ({self.places})"

    def place(self, queue: str, level: int) -> str:
        """Return the name of the shard in which a new task is put."""
        return self.places.placed(queue, level)

    @property
    def first(self) -> ShardStore:
        """The shard of everything that belongs to no queue."""
        return self.stores[self.default]

    def shard_of(self, queue: str) -> str:
        """Where a queue lives, but for its tasks of levels that are routed."""
        return self.places.home(queue)

    async def known(
        self, ids: Mapping[str, Sequence[str]], now: float | None
    ) -> dict[str, dict[str, tuple[State, int, str]]]:
        """By id and shard: what is known of tasks in the shards they are asked for."""
        asked = {shard: list(dict.fromkeys(each)) for shard, each in ids.items() if each}
        found: dict[str, dict[str, tuple[State, int, str]]] = {}
        if not asked:
            return found
        answers, away = await self.answers(
            {
                shard: partial(self.stores[shard].where, each, now=now)
                for shard, each in asked.items()
            }
        )
        for shard, answer in answers.items():
            for id, (state, token, incarnation) in zip(asked[shard], answer, strict=True):
                if state is not None:
                    found.setdefault(id, {})[shard] = state, token, incarnation
        missing = {id: shard for shard in away for id in asked[shard] if id not in found}
        if missing:  # shards that were not asked may know them; what none of them knows is open
            others = {shard: list(missing) for shard in self.stores if shard not in asked}
            known = await self.known(others, now)
            for id, shard in missing.items():
                if id not in known:
                    raise away[shard]
        return found

    async def locate(
        self, leases: Sequence[tuple[str, str, int]], now: float | None
    ) -> dict[str, str]:
        """The shards of tasks by id, given as (id, incarnation, token) of their leases.

        What was not lent here is asked for; what nobody knows is left to the default shard.
        """
        with self.lock:
            places = {id: self.leases.get(id) for id, _, _ in leases}
        missing = [id for id, place in places.items() if place is None]
        if missing:
            known = await self.known(dict.fromkeys(self.stores, missing), now)
            proofs = {id: (State.RUNNING, token, name) for id, name, token in leases}
            for id in missing:
                here = known.get(id, {})
                right = [shard for shard, found in here.items() if found == proofs[id]]
                places[id] = next(iter((*right, *here, self.default)))
        return {id: place or self.default for id, place in places.items()}

    def lent(self, ids: Iterable[str], shard: str) -> None:
        with self.lock:
            for id in ids:
                self.leases.pop(id, None)
                self.leases[id] = shard
            while len(self.leases) > _MOST_LEASES:
                del self.leases[next(iter(self.leases))]

    def ended(self, ids: Iterable[str]) -> None:
        with self.lock:
            for id in ids:
                self.leases.pop(id, None)

    def each(
        self, verb: Callable[[ShardStore], Coroutine[Any, Any, T]]
    ) -> dict[str, Callable[[], Coroutine[Any, Any, T]]]:
        """Return the calls of one verb to all shards."""
        return {shard: partial(verb, store) for shard, store in self.stores.items()}

    # -- numbered calls ------------------------------------------------------------------------

    def line(self, verb: str, call: Call) -> Line:
        """What is known of a call: nothing yet, or what came of it the last time."""
        with self.lock:
            line = self._lines.pop(call.incarnation, None)
            last = None if line is None else line.number
            if line is None or call.number > line.number:
                line = Line(verb, call.number)
            self._lines[call.incarnation] = line
            while len(self._lines) > _MOST_LINES:
                del self._lines[next(iter(self._lines))]
        if last is not None and call.number < last:
            raise OutOfOrder(call.incarnation, call.number, last)
        if line.verb != verb:
            raise checks.other_verb(call.number, line.verb, verb)
        return line

    async def all(
        self,
        works: Mapping[K, Callable[[], Awaitable[T]]],
        kept: dict[Any, Any] | None = None,
    ) -> dict[K, T]:
        """Call several shards at once; what is in ``kept`` was answered before.

        Where one fails and another does not, part of the call is done, and it has to be repeated.
        """
        done: dict[Any, Any] = {} if kept is None else kept
        missing = [key for key in works if key not in done]
        if len(missing) == 1 and not done:
            done[missing[0]] = await works[missing[0]]()
        else:
            errors = []
            answers = await asyncio.gather(
                *(works[key]() for key in missing), return_exceptions=True
            )
            for key, answer in zip(missing, answers, strict=True):
                if isinstance(answer, BaseException):
                    errors.append(answer)
                else:
                    done[key] = answer
            if errors:
                raise together(errors, partly=kept is not None and bool(done))
        return {key: done[key] for key in works}

    def refuse_away(self, shards: Iterable[str]) -> None:
        """Raise at once if one of these shards is away."""
        for shard in shards:
            if (why := self.away.why(shard)) is not None:
                raise why

    async def most(self, works: Mapping[str, Callable[[], Awaitable[T]]]) -> dict[str, T]:
        """The same for upkeep: shards that cannot be reached do not hold up the others.

        One that failed lately is not asked again before it answers to a probe.
        """
        away = {shard: why for shard in works if (why := self.away.why(shard)) is not None}
        asked = [shard for shard in works if shard not in away] or list(works)
        asks = (self._ask(shard, works[shard]) for shard in asked)
        answers = await asyncio.gather(*asks, return_exceptions=True)
        done: dict[str, T] = {}
        errors: list[BaseException] = list(away.values())
        for shard, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, BaseException):
                done[shard] = answer
            elif isinstance(answer, BrokerError):
                errors.append(answer)
                if answer.passes:
                    self.away.failed(shard, answer)
                fields = {"shard": shard, "error": type(answer).__name__}
                _log.warning("shard %s did not answer", shard, extra=fields)
            else:
                raise answer
        if not done and errors:
            raise errors[-1]
        return done

    async def end_older_calls(self, call: Call, now: float | None) -> None:
        """Make a call without changes in every shard that can be reached.

        The others are told by the next call that reaches them: they hold up nobody meanwhile.
        """

        async def configure(shard: str) -> OutOfOrder | None:
            try:
                await self.stores[shard].configure(call, (), now=now)
            except OutOfOrder as error:  # the answer of one is the answer of all
                return error
            return None

        answers = await self.most({shard: partial(configure, shard) for shard in self.stores})
        for error in answers.values():
            if error is not None:
                raise error

    async def _ask(self, shard: str, work: Callable[[], Awaitable[T]]) -> T:
        """Call one of several shards, which has no more than a moment while others wait for it."""
        try:
            async with asyncio.timeout(HURRY):
                return await work()
        except TimeoutError:
            where = f" ({self.addresses[shard]})" if shard in self.addresses else ""
            raise Unreachable(f"shard {shard}{where} did not answer in time") from None

    async def reachable(
        self, works: Mapping[str, Callable[[], Awaitable[T]]]
    ) -> tuple[dict[str, T], dict[str, BrokerError]]:
        """The same for reads: what the shards answer that are there, and why the others do not.

        Raises if none of them answers, or one refuses what would not pass by itself.
        """
        done, away = await self.answers(works)
        if not done:
            raise next(iter(away.values()))
        return done, away

    async def answers(
        self, works: Mapping[str, Callable[[], Awaitable[T]]]
    ) -> tuple[dict[str, T], dict[str, BrokerError]]:
        """The same, where it may be that none of them answers.

        One that failed lately is not asked again before it answers to a probe.
        """
        away = {shard: why for shard in works if (why := self.away.why(shard)) is not None}
        asked = [shard for shard in works if shard not in away]
        asks = (self._ask(shard, works[shard]) for shard in asked)
        answers = await asyncio.gather(*asks, return_exceptions=True)
        done: dict[str, T] = {}
        for shard, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, BaseException):
                done[shard] = answer
            elif isinstance(answer, BrokerError) and answer.passes:
                self.away.failed(shard, answer)
                away[shard] = answer
            else:
                raise answer
        return done, away

    def moved(self, answers: Iterable[Moved]) -> Moved:
        """The sum of what shards moved; ends may have put something into their outboxes."""
        all = list(answers)
        count = sum(answer.count for answer in all)
        if count:
            self.carrier.soon(self.stores)
        return Moved(
            now=max(answer.now for answer in all),
            count=count,
            more=any(answer.more for answer in all),
            guarded=any(answer.guarded for answer in all),
            ticks=any(answer.ticks for answer in all),
        )


def together(errors: Sequence[BaseException], *, partly: bool) -> BaseException:
    """What several failures mean for the whole call."""
    for error in errors:
        if not isinstance(error, (Ambiguous, Unreachable, Refused)):
            return error
    for error in errors:
        if isinstance(error, Ambiguous):
            return error
    if not partly:
        return errors[0]
    whole = Ambiguous(f"some shards have carried out their part, another has not: {errors[0]}")
    whole.__cause__ = errors[0]
    return whole
