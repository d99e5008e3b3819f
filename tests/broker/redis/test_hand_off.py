"""A new task in a queue where nothing waits is lent at once to a worker that waits for it.

Whatever becomes of that worker, the task is neither lost nor run twice at a time, and what nobody
has collected is charged to nobody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import (
    Call,
    Change,
    Fetch,
    LimiterChange,
    QueueChange,
    Submission,
    Taken,
    TenantChange,
)
from fairlead.model.lifecycle import State
from fairlead.model.message import Leased
from tests.broker.redis.straight_pair import PREFIX, everything, made
from tests.support.long_way import woken_lua
from tests.support.store import (
    NOW,
    Client,
    Taking,
    completed,
    events,
    failed,
    ids,
    record,
    states,
    submit,
)
from tests.support.twins import emptied

QUEUES = ("default",)


class Rig:
    """A broker on a server of its own, with a producer, and a raw client of the server."""

    def __init__(self, *, hands_over: bool = True, test_clock: bool = True) -> None:
        self.url = emptied("valkey")
        lua = None if hands_over else woken_lua()
        self.broker = RedisBroker(self.url, test_clock=test_clock, lua=lua)
        place, _, query = self.url.partition("?db=")
        self.raw = redis.Redis(unix_socket_path=place.removeprefix("unix://"), db=int(query))
        self.producer = Client(self.broker, "producer")
        self.takes: list[Taking] = []

    async def know(self, *tenants: str, queues: tuple[str, ...] = QUEUES) -> None:
        """Have each queue know these tenants, with nothing to do."""
        for number, queue in enumerate(queues):
            names = [(made(900 + 10 * number + n), each) for n, each in enumerate(tenants)]
            await self.producer.enqueue(*(submit(id, each, queue) for id, each in names))
            leases = await self.producer.fetch(len(names), [queue])
            await self.producer.settle(*map(completed, leases))
            await self.pop_bells()

    async def pop_bells(self) -> None:
        """Take all wake-ups away that nobody has heard."""
        for key in self.raw.keys(f"{PREFIX}bell*"):
            self.raw.delete(key)

    def take(self, client: Client, queues: tuple[str, ...] = QUEUES) -> Taking:
        """Have a client wait for a task."""
        taking = Taking(self.broker, client.call(), queues)
        self.takes.append(taking)
        return taking

    async def waits(self, client: Client, queues: tuple[str, ...] = QUEUES) -> Taking:
        """The same, when it has been blocked in the server."""
        blocked = self.raw.info("clients")["blocked_clients"]
        taking = self.take(client, queues)
        while self.raw.info("clients")["blocked_clients"] == blocked:
            assert not taking.task.done()
            await asyncio.sleep(0.002)
        return taking

    async def offer(self, client: Client, queues: tuple[str, ...] = QUEUES) -> int:
        """What take does before it sleeps, by somebody who goes no further."""
        call = client.call()
        args: list[Any] = ["t", call.incarnation, call.number, 5.0, 30.0, *queues]
        found = await self.broker.run("offer", args, call)
        return int(found[0])

    async def close(self) -> None:
        await self.broker.close()
        await asyncio.wait_for(
            asyncio.gather(*(each.task for each in self.takes), return_exceptions=True), 10
        )
        self.raw.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Its queue knows the tenants a and b, which have nothing to do."""
    made_rig = Rig()
    await made_rig.know("a", "b")
    try:
        yield made_rig
        assert await made_rig.broker.audit() == []
    finally:
        await made_rig.close()


async def taken(taking: Taking) -> Taken:
    return await taking.told()


async def handed(rig: Rig, client: Client, id: str = made(1)) -> Leased:
    """A task that was handed over to a client which waited."""
    taking = await rig.waits(client)
    await rig.producer.enqueue(submit(id))
    (lease,) = (await taken(taking)).leased
    return lease


# -- what is handed over -----------------------------------------------------------------------


async def test_who_waits_gets_the_task_itself(rig: Rig) -> None:
    worker = Client(rig.broker)
    lease = await handed(rig, worker)
    assert (lease.message.id, lease.message.tenant, lease.attempt) == (made(1), "a", 1)
    assert lease.started
    assert lease.enqueued_at == NOW
    assert await states(rig.broker, made(1)) == [State.RUNNING]
    assert not rig.raw.exists(f"{PREFIX}bell:default")
    assert await worker.settle(completed(lease)) == ["applied"]


