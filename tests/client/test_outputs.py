"""Calls whose arguments are outputs of others: what the broker is told."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Context, Fairlead, Handle, InvalidInput, State, TooLarge
from fairlead.broker.requests import Submission
from fairlead.client import TaskCall
from fairlead.model.message import Body
from fairlead.model.options import MAX_DEPENDENCIES, Dependency

app = Fairlead("memory://")


@app.task(name="shop.extract")
def extract(n: int = 0) -> int:
    return n


@app.task(name="shop.load")
def load(*values: Any, **more: Any) -> Any:
    return [*values, more]


@app.task(name="shop.reads")
def reads(ctx: Context) -> None:
    pass


def sent(call: TaskCall[Any]) -> tuple[Submission, Body]:
    submission = call.submission()
    return submission, Body.decode(submission.message.body)


def handle(id: str, tenant: str = "default", task: str = "") -> Handle[Any]:
    return Handle(app._clients, id, tenant, task=task)


def test_an_output_of_a_call_is_a_dependency() -> None:
    one, two = extract.call(1), extract.call(2)
    submission, body = sent(load.call(two.output, [one.output, {"k": two.output}]))
    assert submission.depends_on == (Dependency(two.id), Dependency(one.id))
    assert submission.uses_results
    assert body.depends_on == ((two.id, "shop.extract"), (one.id, "shop.extract"))


def test_an_output_of_a_handle_is_a_known_dependency() -> None:
    known = handle("x" * 32, task="shop.extract")
    submission, body = sent(load.call(value=known.output))
    assert submission.depends_on == (Dependency(known.id, known=True),)
    assert body.depends_on == ((known.id, "shop.extract"),)


def test_outputs_come_behind_depends_on_and_nothing_twice() -> None:
    first, second = extract.call(), extract.call()
    made = extract.call().id  # of a task that was enqueued before
    call = load.using(depends_on=[made, first]).call(
        first.output, second.output, handle(made).output
    )
    submission, body = sent(call)
    assert submission.depends_on == (
        Dependency(made, known=True),  # a handle was given as well
        Dependency(first.id),
        Dependency(second.id),
    )
    assert [id for id, _ in body.depends_on] == [made, first.id, second.id]


def test_a_handler_with_a_context_uses_results_of_what_it_depends_on() -> None:
    parent = extract.call()
    submission, body = sent(reads.using(depends_on=[parent, handle("x" * 32)]).call())
    assert submission.uses_results
    assert body.depends_on == ((parent.id, "shop.extract"), ("x" * 32, ""))


def test_others_use_none_and_their_bodies_are_as_ever() -> None:
    submission, body = sent(load.using(depends_on=[extract.call()]).call(1))
    assert not submission.uses_results
    assert body.depends_on == ()
    submission, body = sent(reads.call())
    assert not submission.uses_results
    assert submission.message.body == sent(reads.call())[0].message.body


def test_too_many_dependencies_with_outputs_are_refused_before_anything_is_written() -> None:
    calls = [extract.call() for _ in range(MAX_DEPENDENCIES)]
    load.call([call.output for call in calls]).submission()
    with pytest.raises(TooLarge, match="1001 tasks"):
        load.call([call.output for call in calls], extract.call().output).submission()


def test_an_output_of_another_tenant_is_refused() -> None:
    foreign = extract.using(tenant="acme").call()
    with pytest.raises(InvalidInput, match="belongs to tenant 'acme'"):
        load.call(foreign.output).submission()
    with pytest.raises(InvalidInput, match="belongs to tenant 'other'"):
        load.using(tenant="acme").call(handle("x" * 32, "other").output).submission()
    load.using(tenant="acme").call(foreign.output).submission()


async def test_handles_that_the_app_gives_know_their_task() -> None:
    made = await extract.aenqueue(1)
    assert made.task == "shop.extract"
    again = app.handle(made.id)
    assert again.task == ""
    assert again.output == made.output


async def test_an_output_of_a_call_that_is_not_in_the_batch_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does not know"):
        await load.aenqueue(extract.call().output)


async def test_the_same_call_again_is_a_duplicate() -> None:
    parent = await extract.aenqueue(5)
    first = await load.using(id="once").aenqueue(parent.output)
    again = await load.using(id="once").aenqueue(parent.output)
    assert again.duplicate
    assert again.id == first.id
    assert await first.astate() is State.DEFERRED
