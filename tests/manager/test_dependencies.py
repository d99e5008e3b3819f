"""Tasks whose parents the broker does not know: each ends, waits or runs as it would there."""

from __future__ import annotations

from functools import partial

import pytest

from fairlead.model.argument_packing import pack_arguments
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.message import Body
from tests.manager.bench import Bench, submission
from tests.support.servers import Running


async def due_now(bench: Bench) -> None:
    await bench.sql("update fairlead.tasks set due_at = now() where state = 'pending'")
    await bench.sql("update fairlead.flows set due_at = now() where state = 'pending'")


async def test_a_child_of_a_duplicate_waits_for_the_task_that_stands_for_it(bench: Bench) -> None:
    first, second = submission(unique="k"), submission(unique="k")
    body = Body(
        task="work",
        arguments=pack_arguments((), {}),
        depends_on=((second.message.id, "parent"),),
    ).encode()
    child = submission(after=[first.message.id, second.message.id], body=body)
    child = type(child)(message=child.message, depends_on=child.depends_on, uses_results=True)
    await bench.add(first, second, child)
    dispatcher = bench.dispatcher(await bench.lead())
    await dispatcher.dispatch_all()
    await due_now(bench)
    await dispatcher.dispatch_all()
    rows = await bench.rows("state", "stands_for")
    assert rows[second.message.id] == ("refused", first.message.id)
    assert rows[child.message.id][0] == "deferred"
    (record,) = await bench.store.find([child.message.id], parts="all")
    assert record is not None
    assert record.waiting_for == (first.message.id,)
    # The results that it reads are those of the task that ran.
    assert Body.decode(record.message.body).depends_on == ((first.message.id, "parent"),)
    assert await bench.run_all() == [first.message.id, child.message.id]


@pytest.mark.parametrize(
    ("policy", "state", "reason"),
    [
        ("dead", "dead", "dependency_failed: "),
        ("cancel", "cancelled", "dependency_failed: "),
        ("wait", "refused", "unknown_dependency: "),
        ("run", "queued", None),
    ],
)
async def test_a_child_of_what_was_cancelled_unsent_follows_its_policy(
    bench: Bench, policy: DependencyPolicy, state: str, reason: str | None
) -> None:
    parent, child = await bench.add(
        submission("t:parent", delay=900.0),
        submission("t:child", after=["t:parent"], policy=policy),
    )
    (grandchild,) = await bench.add(submission("t:grandchild", after=[child]))
    dispatcher = bench.dispatcher(await bench.lead())
    await dispatcher.dispatch_all()
    assert (await bench.rows("state"))[child] == "pending"  # the parent may come yet
    assert await bench.ledger.cancel_pending(id=parent, tenant="t") == 0
    await due_now(bench)
    await dispatcher.dispatch_all()
    await due_now(bench)
    await dispatcher.dispatch_all()
    rows = await bench.rows("state", "reason")
    assert rows[child] == (state, "" if reason is None else reason + parent)
    assert rows[grandchild][0] == ("deferred" if policy == "run" else "dead")


async def test_a_parent_that_completes_between_the_look_and_the_push_is_done(
    bench: Bench,
) -> None:
    parent, child = await bench.add(
        submission("t:parent", delay=900.0), submission("t:child", after=["t:parent"])
    )
    dispatcher = bench.dispatcher(await bench.lead())
    real = bench.store.enqueue

    async def ended(*args: object, **given: object) -> object:
        answer = await real(*args, **given)  # type: ignore[arg-type]
        await bench.sql(
            "update fairlead.tasks set state = 'completed', finished_at = now() where id = %s",
            parent,
        )
        return answer

    bench.store.enqueue = ended  # type: ignore[method-assign, assignment]
    await dispatcher.dispatch_all()
    await due_now(bench)
    await dispatcher.dispatch_all()
    assert (await bench.rows("state"))[child] == "queued"


async def test_a_task_waits_for_a_member_of_a_flow_that_is_not_sent_yet(bench: Bench) -> None:
    members = await bench.add_flow()
    (child,) = await bench.add(submission("t:child", after=members[2:]))
    await bench.sql("update fairlead.flows set due_at = now() + interval '1 hour'")
    dispatcher = bench.dispatcher(await bench.lead())
    await dispatcher.dispatch_all()
    assert (await bench.rows("state", "reason"))[child] == ("pending", "unknown_dependency")
    await due_now(bench)
    await dispatcher.dispatch_all()  # the flow goes, perhaps behind the task
    await due_now(bench)
    await dispatcher.dispatch_all()
    assert await bench.run_all() == [*members, child]


async def test_a_flow_waits_for_a_member_of_another_one(bench: Bench) -> None:
    first = await bench.add_flow()
    await bench.sql("update fairlead.flows set due_at = now() + interval '1 hour'")
    (second,) = await bench.add_flow(submission("t:second", after=first[2:]))
    dispatcher = bench.dispatcher(await bench.lead())
    await dispatcher.dispatch_all()
    assert {state for (state,) in await bench.sql("select state from fairlead.flows")} == {
        "pending"
    }
    await due_now(bench)
    await dispatcher.dispatch_all()
    await due_now(bench)
    await dispatcher.dispatch_all()
    assert await bench.run_all() == [*first, second]


async def test_a_direct_task_that_is_sent_again_waits_for_its_parents(
    bench: Bench, valkey: Running
) -> None:
    parent = submission("t:parent")
    child = submission("t:child", after=["t:parent"], policy="cancel", unique="k")
    await bench.worker.call(partial(bench.store.enqueue, submissions=[parent, child]))
    await bench.recorder(await bench.lead()).catch_up()
    valkey.admin("FLUSHALL")
    term = await bench.lead()
    await bench.age(61.0)
    await bench.auditor(term).audit_once()
    await bench.sql(
        "update fairlead.tasks set due_at = now() + interval '1 hour' where id = 't:parent'"
    )
    dispatcher = bench.dispatcher(term)
    await dispatcher.dispatch_all()
    assert (await bench.rows("state", "reason"))["t:child"] == ("pending", "unknown_dependency")
    for _ in range(2):  # the one may go before the other
        await due_now(bench)
        await dispatcher.dispatch_all()
    assert await bench.run_all() == ["t:parent", "t:child"]
