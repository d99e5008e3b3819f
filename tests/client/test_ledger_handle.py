"""Handles of tasks that were enqueued in a transaction: uncommitted, pending, and at the broker.

Nobody dispatches here: the tests move rows and push to the broker by hand, as a manager would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import psycopg
import pytest

from fairlead import (
    Fairlead,
    FlowCancelled,
    Handle,
    InvalidInput,
    OutboxState,
    Refused,
    ResultGone,
    ResultTimeout,
    State,
    TaskCancelled,
    TaskFailed,
    TaskRefused,
)
from fairlead.client import Task
from fairlead.client.stored_submissions import decode_draft, decode_submission
from fairlead.model.ledger_errors import LedgerUnreachable
from tests.support.postgres import Postgres


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Fairlead]:
    async with Fairlead("memory://", ledger=dsn) as made:
        yield made


@pytest.fixture
def tx(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        yield connection


def double_in(app: Fairlead) -> Task[[int], int]:
    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    return double


def moved(dsn: str, id: str, state: str, **columns: object) -> None:
    """Change a row as a manager would."""
    final = state in ("completed", "dead", "cancelled", "refused")
    values: dict[str, object] = {
        "state": state,
        "claimed_term": 1 if state == "claimed" else None,
        "finished_at": "2020-01-01" if final else None,
        **columns,
    }
    sets = ", ".join(f"{name} = %({name})s" for name in values)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            f"update fairlead.tasks set {sets} where id = %(id)s", {**values, "id": id}
        )


async def pushed(app: Fairlead, dsn: str, id: str) -> None:
    """Send a row to the broker."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select submission from fairlead.tasks where id = %s", (id,))
        (data,) = found.fetchone() or (b"",)
    await app._clients.current().submit(decode_submission(data))
    moved(dsn, id, "queued")


async def waiting(result: Awaitable[Any]) -> asyncio.Task[Any]:
    """Begin to wait, and return once that has had the time to look around."""
    task = asyncio.ensure_future(result)
    done, _ = await asyncio.wait([task], timeout=0.1)
    assert not done
    return task


# -- states ---------------------------------------------------------------------------------------


