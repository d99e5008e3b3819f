"""Lines of threads: sync code waits for the server itself, and what it is promised stays true."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead import Ambiguous, Fairlead, Handle, InvalidInput, QueueFull, Refused, Unreachable
from fairlead.broker.redis import blocking_line
from tests.runtime.programs import run
from tests.support.proxy import proxy
from tests.support.servers import Running, server

MANY = 10  # more calls than a thread makes before it has a line


@pytest.fixture
def running() -> Iterator[Running]:
    with server() as made:
        yield made


@pytest.fixture
def app(running: Running) -> Iterator[Fairlead]:
    with Fairlead(running.url) as made:
        yield made


def task(app: Fairlead) -> Callable[..., Handle[None]]:
    @app.task
    def work(n: int) -> None: ...

    return work.enqueue


def hurried(app: Fairlead, seconds: float) -> Callable[..., Handle[None]]:
    """The same task, with less time."""
    (spec,) = app._registry
    return app.registered(spec.name).using(enqueue_timeout=seconds).enqueue


def connections(running: Running) -> int:
    """Those of apps, but for the one that asks."""
    with running.client() as client:
        return sum(each["name"] == "fairlead" for each in client.client_list())


def lines(app: Fairlead) -> int:
    return sum(line._line is not None for line in app._clients._lines._lines)


# -- who has one -------------------------------------------------------------------------------


def test_a_thread_has_a_line_after_a_few_calls(app: Fairlead, running: Running) -> None:
    enqueue = task(app)
    handles = [enqueue(0)]
    assert (connections(running), lines(app)) == (1, 0)
    handles += [enqueue(n) for n in range(1, MANY)]
    assert (connections(running), lines(app)) == (2, 1)
    assert len({handle.id for handle in handles}) == MANY == app.snapshot().ready
    assert not any(handle.duplicate for handle in handles)


def test_every_thread_has_its_own_and_every_task_is_accepted_once(
    app: Fairlead, running: Running
) -> None:
    enqueue = task(app)
    together = threading.Barrier(8, timeout=20)

    def many(thread: int) -> list[str]:
        together.wait()
        made = [enqueue(n) for n in range(100)]
        together.wait()  # while all threads are there
        if thread == 0:
            assert (connections(running), lines(app)) == (9, 8)
        together.wait()
        assert not any(handle.duplicate for handle in made)
        return [handle.id for handle in made]

    with ThreadPoolExecutor(8) as pool:
        ids = [id for part in pool.map(many, range(8)) for id in part]
    assert len(set(ids)) == 800 == app.snapshot().ready
    wait_until(lambda: connections(running) == 1)  # a line ends with its thread


def test_there_are_no_more_than_so_many(app: Fairlead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.client.thread_lines._MOST", 2)
    enqueue = task(app)
    together = threading.Barrier(4, timeout=20)

    def many(_: int) -> None:
        for n in range(MANY):
            enqueue(n)
        together.wait()
        assert lines(app) == 2
        together.wait()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    assert app.snapshot().ready == 4 * MANY


async def test_on_the_thread_of_a_loop_it_is_the_portals_way(app: Fairlead) -> None:
    enqueue = task(app)
    for n in range(MANY):
        enqueue(n)
    assert lines(app) == 0


# -- what stays as it was ----------------------------------------------------------------------


def test_middleware_sees_every_task_also_once_there_is_a_line(app: Fairlead) -> None:
    enqueue = task(app)
    for n in range(MANY):
        enqueue(n)
    seen: list[str] = []

    @app.around_enqueue
    async def watch(task: Any) -> Any:
        seen.append(task.id)
        yield

    assert [enqueue(n).id for n in range(MANY)] == seen


def test_a_refusal_is_the_same_error(app: Fairlead) -> None:
    enqueue = task(app)
    for n in range(MANY):
        enqueue(n)
    app.configure_queue("default", max_waiting=MANY + 1)
    enqueue(MANY)
    with pytest.raises(QueueFull, match=f"{MANY + 1}"):
        enqueue(MANY + 1)
    with pytest.raises(InvalidInput, match="missing a required argument"):
        enqueue()


def test_a_task_that_the_socket_does_not_take_at_once_is_sent_in_parts(app: Fairlead) -> None:
    @app.task
    def keep(text: str) -> None: ...

    for n in range(MANY):
        keep.enqueue(f"{n}" * 900_000)
    assert lines(app) == 1
    assert app.snapshot().ready == MANY


def test_what_was_enqueued_is_counted(app: Fairlead) -> None:
    app.counters.begin()
    enqueue = task(app)
    for n in range(MANY):
        enqueue(n)
    assert list(app.counters.counted().submitted.values()) == [MANY]


def test_with_a_fallback_tasks_are_spooled_when_the_server_dies(
    running: Running, tmp_path: Any
) -> None:
    with Fairlead(running.url, fallback="spool", spool=tmp_path) as app:
        enqueue = task(app)
        assert [enqueue(n).durability for n in range(MANY)] == ["committed"] * MANY
        running.kill()
        assert [enqueue(n).durability for n in range(MANY)] == ["spooled"] * MANY


def test_after_a_close_nothing_is_accepted(app: Fairlead, running: Running) -> None:
    enqueue = task(app)
    for n in range(MANY):
        enqueue(n)
    app.close()
    assert connections(running) == 0
    for n in range(MANY):
        with pytest.raises(Refused, match="closed"):
            enqueue(n)


def test_a_close_waits_for_the_calls_of_other_threads(app: Fairlead, running: Running) -> None:
    enqueue = task(app)
    with ThreadPoolExecutor(1) as pool:
        for n in range(MANY):
            pool.submit(enqueue, n).result()
        running.pause()
        last = pool.submit(enqueue, MANY)
        wait_until(lambda: app._clients._lines.busy)
        threading.Timer(0.2, running.resume).start()
        app.close()
        assert last.done()
        assert not last.result().duplicate


# -- trouble -----------------------------------------------------------------------------------


@asynccontextmanager
async def behind(running: Running) -> Any:
    """A proxy, an app behind it, and a thread that has a line."""
    async with proxy(path=running.path) as between:
        app = Fairlead(between.url, timeout="5s")
        enqueue = task(app)
        with ThreadPoolExecutor(1) as pool:

            async def once(n: int, call: Callable[..., Any] = enqueue) -> Any:
                return await asyncio.wrap_future(pool.submit(call, n))

            for n in range(MANY):
                await once(n)
            assert lines(app) == 1
            yield between, app, once
        await asyncio.to_thread(app.close)


@pytest.mark.parametrize("share", ["none", "half"])
async def test_a_lost_reply_is_asked_for_again_under_its_number(
    running: Running, share: str
) -> None:
    async with behind(running) as (between, app, once):
        fault = between.drop_reply() if share == "none" else between.cut_reply()
        handle = await once(MANY)
        assert fault.happened.is_set()
        assert not handle.duplicate  # it was not sent as another call
        assert (await once(MANY + 1)).id != handle.id
        assert (await app.asnapshot()).ready == MANY + 2
        assert lines(app) == 1


async def test_what_may_have_been_done_stays_in_doubt(running: Running) -> None:
    async with behind(running) as (between, app, once):
        fault = between.drop_reply()
        calling = asyncio.ensure_future(once(MANY, hurried(app, 1.0)))
        await fault.happened.wait()
        await between.refuse()
        between.cut()  # nobody can be asked about it
        with pytest.raises(Ambiguous, match="may have been executed"):
            await calling
        await between.accept()
        assert (await app.asnapshot()).ready == MANY + 1


async def test_a_silent_server_costs_no_more_than_the_time_limit(running: Running) -> None:
    async with behind(running) as (between, app, once):
        between.swallow(up=False)
        began = time.monotonic()
        with pytest.raises(Ambiguous) as caught:
            await once(MANY, hurried(app, 0.5))
        assert 0.4 < time.monotonic() - began < 3.0
        (id,) = caught.value.ids
        between.heal()
        assert str(await app.handle(id).astate()) == "queued"
        assert not (await once(MANY)).duplicate
        assert (await app.asnapshot()).ready == MANY + 2


async def test_where_a_line_is_silent_no_other_connection_is_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway forgot all connections, or the server is another one: a new connection answers."""
    monkeypatch.setattr(blocking_line, "_SILENCE", 0.3)  # that of other connections is 5 seconds
    async with behind(running) as (between, app, once):
        between.forget()
        assert not (await once(MANY, hurried(app, 4.0))).duplicate
        assert not (await once(MANY + 1)).duplicate
        assert (await app.asnapshot()).ready == MANY + 2
        assert lines(app) == 1


