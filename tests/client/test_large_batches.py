"""Many plain tasks in several calls: while one is under way, the next is made ready."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import uvloop

from fairlead import Conflict, Fairlead
from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.packed_submissions import PackedSubmissions
from fairlead.broker.requests import Call, Durability, Receipt, Submission
from fairlead.broker.submissions import Submissions
from fairlead.client.batch import handles_of, submissions_of
from fairlead.client.call import TaskCall
from fairlead.client.client import Client
from tests.client.test_submit_path import order
from tests.support.servers import Running, shared


@pytest.fixture
def running() -> Iterator[Running]:
    with shared() as made:
        yield made


class Seen:
    """How many tasks each call had, and how many calls were under way at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.packed: list[int] = []  # waiting for their call, or in it
        self.most = self._now = 0
        self.when: Callable[[int], Any] = lambda _: None  # at the beginning of a call, by number
        enqueue = RedisBroker.enqueue

        async def counted(
            broker: RedisBroker, call: Call, submissions: Sequence[Submission]
        ) -> list[Receipt]:
            self.sizes.append(len(submissions))
            self.packed.append(sum(type(each) is PackedSubmissions for each in gc.get_objects()))
            self.when(len(self.sizes))
            self._now += 1
            self.most = max(self.most, self._now)
            try:
                return await enqueue(broker, call, submissions)
            finally:
                self._now -= 1

        patch.setattr(RedisBroker, "enqueue", counted)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def an_app(url: str, **options: Any) -> tuple[Fairlead, Any]:
    app = Fairlead(url, **options)

    @app.task(name="work")
    def work(n: int) -> int:
        return n

    return app, work


@pytest.mark.parametrize(
    ("tasks", "sizes"),
    [(500, [500]), (501, [500, 1]), (1_000, [500] * 2), (1_600, [500] * 3 + [100])],
)
async def test_what_needs_several_calls_goes_in_few_one_after_the_other(
    running: Running, seen: Seen, tasks: int, sizes: list[int]
) -> None:
    app, work = an_app(running.url)
    async with app:
        handles = await app.aenqueue_many([work.call(n) for n in range(tasks)])
        assert seen.sizes == sizes
        assert seen.most == 1
        assert max(seen.packed) <= 2  # no more of it is in memory at once
    assert await order(running, tasks) == [handle.id for handle in handles]


async def test_each_handle_is_of_its_own_call(running: Running) -> None:
    app, work = an_app(running.url)

    @app.task(name="other")
    def other(n: int) -> str:
        return str(n)

    async with app:
        kinds = [work, work, other, work.using(tenant="acme"), other.using(id="named")]
        calls = [kinds[n % 4].call(n) for n in range(1_203)]
        calls[700] = kinds[4].call(700)
        known = [*range(3), *range(499, 502), 700, 1_202]
        await app.aenqueue_many([calls[n] for n in known])
        handles = await app.aenqueue_many(calls)
        assert [handle.id for handle in handles] == [call.id for call in calls]
        assert [handle.task for handle in handles] == [call.spec.name for call in calls]
        assert [n for n, handle in enumerate(handles) if handle.duplicate] == known
        assert {handle.tenant for handle in handles[3::4]} == {"acme"}
        assert {handle.tenant for handle in handles[::4]} == {"default"}
        await app.drain(limit=None)
        results = [await handles[n].aresult(timeout=10) for n in (0, 2, 3, 700, 1_202)]
        assert results == [0, "2", 3, "700", "1202"]


