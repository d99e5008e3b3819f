"""Whoever waits is woken by the next item or due time, one at a time, and nobody polls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead.broker import Store
from fairlead.broker.records import EventPage
from fairlead.broker.requests import Alter, Change, LimiterChange, QueueChange, TenantChange
from tests.support.fair import WITH_REAL_CLOCK, LiveClient
from tests.support.store import completed, failed, ids, released, submit

pytestmark = pytest.mark.serial

SOON = 1.0  # seconds within which a wake-up must have come; who missed it wakes after 3 or more
QUEUES = ("default",)


@pytest.fixture(params=WITH_REAL_CLOCK)
async def live_broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A new broker with a real clock, audited afterwards."""
    store = WITH_REAL_CLOCK[request.param]()
    try:
        yield store
        assert await store.audit() == []
    finally:
        await store.close()


@pytest.fixture
def live(live_broker: Store) -> LiveClient:
    return LiveClient(live_broker)


class Waiter:
    """Somebody who waits, and when the waiting was over."""

    def __init__(self, broker: Store, queues: Sequence[str] = QUEUES, timeout: float = 5.0) -> None:
        self.began = time.monotonic()
        self.ended = 0.0
        self.task = asyncio.create_task(self._wait(broker, queues, timeout))

    async def _wait(self, broker: Store, queues: Sequence[str], timeout: float) -> bool:
        woken = await broker.wait(queues, timeout)
        self.ended = time.monotonic()
        return woken

    async def woken_since(self, moment: float) -> float:
        """Seconds from ``moment`` to the wake-up, which must come."""
        assert await asyncio.wait_for(self.task, 10) is True
        return self.ended - moment


