"""``embedded://``: a broker that starts its server, brings it back, and leaves it in good order."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead import BrokerError, Fairlead, InvalidOption, State, Unreachable
from fairlead.broker import Store, connect
from fairlead.embedded.valkey import EmbeddedValkey
from tests.embedded.processes import ended, holder_of, kill, users
from tests.runtime.programs import run


def pid_of(home: Path) -> int:
    """The server that was started last there."""
    return holder_of(home).pid


def number(text: str) -> int:
    return int(text)


def count(app: Fairlead) -> int:
    """How many tasks wait in it."""
    return app.snapshot().depth


def program(text: str, home: Path) -> str:
    """Run a small program whose app is on the server in ``home``; what it printed."""
    begin = f"from fairlead import Fairlead\n\napp = Fairlead('embedded://{home}')\n"
    task = "@app.task(name='work')\ndef work(n: int = 0) -> int:\n    return n\n"
    return run(f"{begin}\n{task}\n{textwrap.dedent(text)}")


def test_nothing_is_started_before_the_first_call(home: Path) -> None:
    connect(f"embedded://{home}")
    assert not home.exists()


def test_what_was_enqueued_is_there_for_the_next_process(home: Path) -> None:
    assert program("print(work.enqueue(1).state)", home) == "queued\n"
    ended(pid_of(home))
    assert program("print(app.snapshot().depth)", home) == "1\n"
    ended(pid_of(home))


async def test_calls_that_come_first_at_the_same_time_share_a_connection(home: Path) -> None:
    store = connect(f"embedded://{home}")
    await asyncio.gather(*(store.hello() for _ in range(20)))
    assert len(store._sessions) == 1  # type: ignore[attr-defined]
    await store.close()
    ended(pid_of(home))


async def test_its_queues_may_lie_in_several_shards(home: Path) -> None:
    async with Fairlead(f"embedded://{home}?shards=far=other") as app:
        task = app.task(name="work")(lambda: 1)
        handles = await app.aenqueue_many([task.call(), task.using(queue="far").call()])
        assert await app.drain() == 2
        assert [await handle.aresult(timeout=5) for handle in handles] == [1, 1]
    ended(pid_of(home))


async def test_a_server_that_was_killed_is_started_again(home: Path) -> None:
    async with Fairlead(f"embedded://{home}") as app:
        work = app.task(name="work")(number)
        async with app.worker():
            assert await (await work.aenqueue("1")).aresult(timeout=20) == 1
            killed = pid_of(home)
            kill(killed)
            assert await (await work.aenqueue("2")).aresult(timeout=20) == 2
        assert pid_of(home) != killed
    ended(pid_of(home))


async def test_close_leaves_a_server_that_others_use(home: Path) -> None:
    with users(1) as (user,):
        store = connect(f"embedded://{home}")
        await store.hello()
        pid, _ = user.do(f"start {home}")
        await store.close()
        os.kill(pid, 0)
        assert user.do("ensure") == (pid, True)  # nobody else owns it now
        assert user.end() == 0
        ended(pid)


async def test_what_is_asked_after_close_brings_the_server_back(home: Path) -> None:
    app = Fairlead(f"embedded://{home}")
    handle = await app.task(name="work")(number).aenqueue("1")
    await app.aclose()
    ended(pid_of(home))
    assert await handle.astate() is State.QUEUED
    await app.aclose()
    ended(pid_of(home))


def test_a_first_call_keeps_its_time_limit_and_says_that_nothing_was_sent(home: Path) -> None:
    with Fairlead(f"embedded://{home}") as first:
        first.snapshot()
        server = pid_of(home)
        os.kill(server, signal.SIGSTOP)
        made = [Fairlead(f"embedded://{home}", timeout="0.3s") for _ in range(4)]
        tasks = [app.task(name="work")(number) for app in made]
        calls: list[Callable[[], object]] = [
            made[0].snapshot,
            lambda: made[1].enqueue_many([tasks[1].call("1")]),
            lambda: tasks[2].enqueue("1"),
            lambda: tasks[3].using(enqueue_timeout="0.2s").enqueue("1"),
        ]
        try:
            for call in calls:
                began = time.monotonic()
                with pytest.raises(Unreachable, match="nothing was sent"):
                    call()
                assert time.monotonic() - began < 3.0  # and not the ten seconds of a start
        finally:
            os.kill(server, signal.SIGCONT)
        for app in made:
            assert count(app) == 0
            app.close()
    ended(server)


async def test_a_deleted_directory_is_told_once_and_then_works_again(home: Path) -> None:
    store: Store = connect(f"embedded://{home}")
    await store.hello()
    pid = pid_of(home)
    shutil.rmtree(home)
    kill(pid)
    with pytest.raises(BrokerError, match=r"was deleted.*try again"):
        await store.hello()
    await store.hello()
    await store.close()
    ended(pid_of(home))


def test_apps_on_several_loops_and_threads_share_the_server(home: Path) -> None:
    with Fairlead(f"embedded://{home}") as app:
        work = app.task(name="work")(number)
        work.enqueue("1")  # on the loop of sync code
        for n in range(3):
            asyncio.run(work.aenqueue(str(n)))
        assert count(app) == 4
        assert asyncio.run(app.drain()) == 4
    ended(pid_of(home))


@pytest.mark.parametrize("url", ["embedded://x?fsnyc=always", "embedded://x?fsync=never"])
def test_a_url_that_is_wrong_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidOption):
        Fairlead(url)


# -- the end of a process ---------------------------------------------------------------------


def test_a_call_of_a_thread_that_is_under_way_at_exit_is_finished(home: Path) -> None:
    text = """
        import threading

        begun = threading.Event()
        send = type(app._clients.store).enqueue

        async def slow(self, *args, **rest):
            begun.set()
            threading.main_thread().join()  # until the program has come to its end
            return await send(self, *args, **rest)

        type(app._clients.store).enqueue = slow
        threading.Thread(target=work.enqueue, daemon=True).start()
        begun.wait()
        """
    assert program(text, home) == ""
    ended(pid_of(home))
    with Fairlead(f"embedded://{home}") as app:
        assert count(app) == 1


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_an_exit_handler_may_still_enqueue(home: Path, when: str) -> None:
    # Registered before Fairlead is imported, it runs after the server was stopped: which is said.
    register = (
        "import atexit, logging\nlogging.disable()\n"
        "atexit.register(lambda: print(work.enqueue().state))\n"
    )
    begin = f"from fairlead import Fairlead\napp = Fairlead('embedded://{home}')\n"
    task = "@app.task(name='work')\ndef work() -> None: ...\nwork.enqueue()\n"
    order = (register, begin, task) if when == "before" else (begin, task, register)
    assert run("".join(order)) == "queued\n"
    ended(pid_of(home))
    with Fairlead(f"embedded://{home}") as app:
        assert count(app) == 2
    ended(pid_of(home))


def test_a_thread_that_waits_at_exit_does_not_leave_a_server_behind(home: Path) -> None:
    text = """
        import threading

        waits = threading.Event()
        listen = type(app._clients.store).collect

        async def collect(self, *args):
            waits.set()
            return await listen(self, *args)

        type(app._clients.store).collect = collect
        handle = work.enqueue()
        threading.Thread(target=handle.result, daemon=True).start()
        assert waits.wait(10)
        """
    program(text, home)
    ended(pid_of(home))


# -- fork -------------------------------------------------------------------------------------

PREFORK = """
import json, os, threading

