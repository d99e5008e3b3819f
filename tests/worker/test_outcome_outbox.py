"""Outcomes in an outage: kept in the spool under the number they go with, and taken off again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.broker import Caller
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import MAX_BYTES, BeatReply, Call, ExchangeReply, Fetch, Moved
from fairlead.fallback.outcomes import KeptOutcome, Outcomes
from fairlead.model.errors import Ambiguous, OutOfOrder, Unreachable
from fairlead.model.lifecycle import Settlement, State
from fairlead.spool import Entry, Spool, SpoolLimits, files
from fairlead.worker.app_services import AppServices
from fairlead.worker.outcome_outbox import OutcomeOutbox
from fairlead.worker.process.shared_state import SharedState
from tests.worker.harness import Rig, until


class Cut(MemoryBroker):
    """A broker that can be cut off, before or after it carries out an exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.loses_replies = False
        self.calls: list[tuple[int, list[str]]] = []  # numbers and outcomes that arrived
        self.goes_on: asyncio.Event | None = None  # what answers to outcomes wait for
        self.puts_off = 0  # answers that are "later"
        self.errors: list[Exception] = []

    async def exchange(
        self, call: Call, settlements: Any = (), *args: Any, **kwargs: Any
    ) -> ExchangeReply:
        self._check()
        if self.goes_on is not None and settlements:
            await self.goes_on.wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.puts_off and settlements:
            self.puts_off -= 1
            reply = await super().exchange(call, [], *args, **kwargs)
            return msgspec.structs.replace(reply, settled=["later"] * len(settlements))
        self.calls.append((call.number, [each.id for each in settlements]))
        reply = await super().exchange(call, settlements, *args, **kwargs)
        if self.loses_replies and settlements:
            raise Ambiguous("x")
        return reply

    async def beat(self, *args: Any, **kwargs: Any) -> BeatReply:
        self._check()
        return await super().beat(*args, **kwargs)

    async def wait(self, *args: Any, **kwargs: Any) -> bool:
        self._check()
        return await super().wait(*args, **kwargs)

    async def give_back(self, *args: Any, **kwargs: Any) -> Moved:
        self._check()
        return await super().give_back(*args, **kwargs)

    def _check(self) -> None:
        if self.away:
            raise Unreachable("x")


class Scene:
    """A rig with a spool."""

    def __init__(self, root: Path, limits: SpoolLimits | None = None) -> None:
        self.root = root
        self.broker = Cut()
        self.rig = Rig(self.broker)
        self.spool = Spool.open(root, limits=limits)
        self.outcomes = Outcomes(self.spool)
        self.runs: list[str] = []
        self.go = asyncio.Event()

        @self.rig.task()
        async def works(name: str) -> str:
            self.runs.append(name)
            await self.go.wait()
            return name

    def worker(self, **options: Any) -> Any:
        return self.rig.worker(services=AppServices(outcomes=self.outcomes), **options)

    def kept(self) -> list[KeptOutcome]:
        return [KeptOutcome.decode(record.payload) for record in self.spool.pending()]

    def copy(self) -> Outcomes:
        """What another process would find if the worker's died now."""
        spool = Spool.open(self.root.with_name("copy"))
        spool.append([Entry(record.kind, record.payload) for record in self.spool.pending()])
        copy = Outcomes(spool)
        copy.leave("w1", is_left=True)
        return copy


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr("fairlead.worker.processor._LAST_WORDS", 0.3)  # that nobody hears
    monkeypatch.setattr("fairlead.worker.syncer._SILENCE", 1_000.0)  # calls fail before
    made = Scene(tmp_path / "spool")
    yield made
    made.spool.close()


def shown(worker: Any) -> SharedState:
    """What the supervisor of this worker would see."""
    shared_state = SharedState.made(8)
    worker.inflight._shared_state = shared_state
    return shared_state


def is_kept(scene: Scene, *ids: str) -> Callable[[], bool]:
    return lambda: {each.settlement.id for each in scene.kept()} == set(ids)