def _stored(rig: Rig) -> dict[str, Any]:
    """What is stored, but for who waits and how loans and events came about."""
    found = {key.decode().removeprefix(PREFIX): v for key, v in everything(rig.raw).items()}
    for name in [*found]:
        if name.startswith(("offers:", "handed", "bell", "events", "meta")):
            del found[name]
    answers = found.pop("answers")[1]
    found["producer"] = answers[b"producer"]
    found["idle"] = [each for each in found["idle"][1] if each[1] != b"w1"]  # it made no call
    kind, loans, left = found["held:w1"]
    found["held:w1"] = kind, [(score, text.partition(b"\x1f")[2]) for score, text in loans], left
    return found


COMPARED: dict[str, tuple[Submission, tuple[str, ...]]] = {
    "one task": (submit(made(1)), QUEUES),
    "of another tenant": (submit(made(1), "b"), QUEUES),
    "of a tenant that is new": (submit(made(1), "new"), QUEUES),
    "critical": (submit(made(1), level=0), QUEUES),
    "low": (submit(made(1), level=3), QUEUES),
    "with a cost": (submit(made(1), cost=2.5), QUEUES),
    "with a trace": (submit(made(1), trace=b"00-abc"), QUEUES),
    "to a worker of two queues": (submit(made(1), queue="mail"), ("default", "mail")),
}


@pytest.mark.parametrize("what", COMPARED)
async def test_it_leaves_what_a_wake_up_and_a_fetch_leave(what: str) -> None:
    task, queues = COMPARED[what]
    stored, told = [], []
    for hands_over in (True, False):
        rig = Rig(hands_over=hands_over)
        await rig.know("a", "b", queues=("default", "mail"))
        worker = Client(rig.broker)
        taking = await rig.waits(worker, queues)
        await rig.producer.enqueue(task, now=NOW + 1)
        found = await taken(taking)
        assert bool(found.leased) is hands_over
        if not hands_over:
            found = Taken(leased=await worker.fetch(1, queues, now=NOW + 1))
        (lease,) = found.leased
        stored.append(_stored(rig))
        told.append([(e.kind, e.task, e.queue, e.tenant, e.token, e.attempt, e.reason, e.at)
                     for e in await events(rig.broker)])  # fmt: skip
        assert await worker.settle(completed(lease), now=NOW + 2) == ["applied"]
        assert await rig.broker.audit() == []
        await rig.close()
    assert sorted(stored[0]) == sorted(stored[1])
    for key, value in stored[0].items():
        assert value == stored[1][key], key
    assert told[0] == told[1]


async def test_two_who_wait_get_one_each_the_first_first(rig: Rig) -> None:
    first, second = Client(rig.broker, "w1"), Client(rig.broker, "w2")
    takes = [await rig.waits(first), await rig.waits(second)]
    await rig.producer.enqueue(submit(made(1)))
    assert ids((await taken(takes[0])).leased) == [made(1)]
    assert not takes[1].task.done()
    await rig.producer.enqueue(submit(made(2)))
    assert ids((await taken(takes[1])).leased) == [made(2)]


async def test_a_repeated_enqueue_hands_nothing_over_again(rig: Rig) -> None:
    first, second = Client(rig.broker, "w1"), Client(rig.broker, "w2")
    lease = await handed(rig, first)
    other = await rig.waits(second)
    last = Call("producer", rig.producer.number)
    (receipt,) = await rig.broker.enqueue(last, [submit(made(1))], now=NOW)
    assert (receipt.id, receipt.code, receipt.state) == (made(1), "accepted", State.QUEUED)
    await rig.producer.enqueue(submit(made(2)))
    assert ids((await taken(other)).leased) == [made(2)]
    assert await first.settle(completed(lease)) == ["applied"]


# -- what is left to a wake-up -----------------------------------------------------------------

CHANGES: dict[str, Change] = {
    "a limit on what runs": QueueChange(queue="default", concurrency=5),
    "a rate": QueueChange(queue="default", rate=5.0),
    "a queue that may be full": QueueChange(queue="default", max_waiting=5),
    "a limit of the tenant": TenantChange(tenant="a", concurrency=5),
}


@pytest.mark.parametrize("meanwhile", [False, True], ids=["before", "meanwhile"])
@pytest.mark.parametrize("what", CHANGES)
async def test_a_limit_makes_it_a_wake_up(rig: Rig, what: str, *, meanwhile: bool) -> None:
    worker = Client(rig.broker)
    if not meanwhile:
        await rig.producer.configure(CHANGES[what])
    taking = await rig.waits(worker)
    if meanwhile:
        await rig.producer.configure(CHANGES[what])
    await rig.producer.enqueue(submit(made(1)))
    assert await taken(taking) == Taken(found=True)
    assert ids(await worker.fetch()) == [made(1)]


