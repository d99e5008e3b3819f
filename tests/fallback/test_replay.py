"""What a broker had accepted and then lost is sent again; what it still has is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import Fairlead
from fairlead.broker import connect
from fairlead.broker.requests import Call, Fetch
from fairlead.fallback.background import BackgroundLoop
from fairlead.fallback.codec import SpooledTask
from fairlead.fallback.recent_enqueues import RecentEnqueues
from fairlead.model.lifecycle import Settlement, State
from fairlead.runtime.ids import new_id
from fairlead.spool import SpoolLimits
from tests.fallback.bench import Bench, submit
from tests.support.servers import AT_ONCE, Running, server, wait_for


@pytest.fixture
def running() -> Iterator[Running]:
    with server() as made:
        yield made


@pytest.fixture
async def bench(running: Running, tmp_path: Path) -> AsyncIterator[Bench]:
    store = connect(running.url)
    made = Bench(tmp_path / "spool", inner=store, silence=5.0)
    yield made
    made.close()
    await store.close()


async def look(bench: Bench) -> int:
    """Look at the history, send what was lost; how many tasks that were."""
    before = bench.fallback.replayer.replayed
    await bench.fallback.replayer.look()
    await bench.drain()
    return bench.fallback.replayer.replayed - before


async def completed(bench: Bench, count: int) -> None:
    """Run so many tasks."""
    store, worker = bench.broker.inner, new_id()
    reply = await store.exchange(Call(worker, 1), fetch=Fetch(queues=("default",), max=count))
    ends = [
        Settlement(id=each.message.id, token=each.token, to=State.COMPLETED)
        for each in reply.leased
    ]
    await store.exchange(Call(worker, 2), ends)


async def test_the_lost_tail_is_sent_again_and_nothing_else(bench: Bench, running: Running) -> None:
    for number in range(5):
        await bench.submit(submit(f"kept{number}"))
    assert await look(bench) == 0
    running.admin("SAVE")
    for number in range(4):
        await bench.submit(submit(f"lost{number}", delay=100.0 * (number == 3)))
    bench.broker.calls.clear()
    running.restart()  # with what was saved
    # The next call goes over another connection, and does not hide what was lost.
    assert await bench.submit(submit("next")) == ["committed"]
    assert await bench.states("kept0", "lost0") == ["queued", None]
    assert await look(bench) == 4
    again = {id for call in bench.broker.calls for id in call}
    assert again == {"lost0", "lost1", "lost2", "lost3", "next"}
    assert await bench.states("lost0", "lost2", "lost3") == ["queued", "queued", "scheduled"]
    [record] = await bench.broker.inner.find(["lost3"])
    assert record is not None
    assert record.due_at is not None
    assert record.due_at - record.enqueued_at < 100.0
    assert await look(bench) == 0
    assert bench.fallback.spool.depth == 0


async def test_what_was_sent_again_may_be_lost_again(bench: Bench, running: Running) -> None:
    await bench.submit(submit("first"))
    running.admin("SAVE")
    await look(bench)
    await bench.submit(submit("a"), submit("b"))
    for _ in range(2):
        running.restart()
        assert await look(bench) == 2
        assert await bench.states("first", "a", "b") == ["queued"] * 3


async def test_a_restart_that_loses_nothing_sends_nothing(tmp_path: Path) -> None:
    with server(aof=True, config={"appendfsync": "always"}) as running:
        store = connect(running.url)
        bench = Bench(tmp_path / "spool", inner=store, silence=5.0)
        await bench.submit(*(submit(f"t{number}") for number in range(20)))
        await look(bench)
        running.restart()
        bench.broker.calls.clear()
        assert await look(bench) == 0
        assert await bench.submit(submit("next")) == ["committed"]
        assert await look(bench) == 0
        assert {id for call in bench.broker.calls for id in call} == {"next"}
        bench.close()
        await store.close()


async def test_a_connection_that_was_only_reset_sends_nothing(
    bench: Bench, running: Running
) -> None:
    await bench.submit(submit("a"))
    await look(bench)
    running.admin("CLIENT", "KILL", "TYPE", "normal")
    await bench.submit(submit("b"))
    assert bench.fallback.replayer.is_moved
    assert await look(bench) == 0
    assert not bench.fallback.replayer.is_moved


async def test_an_emptied_server_gets_all_of_the_last_minute(
    bench: Bench, running: Running
) -> None:
    await bench.submit(*(submit(f"t{number}") for number in range(10)))
    await look(bench)
    await completed(bench, 3)
    running.admin("FLUSHALL")
    await bench.submit(submit("after"))  # over the same connection
    assert await look(bench) == 11
    assert set(await bench.states(*(f"t{n}" for n in range(10)), "after")) == {"queued"}
    assert await look(bench) == 0


async def test_a_large_replay_goes_in_pieces_and_takes_the_time_that_it_needs(
    bench: Bench, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback, pieces = bench.fallback, list[int]()
    for number in range(0, 1200, 100):
        await bench.submit(*(submit(f"t{number + each}") for each in range(100)))
    await look(bench)
    keep_again = fallback.keep_again

    async def slowly(tasks: Sequence[SpooledTask]) -> None:
        pieces.append(len(tasks))
        await keep_again(tasks)
        await asyncio.sleep(0.3)

    monkeypatch.setattr(fallback, "keep_again", slowly)
    fallback.options = msgspec.structs.replace(fallback.options, silence=0.5)
    running.admin("FLUSHALL")
    for _ in range(5):
        await fallback.replayer.look()
    assert pieces == [500, 500, 200]
    assert fallback.replayer.replayed == fallback.spool.depth == 1200


async def test_what_finds_no_room_in_the_spool_waits_and_is_sent_once(
    running: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = connect(running.url)
    limits = SpoolLimits(max_count=700)
    bench = Bench(tmp_path / "spool", inner=store, silence=5.0, limits=limits)
    await bench.submit(*(submit(f"t{number}") for number in range(500)))
    await bench.submit(*(submit(f"t{number}") for number in range(500, 1000)))
    await look(bench)
    running.admin("FLUSHALL")
    bench.broker.calls.clear()
    assert await look(bench) == 500
    assert await look(bench) == 500
    assert await look(bench) == 0
    assert not bench.fallback.replayer.is_behind
    again = [id for call in bench.broker.calls for id in call]
    assert sorted(again) == sorted(f"t{number}" for number in range(1000))
    refused = [each for each in caplog.records if "does not take" in each.message]
    assert len(refused) == 1
    bench.close()
    await store.close()


async def test_a_promoted_replica_gets_what_it_had_not_heard_of(tmp_path: Path) -> None:
    with server(tcp=True, config=AT_ONCE) as primary:
        follow = {"replicaof": f"127.0.0.1 {primary.port}", **AT_ONCE}
        with server(tcp=True, config=follow) as replica:
            wait_for(lambda: replica.admin("ROLE")[3] == b"connected", "the replica")
            store = connect(primary.url)
            bench = Bench(tmp_path / "spool", inner=store, silence=5.0)
            await bench.submit(submit("kept"))
            await look(bench)
            primary.admin("WAIT", 1, 1000)
            replica.admin("REPLICAOF", "NO", "ONE")
            await bench.submit(submit("lost"))
            primary.kill()
            moved = connect(replica.url)  # as a finder would
            stores = bench.fallback.parts.stores
            stores["0"] = bench.broker.inner = moved  # type: ignore[index]
            bench.fallback.replayer.moved("0")
            assert await look(bench) == 1
            assert await bench.states("kept", "lost") == ["queued", "queued"]
            bench.close()
            await store.close()
            await moved.close()


async def test_a_program_sends_again_what_its_server_lost(tmp_path: Path) -> None:
    with server() as running:
        app = Fairlead(running.url, fallback="spool", spool=tmp_path / "spool")
        ran: list[int] = []

        @app.task
        def work(number: int) -> None:
            ran.append(number)

        for number in range(10):
            await work.using(durability="spooled").aenqueue(number)
        fallback = app._clients.fallback
        assert fallback is not None
        async with asyncio.timeout(20.0):
            while not fallback.replayer._known:  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0.01)
            running.restart()  # and everything is gone
            while fallback.replayer.replayed < 10 or fallback.spool.depth:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await app.drain() == 10
        assert sorted(ran) == list(range(10))
        await app.aclose()


async def test_a_task_for_which_another_stands_is_not_sent_again(
    bench: Bench, running: Running
) -> None:
    await bench.submit(submit("holder", unique="key"))
    await look(bench)
    running.admin("SAVE")
    receipt = await bench.client.submit(submit("other", unique="key"))
    assert (receipt.id, receipt.code) == ("holder", "duplicate")
    await bench.submit(submit("same"))
    again = await bench.client.submit(submit("same"))
    assert (again.id, again.code) == ("same", "duplicate")
    running.restart()  # with what was saved
    await completed(bench, 1)
    assert await look(bench) == 2  # both calls with "same"
    assert await bench.states("holder", "other", "same") == ["completed", None, "queued"]


async def test_what_must_not_be_spooled_is_sent_again_as_well(
    bench: Bench, running: Running
) -> None:
    await bench.submit(submit("kept"))
    await look(bench)
    running.admin("SAVE")
    await bench.client.submit(submit("one"), durability="committed")
    await bench.client.submit_many([submit("two"), submit("three")], durability="committed")
    running.restart()  # with what was saved
    await bench.client.submit(submit("next"), durability="committed")
    assert await bench.states("kept", "one", "two", "next") == ["queued", None, None, "queued"]
    assert await look(bench) == 3
    assert await bench.states("one", "two", "three") == ["queued"] * 3
    assert await look(bench) == 0


@pytest.mark.parametrize("seconds", [5.0, 3_600.0])
async def test_an_outage_of_any_length_makes_no_call_too_old(
    bench: Bench, running: Running, seconds: float
) -> None:
    passed = 0.0
    bench.fallback.recent_enqueues = RecentEnqueues(clock=lambda: time.monotonic() + passed)
    await bench.submit(submit("kept"))
    await look(bench)
    running.admin("SAVE")
    assert await bench.submit(submit("lost")) == ["committed"]
    running.restart()  # with what was saved
    passed = seconds
    assert await look(bench) == 1
    assert await bench.states("kept", "lost") == ["queued", "queued"]


async def test_what_is_lost_before_the_first_look_is_sent_again(
    bench: Bench, running: Running
) -> None:
    await bench.submit(submit("a"))
    running.restart()  # and everything is gone
    assert await look(bench) == 1
    assert await bench.states("a") == ["queued"]


async def test_an_idle_process_stops_to_ask_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, now, asked = Bench(tmp_path / "spool"), 0.0, 0

    async def hello() -> Any:
        nonlocal asked
        asked += 1
        return await bench.broker.inner.hello()

    monkeypatch.setattr(bench.broker, "hello", hello, raising=False)
    bench.fallback.recent_enqueues = window = RecentEnqueues(clock=lambda: now)
    background = BackgroundLoop(bench.fallback, clock=lambda: now, dice=lambda: 0.5)
    await bench.submit(submit("a"))
    found = []
    for now in (0.0, 30.0, 59.0, 61.0, 62.0, 70.0):  # noqa: B007 - the clocks read it
        await background._turn()
        found.append((asked, len(window)))
    assert found == [(1, 1), (2, 1), (3, 1), (4, 0), (4, 0), (4, 0)]
    bench.close()


def test_the_window_is_bounded_in_time_and_size() -> None:
    now = 0.0
    window = RecentEnqueues(clock=lambda: now)

    def add(count: int, size: int, shard: str = "0") -> None:
        tasks = [submit(new_id(), text=b"x" * size) for _ in range(count)]
        window.add(shard, "me", 1, tasks, [])

    add(10, 10)
    add(3, 10, "1")  # away: nobody looks at it
    now = 30.0
    add(5, 10)
    now = 61.0
    assert len(window) == 18
    window.seen("0", now)
    assert len(window.calls("0")) == 1
    assert len(window) == 8
    for _ in range(80):
        add(1, 1024 * 1024)
    assert 50 < len(window) < 65
    assert window.calls("1") == []  # the oldest go first
    window.seen("0", 200.0)
    assert window.calls("0") == []
    assert len(window) == 0
