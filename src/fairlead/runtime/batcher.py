"""Group commit: what is submitted while one flush is under way shares the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ("Batcher",)

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_LIMIT = 500


class Batcher(Generic[Item, Answer]):
    """Gathers items into batches, one flush in flight, and gives each caller its own answer.

    ``flush`` gets the items in the order of their submission and returns one answer for each; an
    exception among the answers is raised to its caller only, an exception of ``flush`` itself to
    all callers of that batch. A batcher belongs to one event loop.

    ``fits`` may end a batch before ``limit`` does. It is asked once for each item of a batch, in
    order, with the items before it, so it may keep a running total; for the first item, which has
    an empty list before it, the answer does not count.
    """

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        limit: int = _LIMIT,
        fits: Callable[[list[Item], Item], bool] | None = None,
    ) -> None:
        self._flush = flush
        self._limit = limit
        self._fits = fits
        self._waiting: deque[tuple[Item, asyncio.Future[Answer | Exception]]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, item: Item) -> Answer:
        """Hand in one item and return its answer, or raise its error.

        A caller that is cancelled takes its item back unless a flush has it already.
        """
        if self._closed:
            raise RuntimeError("the batcher is closed")
        loop = asyncio.get_running_loop()
        # Errors travel as results: an exception set on a future whose caller was cancelled in the
        # same tick would be logged as never retrieved.
        future: asyncio.Future[Answer | Exception] = loop.create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            # A new task begins in the next turn of the loop, after everyone who is ready now.
            self._runner = loop.create_task(self._run(), name="batcher")
        answer = await future
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def flush(self) -> None:
        """Return when everything submitted before this call, or during it, has been answered."""
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def close(self) -> None:
        """Refuse what comes from now on and wait for what is outstanding."""
        self._closed = True
        await self.flush()

    async def _run(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Answer | Exception]]] = []
        try:
            while batch := self._next():
                for (_, future), answer in zip(batch, await self._answers(batch), strict=True):
                    if not future.done():
                        future.set_result(answer)
        finally:
            # Nothing is left here unless the runner itself was cancelled, with its loop.
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._waiting.clear()
            self._runner = None

    def _next(self) -> list[tuple[Item, asyncio.Future[Answer | Exception]]]:
        batch: list[tuple[Item, asyncio.Future[Answer | Exception]]] = []
        items: list[Item] = []
        while self._waiting and len(batch) < self._limit:
            item, future = self._waiting[0]
            if not future.cancelled():
                if self._fits is not None and not self._fits(items, item) and items:
                    break
                items.append(item)
                batch.append((item, future))
            self._waiting.popleft()
        return batch

    async def _answers(
        self, batch: list[tuple[Item, asyncio.Future[Answer | Exception]]]
    ) -> Sequence[Answer | Exception]:
        try:
            answers = await self._flush([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - it belongs to the callers, whatever it is
            return [error, *(_own(error) for _ in batch[1:])]
        if len(answers) != len(batch):
            wrong = RuntimeError(f"{len(answers)} answers came back for {len(batch)} items")
            return [_own(wrong) for _ in batch]
        return answers


def _own(error: Exception) -> Exception:
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
