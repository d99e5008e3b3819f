"""A call over shards says what is true of it when one of them is away, or did not answer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.broker import Caller
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, ExchangeReply, Fetch
from fairlead.broker.sharded import ShardedBroker
from fairlead.model.errors import Ambiguous, BrokerError, Unreachable
from fairlead.model.lifecycle import State
from tests.support.servers import Running, server
from tests.support.store import Client, completed, events, ids, states, submit

ROUTES = {"reports": "r", "video": "v"}
QUEUES = ("default", "reports")
NOWHERE = "redis://127.0.0.1:1"


class Forgetful(RedisBroker):
    """Loses replies to exchanges, or the exchanges themselves, when it is told to."""

    loses = ""

    async def exchange(self, *args: Any, **options: Any) -> ExchangeReply:
        loses, self.loses = self.loses, ""
        if loses == "call":
            raise Ambiguous("the call was lost")
        reply = await super().exchange(*args, **options)
        if loses == "reply":
            raise Ambiguous("the reply was lost")
        return reply


@pytest.fixture
def forgetful(valkey: Running) -> Forgetful:
    return Forgetful(valkey.url, shard="r", test_clock=True)


@pytest.fixture
async def broker(
    valkey: Running, forgetful: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ShardedBroker]:
    near = RedisBroker(valkey.url, shard="0", test_clock=True)
    broker = ShardedBroker({"0": near, "r": forgetful}, {"reports": "r"})
    monkeypatch.setattr(broker.away, "why", lambda _shard: None)  # it is asked at once
    yield broker
    await broker.close()


# -- outcomes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loses", ["reply", "call"])
async def test_an_outcome_whose_answer_was_lost_is_applied_once_and_never_fenced(
    broker: ShardedBroker, forgetful: Forgetful, loses: str
) -> None:
    c = Client(broker)
    near, far = await c.run(submit("near"), submit("far", queue="reports"), queues=QUEUES)
    forgetful.loses = loses
    assert await c.settle(completed(near), completed(far)) == ["applied", "later"]
    assert await c.settle(completed(far)) == ["applied"]
    assert await states(broker, "near", "far") == [State.COMPLETED] * 2
    assert await events(broker, "fenced") == []


async def test_what_comes_with_an_outcome_that_is_repeated_is_done_as_well(
    broker: ShardedBroker, forgetful: Forgetful
) -> None:
    c = Client(broker)
    one, two = await c.run(*(submit(f"f{n}", queue="reports") for n in range(2)), queues=QUEUES)
    await c.enqueue(submit("next", queue="reports"))
    forgetful.loses = "reply"
    assert (await c.exchange([completed(one)], started=[c.ref(two)])).settled == ["later"]
    fetch = Fetch(queues=QUEUES, max=5)
    reply = await c.exchange([completed(two), completed(one)], started=[c.ref(two)], fetch=fetch)
    assert (reply.settled, reply.started) == (["applied", "applied"], ["applied"])
    assert ids(reply.leased) == ["next"]
    assert await events(broker, "fenced") == []


async def test_an_outcome_that_is_in_doubt_again_stays_so(
    broker: ShardedBroker, forgetful: Forgetful
) -> None:
    c = Client(broker)
    (far,) = await c.run(submit("far", queue="reports"), queues=QUEUES)
    for _ in range(3):
        forgetful.loses = "reply"
        assert await c.settle(completed(far)) == ["later"]
    assert await c.settle(completed(far)) == ["applied"]
    assert await events(broker, "fenced") == []


async def test_a_doubt_is_over_when_the_shard_has_answered_a_later_call(
    broker: ShardedBroker, forgetful: Forgetful
) -> None:
    c = Client(broker)
    (far,) = await c.run(submit("far", queue="reports"), queues=QUEUES)
    forgetful.loses = "call"
    assert await c.settle(completed(far)) == ["later"]
    await c.enqueue(submit("other", queue="reports"))
    assert await c.settle(completed(far)) == ["applied"]


async def test_nothing_is_fetched_from_nowhere(broker: ShardedBroker) -> None:
    reply = await broker.exchange(Call("w", 1), [], fetch=Fetch(queues=QUEUES, max=0))
    assert (reply.leased, reply.settled, reply.more) == ([], [], False)


# -- batches -----------------------------------------------------------------------------------


@pytest.fixture
async def broken(valkey: Running) -> AsyncIterator[ShardedBroker]:
    """One of three shards is away."""
    stores = {name: RedisBroker(valkey.url, shard=name, patience=0.5) for name in ("0", "r")}
    stores["v"] = RedisBroker(NOWHERE, shard="v", patience=0.5)
    broker = ShardedBroker(stores, ROUTES)
    yield broker
    with contextlib.suppress(BrokerError):  # of the one that is away
        await broker.close()


async def test_a_batch_does_not_need_shards_that_have_nothing_to_do_with_it(
    broken: ShardedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    batch = [submit("parent"), submit("child", queue="reports", after=["parent"])]
    receipts = await Caller("web", limit=2.0).call(lambda call: broken.enqueue(call, batch))
    assert [receipt.code for receipt in receipts] == ["accepted", "accepted"]
    child = (await broken.stores["r"].where(["child"]))[0]
    assert child[0] is State.DEFERRED
    assert "is away" not in caplog.text  # nobody asked it


async def test_a_batch_of_which_a_part_was_accepted_is_not_said_to_be_refused(
    broken: ShardedBroker,
) -> None:
    batch = [submit("parent"), submit("child", queue="reports", after=["parent", "elsewhere"])]
    with pytest.raises(Ambiguous):
        await Caller("web", limit=2.0).call(lambda call: broken.enqueue(call, batch))
    assert (await broken.stores["0"].where(["parent"]))[0][0] is State.QUEUED


async def test_a_batch_of_which_nothing_was_accepted_is_said_to_be_unreachable(
    broken: ShardedBroker,
) -> None:
    batch = [submit("child", queue="reports", after=["elsewhere"])]
    with pytest.raises(Unreachable):
        await Caller("web", limit=1.0).call(lambda call: broken.enqueue(call, batch))
    assert (await broken.stores["r"].where(["child"]))[0][0] is None


async def test_a_parent_of_the_same_batch_that_was_not_accepted_is_asked_for(
    broker: ShardedBroker,
) -> None:
    c = Client(broker)
    await c.enqueue(submit("parent"))
    receipts = await c.enqueue(submit("parent"), submit("child", queue="reports", after=["parent"]))
    assert [receipt.code for receipt in receipts] == ["duplicate", "accepted"]
    assert await states(broker, "child") == [State.DEFERRED]


# -- libraries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["near", "far"])
async def test_a_library_is_there_if_all_servers_have_it(where: str) -> None:
    with server() as near, server() as far:
        stores = {
            "0": RedisBroker(near.url, shard="0"),
            "r": RedisBroker(far.url, shard="r"),
        }
        broker = ShardedBroker(stores, {"reports": "r"})
        await broker.load_libraries()
        assert all(library.functions for library in await broker.libraries())
        lacks, other = (near, far) if where == "near" else (far, near)
        gone = (await broker.libraries())[0].name
        lacks.admin("FUNCTION", "DELETE", gone)
        old = "#!lua name=fairlead_old\nredis.register_function('f', function() end)"
        other.admin("FUNCTION", "LOAD", old)
        found = {library.name: library.functions for library in await broker.libraries()}
        assert found.pop(gone) == 0
        assert found.pop("fairlead_old") == 1
        assert all(found.values())
        await broker.close()
