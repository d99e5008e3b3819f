"""Sync code under gevent: calls work, other greenlets go on, and what cannot work says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Fairlead
from tests.runtime.programs import run
from tests.support.servers import Running, server

pytest.importorskip("gevent")

BEGIN = """
from gevent import monkey
monkey.patch_all()
import gevent, os, signal, sys, time
from fairlead import Fairlead, FairleadError

app = Fairlead({url!r})

@app.task(name="work")
def work(number: int) -> int:
    return number
"""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server("valkey", tcp=True, aof=True) as running:
        yield running


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    running: Running = request.getfixturevalue("valkey")
    running.admin("FLUSHALL")
    return running.url


def program(url: str, text: str) -> str:
    return run(BEGIN.format(url=url) + text)


def test_greenlets_enqueue_side_by_side_and_others_go_on(url: str) -> None:
    said = program(
        url,
        """
ticks = 0
def tick():
    global ticks
    while True:
        gevent.sleep(0.001)
        ticks += 1

gevent.spawn(tick)
def many(number):
    return [work.enqueue(number).id for _ in range(20)]

jobs = [gevent.spawn(many, number) for number in range(25)]
gevent.joinall(jobs, raise_error=True)
print(len({id for job in jobs for id in job.value}), app.snapshot().depth, ticks > 0)
app.close()
""",
    )
    assert said == "500 500 True\n"


def test_a_wait_can_be_given_up_and_errors_arrive(url: str) -> None:
    said = program(
        url,
        """
handle = work.enqueue(1)
with gevent.Timeout(0.1, False):
    handle.result()
print(handle.state)
try:
    handle.result(timeout=0.1)
except FairleadError as error:
    print(type(error).__name__)
app.close()
""",
    )
    assert said == "queued\nResultTimeout\n"


@pytest.mark.slow
def test_a_forked_child_gets_a_loop_of_its_own(valkey: Running) -> None:
    valkey.admin("FLUSHALL")
    said = program(
        valkey.url,
        """
work.enqueue(1)
child = os.fork()
if not child:
    work.enqueue(2)
    os._exit(0)
_, status = os.waitpid(child, 0)
work.enqueue(3)
print(status, app.snapshot().depth)
""",
    )
    assert said == "0 3\n"


def test_what_cannot_work_says_why(tmp_path: Path) -> None:
    said = program(
        f"embedded://{tmp_path}/data",
        """
for attempt in (lambda: work.enqueue(1), app.worker):
    try:
        attempt()
    except FairleadError as error:
        print(error)
""",
    )
    embedded, worker = said.splitlines()
    assert "embedded:// cannot be used where gevent" in embedded
    assert "run `fairlead worker`" in worker


@pytest.mark.slow
async def test_a_result_arrives(valkey: Running) -> None:
    valkey.admin("FLUSHALL")
    async with Fairlead(valkey.url) as app:
        app.task(name="work")(twice)
        async with app.worker():
            text = "print(work.enqueue(21).result(timeout=20))"
            assert await asyncio.to_thread(program, valkey.url, text) == "42\n"


def twice(number: int) -> int:
    return 2 * number