before = work.enqueue(-1)  # server and portal run before the fork
stop = threading.Event()
busy = threading.Thread(target=lambda: [app.snapshot() for _ in iter(stop.is_set, True)])
busy.start()

def serve():
    handles = [work.enqueue(n) for n in range(25)]
    handles += app.enqueue_many(work.call(n) for n in range(25, 50))
    assert before.state.value == "queued"
    return [handle.id for handle in handles]

children = []
for _ in range(4):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(serve()).encode())
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    children.append((pid, reading))
ids = serve()
for pid, reading in children:
    with os.fdopen(reading) as pipe:
        ids += json.load(pipe)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
stop.set()
busy.join()
print(len(children) + 1, "processes,", len(set(ids)), "ids,", app.snapshot().depth, "in one store")
"""


def test_forked_processes_enqueue_into_the_same_store(home: Path) -> None:
    assert program(PREFORK, home) == "5 processes, 250 ids, 251 in one store\n"
    ended(pid_of(home))


def test_a_child_that_ends_takes_nothing_from_its_parent(home: Path) -> None:
    text = """
        import os, sys

        work.enqueue()
        pid = os.fork()
        if pid == 0:
            work.enqueue()
            sys.exit(0)  # in good order: it leaves, and is not the last one
        os.waitpid(pid, 0)
        work.enqueue()
        print(app.snapshot().depth)
        """
    assert program(text, home) == "3\n"
    ended(pid_of(home))


# -- how the server is started ----------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_compares_texts_by_their_bytes_and_keeps_its_memory(home: Path) -> None:
    with EmbeddedValkey(home) as endpoint:
        environment = Path(f"/proc/{endpoint.pid}/environ").read_bytes().split(b"\0")
    assert b"LC_ALL=C" in environment
    assert any(entry.startswith(b"GLIBC_TUNABLES=") for entry in environment)
