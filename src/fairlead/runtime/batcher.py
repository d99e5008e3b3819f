"""Group commit: what is submitted while one flush is under way shares the next."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_LIMIT = 500
_GRACE = 0.1  # seconds that a flush is given to say itself what came of an item that is late
_STEP = 0.05  # seconds between two looks at who is late, and that somebody may be told too early


_Entry = tuple[Item, "asyncio.Future[Answer | Exception]", float]


class Batcher(Generic[Item, Answer]):
    """Gathers items into batches, one flush in flight, and gives each caller its own answer.

    ``flush`` gets the items in the order of their submission and returns one answer for each; an
    exception among the answers is raised to its caller only, an exception of ``flush`` itself to
    all callers of that batch. A batcher belongs to one event loop.

    ``fits`` may end a batch before ``limit`` does. It is asked once for each item of a batch but
    the first, in order, with the items before it, so it may keep a running total.

    An item may have a moment by which its caller must have an answer. ``earliest`` and ``latest``
    are those of the batch under way, for ``flush`` to keep to. What it fails with before anything
    was done, says ``again``, is for those whose time is over; the others get into the next batch.
    Whoever hears nothing in time, and for ``extra`` seconds more, is told what ``late`` makes of
    it, which is given whether a flush has the item.
    """

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        limit: int = _LIMIT,
        fits: Callable[[list[Item], Item], bool] | None = None,
        again: Callable[[Exception], bool] | None = None,
        late: Callable[[bool], Exception] | None = None,
        extra: float = 0.0,
    ) -> None:
        self._flush = flush
        self._limit = limit
        self._fits = fits
        self._again = again
        self._late = late
        self._extra = extra
        self._waiting: deque[_Entry[Item, Answer]] = deque()
        self._flying: list[_Entry[Item, Answer]] = []
        self.earliest = self.latest = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf  # when the timer goes off
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, item: Item, until: float = math.inf) -> Answer:
        """Hand in one item and return its answer, or raise its error.

        A caller that is cancelled takes its item back unless a flush has it already. ``until`` is
        a moment of the loop's clock.
        """
        answer = await self.put(item, until, asyncio.get_running_loop())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(
        self, item: Item, until: float, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[Answer | Exception]:
        """Hand in one item; its answer, or its error as a result, comes through the future.

        Errors travel as results: an exception set on a future whose caller was cancelled in the
        same tick would be logged as never retrieved.
        """
        if self._closed:
            raise RuntimeError("the batcher is closed")
        future: asyncio.Future[Answer | Exception] = loop.create_future()
        self._waiting.append((item, future, until))
        if until < self._looks_at:
            self._look_again(until)
        if self._runner is None:
            # A new task begins in the next turn of the loop, after everyone who is ready now.
            self._runner = loop.create_task(self._run())
        return future

    async def flush(self) -> None:
        """Return when everything submitted before this call, or during it, has been answered."""
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def close(self) -> None:
        """Refuse what comes from now on and wait for what is outstanding."""
        self._closed = True
        await self.flush()

    async def _run(self) -> None:
        try:
            while items := self._next():
                answers: Sequence[Answer | Exception]
                try:
                    answers = await self._flush(items)
                except Exception as error:  # noqa: BLE001 - it belongs to the callers
                    answers = self._failed(error)
                if len(answers) != len(self._flying):
                    wrong = f"{len(answers)} answers came back for {len(items)} items"
                    answers = [RuntimeError(wrong) for _ in items]
                for (_, future, _), answer in zip(self._flying, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        finally:
            # Nothing is left here unless the runner itself was cancelled, with its loop.
            for _, future, _ in (*self._flying, *self._waiting):
                future.cancel()
            self._waiting.clear()
            self._flying = []
            self._runner = None

    def _next(self) -> list[Item]:
        """Take those of the next flush, whose entries are ``_flying`` then."""
        batch: list[_Entry[Item, Answer]] = []
        items: list[Item] = []
        earliest, latest = math.inf, -math.inf
        waiting, fits, limit = self._waiting, self._fits, self._limit
        while waiting and len(batch) < limit:
            entry = waiting.popleft()
            item, future, until = entry
            if future.done():
                continue
            if fits is not None and items and not fits(items, item):
                waiting.appendleft(entry)
                break
            items.append(item)
            batch.append(entry)
            if until < earliest:
                earliest = until
            if until > latest:
                latest = until
        self._flying, self.earliest, self.latest = batch, earliest, latest
        return items

    def _failed(self, error: Exception) -> list[Exception]:
        """One answer for each that is still in ``_flying`` after its flush has failed."""
        batch = self._flying
        if self._again is not None and self._again(error):
            over = asyncio.get_running_loop().time() + _STEP
            self._waiting.extendleft(entry for entry in reversed(batch) if entry[2] > over)
            self._flying = [entry for entry in batch if entry[2] <= over]
        return [error, *(own_copy(error) for _ in self._flying[1:])][: len(self._flying)]

    # -- who is late -------------------------------------------------------------------------

    def _look_again(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = moment
        loop = asyncio.get_running_loop()
        self._timer = None if moment == math.inf else loop.call_at(moment, self._look)

    def _look(self) -> None:
        """Tell those who are late. One timer serves all, and most items never touch it."""
        self._timer, now, next = None, asyncio.get_running_loop().time(), math.inf
        extra = self._extra
        for entries, flying, grace in (
            (self._flying, True, _GRACE + extra),
            (self._waiting, False, extra),
        ):
            for _, future, until in entries:
                if future.done():
                    continue
                if until + grace > now:
                    next = min(next, until + grace)
                elif self._late is not None:
                    future.set_result(self._late(flying))
        self._look_again(max(next, now + _STEP))


def own_copy(error: Exception) -> Exception:
    """The same error for another caller: a shared one would collect everybody's traceback."""
    kind = type(error)
    try:
        copy = kind.__new__(kind, *error.args)
    except TypeError:  # a class with a __new__ of its own: better shared than changed
        return error
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    if hasattr(error, "__notes__"):
        copy.__notes__ = list(error.__notes__)  # each caller may add its own
    copy.__cause__, copy.__suppress_context__ = error.__cause__, True
    return copy.with_traceback(error.__traceback__)
