"""Tasks that are enqueued by name, where their code is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from msgspec import Meta

from fairlead import Context, Fairlead, InvalidArgument, InvalidInput, InvalidOption, UnknownTask
from fairlead.broker import Store, connect
from fairlead.broker.documents import DocumentChange
from fairlead.broker.records import TaskRecord, WorkerRecord
from fairlead.broker.requests import Call
from fairlead.client import Sender, check_arguments, known_tasks
from fairlead.model.catalog import Catalog, TaskEntry, digest_of, encode_catalog
from fairlead.model.errors import Unreachable
from fairlead.model.message import Body
from tests.client.stores import Counting

Published = Callable[..., AbstractAsyncContextManager[None]]


@dataclass
class Letter:
    to: str
    pages: int = 1


def back(store: Store, **options: Any) -> Fairlead:
    """The program that has the code."""
    app = Fairlead(store=store, priorities={"urgent": "critical"})

    @app.task(
        name="mail.send",
        **{
            "queue": "mail",
            "priority": "urgent",
            "max_retries": 9,
            "max_crashes": 2,
            "cost": 2.5,
            "limiters": ["smtp"],
            "version": 3,
            **options,
        },
    )
    async def send(letter: Letter, copies: Annotated[int, Meta(ge=1)] = 1) -> str:
        return letter.to * copies

    return app


@asynccontextmanager
async def published(app: Fairlead) -> AsyncIterator[None]:
    """While a worker of the app is known, which runs nothing of these tests."""
    async with app.worker(queues=["nothing"]) as worker:
        await worker.publisher.publish()
        await worker.heartbeater.beat()
        yield


@pytest.fixture
def store() -> Store:
    return connect("memory://")


@pytest.fixture
def front(store: Store) -> Fairlead:
    """A program without the code."""
    return Fairlead(store=store)


async def stored(store: Store, id: str) -> TaskRecord:
    [record] = await store.find([id])
    assert record is not None
    return record


async def test_a_task_by_name_is_stored_as_the_registered_one_would_be(
    store: Store, front: Fairlead
) -> None:
    app = back(store)
    async with published(app):
        ours = await front.asend("mail.send", Letter("a"), copies=2)
        theirs = await app.registered("mail.send").aenqueue(Letter("a"), copies=2)
        one = (await stored(store, ours.id)).message
        other = (await stored(store, theirs.id)).message
    assert one.same_content(other)
    assert one.flags == other.flags
    assert (one.queue, one.level, one.cost, one.limiters) == ("mail", 0, 2.5, ("smtp",))
    assert Body.decode(one.body).task_version == 3


async def test_it_is_recognized_by_a_chosen_id_whichever_way_it_was_sent(
    store: Store, front: Fairlead
) -> None:
    app = back(store)
    async with published(app):
        one = await front.named("mail.send").using(id="l-1").aenqueue(Letter("a"))
        other = await app.registered("mail.send").using(id="l-1").aenqueue(Letter("a"))
    assert other.duplicate
    assert other.id == one.id


async def test_options_of_the_call_go_before_those_of_the_catalog(
    store: Store, front: Fairlead
) -> None:
    async with published(back(store)):
        sender = front.named("mail.send").using(queue="slow", priority="low", max_retries=1)
        handle = await sender.aenqueue({"to": "a"})
        message = (await stored(store, handle.id)).message
    assert (message.queue, message.level, message.cost) == ("slow", 3, 2.5)
    assert Body.decode(message.body).max_retries == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "rule"),
    [
        ((), {}, "letter", "given: it has no default"),
        ((Letter("a"), 0), {}, "copies", "at least 1"),
        (({"to": 3},), {}, "letter.to", "text"),
        ((Letter("a"),), {"copy": 1}, "copy", "left out: there is no such name; "),
    ],
)
async def test_arguments_that_no_worker_would_take_are_refused_and_nothing_is_written(
    store: Store, front: Fairlead, args: Any, kwargs: Any, field: str, rule: str
) -> None:
    async with published(back(store)):
        with pytest.raises(InvalidArgument) as caught:
            await front.asend("mail.send", *args, **kwargs)
        assert (await front.asnapshot()).queues.get("mail") is None
    assert caught.value.task == "mail.send"
    assert caught.value.field == field
    assert caught.value.rule.startswith(rule)
    assert field in str(caught.value)


async def test_a_name_that_no_worker_has_is_refused_and_the_closest_is_named(
    store: Store, front: Fairlead
) -> None:
    async with published(back(store)):
        with pytest.raises(UnknownTask, match=r"'mail.sned' is not known .*did you mean mail.send"):
            await front.asend("mail.sned")
        handle = await front.named("mail.sned", strict=False).aenqueue(1, a=2)
        assert (await stored(store, handle.id)).message.queue == "default"


async def test_without_any_worker_a_name_is_accepted_with_one_warning(
    store: Store, front: Fairlead, caplog: pytest.LogCaptureFixture
) -> None:
    await front.asend("mail.send", 1)
    await front.asend("mail.send", 2)
    warnings = [line for line in caplog.records if line.levelno == logging.WARNING]
    assert [line.__dict__["task"] for line in warnings] == ["mail.send"]
    with pytest.raises(UnknownTask):
        await front.named("mail.send", strict=True).aenqueue(1)


async def test_a_worker_that_came_meanwhile_is_seen_before_a_name_is_refused(
    store: Store, front: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.client.catalog.DOUBTED", 0.0)
    monkeypatch.setattr("fairlead.client.named_call.DOUBTED", 0.0)
    other = Fairlead(store=store)

    @other.task(name="other")
    async def nothing() -> None: ...

    async with published(other):
        assert [task.name for task in await known_tasks(front._clients.current())] == ["other"]
        async with published(back(store)):
            await front.asend("mail.send", Letter("a"))


async def test_what_is_registered_here_is_sent_as_registered(front: Fairlead) -> None:
    sender = front.named("work").using(tenant="acme")

    @front.task(name="work", queue="heavy")
    async def work(n: int) -> int:
        return n

    handle = await sender.aenqueue(1)
    assert (handle.tenant, (await handle.ainfo()).queue) == ("acme", "heavy")
    with pytest.raises(InvalidInput, match="cannot be called like this"):
        await front.asend("work", 1, 2)


def test_sync_code_sends_by_name(store: Store, front: Fairlead) -> None:
    async def serve() -> None:
        async with published(back(store)):
            handle = await asyncio.to_thread(front.send, "mail.send", Letter("a"))
            assert (await stored(store, handle.id)).message.queue == "mail"
            [made] = await asyncio.to_thread(
                front.enqueue_many, [front.named("mail.send").call(Letter("b"))]
            )
            assert (await stored(store, made.id)).message.queue == "mail"

    asyncio.run(serve())


async def test_calls_by_name_go_into_batches_flows_and_schedules(
    store: Store, front: Fairlead
) -> None:
    @front.task(name="first")
    async def first() -> dict[str, str]:
        return {"to": "a"}

    mail = front.named("mail.send")
    async with published(back(store)):
        [one] = await front.aenqueue_many(iter([mail.call(Letter("a"))]))
        step = first.call()
        flow = await front.aenqueue_flow(step >> mail.call(step.output))
        info = await front.schedules.acreate("mails", mail.call(Letter("b")), every="1h")
        changed = await front.schedules.achange("mails", mail.using(cost=3.0).call(Letter("c")))
        with pytest.raises(InvalidArgument):
            await front.aenqueue_many([mail.call(Letter("a")), mail.call()])
        with pytest.raises(InvalidArgument):
            await front.schedules.acreate("none", mail, every="1h")
    assert (await stored(store, one.id)).message.queue == "mail"
    assert (await flow.ainfo()).total == 2
    assert (info.queue, changed.queue) == ("mail", "mail")


async def test_handlers_send_by_name_under_their_lease(store: Store, front: Fairlead) -> None:
    mail = front.named("mail.send")

    @front.task(name="start")
    async def start(ctx: Context) -> list[str]:
        one = await ctx.aenqueue(mail.call(Letter("a")))
        [two] = await ctx.aenqueue_many([mail.call(Letter("b"))])
        return [one.id, two.id]

    async with published(back(store)):
        handle = await start.aenqueue()
        await front.drain(queues=["default"])
        ids = await handle.aresult(timeout=5.0)
        assert {(await stored(store, id)).message.queue for id in ids} == {"mail"}


def test_a_schedule_cannot_be_declared_by_name(front: Fairlead) -> None:
    with pytest.raises(InvalidInput, match=r"'mail.send' is not registered here"):
        front.schedule(every="1h")(front.named("mail.send"))


async def test_a_chosen_id_needs_the_tenant_where_the_task_has_one(
    store: Store, front: Fairlead
) -> None:
    sender = front.named("mail.send")
    async with published(back(store, tenant="acme")):
        with pytest.raises(InvalidOption, match="given with tenant="):
            await sender.using(id="x").aenqueue(Letter("a"))
        handle = await sender.using(id="x", tenant="acme").aenqueue(Letter("a"))
        made = await sender.aenqueue(Letter("a"))
    assert {handle.tenant, made.tenant} == {"acme"}


async def test_two_releases_are_both_known_and_arguments_of_either_pass(
    store: Store, front: Fairlead
) -> None:
    new = Fairlead(store=store)

    @new.task(name="mail.send", queue="post", version=4)
    async def send(letter: Letter, copies: int = 1, *, color: bool) -> None: ...

    async with published(back(store)), published(new):
        [task] = await known_tasks(front._clients.current())
        assert (task.versions, task.workers) == ((4, 3), 2)
        assert task.current.queue == "post"
        old_way = await front.asend("mail.send", Letter("a"))
        new_way = await front.asend("mail.send", Letter("a"), color=True)
        with pytest.raises(InvalidArgument, match="copies"):
            await front.asend("mail.send", Letter("a"), "x")
        bodies = [
            Body.decode((await stored(store, each.id)).message.body) for each in (old_way, new_way)
        ]
    assert [body.task_version for body in bodies] == [3, 4]


async def test_arguments_that_fit_all_releases_may_be_run_by_any(
    store: Store, front: Fairlead
) -> None:
    async with published(back(store, version=1)), published(back(store, version=2)):
        [task] = await known_tasks(front._clients.current())
        assert check_arguments(task, [{"to": "a"}], {}).version == 1


async def test_known_tasks_are_read_once_in_a_while_however_many_ask(store: Store) -> None:
    counting = Counting(store)
    reads = 0
    documents = store.documents

    async def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return await documents(*args, **kwargs)

    counting.documents = count  # type: ignore[attr-defined]
    front = Fairlead(store=counting.store)
    async with published(back(store)):
        await asyncio.gather(*(front.asend("mail.send", Letter("a")) for _ in range(20)))
        await front.asend("mail.send", Letter("a"))
    assert reads == 1


async def test_the_time_limit_of_a_call_holds_for_the_question_to_the_workers(
    store: Store,
) -> None:
    counting = Counting(store)

    async def never(*args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()

    counting.documents = never  # type: ignore[attr-defined]
    front = Fairlead(store=counting.store)
    with pytest.raises(Unreachable):
        await front.named("mail.send").using(enqueue_timeout=0.05).aenqueue(1)


async def test_a_task_of_a_worker_that_publishes_nothing_is_known_by_its_name(
    store: Store, front: Fairlead
) -> None:
    worker = WorkerRecord(
        incarnation="w1",
        queues=("post",),
        tasks=("mail.send",),
        details={"versions": {"mail.send": 3}},
    )
    await store.beat("w1", worker=worker)
    [task] = await known_tasks(front._clients.current())
    assert (task.workers, task.current.queue, task.current.version) == (1, "post", 3)
    assert task.current.parameters is None
    handle = await front.asend("mail.send", "whatever")
    assert (await stored(store, handle.id)).message.queue == "post"


async def test_documents_that_are_no_catalogs_are_passed_over(
    store: Store, front: Fairlead, caplog: pytest.LogCaptureFixture
) -> None:
    forged = encode_catalog(Catalog(tasks=(TaskEntry(name="forged"),)))
    changes = [
        DocumentChange(kind="catalog", name="not-its-digest", value=forged),
        DocumentChange(kind="catalog", name=digest_of(b"x"), value=b"x"),
    ]
    await store.write_documents(Call("somebody", 1), changes)
    assert await known_tasks(front._clients.current()) == []
    assert [line.getMessage() for line in caplog.records] == ["catalog not read"] * 2
    await known_tasks(front._clients.current(), within=0.0)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("name", ["", "no spaces", "1st", None, 3, ["a"]])
def test_a_name_must_be_one(front: Fairlead, name: Any) -> None:
    with pytest.raises(InvalidInput, match="task name"):
        front.named(name)


def test_a_sender_by_name_is_a_sender(front: Fairlead) -> None:
    sender = front.named("mail.send")
    assert isinstance(sender, Sender)
    assert sender.name == "mail.send"
    assert "mail.send" in repr(sender)
