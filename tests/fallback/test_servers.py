"""Programs on real servers that stop, stand still, run full and lose what they had."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, Handle, Unreachable
from fairlead.fallback.fallback import Fallback
from fairlead.model.errors import InvalidOption, Refused, ResultTimeout
from tests.support.proxy import proxy
from tests.support.servers import Running, server

BACK = 25.0  # seconds in which all is sent, on a busy machine


@pytest.fixture
def running() -> Iterator[Running]:
    with server(aof=True, config={"appendfsync": "always"}) as made:
        yield made


async def until(condition: Callable[[], bool]) -> None:
    """Look until it holds: another thread sees to it."""
    async with asyncio.timeout(BACK):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Program:
    """An app with a spool."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.app = Fairlead(url, fallback="spool", spool=folder, **options)
        self.ran: list[int] = []

        @self.app.task
        def work(number: int) -> int:
            self.ran.append(number)
            return number

        self.work = work

    @property
    def fallback(self) -> Fallback:
        fallback = self.app._clients.fallback
        assert fallback is not None
        return fallback

    async def until(self, state: str) -> None:
        """Wait for a state of the broker, and for the end of the drain if that is healthy."""
        fallback = self.fallback
        empty = state == "healthy"
        await until(lambda: fallback.state == state and not (empty and fallback.spool.depth))

    async def until_ran(self, *numbers: int) -> None:
        """Run a worker until it has run these."""
        async with self.app.worker():
            await until(lambda: sorted(self.ran) == sorted(numbers))


@pytest.fixture
async def program(running: Running, tmp_path: Path) -> AsyncIterator[Program]:
    made = Program(running.url, tmp_path / "spool")
    yield made
    await made.app.aclose()


async def test_a_program_starts_without_its_broker(program: Program, running: Running) -> None:
    running.stop()
    began = time.monotonic()
    handles = [await program.work.aenqueue(number) for number in range(5)]
    sync = await asyncio.to_thread(program.work.enqueue, 5)
    assert time.monotonic() - began < 2.0
    assert {handle.durability for handle in (*handles, sync)} == {"spooled"}
    assert await handles[0].astate() == "spooled"
    assert await asyncio.to_thread(lambda: sync.state) == "spooled"
    assert await program.app.handle(handles[1].id).astate() == "spooled"
    with pytest.raises(ResultTimeout):
        await handles[0].aresult(timeout=0)
    with pytest.raises(Refused, match="in the spool"):
        await handles[0].acancel()
    running.start()
    async with program.app.worker():
        assert [await each.aresult(timeout=BACK) for each in handles] == list(range(5))
        assert await sync.aresult(timeout=BACK) == 5
    await program.until("healthy")
    assert (await program.work.aenqueue(6)).durability == "committed"
    assert sorted(program.ran) == list(range(6))


@pytest.mark.serial
async def test_a_connection_that_is_refused_costs_a_moment(
    program: Program, running: Running
) -> None:
    await program.work.using(durability="committed").aenqueue(0)
    running.stop()
    began = time.monotonic()
    assert (await program.work.aenqueue(1)).durability == "spooled"
    assert time.monotonic() - began < 0.5
    assert program.fallback.state == "spooling"


@pytest.mark.serial
async def test_a_frozen_server_costs_a_second_once(program: Program, running: Running) -> None:
    await program.work.using(durability="committed").aenqueue(0)
    running.pause()
    try:
        began = time.monotonic()
        handle = await program.work.aenqueue(1)
        assert handle.durability == "spooled"
        assert 0.9 < time.monotonic() - began < 2.0
        began = time.monotonic()
        assert (await program.work.aenqueue(2)).durability == "spooled"
        assert time.monotonic() - began < 0.5
        with pytest.raises(Unreachable):
            await program.work.using(durability="committed").aenqueue(3)
    finally:
        running.resume()
    await program.until("healthy")
    assert await program.app.drain() == 3  # the ambiguous one is one task
    assert sorted(program.ran) == [0, 1, 2]


