"""Waiting for tasks to end: one collecting call serves all who wait on one client."""

from __future__ import annotations

import asyncio
from functools import partial

from fairlead.broker import Store
from fairlead.broker.repeats import pause
from fairlead.broker.requests import Watched
from fairlead.model.errors import BrokerError, Refused
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.runtime.batcher import Batcher

_COLLECT = 10.0  # seconds of one collecting call, and between two renewals of the watches
_PAUSE = 0.5  # seconds before it is asked again whether it is closed
_MAX_WATCH = 500  # ids in one call

_Ended = State | None | Exception


class Waiter:
    """Tells many callers in which state their tasks ended.

    The collecting task exists while somebody waits. The broker mails each end at least once; mail
    that was not confirmed comes again, and watches are renewed from time to time, so a broker that
    lost them, or dropped mail from a full box, costs time and not an answer.
    """

    def __init__(self, store: Store, incarnation: str) -> None:
        self._store = store
        self._incarnation = incarnation
        self._watch = partial(store.watch, incarnation)
        self._watcher: Batcher[str, Watched] = Batcher(self._watch, limit=_MAX_WATCH)
        self._waiting: dict[str, list[asyncio.Future[_Ended]]] = {}
        self._collector: asyncio.Task[None] | None = None
        self._last = 0  # number of the last mail that was read
        self._is_closed = False

    async def wait(self, id: str) -> State | None:
        """The final state, or None if the task is unknown."""
        if self._is_closed:
            raise _closed()
        future: asyncio.Future[_Ended] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, []).append(future)
        try:
            state = (await self._watcher.submit(id)).state
            if state is None or state in FINAL:
                return state
            if self._collector is None:
                self._collector = asyncio.create_task(self._collect(), name="collector")
            ended = await future
        finally:
            self._leave(id, future)
        if isinstance(ended, Exception):
            raise ended
        return ended

    async def close(self) -> None:
        """Tell those who still wait that the client is closed."""
        self._is_closed = True
        self._fail(_closed())
        if self._collector is not None:
            self._collector.cancel()
            await asyncio.wait([self._collector])
        await self._watcher.close()

    def _leave(self, id: str, future: asyncio.Future[_Ended]) -> None:
        futures = self._waiting[id]
        futures.remove(future)
        if not futures:
            del self._waiting[id]
        if not self._waiting and self._collector is not None:
            self._collector.cancel()
            self._collector = None

    async def _collect(self) -> None:
        clock = asyncio.get_running_loop().time
        renewed, failures = clock(), 0
        while True:
            began = clock()
            try:
                mails = await self._store.collect(self._incarnation, self._last, _COLLECT)
                for mail in mails:
                    self._last = max(self._last, mail.number)
                    if mail.kind == "finished":
                        self._tell(mail.id, mail.state)
                # By the clock: as long as other mail comes, a lost watch would not be noticed.
                if not mails or clock() - renewed >= _COLLECT:
                    await self._renew()
                    renewed = clock()
                if not mails and clock() - began < _COLLECT / 2:
                    await self._check_open()  # woken without mail: closed, as it seems
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
                if isinstance(error, BrokerError) and error.passes:
                    failures += 1
                    await asyncio.sleep(pause(failures))  # each waits for as long as it has time
                    continue
                self._collector = None
                self._fail(error)
                return
            failures = 0

    async def _check_open(self) -> None:
        # Of one queue: what is asked for is not what is in it.
        if (await self._store.snapshot(DEFAULT_QUEUE, tenants=False)).shutdown:
            raise Refused("closed", "the broker was closed while waiting for a task")
        await asyncio.sleep(_PAUSE)

    async def _renew(self) -> None:
        waiting = list(self._waiting)
        for start in range(0, len(waiting), _MAX_WATCH):
            for watched in await self._watch(waiting[start : start + _MAX_WATCH]):
                if watched.state is None or watched.state in FINAL:
                    self._tell(watched.id, watched.state)

    def _tell(self, id: str, ended: _Ended) -> None:
        for future in self._waiting.get(id, ()):
            if not future.done():
                future.set_result(ended)

    def _fail(self, error: Exception) -> None:
        for id in self._waiting:
            self._tell(id, error)


def _closed() -> Refused:
    return Refused("closed", "the client was closed while waiting for a task")