@pytest.mark.parametrize("place", [0, 1, 700, 999])
async def test_what_one_call_of_many_needs_counts_for_all(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    app, work = an_app("memory://")
    await work.aenqueue(0)  # from here on calls are plainly right
    said: list[tuple[float | None, str]] = []
    submit = Client.submit_many

    async def noted(
        client: Client, submissions: Submissions, limit: float | None, durability: Durability
    ) -> list[Receipt]:
        said.append((limit, durability))
        return await submit(client, submissions, limit, durability)

    monkeypatch.setattr(Client, "submit_many", noted)
    calls = [work.call(n) for n in range(1_000)]
    await app.aenqueue_many(calls)
    calls[place] = work.using(enqueue_timeout="9s", durability="committed").call(0)
    await app.aenqueue_many(calls)
    assert said == [(None, "spooled"), (9.0, "committed")]
    await app.aclose()


@pytest.mark.parametrize("kind", ["plain", "odd", "named", "mixed"])
def test_a_call_of_many_is_looked_at_a_few_times_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    app, work = an_app("memory://")

    @app.task
    def other(n: object) -> None: ...

    kinds: dict[str, Callable[[int], Any]] = {
        "plain": work.call,
        "odd": lambda n: other.call({"n": n}),
        "named": lambda n: work.call(n=n),
        "mixed": lambda n: (work, other)[n % 2].call(n),
    }
    calls = [kinds[kind](n) for n in range(400)]
    looked = 0
    place = TaskCall.__dict__["args"]

    def counted(call: TaskCall[Any]) -> Any:
        nonlocal looked
        looked += 1
        return place.__get__(call)

    monkeypatch.setattr(TaskCall, "args", property(counted))
    made, submissions = submissions_of(calls, app._registry)
    assert looked < 10 * len(calls)

    class Counted(list[Receipt]):
        walks = 0

        def __iter__(self) -> Iterator[Receipt]:
            self.walks += 1
            return super().__iter__()

    receipts = Counted(Receipt(id=call.id, code="accepted") for call in calls)
    assert len(handles_of(app._clients, made, submissions, receipts)) == len(calls)
    assert receipts.walks < 5


def test_there_is_no_handle_without_a_receipt() -> None:
    app, work = an_app("memory://")
    calls, submissions = submissions_of([work.call(n) for n in range(3)], app._registry)
    receipts = [Receipt(id=call.id, code="accepted") for call in calls]
    assert len(handles_of(app._clients, calls, submissions, receipts)) == 3
    with pytest.raises(ValueError, match="2 receipts came back for 3 calls"):
        handles_of(app._clients, calls, submissions, receipts[:2])


@pytest.mark.parametrize("refused", [0, 300, 999])
async def test_a_refusal_in_any_call_is_raised_once_all_were_tried(
    running: Running, refused: int
) -> None:
    app, work = an_app(running.url)
    async with app:
        await work.using(id="taken").aenqueue(-1)
        calls = [work.call(n) for n in range(1_000)]
        calls[refused] = work.using(id="taken").call(refused)
        with pytest.raises(Conflict) as caught:
            await app.aenqueue_many(calls)
        assert caught.value.__notes__[0].startswith("999 of 1000 tasks were accepted")
        assert (await app.asnapshot()).ready == 1_000


class Sealed:
    """Like encryption: other bytes each time."""

    name = "sealed"

    def encode(self, data: bytes) -> bytes:
        return os.urandom(8) + data

    def decode(self, data: bytes) -> bytes:
        return data[8:]


async def test_what_only_looks_like_other_content_is_a_duplicate_in_every_call(
    running: Running,
) -> None:
    app, work = an_app(running.url, codec=Sealed())
    async with app:
        calls = [work.call(n) for n in range(1_000)]
        await app.aenqueue_many(calls[300:600])
        handles = await app.aenqueue_many(calls)
        assert [handle.id for handle in handles] == [call.id for call in calls]
        assert [handle.duplicate for handle in handles] == [300 <= n < 600 for n in range(1_000)]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_after_a_cancellation_no_further_call_is_made(
    running: Running, seen: Seen, number: int
) -> None:
    app, work = an_app(running.url)
    async with app:
        calls = [work.call(n) for n in range(1_500)]
        sending = asyncio.ensure_future(app.aenqueue_many(calls))
        seen.when = lambda at: at == number and sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert len(seen.sizes) == number
        again = await app.aenqueue_many(calls)
        assert sum(handle.duplicate for handle in again) in (500 * (number - 1), 500 * number)
    assert await order(running, 1_500) == [call.id for call in calls]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_call_is_on_its_way_before_the_next_is_made_ready(
    running: Running, seen: Seen, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], Any]
) -> None:
    left: list[tuple[int, int]] = []  # bytes that were not written yet, and calls so far
    packed = RedisBroker.packed

    def looked(broker: RedisBroker, submissions: Sequence[Submission]) -> Any:
        session = broker._sessions[asyncio.get_running_loop()]
        wire = session.server.ready()
        assert wire is not None
        left.append((wire._transport.get_write_buffer_size(), len(seen.sizes)))
        return packed(broker, submissions)

    async def main() -> None:
        app, work = an_app(running.url)
        async with app:
            await work.aenqueue(0)
            seen.sizes.clear()
            monkeypatch.setattr(RedisBroker, "packed", looked)
            await app.aenqueue_many([work.call(n) for n in range(2_000)])

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert left == [(0, 1), (0, 2), (0, 3)]