@pytest.mark.parametrize(
    ("option", "value", "normal"),
    [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")],
)
async def test_a_server_that_takes_no_writes_is_away_until_it_does(
    program: Program, running: Running, option: str, value: str, normal: str
) -> None:
    await program.work.using(durability="committed").aenqueue(0)
    running.admin("CONFIG", "SET", option, value)
    assert (await program.work.aenqueue(1)).durability == "spooled"
    assert program.fallback.state == "spooling"
    running.admin("CONFIG", "SET", option, normal)
    await program.until("healthy")
    assert await program.app.drain() == 2


async def test_a_lost_reply_makes_one_task(running: Running, tmp_path: Path) -> None:
    def enters(command: bytes) -> bool:
        return b"enqueue" in command[:200]

    async with proxy(path=running.path, matching=enters) as between:
        program = Program(between.url, tmp_path / "spool")
        await program.work.using(durability="committed").aenqueue(0)
        fault = between.drop_reply()
        handle = await program.work.aenqueue(1)
        await fault.happened.wait()
        assert handle.durability in ("committed", "spooled")
        await program.until("healthy")
        assert await program.app.drain() == 2
        assert sorted(program.ran) == [0, 1]
        await program.app.aclose()


async def test_all_loops_and_threads_of_a_process_share_one_spool(
    program: Program, running: Running
) -> None:
    running.stop()
    results: list[Handle[int]] = []

    def other_loop() -> None:
        async def main() -> None:
            results.extend([await program.work.aenqueue(n) for n in range(100, 110)])

        asyncio.run(main())

    threads = [threading.Thread(target=other_loop)]
    threads += [
        threading.Thread(target=lambda n=n: results.append(program.work.enqueue(n)))
        for n in range(200, 205)
    ]
    for thread in threads:
        thread.start()
    mine = [await program.work.aenqueue(n) for n in range(10)]
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert {each.durability for each in (*mine, *results)} == {"spooled"}
    assert len(results) == 15
    assert len([each for each in program.folder.iterdir() if each.is_dir()]) == 1
    running.start()
    await program.until("healthy")
    assert await program.app.drain() == 25


async def test_a_forked_child_has_a_spool_of_its_own(program: Program, running: Running) -> None:
    running.stop()
    await program.work.aenqueue(1)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            assert not len(program.fallback.ids)
            handle = program.work.enqueue(2)
            assert handle.durability == "spooled"
            assert program.fallback.spool.depth == 1
            code = 0
        finally:
            os.kill(os.getpid(), signal.SIGKILL if code == 0 else signal.SIGTERM)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert (await program.work.aenqueue(3)).durability == "spooled"
    running.start()
    await program.until_ran(1, 2, 3)  # and adopts what the child left


async def test_closing_is_quick_and_says_what_stays(
    running: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program(running.url, tmp_path / "spool")
    running.stop()
    await program.work.aenqueue(1)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "fairlead.fallback"):
        await program.app.aclose()
    assert time.monotonic() - began < 2.0
    [line] = [each.getMessage() for each in caplog.records if "stay in the spool" in each.message]
    assert str(tmp_path / "spool") in line
    running.start()
    following = Program(running.url, tmp_path / "spool")
    await following.work.aenqueue(2)
    await following.until_ran(1, 2)
    await following.app.aclose()


async def test_each_change_of_state_is_one_line(
    program: Program, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    await program.work.using(durability="committed").aenqueue(0)

    def states() -> list[str]:
        return [each.state for each in caplog.records if hasattr(each, "state")]

    with caplog.at_level(logging.INFO, "fairlead.fallback"):
        running.stop()
        await asyncio.gather(*(program.work.aenqueue(n) for n in range(50)))
        await program.until("spooling")
        running.start()
        await until(lambda: states()[-1:] == ["healthy"])
    assert states() == ["suspect", "spooling", "draining", "healthy"]


def test_a_fallback_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidOption):
        Fairlead("memory://", fallback="memory")  # type: ignore[arg-type]
