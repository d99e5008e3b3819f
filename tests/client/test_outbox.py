"""What is written for tasks that are enqueued in a transaction, and what is around it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from fairlead import (
    Conflict,
    Context,
    DependencyCycle,
    Enqueuing,
    Fairlead,
    InvalidInput,
    TooLarge,
    UnknownTask,
    correlation,
)
from fairlead.broker.requests import Submission
from fairlead.client.stored_submissions import content_of, decode_draft, decode_submission
from fairlead.model.message import Body, Trace
from fairlead.model.options import Dependency, Unique
from tests.client.connections import ASYNC, tasks_in


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://", priorities={"urgent": "critical"})


@pytest.fixture
def tx(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        yield connection


def rows(dsn: str) -> list[dict[str, Any]]:
    columns = "*, extract(epoch from due_at - created_at)::float8 as delay"
    more = "extract(epoch from deadline_at - created_at)::float8 as deadline"
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        found = connection.execute(f"select {columns}, {more} from fairlead.tasks order by seq")
        return found.fetchall()


def submission_in(row: dict[str, Any]) -> Submission:
    return decode_submission(row["submission"])


# -- one task -------------------------------------------------------------------------------------


def test_the_row_has_all_that_the_call_said(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task(name="mail.send", queue="mail", priority=lambda to: "urgent", version=3)
    def send(to: str) -> None: ...

    with correlation("request-7"):
        handle = send.using(
            tx=tx, tenant="acme", id="order-1", delay="5m", deadline="1h", cost=2, timeout="1m",
            unique="a@x", unique_for="10m", depends_on=["parent"], on_dependency_failure="run",
            limiters=["smtp"], max_retries=2, enqueue_timeout="1s",
        ).enqueue("a@x")  # fmt: skip
    tx.commit()
    assert (handle.id, handle.tenant, handle.task) == ("acme:order-1", "acme", "mail.send")
    assert not handle.duplicate
    (row,) = rows(dsn)
    assert (row["id"], row["state"], row["name"]) == (handle.id, "pending", "mail.send")
    assert (row["queue"], row["tenant"], row["level"]) == ("mail", "acme", 0)
    assert (row["delay"], row["deadline"]) == (300.0, 3600.0)
    assert row["depends_on"] == ["acme:parent"]
    stored = submission_in(row)
    assert row["content"] == content_of(stored.message)
    assert stored.depends_on == (Dependency("acme:parent"),)
    assert stored.on_dependency_failure == "run"
    assert stored.unique == Unique(key="mail.send\x1fa@x", until="window", window=600.0)
    assert (stored.message.cost, stored.message.limiters) == (2.0, ("smtp",))
    body = Body.decode(stored.message.body)
    assert (body.timeout, body.max_retries, body.task_version) == (60.0, 2, 3)
    assert Trace.of(stored.message).correlation_id == "request-7"


def test_the_same_again_is_a_duplicate_and_another_content_a_conflict(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work(n: int) -> None: ...

    sender = work.using(tx=tx, id="one")
    assert not sender.enqueue(1).duplicate
    tx.commit()
    again = sender.enqueue(1)
    assert (again.duplicate, again.id) == (True, "default:one")
    with pytest.raises(Conflict, match="default:one"):
        sender.enqueue(2)
    tx.commit()  # a conflict leaves the transaction as it was
    assert tasks_in(dsn) == ["default:one"]


def test_arguments_and_names_are_checked_before_anything_is_written(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work(n: int) -> None: ...

    with pytest.raises(InvalidInput):
        work.using(tx=tx).enqueue()  # type: ignore[call-arg]
    with pytest.raises(TooLarge):
        work.using(tx=tx).enqueue(b"x" * 2_000_000)  # type: ignore[arg-type]
    with pytest.raises(UnknownTask):
        app.named("nobody", strict=True).using(tx=tx).enqueue(1)
    tx.commit()
    assert tasks_in(dsn) == []


def test_tasks_by_name_are_written_too(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    handle = app.named("elsewhere").using(tx=tx).enqueue(1)
    tx.commit()
    (row,) = rows(dsn)
    assert (row["id"], row["name"]) == (handle.id, "elsewhere")


async def test_tasks_by_name_are_written_in_async_code_too(app: Fairlead, dsn: str) -> None:
    async with ASYNC["psycopg"](dsn) as opened:
        handle = await app.named("elsewhere").using(tx=opened.tx).aenqueue(1)
        await opened.commit()
    assert tasks_in(dsn) == [handle.id]


# -- dependencies ---------------------------------------------------------------------------------


async def test_what_a_transaction_enqueued_must_be_known_before_it_counts_as_done(
    app: Fairlead, dsn: str
) -> None:
    """A handle says that the broker had the task; one of a transaction cannot say so."""

    @app.task
    def work(n: Any = None) -> int:
        return 1

    known = await work.aenqueue()
    async with ASYNC["psycopg"](dsn) as opened:
        parent = await work.using(tx=opened.tx).aenqueue()
        await work.using(tx=opened.tx, depends_on=[parent, known]).aenqueue()
        await work.using(tx=opened.tx).aenqueue(parent.output)
        await work.using(tx=opened.tx).aenqueue(known.output)
        await opened.commit()
    first, by_handle, by_output, by_known = rows(dsn)
    assert first["id"] == parent.id
    assert submission_in(by_handle).depends_on == (
        Dependency(parent.id),
        Dependency(known.id, known=True),
    )
    assert submission_in(by_output).depends_on == (Dependency(parent.id),)
    assert submission_in(by_known).depends_on == (Dependency(known.id, known=True),)


def test_a_batch_is_written_with_parents_first(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work(ctx: Context, n: int) -> None: ...

    one = work.call(1)
    two = work.using(depends_on=[one]).call(2)
    three = work.using(depends_on=[two]).call(3)
    handles = app.enqueue_many([three, one, two, one], tx=tx)
    tx.commit()
    assert [handle.id for handle in handles] == [three.id, one.id, two.id, one.id]
    assert [handle.duplicate for handle in handles] == [False, False, False, True]
    assert tasks_in(dsn) == [one.id, two.id, three.id]
    stored = submission_in(rows(dsn)[1])
    assert stored.depends_on == (Dependency(one.id),)
    assert stored.uses_results


def test_a_cycle_is_refused_and_a_conflict_names_itself(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work(n: int) -> None: ...

    with pytest.raises(DependencyCycle):
        app.enqueue_many(
            [
                work.using(id="a", depends_on=["default:b"]).call(1),
                work.using(id="b", depends_on=["default:a"]).call(2),
            ],
            tx=tx,
        )
    work.using(tx=tx, id="taken").enqueue(1)
    with pytest.raises(Conflict, match="taken") as caught:
        app.enqueue_many([work.call(1), work.using(id="taken").call(2)], tx=tx)
    assert caught.value.__notes__[0].startswith("1 of 2 tasks")
    tx.rollback()
    assert tasks_in(dsn) == []
    assert app.enqueue_many([], tx=tx) == []


def test_many_calls_go_in_statements_of_500(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work(n: int) -> None: ...

    calls = [work.using(tenant=f"t{n}").call(n) for n in range(1_001)]  # more than a broker's 200
    handles = app.enqueue_many(calls, tx=tx)
    tx.commit()
    assert tasks_in(dsn) == [handle.id for handle in handles]
    with psycopg.connect(dsn) as connection:
        moments = connection.execute("select count(distinct created_at) from fairlead.tasks")
        assert moments.fetchone() == (3,)


# -- middleware, counters, notifications ----------------------------------------------------------


def around(app: Fairlead, seen: list[Any]) -> None:
    @app.around_enqueue
    async def note(enqueuing: Enqueuing) -> AsyncIterator[None]:
        enqueuing.headers["who"] = "me"
        async with asyncio.timeout(60):  # must be left by the task that entered it
            try:
                yield
            except BaseException as error:
                seen.append(type(error).__name__)
                raise
        seen.append(enqueuing.id)


def test_middleware_is_around_sync_enqueues_and_statements_stay_on_the_thread(
    app: Fairlead, dsn: str
) -> None:
    @app.task
    def work(n: int) -> None: ...

    seen: list[Any] = []
    threads: list[int] = []
    around(app, seen)

    class Watched(psycopg.Connection[Any]):
        def wait(self, *args: Any, **kwargs: Any) -> Any:
            threads.append(threading.get_ident())
            return super().wait(*args, **kwargs)

    with Watched.connect(dsn) as connection:
        handles = [work.using(tx=connection).enqueue(1)]
        handles += app.enqueue_many([work.call(2), work.call(3)], tx=connection)
        connection.commit()
        work.using(tx=connection, id="x").enqueue(1)
        with pytest.raises(Conflict):
            work.using(tx=connection, id="x").enqueue(2)
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select from nothing")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            work.using(tx=connection).enqueue(4)
        connection.rollback()
    ids = [handle.id for handle in handles]
    assert seen == [ids[0], ids[2], ids[1], "default:x", "Conflict", "InFailedSqlTransaction"]
    assert set(threads) == {threading.get_ident()}
    assert tasks_in(dsn) == ids
    for row in rows(dsn):
        assert Trace.of(submission_in(row).message).headers == {"who": "me"}


async def test_middleware_is_around_async_enqueues(app: Fairlead, dsn: str) -> None:
    @app.task
    def work(n: int) -> None: ...

    seen: list[Any] = []
    around(app, seen)
    async with ASYNC["asyncpg"](dsn) as opened:
        handle = await work.using(tx=opened.tx).aenqueue(1)
        await opened.commit()
    assert seen == [handle.id]
    (row,) = rows(dsn)
    assert Trace.of(submission_in(row).message).headers == {"who": "me"}


def test_middleware_that_raises_keeps_the_task_from_being_written(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work(n: int) -> None: ...

    @app.around_enqueue
    @asynccontextmanager
    async def refuse(enqueuing: Enqueuing) -> AsyncIterator[None]:
        if enqueuing.task:
            raise PermissionError("not you")
        yield

    with pytest.raises(PermissionError, match="not you"):
        work.using(tx=tx).enqueue(1)
    tx.commit()
    assert tasks_in(dsn) == []


def test_what_interrupts_the_statement_leaves_the_middleware_and_the_portal_whole(
    app: Fairlead, dsn: str
) -> None:
    @app.task
    def work(n: int) -> None: ...

    seen: list[Any] = []
    around(app, seen)

    class Interrupted(psycopg.Connection[Any]):
        is_on = False

        def wait(self, *args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                raise KeyboardInterrupt
            return super().wait(*args, **kwargs)

    with psycopg.connect(dsn) as after:
        connection = Interrupted.connect(dsn)
        connection.is_on = True
        with pytest.raises(KeyboardInterrupt):
            work.using(tx=connection).enqueue(1)
        connection.close()
        assert seen == ["CancelledError"]
        handle = work.using(tx=after).enqueue(2)
        assert seen[1:] == [handle.id]


def test_what_was_written_is_counted(app: Fairlead, dsn: str, tx: psycopg.Connection[Any]) -> None:
    @app.task(name="work")
    def work(n: int) -> None: ...

    app.counters.begin()
    app.enqueue_many([work.call(1), work.call(2)], tx=tx)
    for _ in range(2):
        work.using(tx=tx, id="same").enqueue(3)
    app.enqueue_flow(work.call(1) >> work.call(2), tx=tx)
    assert app.counters.counted().submitted == {("work", 2): 5}


def test_the_dispatcher_is_told_at_the_commit(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work() -> None: ...

    with psycopg.connect(dsn, autocommit=True) as listening:
        listening.execute("listen fairlead_due")
        work.using(tx=tx).enqueue()
        assert list(listening.notifies(timeout=0)) == []
        tx.commit()
        assert [note.channel for note in listening.notifies(timeout=30, stop_after=1)]


# -- flows ----------------------------------------------------------------------------------------


def test_a_flow_is_written_as_a_whole(app: Fairlead, dsn: str, tx: psycopg.Connection[Any]) -> None:
    @app.task
    def work(n: int) -> None: ...

    one, two = work.call(1), work.using(delay="1m", deadline="1h").call(2)
    app.enqueue_flow(one >> two, tx=tx)
    tx.rollback()
    flow = app.enqueue_flow(one >> two, tx=tx, name="import", id="f")
    assert (flow.id, flow.duplicate) == ("default:f", False)
    assert [handle.id for handle in flow.handles] == [one.id, two.id]
    tx.commit()
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        (row,) = connection.execute("select * from fairlead.flows").fetchall()
    assert (row["id"], row["name"], row["state"], row["members"]) == (
        flow.id,
        "import",
        "pending",
        2,
    )
    draft = decode_draft(row["draft"])
    assert [each.message.id for each in draft.submissions] == [one.id, two.id]
    assert (draft.submissions[1].delay, draft.submissions[1].deadline) == (60.0, 3600.0)
    assert draft.submissions[1].depends_on == (Dependency(one.id),)


async def test_a_flow_of_the_same_id_is_the_one_that_was_written_first(
    app: Fairlead, dsn: str
) -> None:
    @app.task
    def work(n: int) -> None: ...

    @app.task
    def other() -> None: ...

    async with ASYNC["asyncpg"](dsn) as opened:
        one = work.call(1)
        await app.aenqueue_flow(one >> work.call(2), tx=opened.tx, id="f")
        again = work.call(1)
        flow = await app.aenqueue_flow(again >> work.call(2), tx=opened.tx, id="f")
        assert flow.duplicate
        assert flow[again].id == one.id
        assert flow[again].duplicate
        for wrong in (work.call(1), work.call(1) >> other.call()):
            with pytest.raises(Conflict, match="default:f"):
                await app.aenqueue_flow(wrong, tx=opened.tx, id="f")
        await opened.commit()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select count(*) from fairlead.flows").fetchone() == (1,)


def test_middleware_is_around_each_call_of_a_flow(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    @app.task
    def work(n: int) -> None: ...

    seen: list[Any] = []
    around(app, seen)
    one, two = work.call(1), work.call(2)
    app.enqueue_flow(one >> two, tx=tx)
    assert seen == [two.id, one.id]
    (data,) = tx.execute("select draft from fairlead.flows").fetchone() or (b"",)
    for each in decode_draft(data).submissions:
        assert Trace.of(each.message).headers == {"who": "me"}
