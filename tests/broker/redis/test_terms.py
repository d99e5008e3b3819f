"""Terms of leaders outlive the server: what began at an older one stays out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from fairlead.broker import Caller
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Receipt
from fairlead.model.errors import OutOfOrder
from tests.support.servers import server
from tests.support.store import submit


async def test_after_a_restart_the_leader_leads_on_and_the_older_line_stays_out_of_order() -> None:
    with server(aof=True, config={"appendfsync": "always"}) as running:
        broker = RedisBroker(running.url, patience=10.0)
        first = await broker.lead("manager", "m1", ttl=300.0)
        await broker.lead("manager", "m1", release=True)
        held = await broker.lead("manager", "m2", ttl=300.0)
        older, newer = (Caller("manager", first=each.term) for each in (first, held))

        def enqueue(line: Caller, id: str) -> Awaitable[list[Receipt]]:
            return line.call(lambda call: broker.enqueue(call, [submit(id)]))

        await enqueue(older, "a")
        await enqueue(newer, "b")
        await asyncio.to_thread(running.restart)

        with pytest.raises(OutOfOrder):
            await enqueue(older, "c")
        assert await broker.find(["c"]) == [None]
        seen = await broker.lead("manager", "m1")
        assert (seen.holder, seen.term) == ("m2", held.term)
        assert [each.code for each in await enqueue(newer, "d")] == ["accepted"]

        running.admin("FLUSHALL")
        anew = await broker.lead("manager", "m1")
        assert anew.holder == "m1"
        assert anew.term > held.term
        assert await broker.audit() == []
        await broker.close()
