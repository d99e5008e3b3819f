"""Pipelines as users draw them, with the state of every task after each step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead import DependencyCycle, Fairlead, Flow, FlowHandle, OutboxState, Task, TaskCall
from fairlead.broker import Store, connect
from fairlead.broker.requests import Call, Fetch
from fairlead.model.lifecycle import DependencyPolicy, Settlement, State
from fairlead.model.message import ErrorInfo, Leased
from tests.support.servers import shared

Q, D, C, X, R, Z = (
    State.QUEUED,
    State.DEFERRED,
    State.COMPLETED,
    State.DEAD,
    State.RUNNING,
    State.CANCELLED,
)


class Line:
    """An app, and a worker that does one step at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.app = Fairlead(store=store)
        self.running: dict[str, Leased] = {}
        self._number = 0

        @self.app.task(name="step")
        def step() -> None: ...

        self.step: Task[[], None] = step

    def call(self, id: str, *after: str, policy: DependencyPolicy = "dead") -> TaskCall[None]:
        """A call with an id of its own, which waits for these ids."""
        options = self.step.using(id=id, on_dependency_failure=policy)
        return (options.using(depends_on=list(after)) if after else options).call()

    async def states(self, names: str) -> list[State | OutboxState]:
        return [await self.app.handle(name).astate() for name in names.split()]

    async def fetch(self) -> list[str]:
        """Start all that can run; their ids."""
        reply = await self._exchange(fetch=Fetch(queues=("default",), max=100))
        short = {lease.message.id.removeprefix("default:"): lease for lease in reply}
        self.running.update(short)
        return list(short)

    async def end(self, name: str, to: State = C) -> None:
        """End one that runs."""
        lease = self.running.pop(name)
        error = ErrorInfo("ValueError", "no") if to is X else None
        reason = "exhausted" if to is X else ""
        await self._exchange(
            [Settlement(id=lease.message.id, token=lease.token, to=to, error=error, reason=reason)]
        )

    async def _exchange(
        self, settlements: list[Settlement] | None = None, fetch: Fetch | None = None
    ) -> list[Leased]:
        self._number += 1
        call = Call("line", self._number)
        return (await self.store.exchange(call, settlements or [], fetch=fetch)).leased

    async def edges(self, name: str) -> tuple[set[str], int]:
        """What a task waits for, and how many wait for it."""
        (record,) = await self.store.find([f"default:{name}"])
        assert record is not None
        return {id.removeprefix("default:") for id in record.waiting_for}, record.dependents


@pytest.fixture(params=["memory", "valkey"])
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    if request.param == "memory":
        made = Line(connect("memory://"))
        yield made
        assert await made.store.audit() == []
        return
    with shared() as running:
        made = Line(connect(running.url))
        yield made
        assert await made.store.audit() == []
        await made.store.close()


async def test_a_linear_pipeline(line: Line) -> None:
    names = "extract transform load"
    flow = [line.call("extract"), line.call("transform", "extract"), line.call("load", "transform")]
    handle = await line.app.aenqueue_flow(flow)

    assert await line.states(names) == [Q, D, D]
    assert await line.edges("extract") == (set(), 1)
    assert await line.edges("transform") == ({"extract"}, 1)
    assert await line.edges("load") == ({"transform"}, 0)
    assert await line.fetch() == ["extract"]
    assert await line.states(names) == [R, D, D]
    assert await line.fetch() == []
    await line.end("extract")
    assert await line.states(names) == [C, Q, D]
    assert await line.edges("transform") == (set(), 1)
    assert await line.fetch() == ["transform"]
    await line.end("transform")
    assert await line.states(names) == [C, C, Q]
    assert (await handle.ainfo()).progress == pytest.approx(2 / 3)
    assert await handle.astate() is R
    assert await line.fetch() == ["load"]
    await line.end("load")
    assert await line.states(names) == [C, C, C]
    assert await handle.astate() is C
    assert (await handle.ainfo()).progress == 1.0


async def test_fan_out_and_fan_in(line: Line) -> None:
    names = "prepare process_a process_b combine"
    c = {name: line.call(name) for name in names.split()}
    flow = c["prepare"] >> [c["process_a"], c["process_b"]] >> c["combine"]
    handle = await line.app.aenqueue_flow(flow)

    assert await line.states(names) == [Q, D, D, D]
    assert await line.edges("prepare") == (set(), 2)
    assert await line.edges("combine") == ({"process_a", "process_b"}, 0)
    assert await line.fetch() == ["prepare"]
    await line.end("prepare")
    assert await line.states(names) == [C, Q, Q, D]
    assert sorted(await line.fetch()) == ["process_a", "process_b"]
    await line.end("process_a")
    assert await line.states(names) == [C, C, R, D]
    assert await line.edges("combine") == ({"process_b"}, 0)
    await line.end("process_b")
    assert await line.states(names) == [C, C, C, Q]
    assert await line.fetch() == ["combine"]
    await line.end("combine")
    assert await line.states(names) == [C, C, C, C]
    assert await handle.astate() is C


async def complex_flow(line: Line) -> FlowHandle[Any]:
    """D waits for A, B and C; E for A and B; F for C."""
    c = {name: line.call(name) for name in "ABCDEF"}
    return await line.app.aenqueue_flow(
        Flow(
            [c["A"], c["B"], c["C"]] >> c["D"],
            (c["A"] | c["B"]) >> c["E"],
            c["F"] << c["C"],
        )
    )