@pytest.mark.parametrize(
    "change",
    [QueueChange(queue="default", paused=True), TenantChange(tenant="a", paused=True)],
    ids=["queue", "tenant"],
)
async def test_a_pause_that_is_set_meanwhile_holds(rig: Rig, change: Change) -> None:
    taking = await rig.waits(Client(rig.broker))
    await rig.producer.configure(change)
    await rig.producer.enqueue(submit(made(1)))
    assert await states(rig.broker, made(1)) == [State.QUEUED]
    assert not taking.task.done()
    assert not taking.woken.is_set()


@pytest.mark.parametrize(
    "tasks",
    [
        (submit(made(1)), submit(made(2))),
        (submit(made(1), limiters=("gpu",)),),
        (submit("chosen"),),
        (submit(made(1), deadline=5.0),),
    ],
    ids=["two", "limiter", "id", "deadline"],
)
async def test_what_is_not_plain_is_a_wake_up(rig: Rig, tasks: tuple[Submission, ...]) -> None:
    await rig.producer.configure(LimiterChange(name="gpu", concurrency=1))
    worker = Client(rig.broker)
    taking = await rig.waits(worker)
    await rig.producer.enqueue(*tasks)
    assert await taken(taking) == Taken(found=True)
    assert len(await worker.fetch(5)) == len(tasks)


async def test_a_new_tenant_for_which_something_is_set_is_a_wake_up(rig: Rig) -> None:
    await rig.producer.configure(TenantChange(tenant="new", weight=3.0))
    worker = Client(rig.broker)
    taking = await rig.waits(worker)
    await rig.producer.enqueue(submit(made(1), "new"))
    assert await taken(taking) == Taken(found=True)
    assert ids(await worker.fetch()) == [made(1)]


async def test_nothing_is_handed_over_past_a_task_that_waits(rig: Rig) -> None:
    worker = Client(rig.broker)
    await rig.offer(worker)
    await rig.producer.enqueue(submit(made(1), "b"), submit(made(2), "b"))
    await rig.pop_bells()
    await rig.producer.enqueue(submit(made(3)))
    assert await states(rig.broker, made(3)) == [State.QUEUED]


async def test_nor_past_one_in_another_queue_of_the_worker() -> None:
    rig = Rig()
    await rig.know("a", queues=("default", "mail"))
    assert await rig.offer(Client(rig.broker), ("default", "mail")) == 0
    await rig.producer.enqueue(submit(made(1), queue="mail"), submit(made(2), queue="mail"))
    await rig.producer.enqueue(submit(made(3)))
    assert await states(rig.broker, made(3)) == [State.QUEUED]
    await rig.close()


async def test_nor_past_one_that_is_due(rig: Rig) -> None:
    await rig.producer.enqueue(submit(made(1), "b", delay=1.0))
    await rig.offer(Client(rig.broker))
    await rig.producer.enqueue(submit(made(2)), now=NOW + 1)
    assert await states(rig.broker, made(2)) == [State.QUEUED]


async def test_an_exchange_ends_the_wait_and_nothing_is_handed_over_from_then_on(rig: Rig) -> None:
    worker = Client(rig.broker)
    taking = await rig.waits(worker)
    await worker.exchange()
    assert await taken(taking) == Taken()
    await rig.producer.enqueue(submit(made(1)))
    assert await states(rig.broker, made(1)) == [State.QUEUED]
    assert rig.raw.exists(f"{PREFIX}bell:default")
    assert rig.raw.zcard(f"{PREFIX}offers:default") == 0  # and it is not looked at again


async def test_what_was_handed_over_before_that_exchange_is_not_lost(rig: Rig) -> None:
    """Both are on their way at the same time: the exchange is sent before the loan is read."""
    worker = Client(rig.broker)
    taking = await rig.waits(worker)
    await asyncio.gather(rig.producer.enqueue(submit(made(1))), worker.exchange())
    (lease,) = (await taken(taking)).leased
    assert await worker.settle(completed(lease)) == ["applied"]


async def test_a_closed_broker_is_handed_nothing() -> None:
    rig = Rig()
    await rig.know("a")
    other = RedisBroker(rig.url, test_clock=True)
    taking = await rig.waits(Client(rig.broker))
    await rig.broker.close()
    assert await taken(taking) == Taken()
    await Client(other, "p2").enqueue(submit(made(1)))
    assert await states(other, made(1)) == [State.QUEUED]
    await other.close()
    await rig.close()


# -- what nobody collects ----------------------------------------------------------------------