async def test_connections_that_are_reset_are_opened_anew(running: Running) -> None:
    async with behind(running) as (between, app, once):
        for _ in range(3):
            between.cut()
            for n in range(MANY):
                assert not (await once(n)).duplicate
        assert (await app.asnapshot()).ready == 4 * MANY


def test_a_server_that_was_restarted_is_used_again(running: Running) -> None:
    with Fairlead(running.url) as app:
        enqueue = task(app)
        for n in range(MANY):
            enqueue(n)
        running.kill()
        running.start()  # without what it had
        assert not any(enqueue(n).duplicate for n in range(MANY))
        assert app.snapshot().ready == MANY
        assert lines(app) == 1


def test_of_a_server_that_is_gone_it_is_sure_that_nothing_was_done(
    app: Fairlead, running: Running
) -> None:
    enqueue = task(app)
    for n in range(MANY):
        enqueue(n)
    running.kill()
    with pytest.raises(Unreachable):
        hurried(app, 1.0)(MANY)
    running.start()


async def test_one_that_cannot_be_opened_is_left_to_the_portal(running: Running) -> None:
    async with proxy(path=running.path) as between:
        app = Fairlead(between.url, timeout="5s")
        enqueue = task(app)
        with ThreadPoolExecutor(1) as pool:
            await asyncio.wrap_future(pool.submit(enqueue, 0))
            await between.refuse()  # the portal has its connection already
            for n in range(1, MANY):
                await asyncio.wrap_future(pool.submit(enqueue, n))
        assert lines(app) == 0
        await between.accept()
        assert (await app.asnapshot()).ready == MANY
        await asyncio.to_thread(app.close)


