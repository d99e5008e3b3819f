"""What the broker writes down of the work of real workers: nothing is left out, however short."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Site

TASKS = """
@app.task(name="async")
async def asynchronous(ctx: Context) -> None: ...


@app.task(name="thread")
def in_a_thread(ctx: Context) -> None: ...


@app.task(name="process", isolation="process")
def in_a_process(ctx: Context) -> None: ...
"""


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("async", 300),
        pytest.param("thread", 300, marks=pytest.mark.slow),
        pytest.param("process", 60, marks=pytest.mark.slow),
    ],
)
async def test_every_attempt_is_announced_before_it_ends(site: Site, kind: str, count: int) -> None:
    worker = site.worker("-c", "10", "-p", "1", "--threads", "10", "--slots", "2")
    await worker.ready()
    ids = await site.enqueue(kind, count)

    await site.stream.ended(ids, seconds=60.0)

    # What there was no slot process for went back before it began.
    released = {"released"} if kind == "process" else set()
    seen = [tuple(each for each in site.stream.kinds(id) if each not in released) for id in ids]
    assert seen == [("enqueued", "started", "completed")] * count
