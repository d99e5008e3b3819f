"""Several flows, several writers: none holds up another, none is taken for another."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.model.lifecycle import State
from tests.support.flows import commit, flow_record, parts_of, stage
from tests.support.store import NOW, Client, states, submit


async def test_a_huge_flow_does_not_hold_up_others(broker: Store, c: Client) -> None:
    huge = [submit(f"h{i:04}") for i in range(1000)]
    await stage(c, *parts_of("huge", *huge))
    await stage(c, *parts_of("small", submit("a"), submit("b", after=["a"])))
    assert (await commit(c, "huge")).code == "committed"
    assert (await commit(c, "small")).code == "committed"
    for _ in range(3):
        await broker.deliver(now=NOW)
    assert await states(broker, "a", "b") == [State.QUEUED, State.DEFERRED]
    assert (await flow_record(broker, "huge")).laid_out < 300
