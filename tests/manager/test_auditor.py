"""The ledger beside the broker: what the broker has lost is sent again, and only that."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from fairlead.broker import Caller
from fairlead.broker.requests import Alter
from fairlead.client.stored_submissions import encode_submission
from fairlead.manager.comparison import Compared, Comparison
from fairlead.manager.flow_dispatcher import ended, remaining
from fairlead.manager.leader_term import Term
from fairlead.model.errors import Unreachable
from fairlead.runtime.ids import new_id
from tests.manager.bench import Bench, submission
from tests.support.servers import Running


async def forget(bench: Bench, *ids: str) -> None:
    orders = [Alter(id=id, action="delete") for id in ids]
    await Caller(new_id()).call(lambda call: bench.store.alter(call, orders))


async def test_rows_are_compared_once_in_a_round_and_nothing_is_written(bench: Bench) -> None:
    await bench.add(count=4)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    now = [1_000.0]
    auditor = bench.auditor(term, clock=lambda: now[0])
    assert await auditor.audit_once() is False
    assert bench.counts["compared"] == 0  # they are fresh
    await bench.age(61.0)
    before = await bench.sql("select ctid, xmin, * from fairlead.tasks order by seq")
    for compared, seconds in ((0, 59.0), (4, 2.0), (4, 59.0), (8, 2.0)):
        now[0] += seconds
        assert await auditor.audit_once() is False
        assert bench.counts["compared"] == compared
    assert await bench.sql("select ctid, xmin, * from fairlead.tasks order by seq") == before


async def test_a_page_that_could_not_be_compared_comes_again(bench: Bench) -> None:
    await bench.add(count=501)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.age(61.0)
    comparison = bench.comparison(term)

    async def away(*_: object) -> Compared:
        raise Unreachable("away")

    auditor = bench.auditor(term, comparison=comparison)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "compare", away)
        with pytest.raises(Unreachable):
            await auditor.audit_once()
    assert [await auditor.audit_once(), bench.counts["compared"]] == [True, 500]
    assert [await auditor.audit_once(), bench.counts["compared"]] == [False, 501]


async def test_a_row_follows_what_the_broker_says(bench: Bench) -> None:
    ids = await bench.add(count=2)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.fetch(1)
    await bench.age(61.0)

    async def nothing() -> None:
        """As if the events of it were lost."""

    comparison = Comparison(bench.store, bench.ledger, term, nothing)
    await bench.auditor(term, comparison=comparison).audit_once()
    rows = await bench.rows("state")
    assert (rows[ids[0]], rows[ids[1]]) == ("running", "queued")


async def test_a_task_that_is_lost_alone_is_sent_again(bench: Bench, valkey: Running) -> None:
    ids = await bench.add(count=2)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.recorder(term).catch_up()
    await bench.auditor(term).audit_once()
    await bench.sql(
        "update fairlead.tasks set id = 't:unheard', submission = %s where id = %s",
        encode_submission(submission("t:unheard")),
        ids[1],
    )
    await bench.age(61.0)
    await bench.auditor(term).audit_once()
    rows = await bench.rows("state", "reason")
    assert rows["t:unheard"] == ("pending", "lost")
    assert rows[ids[0]][0] == "queued"
    await bench.dispatcher(term).dispatch_all()
    assert "t:unheard" in await bench.run_all()


async def test_what_nobody_can_send_is_dead(bench: Bench, valkey: Running) -> None:
    ids = await bench.add(count=2)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    valkey.admin("FLUSHALL")
    term = await bench.lead()
    await bench.age(61.0)
    await bench.sql("update fairlead.tasks set submission = null where id = %s", ids[0])
    await bench.auditor(term).audit_once()
    assert await bench.states() == {"dead": 1, "pending": 1}
    assert set((await bench.rows("reason")).values()) == {"lost"}


async def test_another_generation_is_gone_through_at_once(bench: Bench, valkey: Running) -> None:
    ids = await bench.add(count=1_200)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    auditor = bench.auditor(term)
    await auditor.audit_once()
    ran = await bench.fetch(100)
    await bench.complete(ran[:50])
    await bench.recorder(term).catch_up()
    assert await bench.states() == {"completed": 50, "running": 50, "queued": 1_100}

    valkey.admin("FLUSHALL")
    term = await bench.lead()
    first = (await bench.store.hello()).generation
    auditor = bench.auditor(term, generation=bench.counts["generation"])
    steps = 1
    while await auditor.audit_once():
        steps += 1
    assert steps >= 3  # 500 at a time
    assert bench.counts["full_audits"] == 1
    assert bench.counts["generation"] == first
    await bench.dispatcher(term).dispatch_all()
    again = await bench.run_all()
    assert sorted(again) == sorted(set(ids) - {each.message.id for each in ran[:50]})
    await bench.recorder(term).catch_up()
    assert await bench.states() == {"completed": 1_200}


async def test_what_ended_and_was_forgotten_before_the_look_stays_over(bench: Bench) -> None:
    ids = await bench.add(count=3)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.age(61.0)
    await bench.run_all()
    await forget(bench, *ids)
    await bench.auditor(term).audit_once()
    assert await bench.states() == {"completed": 3}
    assert bench.counts["sent_again"] == 0


async def test_a_task_that_lives_is_never_sent_again(bench: Bench) -> None:
    """It comes into being, or moves on, between the look of the auditor and its write."""
    await bench.add(count=3)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.age(61.0)
    comparison = bench.comparison(term)
    find = bench.store.find

    class Late:
        """The broker knows nothing at first, and the tasks run right behind that answer."""

        def __getattr__(self, name: str) -> object:
            return getattr(bench.store, name)

        async def find(self, ids: list[str], **options: object) -> list[None]:
            await bench.run_all()
            return [None] * len(ids)

    comparison._store = Late()  # type: ignore[assignment]
    await bench.auditor(term, comparison=comparison).audit_once()
    assert await bench.states() == {"completed": 3}
    assert all(each is not None for each in await find(list(await bench.rows("state"))))


async def test_tasks_without_a_row_are_counted(bench: Bench) -> None:
    await Caller(new_id()).call(
        partial(bench.store.enqueue, submissions=[submission() for _ in range(3)])
    )
    term = await bench.lead()
    auditor = bench.auditor(term)
    await auditor.audit_once()
    assert bench.counts["without_row"] == 0  # they are fresh
    auditor._paged_at -= 10.0
    later = await bench.store.hello()
    hello = msgspec.structs.replace(later, now=later.now + 100.0)

    async def said() -> object:
        return hello

    bench.store.hello = said  # type: ignore[method-assign,assignment]
    await auditor.audit_once()
    assert bench.counts["without_row"] == 3


# -- flows --------------------------------------------------------------------------------------


async def audit_all(bench: Bench, term: Term, generation: str) -> None:
    auditor = bench.auditor(term, generation=generation)
    while await auditor.audit_once():
        pass


async def test_a_lost_flow_is_sent_again_without_what_ran(bench: Bench, valkey: Running) -> None:
    ids = await bench.add_flow()
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    generation = (await bench.store.hello()).generation
    first = await bench.fetch(1)
    assert [each.message.id for each in first] == ids[:1]
    await bench.complete(first)
    await bench.recorder(term).catch_up()
    assert await bench.sql("select state from fairlead.flows") == [("running",)]

    valkey.admin("FLUSHALL")
    term = await bench.lead()
    await audit_all(bench, term, generation)
    assert await bench.sql("select state, reason from fairlead.flows") == [("pending", "lost")]
    await bench.dispatcher(term).dispatch_all()
    ran = await bench.run_all()
    while more := await bench.run_all():
        ran += more
    assert ran == ids[1:]
    await bench.recorder(term).catch_up()
    assert await bench.sql("select state from fairlead.flows") == [("completed",)]
    assert set((await bench.rows("state")).values()) == {"completed"}


async def test_a_flow_that_is_known_is_left_alone(bench: Bench) -> None:
    await bench.add_flow()
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.age(61.0)
    await bench.auditor(term).audit_once()
    assert await bench.sql("select state, pushes from fairlead.flows") == [("running", 1)]


def test_of_a_flow_only_what_has_to_run_is_left() -> None:
    reads = msgspec.structs.replace(submission("t:e", after=["t:a"]), uses_results=True)
    flow = [
        submission("t:a"),
        submission("t:b"),
        submission("t:c", after=["t:a", "t:b"]),
        submission("t:d", after=["t:dead"]),
        reads,
        submission("t:dead"),
        submission("t:f", after=["t:dead"], policy="run"),
        submission("t:g", after=["t:d"]),
    ]
    flow = [flow[5], *flow[:5], *flow[6:]]
    states = {"t:a": "completed", "t:b": "completed", "t:c": "queued", "t:dead": "dead"}
    found = {each.message.id: each for each in remaining(flow, states)}
    assert list(found) == ["t:a", "t:c", "t:e", "t:f"]  # t:e reads what t:a returned
    assert [(each.id, each.known) for each in found["t:c"].depends_on] == [
        ("t:a", False),
        ("t:b", True),
    ]
    assert [(each.id, each.known) for each in found["t:f"].depends_on] == [("t:dead", True)]
    assert remaining(flow[:2], {"t:dead": "dead", "t:a": "completed"}) == []
    assert ended(["completed", "dead"]) == "dead"
    assert ended(["completed", "cancelled"]) == "cancelled"
    assert ended(["completed"]) == "completed"