async def idle(turns: int = 10) -> None:
    """Let everybody who can run do so, without letting time pass."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def waiting(broker: Store, count: int = 1) -> list[Waiter]:
    waiters = [Waiter(broker) for _ in range(count)]
    await idle()
    assert not any(waiter.task.done() for waiter in waiters)
    return waiters


def done(waiters: Sequence[Waiter]) -> int:
    return sum(waiter.task.done() for waiter in waiters)


async def settled_down(waiters: Sequence[Waiter]) -> int:
    """How many were woken once a wake-up had all the time it takes."""
    await asyncio.sleep(SOON / 2)
    return done(waiters)


async def dismiss(waiters: Sequence[Waiter]) -> None:
    for waiter in waiters:
        waiter.task.cancel()
    await asyncio.gather(*(waiter.task for waiter in waiters), return_exceptions=True)


# -- at once, and at the next item ------------------------------------------------------------


async def test_wait_returns_at_once_when_there_is_something_to_fetch(live: LiveClient) -> None:
    await live.enqueue(submit("t"))
    began = time.monotonic()

    assert await live.broker.wait(QUEUES, 5.0) is True
    assert time.monotonic() - began < SOON
    assert ids(await live.exchange(1)) == ["t"]


async def test_wait_is_false_after_the_timeout(live: LiveClient) -> None:
    for timeout in (0.0, 0.1):
        began = time.monotonic()
        assert await live.broker.wait(QUEUES, timeout) is False
        assert timeout <= time.monotonic() - began + 0.001 < timeout + SOON


async def test_the_next_item_wakes_a_waiter(live: LiveClient) -> None:
    for number in range(20):
        (waiter,) = await waiting(live.broker)
        moment = time.monotonic()
        await live.enqueue(submit(f"t.{number}"))
        assert await waiter.woken_since(moment) < SOON
        (lease,) = await live.exchange(1)
        await live.exchange(0, completed(lease))


async def test_an_item_of_another_queue_wakes_its_own_waiter(live: LiveClient) -> None:
    first = Waiter(live.broker, ("x",))
    second = Waiter(live.broker, ("y", "z"))
    await idle()
    moment = time.monotonic()
    await live.enqueue(submit("t", "a", "z"))

    assert await second.woken_since(moment) < SOON
    await dismiss([first])


async def test_a_released_task_wakes_a_waiter(live: LiveClient) -> None:
    await live.enqueue(submit("t"))
    (lease,) = await live.exchange(1)
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.exchange(0, released(lease))

    assert await waiter.woken_since(moment) < SOON


async def test_a_task_given_back_wakes_a_waiter(live: LiveClient) -> None:
    await live.enqueue(submit("t"))
    await live.exchange(1)
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.broker.give_back("w1")

    assert await waiter.woken_since(moment) < SOON


async def test_a_released_dependent_wakes_a_waiter(live: LiveClient) -> None:
    await live.enqueue(submit("parent"), submit("child", after=["parent"]))
    (lease,) = await live.exchange(2)
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.exchange(0, completed(lease))

    assert await waiter.woken_since(moment) < SOON
    assert ids(await live.exchange(1)) == ["child"]


async def test_a_requeued_task_wakes_a_waiter(live: LiveClient) -> None:
    await live.enqueue(submit("gone"), submit("child", after=["gone"]))
    await live.broker.alter(live.call(), [Alter(id="gone", action="cancel")])
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.broker.alter(live.call(), [Alter(id="child", action="requeue")])

    assert await waiter.woken_since(moment) < SOON


# -- at the due time --------------------------------------------------------------------------


async def test_a_scheduled_task_wakes_a_waiter_when_it_is_due(live: LiveClient) -> None:
    await live.enqueue(submit("t", delay=0.2))
    moment = time.monotonic()
    waiter = Waiter(live.broker)

    assert 0.195 <= await waiter.woken_since(moment) < 0.2 + SOON
    assert ids(await live.exchange(1)) == ["t"]


async def test_a_task_scheduled_while_somebody_waits_wakes_it_when_due(live: LiveClient) -> None:
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.enqueue(submit("t", delay=0.2))

    assert 0.2 <= await waiter.woken_since(moment) < 0.2 + SOON
    assert ids(await live.exchange(1)) == ["t"]


async def test_an_earlier_task_sets_the_alarm_anew(live: LiveClient) -> None:
    await live.enqueue(submit("late", delay=3.0))
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.enqueue(submit("early", delay=0.1))

    assert 0.1 <= await waiter.woken_since(moment) < 0.1 + SOON
    assert ids(await live.exchange(5)) == ["early"]


async def test_a_retried_task_wakes_a_waiter_when_it_is_due(live: LiveClient) -> None:
    await live.enqueue(submit("t"))
    (lease,) = await live.exchange(1)
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.exchange(0, failed(lease, 0.15))

    assert 0.15 <= await waiter.woken_since(moment) < 0.15 + SOON
    assert ids(await live.exchange(1)) == ["t"]


async def test_the_alarm_goes_on_to_another_waiter_when_its_holder_leaves(live: LiveClient) -> None:
    await live.enqueue(submit("t", delay=0.2))
    moment = time.monotonic()
    first, second = await waiting(live.broker, 2)
    await dismiss([first])

    assert 0.195 <= await second.woken_since(moment) < 0.2 + SOON


async def test_every_due_time_of_a_series_wakes(live: LiveClient) -> None:
    began = time.monotonic()
    await live.enqueue(*(submit(f"t.{i}", delay=0.1 + i * 0.1) for i in range(4)))
    for i in range(4):
        waiter = Waiter(live.broker)
        assert 0.095 + i * 0.1 <= await waiter.woken_since(began) < 0.1 + i * 0.1 + SOON
        assert ids(await live.exchange(5)) == [f"t.{i}"]


# -- when there is room again -----------------------------------------------------------------


async def test_a_settlement_that_unparks_a_tenant_wakes_a_waiter(live: LiveClient) -> None:
    await live.configure(TenantChange(tenant="a", concurrency=1))
    await live.enqueue(submit("t.0"), submit("t.1"))
    (lease,) = await live.exchange(5)
    (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.exchange(0, completed(lease))

    assert await waiter.woken_since(moment) < SOON
    assert ids(await live.exchange(1)) == ["t.1"]


async def test_room_in_a_limiter_wakes_the_waiter_of_another_queue(live: LiveClient) -> None:
    await live.configure(LimiterChange(name="gpu", concurrency=1))
    await live.enqueue(
        submit("x", "a", limiters=("gpu",)), submit("y", "b", "other", limiters=("gpu",))
    )
    (lease,) = await live.exchange(5)
    assert await live.exchange(5, queue="other") == []
    waiter = Waiter(live.broker, ("other",))
    await idle()
    assert not waiter.task.done()
    moment = time.monotonic()
    await live.exchange(0, completed(lease))

    assert await waiter.woken_since(moment) < SOON
    assert ids(await live.exchange(1, queue="other")) == ["y"]


LIFTED: dict[str, tuple[Change, Change]] = {
    "the limit of a tenant": (
        TenantChange(tenant="a", concurrency=0),
        TenantChange(tenant="a", concurrency=None),
    ),
    "the limit of a queue": (
        QueueChange(queue="default", concurrency=0),
        QueueChange(queue="default", concurrency=1),
    ),
    "a limiter": (
        LimiterChange(name="gpu", concurrency=0),
        LimiterChange(name="gpu", concurrency=1),
    ),
    "the pause of a queue": (
        QueueChange(queue="default", paused=True),
        QueueChange(queue="default", paused=False),
    ),
    "the pause of a tenant": (
        TenantChange(tenant="a", paused=True),
        TenantChange(tenant="a", paused=False),
    ),
}


@pytest.mark.parametrize("fetched", [False, True], ids=["unseen", "seen"])
@pytest.mark.parametrize(("set_", "lift"), LIFTED.values(), ids=LIFTED)
async def test_lifting_what_holds_work_back_wakes_a_waiter(
    live: LiveClient, set_: Change, lift: Change, fetched: bool
) -> None:
    await live.configure(set_)
    await live.enqueue(submit("t", limiters=("gpu",)))
    if fetched:  # somebody looked, and the tenant was parked
        assert await live.exchange(1) == []
        (waiter,) = await waiting(live.broker)
    else:
        waiter = Waiter(live.broker)
        await idle()
        if waiter.task.done():  # "there may be something": look, then wait again
            assert await live.exchange(1) == []
            (waiter,) = await waiting(live.broker)
    moment = time.monotonic()
    await live.configure(lift)

    assert await waiter.woken_since(moment) < SOON
    assert ids(await live.exchange(1)) == ["t"]


@pytest.mark.parametrize(
    "change",
    [TenantChange(tenant="a", rate=5.0), QueueChange(queue="default", rate=5.0)],
    ids=["tenant", "queue"],
)
async def test_the_next_token_of_a_rate_wakes_a_waiter(live: LiveClient, change: Change) -> None:
    await live.configure(change)
    await live.enqueue(submit("t.0"), submit("t.1"))
    assert ids(await live.exchange(5)) == ["t.0"]
    moment = time.monotonic()
    (waiter,) = await waiting(live.broker)

    assert 0.19 <= await waiter.woken_since(moment) < 0.2 + SOON
    assert ids(await live.exchange(5)) == ["t.1"]


# -- one at a time ----------------------------------------------------------------------------


async def test_one_item_wakes_one_of_three_waiters(live: LiveClient) -> None:
    waiters = await waiting(live.broker, 3)
    await live.enqueue(submit("t"))

    assert await settled_down(waiters) == 1
    assert len(await live.exchange(1)) == 1
    assert await settled_down(waiters) == 1
    await dismiss(waiters)


async def test_one_due_task_wakes_one_of_three_waiters(live: LiveClient) -> None:
    waiters = await waiting(live.broker, 3)
    await live.enqueue(submit("t", delay=0.1))
    await asyncio.sleep(0.1)

    assert await settled_down(waiters) == 1
    assert len(await live.exchange(1)) == 1
    await dismiss(waiters)


async def test_whoever_fetches_and_leaves_work_behind_wakes_the_next(live: LiveClient) -> None:
    waiters = await waiting(live.broker, 3)
    await live.enqueue(*(submit(f"t.{i}") for i in range(5)))
    assert await settled_down(waiters) == 1

    for woken in (2, 3):
        assert len(await live.exchange(1)) == 1
        assert await settled_down(waiters) == woken


async def test_whoever_fetches_everything_wakes_nobody(live: LiveClient) -> None:
    waiters = await waiting(live.broker, 3)
    await live.enqueue(*(submit(f"t.{i}") for i in range(5)))
    assert await settled_down(waiters) == 1

    assert len(await live.exchange(5)) == 5
    assert await settled_down(waiters) == 1
    await dismiss(waiters)


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_cancelled_waiter_passes_its_wake_up_on(live: LiveClient, victim: int) -> None:
    waiters = await waiting(live.broker, 2)
    moment = time.monotonic()
    await live.enqueue(submit("t"))
    waiters[victim].task.cancel()
    await asyncio.wait([waiters[victim].task])

    if waiters[victim].task.cancelled():
        assert await waiters[1 - victim].woken_since(moment) < SOON
    await dismiss(waiters)


async def test_an_item_that_came_while_nobody_waited_is_not_missed(live: LiveClient) -> None:
    for number in range(10):
        (waiter,) = await waiting(live.broker)
        await dismiss([waiter])
        await live.enqueue(submit(f"t.{number}"))
        assert await live.broker.wait(QUEUES, 1.0) is True
        assert ids(await live.exchange(1)) == [f"t.{number}"]


# -- never polls ------------------------------------------------------------------------------


async def test_waiting_does_not_poll(live: LiveClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await live.configure(TenantChange(tenant="p", concurrency=0))
    await live.enqueue(submit("later", delay=60.0), submit("parked", "p"))
    assert await live.exchange(1) == []
    waiters = await waiting(live.broker, 3)
    await asyncio.sleep(0.3)  # a store may have connections to open before it can wait
    loop = asyncio.get_running_loop()
    turns = 0
    call_at, call_soon = loop.call_at, loop.call_soon

    def counted(original: Callable[..., asyncio.Handle]) -> Callable[..., asyncio.Handle]:
        def count(*args: object, **options: object) -> asyncio.Handle:
            nonlocal turns
            turns += 1
            return original(*args, **options)

        return count

    monkeypatch.setattr(loop, "call_at", counted(call_at))
    monkeypatch.setattr(loop, "call_soon", counted(call_soon))
    began = time.process_time()
    await asyncio.sleep(1.0)
    spent = time.process_time() - began
    monkeypatch.undo()

    assert done(waiters) == 0
    assert spent < 0.05
    assert turns < 20
    await dismiss(waiters)


# -- several event loops ----------------------------------------------------------------------


async def test_a_waiter_on_the_loop_of_another_thread_is_woken(live: LiveClient) -> None:
    broker = live.broker
    about_to_wait = threading.Event()

    def elsewhere() -> tuple[bool, float]:
        async def wait() -> bool:
            asyncio.get_running_loop().call_later(0.05, about_to_wait.set)
            return await broker.wait(QUEUES, 5.0)

        return asyncio.run(wait()), time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        waiter = asyncio.get_running_loop().run_in_executor(pool, elsewhere)
        await asyncio.to_thread(about_to_wait.wait)
        moment = time.monotonic()
        await live.enqueue(submit("t"))
        woken, ended = await waiter

    assert woken is True
    assert ended - moment < SOON + 0.05  # and the end of the other loop


async def test_workers_on_the_loops_of_many_threads_take_each_item_once(live: LiveClient) -> None:
    broker = live.broker
    everything = {f"t.{i}" for i in range(300)}
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    async def work(name: str) -> None:
        mine = LiveClient(broker, name)
        while len(seen) < len(everything):
            if not await broker.wait(QUEUES, 0.2):
                continue
            for lease in await mine.exchange(2):
                with lock:
                    seen[lease.message.id] += 1
                assert await mine.exchange(0, completed(lease)) == []

    def thread(name: str) -> None:
        asyncio.run(work(name))

    with ThreadPoolExecutor(4) as pool:
        loop = asyncio.get_running_loop()
        workers = [loop.run_in_executor(pool, thread, f"thread.{i}") for i in range(4)]
        for id in sorted(everything):
            await live.enqueue(submit(id, f"tenant.{id[-1]}"))
        await asyncio.wait_for(asyncio.gather(*workers), 20)

    assert seen == dict.fromkeys(everything, 1)


# -- close ------------------------------------------------------------------------------------


async def test_close_wakes_everyone_who_waits(live: LiveClient) -> None:
    broker = live.broker
    waiters = [waiter.task for waiter in await waiting(broker, 3)]
    others = [
        asyncio.ensure_future(broker.collect("w1", 0, 5.0)),
        asyncio.ensure_future(broker.events(timeout=5.0)),
    ]
    await idle()
    began = time.monotonic()
    await broker.close()
    results = await asyncio.gather(*waiters, *others)

    assert time.monotonic() - began < SOON
    *woken, mail, page = results
    assert (woken, mail) == ([False] * 3, [])
    assert isinstance(page, EventPage)
    assert page.events == []