async def uncollected(rig: Rig, worker: Client) -> None:
    """A task was handed over to a worker that died before it could take it."""
    assert await rig.offer(worker) == 0
    await rig.producer.enqueue(submit(made(1)))
    assert await states(rig.broker, made(1)) == [State.RUNNING]


async def uncharged(rig: Rig, now: float) -> None:
    """It is queued as if nothing had happened, and another one gets it."""
    task = await record(rig.broker, made(1), now=now)
    assert (task.state, task.attempts, task.crashes) == (State.QUEUED, 0, 0)
    (lease,) = await Client(rig.broker, "w9").fetch(now=now)
    assert (lease.message.id, lease.attempt) == (made(1), 1)
    assert not rig.raw.keys(f"{PREFIX}handed:*")


async def test_the_sweep_takes_it_back_after_a_second(rig: Rig) -> None:
    await uncollected(rig, Client(rig.broker))
    assert (await rig.broker.sweep(now=NOW + 0.5)).count == 0
    assert (await rig.broker.sweep(now=NOW + 1.5)).count == 1
    await uncharged(rig, NOW + 1.5)


async def test_the_sweep_leaves_what_was_collected(rig: Rig) -> None:
    worker = Client(rig.broker)
    lease = await handed(rig, worker)
    assert (await rig.broker.sweep(now=NOW + 5)).count == 0
    assert await worker.settle(completed(lease), now=NOW + 5) == ["applied"]


@pytest.mark.parametrize("started", [None, ()], ids=["unseen", "seen"])
async def test_who_is_given_up_is_charged_nothing(rig: Rig, started: Any) -> None:
    await uncollected(rig, Client(rig.broker))
    assert (await rig.broker.give_back("w1", started, now=NOW + 5)).count == 1
    await uncharged(rig, NOW + 5)


async def test_who_is_given_up_is_handed_nothing_more(rig: Rig) -> None:
    assert await rig.offer(Client(rig.broker)) == 0
    await rig.broker.give_back("w1", (), now=NOW)
    await rig.producer.enqueue(submit(made(1)))
    assert await states(rig.broker, made(1)) == [State.QUEUED]


async def test_a_collected_one_is_charged_as_ever(rig: Rig) -> None:
    await handed(rig, Client(rig.broker))
    await rig.broker.give_back("w1", None, now=NOW + 5)
    task = await record(rig.broker, made(1), now=NOW + 5)
    assert (task.state, task.attempts, task.crashes) == (State.QUEUED, 1, 1)


async def test_a_beat_takes_it_back_once_the_wait_is_over(rig: Rig) -> None:
    worker = Client(rig.broker)
    await uncollected(rig, worker)
    before = await rig.broker.beat("w1", answered=worker.number - 1, now=NOW + 5)
    assert before.unclaimed == 0  # it may be on its way
    assert (await rig.broker.beat("w1", answered=worker.number, now=NOW + 5)).unclaimed == 1
    task = await record(rig.broker, made(1), now=NOW + 5)
    assert (task.state, task.attempts, task.reason) == (State.QUEUED, 0, "unclaimed")


async def test_the_same_wait_collects_what_came_while_its_connection_was_cut(rig: Rig) -> None:
    worker = Client(rig.broker)
    await uncollected(rig, worker)
    found = await Taking(rig.broker, Call("w1", worker.number)).told()
    assert ids(found.leased) == [made(1)]
    assert await worker.settle(completed(found.leased[0])) == ["applied"]


async def test_a_wait_whose_reply_was_lost_has_the_task_put_back_at_once(rig: Rig) -> None:
    worker = Client(rig.broker)
    await uncollected(rig, worker)
    assert rig.raw.lpop(f"{PREFIX}handed:w1") is not None  # and nobody reads it
    assert await Taking(rig.broker, Call("w1", worker.number)).told() == Taken(found=True)
    await uncharged(rig, NOW)


async def test_the_next_wait_does_the_same_with_what_lies_there(rig: Rig) -> None:
    worker = Client(rig.broker)
    await uncollected(rig, worker)
    assert await Taking(rig.broker, worker.call()).told() == Taken(found=True)
    await uncharged(rig, NOW)


async def test_a_wait_survives_the_end_of_its_connection(rig: Rig) -> None:
    worker = Client(rig.broker)
    taking = await rig.waits(worker)
    for client in rig.raw.client_list():
        if "b" in client["flags"]:
            rig.raw.client_kill_filter(_id=client["id"])
    await rig.producer.enqueue(submit(made(1)))
    assert ids((await taken(taking)).leased) == [made(1)]