async def test_the_states_follow_the_task(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    assert await handle.astate() is OutboxState.UNCOMMITTED
    tx.commit()
    assert await handle.astate() == "pending"
    moved(dsn, handle.id, "claimed")
    assert await handle.astate() is OutboxState.PENDING
    await pushed(app, dsn, handle.id)
    assert await handle.astate() is State.QUEUED
    assert await app.drain() == 1
    assert await handle.astate() is State.COMPLETED
    assert await handle.aresult(timeout=5) == 8


def test_sync_code_sees_the_same(dsn: str, tx: psycopg.Connection[Any]) -> None:
    with Fairlead("memory://", ledger=dsn) as app:
        handle = double_in(app).using(tx=tx).enqueue(4)
        assert handle.state == "uncommitted"
        with pytest.raises(ResultTimeout):
            handle.result(timeout=0)
        tx.commit()
        assert handle.state == "pending"
        assert app.handle(handle.id).state == "pending"
        with pytest.raises(ResultTimeout):
            handle.result(timeout=0.05)
        assert handle.cancel()
        assert handle.state is State.CANCELLED


async def test_what_was_rolled_back_stays_uncommitted(
    app: Fairlead, tx: psycopg.Connection[Any]
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    tx.rollback()
    assert await handle.astate() == "uncommitted"
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0.05)
    assert not await handle.acancel()


async def test_a_handle_by_id_finds_what_is_pending(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    made = double_in(app).using(tx=tx, tenant="acme").enqueue(4)
    found = app.handle(made.id, tenant="acme")
    with pytest.raises(ResultGone):  # it may as well have been forgotten
        await found.astate()
    tx.commit()
    assert await found.astate() == "pending"
    assert await app.handle(made.id).astate() == "pending"  # whoever's it is
    assert (await app.handle(made.id).ainfo()).tenant == "acme"
    with pytest.raises(ResultGone):
        await app.handle(made.id, tenant="other").astate()
    assert await app.handle(made.id).acancel()


async def test_what_the_broker_has_forgotten_is_told_from_the_ledger(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    double = double_in(app)
    handles = [double.using(tx=tx).enqueue(n) for n in range(4)]
    tx.commit()
    completed, dead, cancelled, running = handles
    moved(dsn, completed.id, "completed")
    moved(dsn, dead.id, "dead", reason="exhausted", error_type="ValueError", error="no")
    moved(dsn, cancelled.id, "cancelled")
    moved(dsn, running.id, "running")
    states = [await handle.astate() for handle in handles]
    assert states == [State.COMPLETED, State.DEAD, State.CANCELLED, State.RUNNING]
    for timeout in (0, 5):
        with pytest.raises(ResultGone, match="completed"):
            await completed.aresult(timeout)
        with pytest.raises(TaskFailed, match=r"exhausted.*ValueError: no"):
            await dead.aresult(timeout)
        with pytest.raises(TaskCancelled):
            await cancelled.aresult(timeout)
    with pytest.raises(ResultTimeout):
        await running.aresult(timeout=0.05)


async def test_what_is_pending_has_an_info(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    double = double_in(app)
    handle = double.using(tx=tx, queue="mail", tenant="acme", deadline="1h").enqueue(4)
    flow = app.enqueue_flow(double.call(1), tx=tx)
    with pytest.raises(ResultGone, match="not committed"):
        await handle.ainfo()
    tx.commit()
    info = await handle.ainfo()
    assert (info.id, info.task, info.queue) == (handle.id, "double", "mail")
    assert (info.state, info.attempts, info.error) == ("pending", 0, None)
    assert info.due_at == info.enqueued_at
    assert info.deadline_at == pytest.approx(info.enqueued_at + 3600)
    moved(dsn, handle.id, "dead", reason="lost", error_type="ValueError", error="no")
    info = await handle.ainfo()
    assert (info.state, info.reason, info.due_at) == (State.DEAD, "lost", None)
    assert info.error is not None
    assert (info.error.type, info.error.message) == ("ValueError", "no")
    with pytest.raises(ResultGone, match="it is pending"):
        await flow.ainfo()
    with pytest.raises(ResultGone, match="flow is yet to be sent"):
        await flow.handles[0].ainfo()
    with pytest.raises(ResultGone):
        await app.handle(handle.id, tenant="other").ainfo()


async def test_a_row_that_is_gone_later_was_forgotten(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any], postgres: Postgres
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    tx.commit()
    assert await handle.astate() == "pending"
    postgres.execute("delete from fairlead.tasks", dsn=dsn)
    with pytest.raises(ResultGone):
        await handle.astate()
    with pytest.raises(ResultGone):
        await handle.aresult(timeout=5)


# -- results --------------------------------------------------------------------------------------


async def test_a_result_is_waited_for_through_the_commit_the_push_and_the_end(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0)
    result = await waiting(handle.aresult(timeout=60))
    tx.commit()
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0)
    await pushed(app, dsn, handle.id)
    async with app.worker():
        assert await result == 8


async def test_a_refused_task_says_why(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    tx.commit()
    moved(dsn, handle.id, "refused", reason="conflict", stands_for="other")
    assert await handle.astate() is OutboxState.REFUSED
    for timeout in (0, 5):
        with pytest.raises(TaskRefused, match=r"refused it \(conflict\); task 'other'") as caught:
            await handle.aresult(timeout)
        assert (caught.value.reason, caught.value.stands_for) == ("conflict", "other")
    moved(dsn, handle.id, "refused", reason="duplicate", stands_for=handle.id)  # never a circle
    with pytest.raises(TaskRefused):
        await handle.aresult(timeout=5)


async def test_a_unique_duplicate_gives_the_result_of_the_task_that_stands_for_it(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    double = double_in(app)
    holder = await double.using(unique="k").aenqueue(5)
    handle = double.using(tx=tx, unique="k").enqueue(5)
    tx.commit()
    moved(dsn, handle.id, "refused", reason="duplicate", stands_for=holder.id)
    with pytest.raises(ResultTimeout):
        await handle.aresult(timeout=0)
    result = await waiting(handle.aresult(timeout=60))
    async with app.worker():
        assert await result == 10
    assert await handle.aresult(timeout=0) == 10


async def test_an_app_without_a_ledger_says_so_until_the_broker_knows_the_task(
    dsn: str, tx: psycopg.Connection[Any]
) -> None:
    async with Fairlead("memory://") as app:
        handle = double_in(app).using(tx=tx).enqueue(4)
        tx.commit()
        for ask in (handle.astate, handle.aresult, handle.acancel, lambda: handle.aresult(0)):
            with pytest.raises(InvalidInput, match="ledger="):
                await ask()
        await pushed(app, dsn, handle.id)
        assert await handle.astate() is State.QUEUED
        await app.drain()
        assert await handle.aresult(timeout=5) == 8


async def test_a_ledger_that_is_away_for_a_while_only_takes_time(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    tx.commit()
    ledger = app._clients.ledger
    run, failures = ledger.run, [LedgerUnreachable("away"), LedgerUnreachable("away")]

    async def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await run(*args)

    monkeypatch.setattr(ledger, "run", failing)
    result = await waiting(handle.aresult(timeout=60))
    assert failures == []
    await pushed(app, dsn, handle.id)
    async with app.worker():
        assert await result == 8


# -- cancel ---------------------------------------------------------------------------------------


async def test_what_is_pending_is_cancelled_in_the_ledger(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    assert not await handle.acancel()  # nobody else can see it: roll it back
    tx.commit()
    assert await app.handle(handle.id).acancel()  # whoever's it is
    assert not await handle.acancel()
    assert not await handle.arequeue()
    assert not await handle.adelete()
    assert await handle.astate() is State.CANCELLED
    with pytest.raises(TaskCancelled):
        await handle.aresult(timeout=5)
    row = tx.execute("select state, finished_at is not null from fairlead.tasks").fetchone()
    assert row == ("cancelled", True)


async def test_what_is_being_sent_is_cancelled_at_the_broker_once_it_is_there(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    handle = double_in(app).using(tx=tx).enqueue(4)
    tx.commit()
    moved(dsn, handle.id, "claimed")
    cancelling = await waiting(handle.acancel())
    await pushed(app, dsn, handle.id)
    assert await cancelling
    assert await handle.astate() is State.CANCELLED


async def test_a_claim_that_does_not_end_is_not_waited_for_without_end(
    dsn: str, tx: psycopg.Connection[Any]
) -> None:
    async with Fairlead("memory://", ledger=dsn, timeout=0.2) as app:
        handle = double_in(app).using(tx=tx).enqueue(4)
        tx.commit()
        moved(dsn, handle.id, "claimed")
        with pytest.raises(Refused, match="cancel it again"):
            await handle.acancel()


async def test_what_a_dead_manager_had_sent_is_cancelled_at_the_broker_too(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is pending again, and arrives at the broker between the two looks."""
    handle = double_in(app).using(tx=tx).enqueue(4)
    tx.commit()
    moved(dsn, handle.id, "pending", pushes=1)
    ledger = app._clients.ledger
    run = ledger.run

    async def later(*args: Any) -> Any:
        monkeypatch.undo()
        await pushed(app, dsn, handle.id)
        moved(dsn, handle.id, "pending", pushes=1)
        return await run(*args)

    monkeypatch.setattr(ledger, "run", later)
    assert await handle.acancel()
    assert await app.drain() == 0
    assert await handle.astate() is State.CANCELLED


# -- flows ----------------------------------------------------------------------------------------


async def test_a_flow_is_uncommitted_then_pending_then_at_the_broker(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    double = double_in(app)
    one, two = double.call(1), double.call(2)
    flow = app.enqueue_flow(one >> two, tx=tx)
    assert await flow.astate() == "uncommitted"
    assert await flow[one].astate() == "uncommitted"
    with pytest.raises(ResultTimeout):
        await flow.aresult(timeout=0)
    assert not await flow.acancel()
    tx.commit()
    assert await flow.astate() == "pending"
    assert await flow[two].astate() == "pending"
    assert await app.flow(flow.id).astate() == "pending"
    result = await waiting(flow.aresult(timeout=60))
    (data,) = tx.execute("select draft from fairlead.flows").fetchone() or (b"",)
    await app._clients.current().submit_flow(decode_draft(data))
    tx.execute("update fairlead.flows set state = 'running'")
    tx.commit()
    assert await flow.astate() is State.RUNNING
    async with app.worker():
        assert await result == 4
        assert await flow[one].aresult(timeout=60) == 2


async def test_a_flow_that_is_pending_can_be_cancelled(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    double = double_in(app)
    one = double.call(1)
    flow = app.enqueue_flow(one >> double.call(2), tx=tx)
    tx.commit()
    assert await flow.acancel()
    assert not await flow.acancel()
    assert not await flow.aretry()
    assert await flow.astate() is State.CANCELLED
    for timeout in (0, 5):
        with pytest.raises(FlowCancelled):
            await flow.aresult(timeout)
        with pytest.raises(TaskCancelled):
            await flow[one].aresult(timeout)


@pytest.mark.parametrize("state", ["completed", "dead"])
async def test_the_end_of_a_flow_does_not_tell_that_of_its_tasks(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any], state: str
) -> None:
    one = double_in(app).call(1)
    flow = app.enqueue_flow(one, tx=tx)
    tx.execute("update fairlead.flows set state = %s, finished_at = now()", (state,))
    tx.commit()
    assert await flow.astate() == state
    for ask in (flow[one].astate, flow[one].aresult, flow.aresult):
        with pytest.raises(ResultGone):
            await ask()


async def test_a_refused_flow_says_why(
    app: Fairlead, dsn: str, tx: psycopg.Connection[Any]
) -> None:
    double = double_in(app)
    one = double.call(1)
    flow = app.enqueue_flow(one, tx=tx)
    tx.execute("update fairlead.flows set state = 'refused', reason = 'known', finished_at = now()")
    tx.commit()
    assert await flow.astate() is OutboxState.REFUSED
    for timeout in (0, 5):
        with pytest.raises(TaskRefused, match="known"):
            await flow.aresult(timeout)
        with pytest.raises(TaskRefused, match="known"):
            await flow[one].aresult(timeout)


async def test_plain_handles_stay_as_they_are(app: Fairlead) -> None:
    handle = await double_in(app).aenqueue(1)
    assert type(handle) is Handle
    assert handle == app.handle(handle.id)
    await app.drain()
    assert await app.handle(handle.id).aresult(timeout=5) == 2