def in_state(rig: Rig, state: State, *ids: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return all([await rig.state(id) is state for id in ids])

    return look


async def test_outcomes_are_in_the_spool_before_a_call_without_an_answer_has_failed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call goes on for ten seconds before it fails, and a worker may be killed meanwhile."""
    monkeypatch.setattr("fairlead.worker.syncer._SILENCE", 0.05)
    later = asyncio.Event()

    @scene.rig.task()
    async def ends_later() -> None:
        scene.runs.append("b")
        await later.wait()

    first, second = await scene.rig.enqueue("works", "a"), await scene.rig.enqueue("ends_later")
    scene.broker.goes_on = asyncio.Event()
    async with scene.worker() as worker:
        await until(lambda: len(scene.runs) == 2)
        scene.go.set()
        try:
            await until(is_kept(scene, first))
            later.set()
            await until(is_kept(scene, first, second))
            assert worker.syncer.outage.since is None
            assert scene.broker.calls[-1][1] == []  # none has arrived
        finally:
            later.set()
            scene.broker.goes_on.set()
        await until(is_kept(scene))
        await until(in_state(scene.rig, State.COMPLETED, first, second))
        assert worker.syncer.fenced == 0


async def test_an_outcome_is_in_the_spool_while_the_broker_is_away_and_not_a_moment_longer(
    scene: Scene,
) -> None:
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    async with scene.worker() as worker:
        await until(lambda: scene.runs == ["a"])
        assert not scene.root.exists()  # nothing on the disk without an outage
        scene.broker.away = True
        scene.go.set()
        await until(is_kept(scene, id))
        assert worker.syncer.unsettled == 1
        scene.broker.away = False
        await until(in_state(rig, State.COMPLETED, id))
        await until(lambda: scene.spool.depth == 0)
    assert scene.runs == ["a"]
    assert (worker.syncer.settled, worker.syncer.fenced) == (1, 0)
    assert await scene.broker.audit() == []


async def test_a_supervisor_knows_of_an_outcome_in_the_spool_before_it_is_written(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, the outcome would outlive its process unknown, and its task run again."""
    worker = scene.worker()
    shared_state = shown(worker)
    seen: list[list[bool]] = []

    def write(fd: int, data: bytes) -> None:
        seen.append([row.spooled for row in shared_state.lent()])
        really_write(fd, data)

    really_write = files.write
    monkeypatch.setattr("fairlead.spool.files.write", write)
    id = await scene.rig.enqueue("works", "a")
    async with worker:
        await until(lambda: scene.runs == ["a"])
        assert [row.spooled for row in shared_state.lent()] == [False]
        scene.broker.away = True
        scene.go.set()
        await until(is_kept(scene, id))
        assert seen
        assert all(each == [True] for each in seen)
        scene.broker.away = False
        await until(lambda: scene.spool.depth == 0)
    assert shared_state.lent() == []
    shared_state.close()


async def test_each_outcome_is_kept_under_the_number_that_it_is_then_sent_with(
    scene: Scene,
) -> None:
    rig, gates = scene.rig, {name: asyncio.Event() for name in "abc"}

    @rig.task()
    async def waits(name: str) -> None:
        await gates[name].wait()

    ids = [await rig.enqueue("waits", name) for name in "abc"]
    async with scene.worker() as worker:
        await until(lambda: len(worker.inflight) == 3)
        scene.broker.away = True
        for count, gate in enumerate(gates.values(), 1):
            gate.set()
            await until(is_kept(scene, *ids[:count]))
        planned = {each.settlement.id: each.number for each in scene.kept()}
        scene.broker.calls.clear()
        scene.broker.away = False
        await until(in_state(rig, State.COMPLETED, *ids))
        sent = {id: number for number, batch in scene.broker.calls for id in batch}
        assert sent == planned
        assert len(set(planned.values())) == 3
        await until(lambda: scene.spool.depth == 0)


async def test_an_adopter_learns_of_a_lost_reply_what_the_worker_does_not(scene: Scene) -> None:
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    async with scene.worker() as worker:
        await until(lambda: scene.runs == ["a"])
        scene.broker.loses_replies = True
        scene.go.set()
        await until(is_kept(scene, id))
        scene.broker.loses_replies = False
        copy = scene.copy()
        await copy.settle(scene.broker)
        assert (copy.settled, copy.fenced) == (1, 0)
        await until(lambda: worker.syncer.settled == 1)
    assert worker.syncer.fenced == 0
    events = (await scene.broker.events()).events
    assert [event.kind for event in events].count("completed") == 1
    assert "fenced" not in [event.kind for event in events]


async def test_a_spool_that_is_full_leaves_outcomes_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path / "spool", SpoolLimits(max_count=1))
    rig = scene.rig
    ids = [await rig.enqueue("works", name) for name in "ab"]
    worker = scene.worker()
    shared_state = shown(worker)
    async with worker:
        await until(lambda: len(scene.runs) == 2)
        scene.broker.away = True
        scene.go.set()
        said = "outcomes not kept on the disk"
        await until(lambda: any(said in line for line in caplog.messages))
        await asyncio.sleep(0.5)  # several rounds
        assert len([line for line in caplog.messages if said in line]) == 1
        assert worker.syncer.unsettled == 2
        assert not all(row.spooled for row in shared_state.lent())
        scene.broker.away = False
        await until(in_state(rig, State.COMPLETED, *ids))
        await until(lambda: scene.spool.depth == 0)
    assert (worker.syncer.settled, worker.syncer.fenced) == (2, 0)
    scene.spool.close()
    shared_state.close()


