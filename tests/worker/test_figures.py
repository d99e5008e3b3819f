"""What a child tells its supervisor of what it counted."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fairlead.telemetry.counters import MAX_TASKS, Counters
from fairlead.worker import channel as module
from fairlead.worker.board import Board
from fairlead.worker.channel import Channel, Figures
from fairlead.worker.retirement import Retirement
from fairlead.worker.tether import Tether


async def test_a_supervisor_that_does_not_read_costs_a_child_neither_memory_nor_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FLUSH", 0.05)
    mine, other = socket.socketpair()
    channel, counters = await Channel.over(mine), Counters()
    board = Board.made(1)
    tether = Tether(channel, board, url="", retirement=Retirement(), counters=counters)
    for _ in range(500):
        for number in range(MAX_TASKS):
            counters.attempted("q", f"task-{number}", "completed", 0.1)
        tether.tell_figures()
    assert channel._writer.transport.get_write_buffer_size() < 1024 * 1024
    async with asyncio.timeout(5):
        await channel.flush()
    board.close()
    reading = await Channel.over(other)
    assert isinstance(await reading.receive(), Figures)
    reading.close()
    channel.close()
