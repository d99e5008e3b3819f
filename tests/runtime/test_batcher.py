"""Group commit: order, own answers, one flush at a time."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence

import pytest

from fairlead.model.errors import QueueFull
from fairlead.runtime.batcher import Batcher


class Sink:
    """A flush that stops at a gate, so that tests decide when it ends."""

    def __init__(self, *, open: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.begun = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.at_once = 0
        self.most_at_once = 0
        self.answer: Callable[[int], int | Exception] = lambda item: item * 10
        if open:
            self.gate.set()

    async def __call__(self, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append(items)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.release()
        try:
            await self.gate.wait()
            return [self.answer(item) for item in items]
        finally:
            self.at_once -= 1


async def start(batcher: Batcher[int, int], items: Sequence[int]) -> list[asyncio.Task[int]]:
    """Submit items, each from a task of its own, and return once all are handed in."""
    tasks = [asyncio.create_task(batcher.submit(item)) for item in items]
    await asyncio.sleep(0)
    return tasks


async def test_each_caller_gets_its_own_answer() -> None:
    batcher = Batcher(Sink())
    assert await asyncio.gather(*(batcher.submit(n) for n in range(100))) == [
        n * 10 for n in range(100)
    ]


async def test_concurrent_calls_on_an_idle_batcher_share_the_first_flush() -> None:
    sink = Sink()
    batcher = Batcher(sink)
    await asyncio.gather(*(batcher.submit(n) for n in range(100)))
    assert sink.batches == [list(range(100))]


async def test_what_arrives_during_a_flush_shares_the_next_in_order() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink)
    first = await start(batcher, [1])
    await sink.begun.acquire()
    others = await start(batcher, [2, 3]) + await start(batcher, [4])
    assert sink.batches == [[1]]

    sink.gate.set()
    assert await asyncio.gather(*first, *others) == [10, 20, 30, 40]
    assert sink.batches == [[1], [2, 3, 4]]


async def test_only_one_flush_is_in_flight() -> None:
    sink = Sink()
    batcher = Batcher(sink, limit=3)

    async def busy(start: int) -> None:
        for n in range(start, start + 20):
            assert await batcher.submit(n) == n * 10

    await asyncio.gather(*(busy(100 * i) for i in range(10)))
    assert sink.most_at_once == 1
    assert sum(map(len, sink.batches)) == 200


async def test_a_batch_ends_at_the_limit() -> None:
    sink = Sink()
    batcher = Batcher(sink, limit=4)
    await asyncio.gather(*(batcher.submit(n) for n in range(10)))
    assert sink.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_a_batch_ends_where_an_item_does_not_fit() -> None:
    sink = Sink()
    batcher = Batcher(sink, fits=lambda batch, item: sum(batch) + item <= 10)
    await asyncio.gather(*(batcher.submit(n) for n in [4, 6, 1, 99, 1, 2]))
    assert sink.batches == [[4, 6], [1], [99], [1, 2]]


async def test_fits_is_asked_once_for_each_item_of_a_batch_but_the_first() -> None:
    asked: list[tuple[list[int], int]] = []

    def fits(batch: list[int], item: int) -> bool:
        asked.append((list(batch), item))
        return len(batch) < 2

    await asyncio.gather(*(Batcher(Sink(), fits=fits).submit(n) for n in [1]))
    asked.clear()
    batcher = Batcher(Sink(), fits=fits)
    await asyncio.gather(*(batcher.submit(n) for n in [1, 2, 3]))
    assert asked == [([1], 2), ([1, 2], 3)]


async def test_an_error_among_the_answers_reaches_its_caller_only() -> None:
    sink = Sink()
    sink.answer = lambda item: KeyError("two") if item == 2 else item
    batcher = Batcher(sink)
    answers = await asyncio.gather(*map(batcher.submit, [1, 2, 3]), return_exceptions=True)
    assert answers[0] == 1
    assert isinstance(answers[1], KeyError)
    assert answers[2] == 3


async def test_a_failed_flush_fails_all_of_its_batch_and_no_other() -> None:
    calls = 0

    async def flush(items: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise QueueFull("mail", 7)
        return items

    batcher = Batcher(flush, limit=2)
    answers = await asyncio.gather(*map(batcher.submit, [1, 2, 3]), return_exceptions=True)
    assert answers[2] == 3
    first, second = answers[:2]
    assert isinstance(first, QueueFull)
    assert isinstance(second, QueueFull)
    assert first is not second  # or each would show the other's traceback
    assert (second.queue, second.limit, str(second)) == ("mail", 7, str(first))
    assert "in flush" in "".join(traceback.format_exception(second))


async def test_a_wrong_number_of_answers_is_an_error_for_everyone() -> None:
    async def flush(items: list[int]) -> list[int]:
        return items[1:]

    batcher = Batcher(flush)
    answers = await asyncio.gather(*map(batcher.submit, [1, 2]), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["1 answers came back for 2 items"] * 2


async def test_a_cancelled_caller_takes_its_item_back_and_disturbs_nobody() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink)
    (first,) = await start(batcher, [1])
    await sink.begun.acquire()
    second, third = await start(batcher, [2, 3])
    second.cancel()

    sink.gate.set()
    assert [await first, await third] == [10, 30]
    assert sink.batches == [[1], [3]]
    assert second.cancelled()


async def test_a_caller_cancelled_during_its_flush_disturbs_nobody() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink)
    first, second = await start(batcher, [1, 2])
    await sink.begun.acquire()
    first.cancel()
    await asyncio.wait([first])

    sink.gate.set()
    assert await second == 20
    assert await batcher.submit(3) == 30


async def test_flush_waits_for_what_is_outstanding() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink, limit=1)
    tasks = await start(batcher, [1, 2])
    await sink.begun.acquire()
    flush = asyncio.create_task(batcher.flush())
    await asyncio.sleep(0)
    assert not flush.done()

    sink.gate.set()
    await flush
    assert sink.batches == [[1], [2]]
    assert [await task for task in tasks] == [10, 20]


async def test_a_closed_batcher_finishes_and_refuses() -> None:
    sink = Sink()
    batcher = Batcher(sink)
    (task,) = await start(batcher, [1])
    await batcher.close()
    assert await task == 10
    with pytest.raises(RuntimeError, match="closed"):
        await batcher.submit(2)


async def test_callers_are_cancelled_with_the_loop_that_serves_them() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink)
    (task,) = await start(batcher, [1])
    await sink.begun.acquire()
    for other in asyncio.all_tasks() - {asyncio.current_task(), task}:
        other.cancel()  # as asyncio.run does at its end
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_there_is_one_task_for_a_whole_batch() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink)
    before = len(asyncio.all_tasks())
    tasks = await start(batcher, list(range(50)))
    assert len(asyncio.all_tasks()) == before + 50 + 1  # ours, and the batcher's one
    sink.gate.set()
    await asyncio.gather(*tasks)


async def test_each_caller_of_a_failed_flush_may_add_a_note_of_its_own() -> None:
    async def fails(items: list[int]) -> list[int]:
        error = LookupError("nothing there")
        error.add_note("from the flush")
        raise error

    batcher: Batcher[int, int] = Batcher(fails)
    errors = await asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True)
    for n, error in enumerate(errors):
        assert isinstance(error, LookupError)
        error.add_note(f"from caller {n}")
    assert [getattr(error, "__notes__", None) for error in errors] == [
        ["from the flush", f"from caller {n}"] for n in range(3)
    ]


# -- time -------------------------------------------------------------------------------------


def late(in_flight: bool) -> Exception:
    return TimeoutError("in flight" if in_flight else "waiting")


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_who_is_late_is_told_whether_a_flush_has_the_item() -> None:
    sink = Sink(open=False)
    batcher = Batcher(sink, late=late)
    flying = asyncio.create_task(batcher.submit(1, soon(0.1)))
    await sink.begun.acquire()
    waiting = asyncio.create_task(batcher.submit(2, soon(0.05)))
    patient = asyncio.create_task(batcher.submit(3))
    with pytest.raises(TimeoutError, match="waiting"):
        await waiting
    with pytest.raises(TimeoutError, match="in flight"):
        await flying
    sink.gate.set()
    assert await patient == 30
    assert sink.batches == [[1], [3]]


async def test_a_flush_knows_the_times_of_its_batch() -> None:
    times: list[tuple[float, float]] = []

    async def flush(items: list[int]) -> list[int]:
        times.append((batcher.earliest, batcher.latest))
        return items

    batcher: Batcher[int, int] = Batcher(flush, late=late)
    await asyncio.gather(batcher.submit(1, 5e9), batcher.submit(2, 4e9), batcher.submit(3, 6e9))
    assert times == [(4e9, 6e9)]


async def test_a_failure_before_anything_was_done_is_for_those_whose_time_is_over() -> None:
    batches: list[list[int]] = []

    async def flush(items: list[int]) -> list[int]:
        batches.append(items)
        if len(batches) < 3:
            raise ConnectionError("not yet")
        return items

    batcher: Batcher[int, int] = Batcher(
        flush, again=lambda error: isinstance(error, ConnectionError), late=late
    )
    items = [(1, 60.0), (2, 0.0), (3, 60.0)]
    answers = await asyncio.gather(
        *(batcher.submit(item, soon(left)) for item, left in items), return_exceptions=True
    )
    assert isinstance(answers[1], ConnectionError)
    assert (answers[0], answers[2]) == (1, 3)
    assert batches == [[1, 2, 3], [1, 3], [1, 3]]
