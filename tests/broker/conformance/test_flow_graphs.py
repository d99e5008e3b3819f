"""What members of a flow depend on, whether they are tasks yet or have ended long ago."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.flows import FlowMember
from fairlead.model.errors import InvalidOption
from tests.support.flows import commit, make, parts_of, stage
from tests.support.store import NOW, Client, complete_all, submit


async def test_a_flow_tells_what_its_members_depend_on(broker: Store, c: Client) -> None:
    await c.enqueue(submit("outside"))
    members = (
        submit("a", after=["outside"]),
        submit("b", after=["a"]),
        submit("z", after=["a", "b"]),
    )
    await make(c, "f", *members)
    whole = [
        FlowMember(id="a", depends_on=("outside",)),
        FlowMember(id="b", depends_on=("a",)),
        FlowMember(id="z", depends_on=("a", "b")),
    ]
    assert await broker.graph("f", now=NOW) == whole
    await complete_all(c)
    assert await broker.graph("f", now=NOW) == whole  # though nothing waits any more
    assert await broker.graph("f", start=1, limit=1, now=NOW) == whole[1:2]
    assert await broker.graph("f", start=3, now=NOW) == []
    assert await broker.graph("g", now=NOW) == []


async def test_the_graph_is_whole_while_the_flow_is_laid_out(broker: Store, c: Client) -> None:
    members = [submit("m.0")] + [submit(f"m.{n}", after=[f"m.{n - 1}"]) for n in range(1, 120)]
    await stage(c, *parts_of("f", *members))
    assert await broker.graph("f", now=NOW) == []  # nobody sees it yet
    await commit(c, "f")
    expected = [FlowMember(id="m.0")] + [
        FlowMember(id=f"m.{n}", depends_on=(f"m.{n - 1}",)) for n in range(1, 120)
    ]
    while True:
        found = await broker.graph("f", now=NOW)
        assert found == expected
        if not (await broker.deliver(now=NOW)).more:
            break
    assert await broker.graph("f", start=49, limit=3, now=NOW) == expected[49:52]


async def test_of_many_dependencies_the_first_are_told(broker: Store, c: Client) -> None:
    parents = [submit(f"p.{n}") for n in range(60)]
    await make(c, "f", *parents, submit("z", after=[f"p.{n}" for n in range(60)]))
    (last,) = await broker.graph("f", start=60, now=NOW)
    assert (last.depends_on, last.more) == (tuple(f"p.{n}" for n in range(50)), True)


async def test_a_graph_is_read_in_parts(broker: Store) -> None:
    with pytest.raises(InvalidOption):
        await broker.graph("f", limit=501)
