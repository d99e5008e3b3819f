"""Waits for work: for a wake-up, after which it is fetched, or for a task that is handed over."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from fairlead.broker import Broker
from fairlead.broker.requests import Taken
from fairlead.model.errors import BrokerError
from fairlead.model.message import Leased
from fairlead.worker.capacity import Ask
from fairlead.worker.inflight import Inflight
from fairlead.worker.run.async_executor import AsyncExecutor
from fairlead.worker.syncer import Syncer

#: What ended a wait: there may be something to fetch, nothing came in time, a task was handed over
#: and nothing else happened, or the worker has something else to do.
WaitEnd = Literal["found", "timeout", "handed", "interrupted"]

_LAST_WORDS = 2.0  # seconds that the broker has to end a wait
_EMPTY = 8  # wake-ups in a row for nothing before we distrust them
_TURNS = 3  # of the loop, in which a handler that waits for nothing begins, ends and says so


class WorkWaiter:
    """Waits in the broker while the worker has room, one wait at a time.

    A wait that may be handed a task has a number in the line of exchanges. It is not cancelled when
    the worker has something else to do: the next exchange ends it, and what was handed over until
    then begins here. So ``is_open`` must be followed by an exchange, or by ``withdraw``.
    """

    def __init__(
        self,
        broker: Broker,
        syncer: Syncer,
        inflight: Inflight,
        *,
        woken: asyncio.Event,
        hurry: Callable[[], None],
        handed: Callable[[Sequence[Leased]], None],
        begun: Callable[[Ask, Sequence[Leased], Callable[[], None]], None],
        executor: AsyncExecutor,
    ) -> None:
        """``woken`` is set when the worker has something to do; ``handed`` begins a task.

        ``hurry`` sets it as well: there may be something to fetch, which does not wait. ``begun``
        is called once it has begun, with what the worker is to be told. ``executor``
        runs async handlers.
        """
        self._broker = broker
        self._syncer = syncer
        self._inflight = inflight
        self._woken = woken
        self._hurry = hurry
        self._handed = handed
        self._begun = begun
        self._executor = executor
        self._task: asyncio.Task[None] | None = None  # that waits, and runs what was handed over
        self._taking: asyncio.Future[Taken] | None = None  # the wait that is open
        self._is_left = False  # by its caller, who has something else to do
        self._found = False  # there may be something to fetch
        self._empty = 0  # wake-ups in a row that brought nothing

    @property
    def is_open(self) -> bool:
        """Whether a wait goes on that may bring a task."""
        return self._taking is not None

    @property
    def woken_in_vain(self) -> bool:
        """Whether the last wake-up brought nothing."""
        return self._empty > 0

    async def yield_briefly(self) -> bool:
        """Whether an attempt is over at once: a wait would be begun only to be taken back."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if self._woken.is_set():
                return True
        return False

    def reset_backoff(self) -> None:
        """A wake-up was not in vain."""
        self._empty = 0

    async def wait(self, ask: Ask, patience: float, lease: float, mail_for: str = "") -> WaitEnd:
        """Wait until there may be something to fetch or mail, a task was handed over, or ``woken``.

        Slow down if wake-ups bring nothing: a broker that is closed must not make us spin.
        """
        end = await self._await(ask, patience, lease, mail_for)
        if end == "timeout":
            self._empty = 0
        elif end == "found":
            self._empty += 1
            if self._empty > _EMPTY:
                await asyncio.sleep(min(0.001 * 2 ** min(self._empty - _EMPTY, 10), 0.1))
        return end

    async def _await(self, ask: Ask, patience: float, lease: float, mail_for: str) -> WaitEnd:
        if ask.certain < 1 or self._syncer.unsettled:
            return await self._wait(ask, patience, mail_for)
        began = asyncio.get_running_loop().time()
        call = self._syncer.wait_call()
        self._inflight.await_task(call.number)
        self._is_left = self._found = False
        loop = asyncio.get_running_loop()
        take = self._broker.take(
            call, ask.queues, patience, self._wake, lease=lease, mail_for=mail_for
        )
        self._taking = taking = loop.create_future()
        run = self._take(take, taking, ask, call.number)
        self._task = loop.create_task(run, name="fairlead-lane")
        self._task.add_done_callback(lambda _: self._ended(take, taking, call.number))
        await self._woken.wait()
        if self._taking is taking:
            self._is_left = True
            return "found" if self._found else "interrupted"
        taken = taking.result()
        if taken.leased:
            return "handed"
        return "found" if taken.found else _silence(began, patience)

    def _wake(self) -> None:
        self._found = True
        self._hurry()

    async def _take(
        self,
        take: Coroutine[Any, Any, Taken],
        taking: asyncio.Future[Taken],
        ask: Ask,
        number: int,
    ) -> None:
        """Wait, and run what was handed over in this very task: its handler begins at once."""
        try:
            taken = await take
        except GeneratorExit:  # thrown away with its loop
            raise
        except BaseException as error:
            self._failed(taking, number, error)
            if isinstance(error, Exception):
                return
            raise
        self._over(taken.leased, number)
        taking.set_result(taken)
        if not taken.leased:
            self._end_of(taken)()
            return
        # All that can wait follows in the next turn of the loop.
        asyncio.get_running_loop().call_soon(self._begun, ask, taken.leased, self._end_of(taken))
        is_lane = self._executor.enter()
        try:
            self._handed(taken.leased)
        finally:
            if is_lane:
                await self._executor.serve()

    def _ended(
        self, take: Coroutine[Any, Any, Taken], taking: asyncio.Future[Taken], number: int
    ) -> None:
        """The task of a wait is done: it may have been cancelled before its first step."""
        if not taking.done():
            take.close()
            self._failed(taking, number, CancelledError())

    def _failed(self, taking: asyncio.Future[Taken], number: int, error: BaseException) -> None:
        """A wait is over without an answer."""
        self._over((), number)
        taking.set_exception(error if isinstance(error, Exception) else CancelledError())
        _ = taking.exception()  # perhaps nobody asks
        self._end_of(Taken())()

    def _over(self, leases: Sequence[Leased], number: int) -> None:
        """A wait is over, with what was handed over."""
        self._taking = None
        self._inflight.lent(leases, number)

    def _end_of(self, taken: Taken) -> Callable[[], None]:
        """What the worker has to be told of a wait."""
        if taken.found and not self._found:
            return self._hurry
        return self._woken.set if taken.leased or not self._is_left else _nothing

    async def _wait(self, ask: Ask, patience: float, mail_for: str) -> WaitEnd:
        """Wait without a number: nothing is handed over."""
        began = asyncio.get_running_loop().time()
        waiting = asyncio.ensure_future(self._broker.wait(ask.queues, patience, mail_for=mail_for))
        waiting.add_done_callback(lambda _: self._woken.set())
        try:
            await self._woken.wait()
        finally:
            # No wait is left behind: a wake-up goes to one worker only, and one that we took must
            # be followed by a fetch of ours.
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait([waiting])
        if waiting.cancelled():
            return "interrupted"
        return "found" if waiting.result() else _silence(began, patience)

    async def over(self) -> None:
        """Return when the wait is over that an exchange has ended."""
        if self._taking is not None:
            await asyncio.wait((self._taking,))

    async def withdraw(self) -> None:
        """End a wait: nothing is handed over any more, and what was is known when this returns.

        A broker that does not answer is given no more time than outcomes are: a beat takes back
        what nobody knows of.
        """
        taking, clock = self._taking, asyncio.get_running_loop().time
        if taking is None:
            return
        ends = clock() + _LAST_WORDS
        try:
            await self._syncer.say_nothing()
            ends = clock() + _LAST_WORDS
        except BrokerError as error:
            self._syncer.outage.failed(error)
            ends = min(ends, self._syncer.until)
        await asyncio.wait((taking,), timeout=max(0.0, ends - clock()))


def _silence(began: float, patience: float) -> WaitEnd:
    """What it means that nothing was found: a broker that is closed does not let us wait."""
    is_in_time = asyncio.get_running_loop().time() - began <= patience / 2
    return "found" if is_in_time else "timeout"


def _nothing() -> None:
    """There is nobody to be told."""
