"""Any commands in any order: after each, the stored tasks are what the contract says they are.

The machine knows a reference that is only dictionaries. With a server it drives two brokers side by
side, which must answer everything alike. FAIRLEAD_EXAMPLES multiplies its runs.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import (
    HEARTBEAT,
    LAYOUT,
    MAX_PAGE,
    MAX_STEP,
    Alter,
    Altered,
    BeatReply,
    Call,
    ExchangeReply,
    LeaseRef,
    Mail,
    Moved,
    QueueChange,
    Setting,
    Settled,
    TenantChange,
    Watched,
    Write,
)
from fairlead.model.errors import InvalidInput, OutOfOrder
from fairlead.model.lifecycle import FINAL, WAITING, State
from tests.broker.machine import Core
from tests.support import servers
from tests.support.draws import ANY, CHANGES, CLIENTS, IDS, LEVELS, QUEUES, TENANTS, op
from tests.support.fair import LONGER, examples
from tests.support.store import NOW, Client, completed, submit
from tests.support.twins import on_server, twins

_USEFUL = {
    "cancel": WAITING,
    "requeue": {State.DEAD},
    "delete": FINAL,
    "run": {State.SCHEDULED, State.RETRYING},
    "prioritize": WAITING,
}


class BrokerMachine(Core):
    """Drives one broker and the reference side by side."""

    @op(2, client=CLIENTS, lease=st.sampled_from([5.0, 30.0]), described=st.booleans())
    def beat(self, client: str, lease: float, described: bool) -> None:
        held = [LeaseRef(x.message.id, owner, x.token) for owner, x in self.granted[-6:]]
        held = [ref for ref in held if ref.incarnation == client]
        now = self.model.now
        worker = WorkerRecord(incarnation=client, queues=("x", "y"), details={"n": len(held)})
        reply: BeatReply = self.run(
            self.broker.beat(
                client, held, worker=worker if described else None, lease=lease, now=now
            )
        )
        mine = self.model.leases(client)
        lost = [r for r in held if self.model.answer(r.id, client, r.token) != "applied"]
        assert reply.lost == lost
        assert {ref.id for ref in reply.cancelled} == {i for i, t in mine.items() if t.cancelling}
        if mine:
            self.ends[client] = max(self.ends[client], self.model.now + lease)

    def in_steps(self, expected: dict[str, State], verb: Callable[[], Awaitable[Moved]]) -> Moved:
        """Let a verb give leases back until there are no more: these tasks, and no others."""
        left = len(expected)
        while True:
            moved: Moved = self.run(verb())
            assert moved.count == min(left, MAX_STEP)
            left -= moved.count
            self.follow()
            if not moved.more:
                break
            assert moved.count == MAX_STEP, "it stopped before its step was full"
        assert left == 0
        self.must_be(expected)
        return moved

    @op(2, client=CLIENTS, size=st.integers(1, 4), times=st.integers(1, 3))
    def crash_again_and_again(self, client: str, size: int, times: int) -> None:
        for _ in range(times):
            self.fetch(client, size, held=False)
            self.crash(client, None)

    @op(1, client=CLIENTS, started=st.none() | st.lists(IDS, max_size=6))
    def crash(self, client: str, started: list[str] | None) -> None:
        expected = self.model.lost(client, started)
        now = self.model.now
        self.in_steps(expected, lambda: self.broker.give_back(client, started, now=now))

    @op(
        3,
        client=CLIENTS,
        which=st.lists(ANY, min_size=1, max_size=3),
        kind=st.sampled_from(["progress", "checkpoint", "xcom", "xcom"]),
        key=st.sampled_from(["k1", "k2"]),
        value=st.sampled_from([b"", b"1", b"22"]),
        ttl=st.sampled_from([1.0, 86_400.0]),
    )
    def write(
        self, client: str, which: list[int], kind: Any, key: str, value: bytes, ttl: float
    ) -> None:
        marks = [mark for each in which if (mark := self._mark(client, each)) is not None]
        mine = [LeaseRef(id, client, task.token) for id, task in self.model.leases(client).items()]
        leases = [*marks, *mine[:1]]
        writes = [Write(lease=each, kind=kind, key=key, value=value, ttl=ttl) for each in leases]
        now = self.model.now
        answers: list[Settled] = self.numbered(
            client, lambda call: self.broker.write(call, writes, now=now)
        )
        assert answers == [self.model.wrote(each) for each in writes]
        assert set(self.follow()) <= {"progress"}

    @op(1, tenant=TENANTS)
    def pull(self, tenant: str) -> None:
        keys = ["k1", "k2", "k3"]
        found = self.run(self.broker.pull(tenant, keys, now=self.model.now))
        assert found == self.model.pulled(tenant, keys)

    # -- those who wait ---------------------------------------------------------------------

    @op(3, client=CLIENTS, which=st.lists(ANY, min_size=1, max_size=4))
    def watch(self, client: str, which: list[int]) -> None:
        names = [*self.model.tasks, "ghost"]
        asked = [names[i % len(names)] for i in which]
        found: list[Watched] = self.run(self.broker.watch(client, asked, now=self.model.now))
        states = {id: task.state for id, task in self.model.tasks.items()}
        assert found == [Watched(id, states.get(id)) for id in asked]
        self.watched.update((client, id) for id in asked)

    @op(2, client=CLIENTS, confirm=st.booleans())
    def collect(self, client: str, confirm: bool) -> None:
        after = self.mail[client] if confirm else 0
        letters: list[Mail] = self.run(self.broker.collect(client, after, 0.0))
        numbers = [letter.number for letter in letters]
        assert numbers == sorted(set(numbers))
        assert all(number > after for number in numbers)
        for letter in letters:
            assert letter.kind == "cancel" or (client, letter.id) in self.watched
        self.mail[client] = max([self.mail[client], *numbers])

    @op(1, queues=st.sampled_from([("x",), ("y",), ("y", "x"), ("z",)]))
    def wait(self, queues: tuple[str, ...]) -> None:
        if self.crowded:  # a wait goes as many steps as the store likes
            self.promote()
        found = self.run(self.broker.wait(queues, 0.0))
        self.follow()
        assert found or not any(self.model.servable(queue) for queue in queues)
        assert self.run(self.broker.hello()).layout == LAYOUT

    @op(1, reader=st.sampled_from(["r1", "r2"]), limit=st.integers(1, 40), confirm=st.booleans())
    def read_events(self, reader: str, limit: int, confirm: bool) -> None:
        if self.purged:  # the events of a purge have no order that a limit could cut
            limit = MAX_PAGE
        after = self.readers.get(reader) if confirm else None
        page = self.run(self.broker.events(after=after, reader=reader, limit=limit))
        assert len(page.events) <= limit
        assert not page.gap
        self.readers[reader] = page.last if page.events else after

    @op(1, reader=st.sampled_from(["r1", "r2"]))
    def forget_reader(self, reader: str) -> None:
        assert self.run(self.broker.forget_reader(reader)) == (reader in self.readers)
        self.readers.pop(reader, None)

    # -- time and upkeep --------------------------------------------------------------------

    @op(5, seconds=st.sampled_from([0.5, 1.0, 3.0, 6.0, 9.0, 20.0]))
    def tick(self, seconds: float) -> None:
        self.model.now += seconds

    @op(1, days=st.sampled_from([0.05, 3.0, 8.0]), rarely=st.booleans())
    def long_silence(self, days: float, rarely: bool) -> None:
        if rarely:
            return
        self.model.now += days * 86_400
        self.repeat.clear()  # answers are kept for an hour

    @op(3)
    def sweep(self) -> None:
        now = self.model.now
        if self.last_sweep is None or now - self.last_sweep > HEARTBEAT:
            self.guard = now + HEARTBEAT
        self.last_sweep = now
        over = [
            client
            for client, end in self.ends.items()
            if end <= now and self.model.leases(client) and now >= self.guard
        ]
        expected: dict[str, State] = {}
        for client in over:
            expected |= self.model.lost(client, None)
        moved = self.in_steps(expected, lambda: self.broker.sweep(now=now))
        assert moved.guarded == (now < self.guard)

    @op(2)
    def promote(self) -> None:
        now = self.model.now
        more = True
        while more:
            more = self.run(self.broker.promote(now=now)).more
            self.follow()
        for task in self.model.having(*WAITING):
            if task.state in {State.SCHEDULED, State.RETRYING}:
                assert task.due is not None
                assert task.due > now
            if not task.ever_started and not task.generation:
                assert task.deadline is None or now <= task.deadline

    @op(1)
    def deliver(self) -> None:
        self.run(self.broker.deliver(now=self.model.now))

    @op(1)
    def tidy(self) -> None:
        while self.run(self.broker.tidy(now=self.model.now)).more:
            pass
        self.tidied = True

    # -- operators --------------------------------------------------------------------------

    @op(
        4,
        client=CLIENTS,
        action=st.sampled_from(["cancel", "requeue", "delete", "run", "prioritize"]),
        which=st.lists(ANY, min_size=1, max_size=3),
        tenant=st.none() | TENANTS,
        level=LEVELS,
    )
    def alter(
        self, client: str, action: Any, which: list[int], tenant: str | None, level: int
    ) -> None:
        now = self.model.now
        names = [*self.model.tasks, "ghost"]
        orders = list(dict.fromkeys(names[i % len(names)] for i in which))
        asked = [Alter(id=id, action=action, tenant=tenant, level=level) for id in orders]
        before = {id: self.model.tasks[id].state for id in orders if id in self.model.tasks}
        answers: list[Altered] = self.numbered(
            client, lambda call: self.broker.alter(call, asked, now=now)
        )
        for order, answer in zip(asked, answers, strict=True):
            task, state = self.model.tasks.get(order.id), before.get(order.id)
            if task is None or tenant not in (None, task.message.tenant):
                assert answer.code == "unknown"
            elif action == "cancel" and state is State.RUNNING:
                assert answer.code == "requested"
            elif state in _USEFUL[action] and not (action == "cancel" and len(orders) > 1):
                moved = action != "prioritize" or task.lane[2] != level
                assert answer.code == ("done" if moved else "unchanged")
            elif len(orders) == 1:
                assert (answer.code, answer.state) == ("unchanged", state)
        self.follow()
        for answer in answers:
            if answer.code == "done" and action == "cancel":
                assert self.model.tasks[answer.id].state is State.CANCELLED
            elif answer.code == "done" and action == "prioritize":
                assert self.model.tasks[answer.id].lane[2] == level
            elif answer.code == "done" and action in ("requeue", "run"):
                assert self.model.tasks[answer.id].state is State.QUEUED
            elif answer.code == "done":
                assert answer.id not in self.model.tasks
            elif answer.code == "requested":
                assert self.model.tasks[answer.id].cancelling

    @op(1, client=CLIENTS, queue=QUEUES, tenant=st.none() | TENANTS)
    def purge(self, client: str, queue: str, tenant: str | None) -> None:
        if self._order_matters(queue, tenant):
            return
        self.purged = True
        now = self.model.now
        self.numbered(client, lambda call: self.broker.purge(call, queue, tenant, now=now))
        self.follow()
        assert self.model.waiting(queue, tenant) == []

    def _order_matters(self, queue: str, tenant: str | None) -> bool:
        """Whether others would see in which order a purge ends these tasks: the store's own.

        They would if it took more than one step.
        """
        doomed = {task.message.id for task in self.model.waiting(queue, tenant)}
        others = [t for t in self.model.having(State.DEFERRED) if t.message.id not in doomed]
        tied = doomed.intersection(*[set().union(*(task.waits_for for task in others))])
        tied |= doomed.intersection(id for _, id in self.watched)
        return len(tied) > 1 or len(doomed) > MAX_STEP

    @op(4, client=CLIENTS, changes=st.lists(CHANGES, min_size=1, max_size=2))
    def configure(self, client: str, changes: list[Setting]) -> None:
        now = self.model.now
        self.numbered(client, lambda call: self.broker.configure(call, changes, now=now))
        for change in changes:
            self.model.settings.change(change)

    @op(2, client=CLIENTS)
    def repeat_the_last_call(self, client: str) -> None:
        if client not in self.repeat:
            return
        verb, call, reply = self.repeat[client]
        again = self.run(verb(call))
        if isinstance(reply, ExchangeReply):
            assert (again.settled, again.started) == (reply.settled, reply.started)
            kept = [x for x in reply.leased if self._in_force(client, x)]
            assert [x for x in again.leased if self._in_force(client, x)] == kept
        else:
            assert again == reply
        assert self.follow() == [], "a repeated call changed something"

    @op(1, client=CLIENTS)
    def go_back_to_an_earlier_call(self, client: str) -> None:
        if client not in self.repeat:
            return
        _, call, _ = self.repeat[client]
        earlier = Call(client, call.number - 1)
        now = self.model.now
        with pytest.raises(OutOfOrder):
            self.run(self.broker.enqueue(earlier, [submit("late")], now=now))

        async def as_another_verb() -> None:  # at most one of the two is the verb of the last call
            await self.broker.enqueue(call, [], now=now)
            await self.broker.alter(call, [], now=now)

        with pytest.raises(InvalidInput):
            self.run(as_another_verb())
        assert self.follow() == []


class ValkeyMachine(BrokerMachine):
    """Drives the memory broker and one on Valkey, which must answer alike."""

    def open(self) -> Store:
        return twins(super().open(), on_server("valkey"))


class RedisMachine(BrokerMachine):
    """The same with a Redis server."""

    def open(self) -> Store:
        return twins(super().open(), on_server("redis"))


MADE = "0123456789abcdef" * 2  # an id as Fairlead makes them


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_tasks_with_ids_that_fairlead_makes_are_served_in_the_same_order(size: int) -> None:
    c = Client(twins(MemoryBroker(test_clock=True), on_server("valkey")))
    await c.configure(TenantChange(tenant="a", weight=3.0))
    for n, tenant in enumerate("abc" * 5):
        await c.enqueue(*(submit(f"{100 * n + i:032x}", tenant) for i in range(20)))
    for _ in range(0, 300, size):
        done = (await c.fetch(size))[::2]
        assert await c.settle(*map(completed, done)) == ["applied"] * len(done)
    assert await c.broker.audit(now=NOW) == []
    await c.broker.close()


@pytest.mark.parametrize("tenants", ["ab", "abcde", "aaaabbbcccd"])
async def test_several_that_hold_much_give_the_same_to_make_room(tenants: str) -> None:
    c = Client(twins(MemoryBroker(test_clock=True), on_server("valkey")))
    await c.configure(QueueChange(queue="default", keep_completed_count=60))
    known: list[str] = []
    for turn in range(12):
        ids = [f"{100 * turn + n:032x}" for n in range(30)]
        owners = [tenants[(turn * 7 + n * (n + 1)) % len(tenants)] for n in range(30)]
        await c.enqueue(*map(submit, ids, owners), now=NOW + turn)
        leases = await c.fetch(30, now=NOW + turn)
        await c.settle(*map(completed, leases), now=NOW + turn)
        known += ids
        found = await c.broker.find(known[-120:], now=NOW + turn)
        assert sum(each is not None for each in found) <= 60
    assert await c.broker.audit(now=NOW + 12) == []
    await c.broker.close()


@pytest.mark.parametrize("seed", [0, 120, 276])
async def test_several_that_hold_much_give_the_same_where_their_bytes_weigh_more(seed: int) -> None:
    dice = random.Random(seed)
    c = Client(twins(MemoryBroker(test_clock=True), on_server("valkey")))
    change = QueueChange(queue="default", keep_completed_count=10, keep_completed_bytes=3_000)
    await c.configure(change)
    known: list[str] = []
    for turn in range(20):
        ids = [f"{100 * turn + n:032x}" for n in range(dice.randint(1, 12))]
        bodies = [b"x" * dice.choice((1, 1, 50, 400)) for _ in ids]
        owners = [f"t{dice.randint(0, 11)}" for _ in ids]
        tasks = [submit(*each[:2], body=each[2]) for each in zip(ids, owners, bodies, strict=True)]
        await c.enqueue(*tasks, now=NOW + turn)
        leases = await c.fetch(12, now=NOW + turn)
        await c.settle(*map(completed, leases), now=NOW + turn)
        known += ids
        await c.broker.find(known[-60:], now=NOW + turn)  # both say the same
    assert await c.broker.audit(now=NOW + 20) == []
    await c.broker.close()


async def test_a_settlement_with_an_old_token_is_fenced_for_an_id_that_fairlead_made() -> None:
    c = Client(twins(MemoryBroker(test_clock=True), on_server("valkey")))
    [old] = await c.run(submit(MADE))
    assert (await c.broker.give_back("w1", [], now=NOW)).count == 1
    [new] = await c.fetch()
    assert await c.settle(completed(old)) == ["fenced"]
    assert await c.settle(completed(new)) == ["applied"]
    assert await c.broker.audit(now=NOW) == []
    await c.broker.close()


TestMemory = pytest.mark.long(25)(pytest.mark.timeout(300 * LONGER)(BrokerMachine.TestCase))
TestMemory.settings = examples(150)
TestValkey = pytest.mark.long(40)(pytest.mark.timeout(400 * LONGER)(ValkeyMachine.TestCase))
TestValkey.settings = examples(60)
TestRedis = RedisMachine.TestCase
for _mark in (
    pytest.mark.long(10),
    pytest.mark.slow,
    pytest.mark.timeout(400 * LONGER),
    pytest.mark.skipif(servers.binary("redis") is None, reason="there is no Redis server here"),
):
    TestRedis = _mark(TestRedis)
TestRedis.settings = examples(15)