async def test_what_a_worker_that_stops_in_an_outage_leaves_is_settled_by_others(
    scene: Scene,
) -> None:
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    async with scene.worker(grace=0.05) as worker:
        await until(lambda: scene.runs == ["a"])
        scene.broker.away = True
        scene.go.set()
        await until(is_kept(scene, id))
    scene.broker.away = False
    assert await rig.state(id) is State.RUNNING  # its lease was not given back
    await scene.outcomes.settle(scene.broker)
    assert await rig.state(id) is State.COMPLETED
    assert (scene.outcomes.settled, scene.outcomes.fenced) == (1, 0)

    again = await rig.enqueue("works", "b")  # the same worker once more, under its numbers
    async with worker:
        await until(in_state(rig, State.COMPLETED, again))
    assert scene.runs == ["a", "b"]
    assert worker.syncer.fenced == 0
    assert await scene.broker.audit() == []


async def test_an_outcome_that_was_never_sent_is_in_the_spool_when_the_worker_has_stopped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.worker.outcome_outbox.OutcomeOutbox.keep_soon", lambda _: None)
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    async with scene.worker(grace=0.05):
        await until(lambda: scene.runs == ["a"])
        scene.broker.away = True
        scene.go.set()
    assert is_kept(scene, id)()


async def test_leases_whose_outcomes_are_kept_are_not_given_back_when_the_worker_stops(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    given: list[str] = []

    async def gives(store: object, incarnation: str) -> None:
        given.append(incarnation)

    monkeypatch.setattr("fairlead.worker.worker.give_back_soon", gives)
    async with scene.worker(grace=0.05):
        await until(lambda: scene.runs == ["a"])
        scene.broker.away = True
        scene.go.set()
        await until(is_kept(scene, id))
    assert given == []


async def test_a_worker_settles_what_dead_ones_left_before_it_takes_their_leases_away(
    scene: Scene,
) -> None:
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    worker = scene.worker(grace=0.05)
    async with worker:
        await until(lambda: scene.runs == ["a"])
        scene.broker.away = True
        scene.go.set()
        await until(is_kept(scene, id))
    scene.spool.close()
    scene.broker.away = False
    order: list[str] = []

    class Fresh(Outcomes):
        async def adopt(self, store: Any) -> None:
            order.append("adopt")
            await super().adopt(store)

    spool = Spool.open(scene.root)
    fresh = rig.worker("w2", services=AppServices(outcomes=Fresh(spool)))

    async def reclaim() -> int:
        order.append("reclaim")
        return 0

    fresh.recoverer.reclaim = reclaim  # type: ignore[method-assign]
    async with fresh:
        assert await rig.state(id) is State.COMPLETED
    assert order == ["adopt", "reclaim"]
    assert scene.runs == ["a"]
    spool.close()


async def test_the_delay_until_a_retry_counts_from_the_failure_not_from_the_end_of_the_outage(
    scene: Scene,
) -> None:
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    async with scene.worker() as worker:
        await until(lambda: scene.runs == ["a"])
        scene.broker.away = True
        began = time.time()
        [attempt] = worker.inflight
        worker.syncer.add(
            Settlement(id=id, token=attempt.lease.token, to=State.RETRYING, delay=60.0)
        )
        worker.resume()  # it exchanges at once
        await until(is_kept(scene, id))
        await asyncio.sleep(1.2)
        scene.broker.away = False
        await until(in_state(rig, State.RETRYING, id))
        due_at = (await rig.find(id)).due_at
        scene.go.set()
    assert due_at is not None
    assert due_at - began == pytest.approx(60.0, abs=0.6)


async def test_what_a_shard_that_is_away_was_to_get_is_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.worker.outcome_outbox._LATER", 0.2)
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    async with scene.worker() as worker:
        await until(lambda: scene.runs == ["a"])
        scene.broker.puts_off = 3
        scene.go.set()
        await until(is_kept(scene, id))
        await until(in_state(rig, State.COMPLETED, id))
        await until(lambda: scene.spool.depth == 0)
    assert (worker.syncer.settled, worker.syncer.fenced) == (1, 0)


async def test_a_number_that_others_overtook_is_given_up_for_a_later_one(scene: Scene) -> None:
    rig = scene.rig
    id = await rig.enqueue("works", "a")
    async with scene.worker() as worker:
        await until(lambda: scene.runs == ["a"])
        scene.broker.errors = [OutOfOrder("w1", 2, 10**9)]
        scene.go.set()
        await until(in_state(rig, State.COMPLETED, id))
    number = next(number for number, batch in scene.broker.calls if batch == [id])
    assert number > 10**15  # microseconds
    assert worker.syncer.fenced == 0


@pytest.mark.parametrize(
    ("size", "batches"), [(0, [128, 128, 44]), (MAX_BYTES // 2, [2] * 150), (MAX_BYTES, [1] * 300)]
)
def test_an_exchange_carries_128_outcomes_or_4_mib_of_results(
    size: int, batches: list[int]
) -> None:
    outbox = OutcomeOutbox(
        Caller("w1"), None,
        is_away=lambda: False, spooling=print, refused=print, woken=lambda: None,
    )  # fmt: skip
    result = b"r" * size or None
    ids = [f"t{n}" for n in range(300)]
    for id in ids:
        outbox.add(Settlement(id=id, token=1, to=State.COMPLETED, result=result))
    carried: list[list[str]] = []
    while outbox.pending:
        batch = outbox.next()
        assert outbox.next() is batch
        carried.append([each.id for each in batch.settlements])
        asyncio.run(outbox.answered(batch, ["applied"] * len(batch.settlements)))
    assert [len(each) for each in carried] == batches
    assert [id for each in carried for id in each] == ids


async def test_an_outcome_that_no_broker_can_digest_is_not_kept(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    rig = scene.rig
    ids = [await rig.enqueue("works", name, queue="other") for name in "ab"]
    worker = scene.worker()
    worker.syncer.enter()
    reply = await worker.syncer.sync(Fetch(queues=("other",), max=2))
    scene.broker.away = True
    for lease, delay in zip(reply.leased, (float("nan"), 0.0), strict=True):
        settlement = Settlement(
            id=lease.message.id, token=lease.token, to=State.COMPLETED, delay=delay
        )
        worker.syncer.add(settlement)
    sync = asyncio.ensure_future(worker.syncer.sync())
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0.2)
        assert scene.kept() == []
        scene.broker.away = False
        await sync
    await until(in_state(rig, State.DEAD, ids[0]))
    assert await rig.state(ids[1]) is State.COMPLETED
    assert (await rig.find(ids[0])).reason == "rejected"