# -- processes ---------------------------------------------------------------------------------


def test_a_forked_child_has_lines_of_its_own(running: Running) -> None:
    assert run(FORK.format(url=running.url)) == "30 tasks, 2 incarnations\n"


FORK = """
import os
from fairlead import Fairlead
import logging
logging.disable()

app = Fairlead({url!r})

@app.task
def work(n: int) -> None: ...

def many():
    handles = [work.enqueue(n) for n in range(10)]
    assert not any(handle.duplicate for handle in handles)
    (line,) = app._clients._lines._lines
    return line._incarnation

mine = many()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, many().encode())
    os._exit(0)
many()
assert os.waitpid(child, 0)[1] == 0
os.close(writing)
with os.fdopen(reading) as pipe:
    theirs = pipe.read()
print(app.snapshot().ready, "tasks,", len({{mine, theirs}}), "incarnations")
app.close()
"""


def test_the_end_of_the_process_waits_for_a_daemon_thread(running: Running) -> None:
    assert run(EXIT.format(url=running.url, pid=running.pid)) == ""
    with Fairlead(running.url) as app:
        assert app.snapshot().ready == 11


EXIT = """
import os, signal, threading
from fairlead import Fairlead
import logging
logging.disable()

app = Fairlead({url!r})
begun = threading.Event()

@app.task
def work(n: int) -> None: ...

def many():
    for n in range(10):
        work.enqueue(n)
    os.kill({pid}, signal.SIGSTOP)
    begun.set()
    work.enqueue(10)

threading.Thread(target=many, daemon=True).start()
begun.wait()
while not app._clients._lines.busy:
    pass
threading.Timer(0.3, os.kill, ({pid}, signal.SIGCONT)).start()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
