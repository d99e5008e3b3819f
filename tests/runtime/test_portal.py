"""Sync code on the one background loop: from any thread, over a fork, until the very end."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead.runtime.portal import Portal, portal
from tests.runtime.programs import run


async def where() -> tuple[int, asyncio.AbstractEventLoop]:
    await asyncio.sleep(0)
    return threading.get_ident(), asyncio.get_running_loop()


def test_all_threads_share_one_loop_in_a_daemon_thread_of_its_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        places = set(pool.map(lambda _: portal.run(where), range(50)))
    ((thread, _),) = places
    assert thread != threading.get_ident()
    (found,) = [each for each in threading.enumerate() if each.ident == thread]
    assert found.daemon


def test_the_loop_is_uvloops() -> None:
    uvloop = pytest.importorskip("uvloop")
    _, loop = portal.run(where)
    assert isinstance(loop, uvloop.Loop)


def test_asyncios_own_loop_does_where_there_is_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    _, loop = Portal().run(where)
    assert isinstance(loop, asyncio.SelectorEventLoop)


async def test_a_thread_whose_own_loop_is_running_may_call() -> None:
    _, loop = portal.run(where)
    assert loop is not asyncio.get_running_loop()


def test_errors_come_with_the_traceback_of_where_they_were_raised() -> None:
    async def deeper() -> None:
        raise LookupError("nothing there")

    async def fails() -> None:
        await deeper()

    with pytest.raises(LookupError, match="nothing there") as caught:
        portal.run(fails)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[0] == "test_errors_come_with_the_traceback_of_where_they_were_raised"
    assert names[-2:] == ["fails", "deeper"]


def test_a_timeout_of_the_coroutine_itself_is_passed_on() -> None:
    async def impatient() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        portal.run(impatient)


def test_a_call_may_take_longer_than_a_caller_sleeps_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.runtime.portal._SLICE", 0.001)

    async def slow() -> str:
        await asyncio.sleep(0.02)
        return "done"

    assert portal.run(slow) == "done"


def test_the_callers_context_goes_along() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    async def read() -> str:
        return variable.get()

    variable.set("mine")
    assert portal.run(read) == "mine"


def test_a_call_from_the_portals_own_loop_is_refused_instead_of_hanging() -> None:
    async def inside() -> None:
        portal.run(where)

    with pytest.raises(RuntimeError, match="aenqueue"):
        portal.run(inside)


def test_flush_tells_whether_all_calls_have_ended() -> None:
    begun, gate = threading.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await gate.wait()

    async def open_gate() -> None:
        gate.set()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(portal.run, wait)
        assert begun.wait(10)
        assert not portal.flush(0.01)
        portal.run(open_gate)
        call.result(10)
    assert portal.flush(10)


def test_the_process_waits_for_outstanding_calls_at_its_end() -> None:
    program = """
import asyncio, threading
from fairlead.runtime.portal import portal

begun = threading.Event()

async def slow():
    begun.set()
    await asyncio.sleep(0.3)  # a broker that takes its time
    print("done", flush=True)

threading.Thread(target=portal.run, args=(slow,), daemon=True).start()
begun.wait()
"""
    assert run(program) == "done\n"


def test_the_process_does_not_wait_for_a_call_that_only_waits() -> None:
    program = """
import asyncio, threading
from fairlead.runtime.portal import portal

begun = threading.Event()

async def forever():
    begun.set()
    await asyncio.Event().wait()

threading.Thread(target=lambda: portal.run(forever, flushed=False), daemon=True).start()
begun.wait()
print(portal.flush(0))
"""
    assert run(program) == "True\n"


def test_the_very_first_call_may_come_from_an_exit_handler() -> None:
    program = """
import atexit
from fairlead.runtime.portal import portal

async def work():
    return "worked"

atexit.register(lambda: print(portal.run(work)))
"""
    assert run(program) == "worked\n"


def test_a_call_works_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async def work() -> str:
        await asyncio.sleep(0)
        return "worked"

    monkeypatch.setattr(threading.Thread, "start", refuse)
    portal = Portal()
    assert [portal.run(work), portal.run(work)] == ["worked", "worked"]


def test_other_exit_handlers_may_still_call() -> None:
    program = """
import atexit

@atexit.register
def last():
    print(portal.run(work))

from fairlead.runtime.portal import portal

async def work():
    return "worked"

portal.run(work)
"""
    assert run(program) == "worked\n"


def test_ctrl_c_ends_the_wait_and_cancels_the_call() -> None:
    program = """
import asyncio, os, signal, threading
from fairlead.runtime.portal import portal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
ended = threading.Event()

async def forever():
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()

try:
    portal.run(forever)
except KeyboardInterrupt:
    print("interrupted", ended.wait(10))
"""
    assert run(program) == "interrupted True\n"


def test_forked_children_get_loops_of_their_own_and_the_parent_keeps_its() -> None:
    program = """
import asyncio, os, sys, threading
from fairlead.runtime.portal import portal

async def where():
    return id(asyncio.get_running_loop())

async def tick():
    await asyncio.sleep(0)

stop = threading.Event()

def busy():
    while not stop.is_set():
        portal.run(tick)

threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
own = portal.run(where)
for number in range(10):
    child = os.fork()
    if child == 0:
        for _ in range(10):
            portal.run(tick)
        if number % 2:
            os._exit(0)
        sys.exit(0)  # with all exit handlers and finalizers
    assert os.waitpid(child, 0)[1] == 0
    assert portal.run(where) == own
stop.set()
for thread in threads:
    thread.join()
print("fine")
"""
    assert run(program) == "fine\n"
