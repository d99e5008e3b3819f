"""Sends again what a broker had accepted and then lost: with its last writes, or with everything.

Which calls a server lost after a failover or a restart is known exactly: those of the window whose
number is greater than the last one that it knows of their incarnation. An emptied server knows
none, so all of the window goes there again: also what had been completed. The broker knows the
others by their ids. They go through the spool: on disk at once, and not faster than others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fairlead.fallback.codec import SpooledTask, moment_now
from fairlead.fallback.numbered_enqueues import last_number
from fairlead.fallback.recent_enqueues import Acknowledged
from fairlead.model.errors import BrokerError
from fairlead.model.outage import Moment
from fairlead.model.spool_errors import SpoolFailed, SpoolFull

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

log = logging.getLogger("fairlead.fallback")

_PIECE = 500  # tasks that are written into the spool at once, about

_History = tuple[str, str]  # generation and replication


class Replayer:
    """Looks whether the history of a shard is the one that it was."""

    #: Seconds between two looks, while there is something that could be lost.
    INTERVAL = 1.0

    def __init__(self, fallback: Fallback) -> None:
        self.replayed = 0  # tasks, since the process began
        self._fallback = fallback
        self._known: dict[str, _History] = {}  # by shard
        self._moved: set[str] = set()  # shards to which there is another connection
        self._lost: dict[str, deque[Acknowledged]] = {}  # by shard: what is not in the spool yet
        self._is_told = False  # that the spool takes nothing

    @property
    def is_moved(self) -> bool:
        """Whether there is a connection over which nobody has looked."""
        return bool(self._moved)

    @property
    def is_behind(self) -> bool:
        """Whether something that was lost is not in the spool yet."""
        return any(self._lost.values())

    def forget(self) -> None:
        """Take whoever is met next for the one that it was: there is nothing to lose."""
        self._known.clear()
        self._moved.clear()

    def moved(self, shard: str) -> None:
        """Note that a connection to a shard was opened anew. From any thread."""
        self._moved.add(shard)
        self._fallback.wake()

    async def look(self) -> None:
        """Ask each shard that is there who it is, and send again what it lost."""
        for shard in self._fallback.parts.stores:
            try:
                if not self._fallback.outages.is_away(shard):
                    await self._look_at(shard)
                await self._replay(shard)
            except (BrokerError, TimeoutError) as error:
                fields = {"shard": shard, "error": type(error).__name__}
                log.debug("history not looked at; tried again", extra=fields)

    async def _look_at(self, shard: str) -> None:
        """Find out what a shard has lost, and take that out of the window."""
        window = self._fallback.recent_enqueues
        is_moved, began = shard in self._moved, window.now()
        self._moved.discard(shard)
        try:
            async with asyncio.timeout(self._fallback.options.silence):
                found, lost = await self._compare(shard, is_moved=is_moved)
        except BaseException:
            if is_moved:
                self._moved.add(shard)
            raise
        self._known[shard] = found
        if lost:
            window.remove(lost)
            self._lost.setdefault(shard, deque()).extend(lost)
            fields = {"shard": shard, "tasks": sum(len(each.submissions) for each in lost)}
            text = "the broker lost what it had accepted lately; it is sent again"
            log.warning(text, extra=fields)
        window.seen(shard, began)

    async def _compare(
        self, shard: str, *, is_moved: bool
    ) -> tuple[_History, Sequence[Acknowledged]]:
        """Return the history of a shard, and the calls that it does not know any more."""
        hello = await self._fallback.parts.stores[shard].hello()
        found, known = (hello.generation, hello.replication), self._known.get(shard)
        if known == found and not is_moved:
            return found, ()
        calls = self._fallback.recent_enqueues.calls(shard)
        if known is not None and known[0] != found[0]:
            return found, calls
        return found, await self._unknown(shard, calls)

    async def _unknown(self, shard: str, calls: Sequence[Acknowledged]) -> list[Acknowledged]:
        """Return the calls that the server does not know."""
        store, fallback = self._fallback.parts.stores[shard], self._fallback
        until = asyncio.get_running_loop().time() + fallback.options.silence
        last: dict[str, int] = {}
        for each in calls:
            if each.incarnation not in last:
                last[each.incarnation] = await last_number(store, each.incarnation, until)
        return [each for each in calls if each.number > last[each.incarnation]]

    async def _replay(self, shard: str) -> None:
        """Write what a shard lost into the spool, piece by piece: other tasks use this loop too.

        A piece is forgotten once it is on disk. What finds no room waits for the next look.
        """
        lost, fallback = self._lost.get(shard), self._fallback
        while lost:
            count, tasks = self._piece(lost)
            try:
                await fallback.keep_again(tasks)
            except (SpoolFull, SpoolFailed) as error:
                if not self._is_told:
                    self._is_told = True
                    fields = {"shard": shard, "reason": str(error)}
                    log.warning("the spool does not take what the broker lost", extra=fields)
                raise
            for _ in range(count):
                lost.popleft()
            self.replayed += len(tasks)
            self._is_told = False

    def _piece(self, lost: Iterable[Acknowledged]) -> tuple[int, list[SpooledTask]]:
        """Return how many of the first calls make a piece, and their tasks."""
        fallback, now = self._fallback, moment_now()
        count, tasks = 0, list[SpooledTask]()
        for call in lost:
            passed = fallback.recent_enqueues.age(call)
            moment = Moment(now.wall - passed, now.boot - passed, now.boot_id)
            tasks += (
                SpooledTask(submission, moment)
                for place, submission in enumerate(call.submissions)
                if place not in call.refused
            )
            count += 1
            if len(tasks) >= _PIECE:
                break
        return count, tasks
