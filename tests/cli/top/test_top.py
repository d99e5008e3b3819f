"""``fairlead top``: rates between two looks, and what fits a window."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from fairlead import Fairlead
from fairlead.api.views.tenants import TenantView
from fairlead.broker.records import WorkerRecord
from fairlead.cli.top.rates import Figures, QueueFigures, compared, read
from fairlead.cli.top.screen import screen
from tests.cli.conftest import Operator


def test_rates_are_those_between_two_looks(app: Fairlead, mail: Any) -> None:
    async def look_twice() -> Figures:
        client = app._clients.current()
        await mail.aenqueue("before")
        first = await read(client, None)
        for to in ("ann", "bob", "bad"):
            await mail.using(tenant="acme").aenqueue(to)
        await app.drain()
        await mail.aenqueue("waits")
        return compared(first, await read(client, None))

    figures = asyncio.run(look_twice())
    (queue,) = figures.queues
    happened = [queue.enqueued, queue.started, queue.completed, queue.failed]
    assert [round(rate * figures.interval) for rate in happened] == [4, 4, 3, 1]
    assert (queue.waiting, queue.running, queue.dead) == (1, 0, 1)
    assert queue.wait is not None
    assert [each.tenant for each in figures.tenants] == ["default", "acme"]
    assert figures.tenants[1].share == pytest.approx(0.75)


def many(count: int) -> Figures:
    queues = [
        QueueFigures(
            name=f"queue-{n}" * 8, waiting=10**6, running=10**3, dead=10**5, paused=n == 0,
            oldest=4_000.0, workers=7, enqueued=12_345.6, started=9.9, completed=0.0, failed=0.5,
            wait=None if n else 0.256,
        )
        for n in range(count)
    ]  # fmt: skip
    tenants = [TenantView(tenant=f"tenant-{n}" * 8, weight=3.0, depth=10**6) for n in range(count)]
    workers = [
        WorkerRecord(
            incarnation=f"{n:032x}", host="a-host-of-ours.example.com", pid=4_000_000 + n,
            queues=("mail", "reports", "a-queue-with-a-long-name"), running=100,
            concurrency=100, details={"state": "stopping"},
        )
        for n in range(count)
    ]  # fmt: skip
    return Figures(now=0.0, interval=2.0, queues=queues, tenants=tenants, workers=workers)


@pytest.mark.parametrize("count", [0, 3, 100])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_what_is_shown_fits_the_window(count: int, width: int, height: int) -> None:
    out = Console(file=io.StringIO(), width=width, height=height)
    lines = out.render_lines(
        screen(many(count), width=width, height=height, where="redis://me:secret@host/1"), pad=False
    )
    text = ["".join(segment.text for segment in line) for line in lines]
    assert len(text) <= height
    assert max(map(len, text)) <= width
    assert any(line.startswith("Workers: ") and "slots in use" in line for line in text)
    assert not any("secret" in line for line in text)
    if count:  # figures are never cut, names are
        assert sum("1,000,000" in line for line in text) >= 4
    if count == 100:
        assert any(line.startswith("Queues, 1 paused (") for line in text)
    if count:  # what is left of a line belongs to its last column
        (worker,) = (line for line in text if f"{0:08x}  a-host" in line)
        assert ("a-queue-with-a-long-name" in worker) == (width == 200)
        assert "  100/100  mail,reports" in worker
        assert any("longest" in line and "held by" in line for line in text)
    assert any("q quits" in line for line in text)  # also where there is hardly room


def test_without_a_terminal_it_prints_what_it_saw_and_ends(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    mail.enqueue("bad")
    work_off()
    answer = operator("top", "--interval", "0.2")
    assert (answer.returncode, answer.stderr) == (0, "")
    for words in ("1 dead", "mail", "share", "Workers: none"):
        assert words in answer.stdout
    report = json.loads(operator("top", "--interval", "0.2", "--queue", "mail", "--json").stdout)
    assert report["queues"][0]["dead"] == 1
    assert operator("top", "--queue", "mial").returncode == 2