async def test_a_complex_graph(line: Line) -> None:
    names = "A B C D E F"
    handle = await complex_flow(line)

    assert await line.states(names) == [Q, Q, Q, D, D, D]
    assert [await line.edges(name) for name in names.split()] == [
        (set(), 2), (set(), 2), (set(), 2),
        ({"A", "B", "C"}, 0), ({"A", "B"}, 0), ({"C"}, 0),
    ]  # fmt: skip
    assert sorted(await line.fetch()) == ["A", "B", "C"]
    await line.end("A")
    assert await line.states(names) == [C, R, R, D, D, D]
    assert [await line.edges(name) for name in "DE"] == [({"B", "C"}, 0), ({"B"}, 0)]
    await line.end("B")
    assert await line.states(names) == [C, C, R, D, Q, D]
    assert await line.edges("D") == ({"C"}, 0)
    await line.end("C")
    assert await line.states(names) == [C, C, C, Q, Q, Q]
    assert sorted(await line.fetch()) == ["D", "E", "F"]
    for name in "DEF":
        assert await handle.astate() is R
        await line.end(name)
    assert await line.states(names) == [C] * 6
    assert await handle.astate() is C


@pytest.mark.parametrize(("policy", "after"), [("dead", X), ("cancel", Z), ("wait", D), ("run", Q)])
async def test_a_cancelled_parent(line: Line, policy: DependencyPolicy, after: State) -> None:
    """Nobody waits for ever for what will never come, unless they asked to."""
    a, b, c = line.call("a"), line.call("b"), line.call("c", policy=policy)
    handle = await line.app.aenqueue_flow([a, b] >> c)
    await line.fetch()
    await line.end("b")

    assert await handle[a].acancel()  # it runs: its worker is asked
    assert await line.states("a b c") == [R, C, D]
    await line.end("a", Z)
    assert await line.states("a b c") == [Z, C, after]
    expected = ({"a"}, 0) if policy == "wait" else (set(), 0)
    assert await line.edges("c") == expected
    if policy == "dead":
        assert (await handle[c].ainfo()).reason == "dependency_failed: default:a"


async def test_a_cancelled_child_leaves_nothing_behind(line: Line) -> None:
    handle = await complex_flow(line)
    assert await line.app.handle("D").acancel()

    assert await line.states("A B C D E F") == [Q, Q, Q, Z, D, D]
    assert [await line.edges(name) for name in "ABCD"] == [
        (set(), 1), (set(), 1), (set(), 1), (set(), 0),
    ]  # fmt: skip
    for name in await line.fetch():
        await line.end(name)
    assert await line.states("A B C D E F") == [C, C, C, Z, Q, Q]
    for name in await line.fetch():
        await line.end(name)
    assert await handle.astate() is Z
    info = await handle.ainfo()
    assert (info.completed, info.cancelled, info.dead) == (5, 1, 0)


async def test_a_whole_flow_is_cancelled(line: Line) -> None:
    handle = await complex_flow(line)
    assert await line.fetch()
    await line.end("A")
    assert await handle.acancel()

    assert await line.states("A B C D E F") == [C, R, R, Z, Z, Z]
    await line.end("B", Z)
    await line.end("C")  # it was done before it heard of it
    assert await line.states("A B C D E F") == [C, Z, C, Z, Z, Z]
    assert await line.fetch() == []
    assert await handle.astate() is Z
    assert not await handle.acancel()
    assert not await handle.aretry()


async def test_a_failed_parent_that_is_put_back_resumes_those_who_waited(line: Line) -> None:
    a, b, c = line.call("a"), line.call("b", policy="wait"), line.call("c")
    handle = await line.app.aenqueue_flow(a >> b >> c)
    await line.fetch()
    await line.end("a", X)
    assert await line.states("a b c") == [X, D, D]
    assert await handle.astate() is R

    assert await handle[a].arequeue()
    assert await line.states("a b c") == [Q, D, D]
    for name in ("a", "b", "c"):
        assert await line.fetch() == [name]
        await line.end(name)
    assert await line.states("a b c") == [C, C, C]
    assert await handle.astate() is C


async def test_the_failed_part_of_a_flow_is_retried(line: Line) -> None:
    c = {name: line.call(name) for name in "ABCDEF"}
    c["F"] = line.call("F", policy="cancel")
    handle = await line.app.aenqueue_flow(
        Flow([c["A"], c["B"]] >> c["D"] >> c["E"], c["C"] >> c["F"])
    )
    await line.fetch()
    await line.end("A")
    await line.end("B", X)
    await line.end("C", X)
    assert await line.states("A B C D E F") == [C, X, X, X, X, Z]
    assert await handle.astate() is X
    assert [info.id for info in await handle.afailed()] == [
        f"default:{name}" for name in ("B", "C", "D", "E")
    ]

    assert await handle.aretry()
    assert await line.states("A B C D E F") == [C, Q, Q, D, D, D]
    assert await handle.astate() is R
    assert sorted(await line.fetch()) == ["B", "C"]
    await line.end("B")
    await line.end("C")
    assert await line.states("A B C D E F") == [C, C, C, Q, D, Q]
    assert sorted(await line.fetch()) == ["D", "F"]
    await line.end("D")
    await line.end("F")
    assert await line.fetch() == ["E"]
    await line.end("E")
    assert await line.states("A B C D E F") == [C] * 6
    assert await handle.astate() is C
    assert not await handle.aretry()


async def test_a_cycle_is_refused_and_nothing_is_written(line: Line) -> None:
    a, b, c = line.call("a", "c"), line.call("b"), line.call("c")
    with pytest.raises(DependencyCycle) as caught:
        await line.app.aenqueue_flow(a >> b >> c)
    assert [node.split(" ")[1] for node in caught.value.path] in (
        [f"(default:{name})" for name in path] for path in ("acba", "cbac", "bacb")
    )
    assert (await line.app.asnapshot()).depth == 0
    assert await line.store.find(["default:a", "default:b", "default:c"]) == [None] * 3
