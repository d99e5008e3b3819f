"""What a child tells its supervisor of what it counted."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fairlead.telemetry.counters import MAX_TASKS, Counters
from fairlead.worker.process import ipc as module
from fairlead.worker.process.ipc import Channel, CountersReport
from fairlead.worker.process.retirement import Retirement
from fairlead.worker.process.shared_state import SharedState
from fairlead.worker.process.supervisor_link import SupervisorLink


async def test_a_supervisor_that_does_not_read_costs_a_child_neither_memory_nor_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FLUSH", 0.05)
    mine, other = socket.socketpair()
    channel, counters = await Channel.over(mine), Counters()
    shared_state = SharedState.made(1)
    link = SupervisorLink(channel, shared_state, url="", retirement=Retirement(), counters=counters)
    for _ in range(500):
        for number in range(MAX_TASKS):
            counters.attempted("q", f"task-{number}", "completed", 0.1)
        link.report_counters()
    assert channel._writer.transport.get_write_buffer_size() < 1024 * 1024
    async with asyncio.timeout(5):
        await channel.flush()
    shared_state.close()
    reading = await Channel.over(other)
    assert isinstance(await reading.receive(), CountersReport)
    reading.close()
    channel.close()