async def test_an_offer_ends_by_itself(rig: Rig) -> None:
    await rig.offer(Client(rig.broker))
    await rig.producer.enqueue(submit(made(1)), now=NOW + 8)
    assert await states(rig.broker, made(1), now=NOW + 8) == [State.QUEUED]


async def test_keys_of_another_type_make_it_a_wake_up(rig: Rig) -> None:
    for key in ("handed", "held:w1", "offers:default"):
        worker = Client(rig.broker)
        worker.number = rig.producer.number  # grows
        await rig.offer(worker)
        rig.raw.delete(PREFIX + key)
        rig.raw.set(PREFIX + key, "strange")
        id = made(10 + len(key))
        await rig.producer.enqueue(submit(id))
        assert await states(rig.broker, id) == [State.QUEUED]
        rig.raw.delete(PREFIX + key)
        await rig.producer.settle(*map(completed, await rig.producer.fetch(5)))
        await rig.pop_bells()


# -- histories ---------------------------------------------------------------------------------


class History:
    """Producers, and workers that wait, run, stop, die and lose replies, drawn from a seed."""

    def __init__(self, seed: int, *, hands_over: bool) -> None:
        self.draw = random.Random(seed)
        self.rig = Rig(hands_over=hands_over, test_clock=False)
        self.completed: list[str] = []
        self.running: dict[str, int] = {}
        self.handed = 0
        self.names = 0

    async def run(self, tasks: int) -> set[str]:
        """All tasks that were completed, each once."""
        workers = [asyncio.create_task(self.worker(tasks)) for _ in range(3)]
        upkeep = asyncio.create_task(self.sweep())
        wanted = [made(number) for number in range(1, tasks + 1)]
        caller = Client(self.rig.broker, "producer")
        for id in wanted:
            await asyncio.sleep(self.draw.choice((0.0, 0.0, 0.002, 0.01)))
            tenant, queue = self.draw.choice("ab"), self.draw.choice(("default", "mail"))
            await self.rig.broker.enqueue(caller.call(), [submit(id, tenant, queue)])
        async with asyncio.timeout(60):
            await asyncio.gather(*workers)
        upkeep.cancel()
        assert await self.rig.broker.audit() == []
        await self.rig.close()
        assert len(self.completed) == len(set(self.completed))
        assert set(self.completed) == set(wanted)
        return set(self.completed)

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            await self.rig.broker.sweep()

    async def worker(self, tasks: int) -> None:
        """One incarnation after the other, until all tasks are done."""
        queues = ("default", "mail")
        while len(self.completed) < tasks:
            self.names += 1
            me = Client(self.rig.broker, f"w{self.names}")
            for _ in range(self.draw.randint(1, 20)):
                if len(self.completed) >= tasks:
                    break
                leases = await self.wait(me, queues)
                if self.draw.random() < 0.1:  # it dies, with or without having begun
                    break
                await self.work(me, leases)
            await self.rig.broker.give_back(me.incarnation, ())

    async def wait(self, me: Client, queues: tuple[str, ...]) -> list[Leased]:
        """Wait; be interrupted by an exchange sometimes; fetch if that is what is to be done."""
        taking = Taking(self.rig.broker, me.call(), queues, 0.2)
        if self.draw.random() < 0.3:
            await asyncio.sleep(self.draw.random() * 0.01)
        else:
            await taking.told()
        fetch = Fetch(queues=queues, max=self.draw.choice((1, 3)))
        leases: list[Leased] = []
        if not (taking.task.done() and taking.task.result().leased):
            leases += (await self.rig.broker.exchange(me.call(), fetch=fetch)).leased
        late = (await taking.over()).leased
        self.handed += len(late)
        return leases + late

    async def work(self, me: Client, leases: list[Leased]) -> None:
        settlements = []
        for lease in leases:
            id = lease.message.id
            assert id not in self.running, "it runs twice at the same time"
            self.running[id] = lease.token
            await asyncio.sleep(self.draw.choice((0.0, 0.001)))
            ends_well = self.draw.random() < 0.9
            settlements.append(completed(lease) if ends_well else failed(lease, 0.0))
        for lease in leases:
            del self.running[lease.message.id]
        reply = await self.rig.broker.exchange(me.call(), settlements)
        assert set(reply.settled) <= {"applied"}
        self.completed += [s.id for s in settlements if s.to is State.COMPLETED]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
async def test_histories_end_alike_with_and_without_it(seed: int) -> None:
    histories = [History(seed, hands_over=each) for each in (True, False)]
    done = [await history.run(60) for history in histories]
    assert done[0] == done[1]
    assert histories[0].handed > 0
    assert histories[1].handed == 0
