"""Sync code: many threads, forked processes, and the end of the process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead import Ambiguous, Fairlead, State
from tests.client.stores import Counting
from tests.runtime.programs import run

THREADS, EACH = 50, 200


def test_threads_share_calls_and_every_task_is_accepted_once() -> None:
    counting = Counting()
    app = Fairlead(store=counting.store)

    @app.task
    def work(n: int) -> None: ...

    together = threading.Barrier(THREADS)

    def many(thread: int) -> list[str]:
        together.wait()
        return [work.enqueue(thread * EACH + n).id for n in range(EACH)]

    with ThreadPoolExecutor(THREADS) as pool:
        ids = [id for part in pool.map(many, range(THREADS)) for id in part]

    total = THREADS * EACH
    assert len(set(ids)) == total
    sent = [item.message.id for batch in counting.batches for item in batch]
    assert sorted(sent) == sorted(ids)
    snapshot = app.snapshot()
    assert (snapshot.depth, snapshot.ready) == (total, total)
    assert len(counting.batches) < total / 2
    assert [call.number for call in counting.calls] == list(range(1, len(counting.calls) + 1))


def test_after_a_lost_reply_the_error_names_the_task() -> None:
    counting = Counting()
    app = Fairlead(store=counting.store, timeout="200ms")

    @app.task
    def pay() -> None: ...

    def lost() -> str:
        counting.late_failures = [Ambiguous("the reply was lost") for _ in range(1000)]
        with pytest.raises(Ambiguous) as caught:
            pay.using(tenant="acme").enqueue()
        (note,) = caught.value.__notes__
        assert "using(id=...)" in note
        return str(note)

    async def alost() -> str:
        counting.late_failures = [Ambiguous("the reply was lost") for _ in range(1000)]
        with pytest.raises(Ambiguous) as caught:
            await pay.using(tenant="acme").aenqueue()
        (note,) = caught.value.__notes__
        return str(note)

    for attempt in (lost, lambda: asyncio.run(alost())):
        note = attempt()
        counting.late_failures.clear()
        id = counting.batches[-1][0].message.id
        assert f"Task '{id}' of tenant 'acme' may have been accepted" in note
        assert app.handle(id, "acme").state is State.QUEUED

    mine = pay.using(id="order-17")
    counting.late_failures = [Ambiguous("the reply was lost") for _ in range(1000)]
    with pytest.raises(Ambiguous):
        mine.enqueue()
    counting.late_failures.clear()
    assert mine.enqueue().duplicate


def test_the_process_does_not_wait_for_a_thread_that_waits_for_a_result() -> None:
    assert run(WAITING) == "nothing to flush\n"


WAITING = """
import threading
from fairlead import Fairlead
from fairlead.broker.memory import MemoryBroker
from fairlead.runtime.portal import portal

waits = threading.Event()

class Watched(MemoryBroker):
    async def watch(self, incarnation, ids, **rest):
        waits.set()
        return await super().watch(incarnation, ids, **rest)

app = Fairlead(store=Watched())

@app.task
def work() -> None: ...

handle = work.enqueue()
threading.Thread(target=handle.result, daemon=True).start()
assert waits.wait(10)
print("nothing to flush" if portal.flush(0) else "still waiting")
"""


def test_forked_processes_enqueue_and_drain_each_for_itself() -> None:
    assert run(PREFORK) == "5 processes, 250 ids\n"


PREFORK = """
import asyncio, json, os, threading
from fairlead import Fairlead

app = Fairlead("memory://")
done = []

@app.task
async def work(n: int) -> int:
    done.append(n)
    return n

before = work.enqueue(-1)  # the portal runs before the fork
stop = threading.Event()
busy = threading.Thread(target=lambda: [app.snapshot() for _ in iter(stop.is_set, True)])
busy.start()

def serve():
    handles = [work.enqueue(n) for n in range(25)]
    handles += app.enqueue_many(work.call(n) for n in range(25, 50))
    attempts = asyncio.run(app.drain())
    assert attempts == 51, attempts  # with its own copy of the one from before
    assert sorted(done) == list(range(-1, 50)), done
    assert [handle.result(10) for handle in handles] == list(range(50))
    assert before.result(10) == -1
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
print(f"{len(children) + 1} processes, {len(set(ids))} ids")
"""


def test_what_daemon_threads_enqueue_at_the_end_still_arrives() -> None:
    assert run(EXIT) == "accepted 1\n"


EXIT = """
import asyncio, threading
from fairlead import Fairlead
from fairlead.broker import connect

class Slow:
    def __init__(self, inner):
        self.inner = inner

    async def enqueue(self, call, submissions):
        begun.set()
        await asyncio.sleep(0.3)  # a broker far away
        receipts = await self.inner.enqueue(call, submissions)
        print(receipts[0].code, len(receipts), flush=True)
        return receipts

    def __getattr__(self, name):
        return getattr(self.inner, name)

begun = threading.Event()
app = Fairlead(store=Slow(connect("memory://")))

@app.task
def work() -> None: ...

threading.Thread(target=work.enqueue, daemon=True).start()
begun.wait()
"""
