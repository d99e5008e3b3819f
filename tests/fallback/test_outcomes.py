"""Outcomes in the spool of a worker that is gone: settled in its name, or fenced, never silence."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.broker import Caller, Store, connect, destination_of
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, ExchangeReply, Fetch, Moved, Submission
from fairlead.broker.sharded import ShardedBroker
from fairlead.fallback.codec import moment_now
from fairlead.fallback.outcomes import KeptOutcome, Outcomes, settle_left
from fairlead.model.errors import Ambiguous, Unreachable
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import ErrorInfo, Leased, Message
from fairlead.model.outage import Moment
from fairlead.spool import Entry, Kind, Rejection, Spool
from tests.support.servers import shared
from tests.worker.harness import until

WORKER = "dead"


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryBroker()
        return
    with shared() as running:
        store = connect(running.url)
        yield store
        await store.close()


class Scene:
    """A worker that has leases, and dies with outcomes in its spool."""

    def __init__(self, store: Store, root: Path) -> None:
        self.store, self.root = store, root
        self.caller = Caller(WORKER)
        self.spool = Spool.open(root, broker=destination_of(store))

    async def leases(self, count: int = 1) -> list[Leased]:
        """What the worker was lent, by exchange 1."""
        client = Caller("client")
        messages = [
            Message(id=f"t{i}", queue="default", tenant="a", body=b"") for i in range(count)
        ]
        await client.call(
            lambda call: self.store.enqueue(call, [Submission(message=each) for each in messages])
        )
        fetch = Fetch(queues=("default",), max=count)
        return (await self.exchange([], fetch)).leased

    async def exchange(
        self, settlements: Sequence[Settlement], fetch: Fetch | None = None
    ) -> ExchangeReply:
        return await self.caller.call(
            lambda call: self.store.exchange(call, settlements, fetch=fetch)
        )

    def keep(self, number: int, *settlements: Settlement, moment: Moment | None = None) -> None:
        self.spool.append(
            [
                KeptOutcome(
                    incarnation=WORKER,
                    number=number,
                    place=place,
                    count=len(settlements),
                    moment=moment or moment_now(),
                    settlement=settlement,
                ).encode()
                for place, settlement in enumerate(settlements)
            ]
        )

    async def settle(self) -> Outcomes:
        """The worker is dead, and somebody adopts what it left."""
        self.spool.close()
        return await settle_left(self.root, self.store)

    async def states(self, store: Store | None = None) -> list[State | None]:
        found = await (store or self.store).find(["t0", "t1", "t2"])
        return [None if record is None else record.state for record in found]

    def left(self) -> int:
        """How much there is in the spools below the root."""
        spool = Spool.open(self.root, broker=destination_of(self.store))
        spool.adopt()
        try:
            return spool.depth
        finally:
            spool.close()


@pytest.fixture
def scene(store: Store, tmp_path: Path) -> Scene:
    return Scene(store, tmp_path)


def done(lease: Leased, **more: Any) -> Settlement:
    return Settlement(
        id=lease.message.id, token=lease.token, to=State.COMPLETED, run_time=0.1, **more
    )


def test_an_outcome_comes_out_as_it_went_in() -> None:
    settlement = Settlement(
        id="a/t",
        token=1_763_230_000_123_456,
        to=State.RETRYING,
        delay=1.5,
        burn=True,
        reason="crashed",
        error=ErrorInfo("ValueError", "no", "trace"),
        result=bytes(1024 * 1024),
        run_time=0.25,
        keep=60.0,
    )
    kept = KeptOutcome(
        incarnation="w", number=7, place=1, count=3, moment=moment_now(), settlement=settlement
    )
    assert KeptOutcome.decode(kept.encode().payload) == kept


async def test_the_outcome_of_a_dead_worker_is_applied_while_its_lease_is_in_force(
    scene: Scene,
) -> None:
    leases = await scene.leases(3)
    scene.keep(2, done(leases[0], result=b"x"), done(leases[1]))
    scene.keep(3, done(leases[2]))
    outcomes = await scene.settle()
    assert (outcomes.settled, outcomes.fenced) == (3, 0)
    assert await scene.states() == [State.COMPLETED] * 3
    assert scene.left() == 0


async def test_a_large_result_of_a_dead_worker_is_there(scene: Scene) -> None:
    [lease] = await scene.leases()
    scene.keep(2, done(lease, result=bytes(1024 * 1024)))
    assert (await scene.settle()).settled == 1
    [record] = await scene.store.find(["t0"])
    assert record is not None
    assert record.result == bytes(1024 * 1024)


async def test_an_outcome_that_was_applied_before_its_reply_was_lost_is_not_said_to_be_fenced(
    scene: Scene,
) -> None:
    leases = await scene.leases(2)
    await scene.exchange([done(leases[0]), done(leases[1])])  # number 2, and nobody hears of it
    scene.keep(2, done(leases[0]), done(leases[1]))
    outcomes = await scene.settle()
    assert (outcomes.settled, outcomes.fenced) == (2, 0)
    page = await scene.store.events()
    assert [event.kind for event in page.events].count("fenced") == 0
    assert scene.left() == 0


async def test_what_is_left_of_a_lost_reply_is_found_by_its_place(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    leases = await scene.leases(3)
    late = Settlement(id="t1", token=1, to=State.COMPLETED)
    settlements = [done(leases[0]), late, done(leases[2])]
    assert (await scene.exchange(settlements)).settled == ["applied", "fenced", "applied"]
    scene.keep(2, *settlements)
    scene.spool.confirm([scene.spool.pending()[0].sequence])
    outcomes = await scene.settle()
    assert (outcomes.settled, outcomes.fenced) == (1, 1)
    fenced = [each for each in caplog.records if each.message == "outcome fenced"]
    assert [each.__dict__["task_id"] for each in fenced] == ["t1"]
    assert await scene.states() == [State.COMPLETED, State.RUNNING, State.COMPLETED]


async def test_the_outcome_of_a_lease_that_is_over_is_fenced_counted_and_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    await scene.store.give_back(WORKER)
    outcomes = await scene.settle()
    assert (outcomes.settled, outcomes.fenced, outcomes.unknown) == (0, 1, 0)
    assert await scene.states() == [State.QUEUED, None, None]
    [line] = [each for each in caplog.records if each.message == "outcome fenced"]
    assert line.__dict__["task_id"] == "t0"
    assert scene.left() == 0


async def test_the_outcome_of_a_task_that_is_on_loan_to_another_changes_nothing(
    scene: Scene,
) -> None:
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    await scene.store.give_back(WORKER)
    other, fetch = Caller("other"), Fetch(queues=("default",), max=1)
    reply = await other.call(lambda call: scene.store.exchange(call, fetch=fetch))
    assert len(reply.leased) == 1
    assert (await scene.settle()).fenced == 1
    assert await scene.states() == [State.RUNNING, None, None]
    ends = [done(reply.leased[0])]
    assert (await other.call(lambda call: scene.store.exchange(call, ends))).settled == ["applied"]


async def test_the_outcome_of_a_task_that_nobody_knows_is_kept_to_be_seen(scene: Scene) -> None:
    scene.keep(2, Settlement(id="t9", token=5, to=State.COMPLETED))
    outcomes = await scene.settle()
    assert (outcomes.settled, outcomes.fenced, outcomes.unknown) == (0, 1, 1)
    spool = Spool.open(scene.root, broker=destination_of(scene.store))
    spool.adopt()
    [record] = spool.rejected()
    rejection = Rejection.decode(record.payload)
    assert (rejection.code, rejection.kind) == ("unknown_task", Kind.OUTCOME)
    assert KeptOutcome.decode(rejection.payload).settlement.id == "t9"
    assert spool.depth == 0
    spool.close()


async def test_a_number_that_was_overtaken_gets_the_next_one(scene: Scene) -> None:
    leases = await scene.leases(2)
    await scene.exchange([done(leases[1])])  # 2
    await scene.exchange([], Fetch(queues=("default",), max=1))  # 3
    scene.keep(2, done(leases[0]))
    outcomes = await scene.settle()
    assert outcomes.settled == 1
    assert await scene.states() == [State.COMPLETED, State.COMPLETED, None]


async def test_nothing_is_lent_to_a_dead_worker(scene: Scene) -> None:
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    submission = Submission(message=Message(id="t1", queue="default", tenant="a", body=b""))
    await Caller("c2").call(lambda call: scene.store.enqueue(call, [submission]))
    await scene.settle()
    assert await scene.states() == [State.COMPLETED, State.QUEUED, None]


@pytest.mark.parametrize("passed", [4.0, 100.0])
async def test_the_delay_until_the_next_attempt_counts_from_the_outcome(
    scene: Scene, passed: float
) -> None:
    [lease] = await scene.leases()
    now = moment_now()
    then = Moment(wall=now.wall - passed, boot=now.boot - passed, boot_id=now.boot_id)
    retry = Settlement(id="t0", token=lease.token, to=State.RETRYING, delay=60.0)
    scene.keep(2, retry, moment=then)
    await scene.settle()
    [record] = await scene.store.find(["t0"])
    assert record is not None
    assert record.state is State.RETRYING
    assert record.due_at is not None
    assert record.due_at - time.time() == pytest.approx(max(60.0 - passed, 0.0), abs=2.0)


# -- who settles what ---------------------------------------------------------------------------


class Away(MemoryBroker):
    """Not reached while ``errors`` are left."""

    errors = 0

    async def exchange(self, call: Call, *args: Any, **kwargs: Any) -> ExchangeReply:
        if self.errors:
            self.errors -= 1
            raise Unreachable("x")
        return await super().exchange(call, *args, **kwargs)


async def test_outcomes_wait_for_a_broker_that_is_away(tmp_path: Path) -> None:
    broker = Away()
    scene = Scene(broker, tmp_path)
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    broker.errors = 1
    with pytest.raises(Unreachable):
        await scene.settle()
    assert scene.left() == 1
    assert (await settle_left(tmp_path, broker)).settled == 1
    assert scene.left() == 0


async def test_a_worker_that_lives_sends_its_own(tmp_path: Path) -> None:
    scene = Scene(MemoryBroker(), tmp_path)
    [lease] = await scene.leases()
    outcomes = Outcomes(scene.spool)
    outcomes.enter(WORKER)
    scene.keep(2, done(lease))
    outcomes._is_left = True
    assert await outcomes.settle(scene.store) == 0
    assert await scene.states() == [State.RUNNING, None, None]
    outcomes.leave(WORKER, is_left=True)
    assert await outcomes.settle(scene.store) == 0
    assert outcomes.settled == 1
    assert scene.spool.depth == 0


async def test_a_spool_without_outcomes_is_not_read(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path)
    spool.append([Entry(Kind.SUBMISSION, b"x")])

    def unread(*_: object) -> list[object]:
        raise AssertionError("it was read")

    spool.pending = unread  # type: ignore[assignment,method-assign]
    assert await Outcomes(spool).settle(MemoryBroker()) == 0


async def test_what_cannot_be_read_is_kept_to_be_seen_and_holds_nobody_up(scene: Scene) -> None:
    [lease] = await scene.leases()
    scene.spool.append([Entry(Kind.OUTCOME, b"\xc1"), Entry(Kind.OUTCOME, b"\x80")])
    scene.keep(2, done(lease))
    assert (await scene.settle()).settled == 1
    spool = Spool.open(scene.root, broker=destination_of(scene.store))
    spool.adopt()
    assert [Rejection.decode(each.payload).code for each in spool.rejected()] == ["unreadable"] * 2
    spool.close()


async def test_what_no_broker_can_digest_is_kept_to_be_seen_and_holds_nobody_up(
    scene: Scene,
) -> None:
    leases = await scene.leases(2)
    scene.keep(2, done(leases[0], delay=float("nan")), done(leases[1]))
    outcomes = await scene.settle()
    assert (outcomes.settled, outcomes.fenced) == (1, 0)
    assert await scene.states() == [State.RUNNING, State.COMPLETED, None]
    spool = Spool.open(scene.root, broker=destination_of(scene.store))
    spool.adopt()
    assert [Rejection.decode(each.payload).code for each in spool.rejected()] == ["invalid"]
    assert spool.depth == 0
    spool.close()


async def test_an_error_that_nobody_expects_holds_up_no_other_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(MemoryBroker):
        async def exchange(
            self, call: Call, settlements: Any = (), *args: Any, **kwargs: Any
        ) -> ExchangeReply:
            if any(each.id == "t0" for each in settlements):
                raise ZeroDivisionError
            return await super().exchange(call, settlements, *args, **kwargs)

    scene = Scene(Broken(), tmp_path)
    leases = await scene.leases(3)
    scene.keep(2, done(leases[0]), done(leases[1]))
    scene.keep(3, done(leases[2]))
    outcomes = Outcomes(scene.spool)
    outcomes.leave(WORKER, is_left=True)
    assert await outcomes.settle(scene.store) == 1
    assert await outcomes.settle(scene.store) == 1
    assert await scene.states() == [State.RUNNING, State.COMPLETED, State.COMPLETED]
    assert caplog.messages.count("outcome in the spool not settled") == 1
    assert scene.spool.depth == 1


async def test_many_outcomes_that_are_fenced_are_two_lines_of_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    leases = await scene.leases(5)
    for number, lease in enumerate(leases, 2):
        scene.keep(number, done(lease))
    await scene.store.give_back(WORKER)
    assert (await scene.settle()).fenced == 5
    said = [each.message for each in caplog.records if "fenced" in each.message]
    assert said == ["outcome fenced", "outcome fenced: 4 more (fenced)"]


async def test_an_outcome_of_a_later_release_stays_for_that(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    [lease] = await scene.leases()
    scene.keep(2, done(lease))
    later = msgspec.msgpack.encode({"version": 2, "settlement": "otherwise"})
    scene.spool.append([Entry(Kind.OUTCOME, later)] * 2)
    assert (await scene.settle()).settled == 1
    assert scene.left() == 2
    assert len([each for each in caplog.messages if "later release" in each]) == 1


async def test_what_else_is_in_the_spool_stays_there(scene: Scene) -> None:
    [lease] = await scene.leases()
    scene.spool.append([Entry(Kind.SUBMISSION, b"somebody's task")])
    scene.keep(2, done(lease))
    assert (await scene.settle()).settled == 1
    assert scene.left() == 1


async def test_an_outcome_is_logged_without_its_result(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    [lease] = await scene.leases()
    scene.keep(2, done(lease, result=b"\xa6secret"))
    with caplog.at_level(logging.DEBUG):
        await scene.settle()
    assert caplog.records
    assert not any("secret" in str(line.__dict__) for line in caplog.records)


# -- several shards -----------------------------------------------------------------------------


class Shard(RedisBroker):
    """A shard that can be away, perhaps for writes only, or lose a reply."""

    away = ""
    loses_replies = False

    async def exchange(self, call: Call, *args: Any, **kwargs: Any) -> ExchangeReply:
        self._check("all", "writes")
        reply = await super().exchange(call, *args, **kwargs)
        if self.loses_replies:
            raise Ambiguous("x")
        return reply

    async def promote(self, **kwargs: Any) -> Moved:
        self._check("all", "writes")
        return await super().promote(**kwargs)

    async def where(self, *args: Any, **kwargs: Any) -> Any:
        self._check("all")
        return await super().where(*args, **kwargs)

    def _check(self, *kinds: str) -> None:
        if self.away in kinds:
            raise Unreachable("x")


@pytest.fixture
async def shards() -> AsyncIterator[tuple[Shard, Shard]]:
    with shared() as running:
        near, far = Shard(running.url, shard="0"), Shard(running.url, shard="far")
        yield near, far
        await near.close()
        await far.close()


@pytest.mark.parametrize("away", ["all", "writes"])
@pytest.mark.parametrize("how", ["unsent", "together", "lost"])
async def test_outcomes_of_a_shard_that_is_away_wait_and_count_once(
    shards: tuple[Shard, Shard], tmp_path: Path, how: str, away: str
) -> None:
    near, far = shards
    stores, routes = {"0": near, "far": far}, {"reports": "far"}
    dead, living = ShardedBroker(stores, routes), ShardedBroker(stores, routes)
    messages = [
        Message(id=f"t{i}", queue=queue, tenant="a", body=b"")
        for i, queue in enumerate(["default", "reports"])
    ]
    client, worker = Caller("client"), Caller(WORKER)
    await client.call(lambda call: dead.enqueue(call, [Submission(message=m) for m in messages]))
    fetch = Fetch(queues=("default", "reports"), max=2)
    leases = (await worker.call(lambda call: dead.exchange(call, fetch=fetch))).leased
    ends = sorted((done(lease) for lease in leases), key=lambda end: end.id)
    if how == "lost":  # by the far one, which has carried it out
        far.loses_replies = True
        reply = await worker.call(lambda call: dead.exchange(call, ends))
        far.loses_replies = False
        assert reply.settled == ["applied", "later"]
    scene = Scene(living, tmp_path)
    if how == "unsent":
        scene.keep(2, ends[1])
        scene.keep(3, ends[0])
    else:
        scene.keep(2, *ends)
    scene.spool.close()
    spool = Spool.open(tmp_path, broker=destination_of(living))
    outcomes = Outcomes(spool)
    far.away = away
    with contextlib.suppress(Unreachable):
        await outcomes.adopt(living)
    assert (await scene.states(near))[0] is (
        # Of an exchange that concerned both shards nobody knows whose outcomes they are.
        State.RUNNING if (how, away) == ("together", "all") else State.COMPLETED
    )
    far.away = ""

    async def is_empty() -> bool:
        with contextlib.suppress(Unreachable):
            await outcomes.settle(living)
        return spool.depth == 0

    await until(is_empty)
    assert (outcomes.settled, outcomes.fenced) == (2, 0)
    assert (await scene.states())[:2] == [State.COMPLETED] * 2
    for shard in (near, far):
        events = [event.kind for event in (await shard.events()).events]
        assert events.count("completed") == 1
        assert "fenced" not in events
    spool.close()
