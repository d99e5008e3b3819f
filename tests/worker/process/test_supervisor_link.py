"""What a child does and leaves undone, by what its supervisor tells it."""

from __future__ import annotations

import asyncio
import socket

from fairlead.model.lifecycle import State
from fairlead.worker.process.ipc import Channel, HeartbeatReport, Introduction
from fairlead.worker.process.retirement import Retirement
from fairlead.worker.process.shared_state import SharedState
from fairlead.worker.process.supervisor_link import SupervisorLink
from tests.worker.harness import Rig


async def test_nothing_is_fetched_before_the_first_heartbeat(rig: Rig) -> None:
    """Of a child that no heartbeat has described, nobody could say whose leases it held."""

    @rig.task()
    async def work() -> None: ...

    id = await rig.enqueue("work")
    mine, other = socket.socketpair()
    channel, supervisor = await Channel.over(mine), await Channel.over(other)
    shared_state = SharedState.made(4)
    link = SupervisorLink(channel, shared_state, url="", retirement=Retirement())
    async with rig.worker(link=link) as worker:
        assert isinstance(await supervisor.receive(), Introduction)
        assert not await worker.processor.process()
        assert (await rig.find(id)).state is State.QUEUED
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(link.run())
            supervisor.send(HeartbeatReport(reply=None, took=0.0))
            await rig.finished(id)
            listening.cancel()
    shared_state.close()
    supervisor.close()
    channel.close()
