"""The testing kit: what a program's own tests can rely on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairlead import (
    Backoff,
    Context,
    Fairlead,
    InvalidInput,
    InvalidOption,
    Reject,
    State,
    TaskFailed,
)
from fairlead.testing import Crash, Kit

NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


class Shop:
    """An app as a program has it: at the top of a module, with a URL that no test may use."""

    def __init__(self, folder: Path) -> None:
        self.app = Fairlead("redis://127.0.0.1:1", fallback="spool", spool=folder / "spool")
        self.sent: list[str] = []
        app, sent = self.app, self.sent

        @app.task(name="shop.mail")
        def mail(to: str, *, text: str = "hello") -> str:
            sent.append(to)
            return f"{text} {to}"

        @app.task(name="shop.flaky", max_retries=3, backoff=Backoff(initial=60))
        async def flaky(times: list[int]) -> None:
            sent.append("flaky")
            if sent.count("flaky") <= times[0]:
                raise ConnectionError("away")

        @app.task(name="shop.sign_up")
        async def sign_up(ctx: Context, name: str) -> str:
            await ctx.aprogress({"step": 1})
            await ctx.xcom.apush("name", name)
            await ctx.aenqueue(mail.call(name))
            return f"{ctx.attempt} {ctx.tenant} {ctx.resources.get('smtp')}"

        self.mail, self.flaky, self.sign_up = mail, flaky, sign_up


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_an_app_with_any_url_is_tested_in_memory(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        handle = shop.mail.enqueue("ada")
        assert kit.drain() == 1
        assert handle.result() == "hello ada"
    assert kit.app._clients.fallback is not None  # as it was


async def test_the_same_holds_in_async_code(shop: Shop) -> None:
    async with Kit(shop.app) as kit:
        handle = await shop.mail.aenqueue("ada")
        assert await kit.adrain() == 1
        assert await handle.aresult() == "hello ada"
        with pytest.raises(InvalidInput, match=r"await kit\.adrain\(\)"):
            kit.drain()


def test_each_kit_is_empty_and_so_is_one_after_reset(shop: Shop) -> None:
    @shop.app.task
    def fails() -> None:
        raise ValueError("no")

    for _ in range(2):
        with Kit(shop.app) as kit:
            for _ in range(2):
                handle = shop.mail.using(id="order-1").enqueue("ada")
                fails.enqueue()
                kit.drain(raise_errors=False)
                assert handle.state is State.COMPLETED
                assert len(shop.app.exceptions) == 1
                kit.reset()
                assert shop.app.exceptions == []
                assert shop.app.snapshot().completed == 0
                assert kit.enqueued_tasks == []
    assert len(shop.sent) == 4


def test_a_kit_without_an_app_brings_a_new_one() -> None:
    with Kit() as kit:

        @kit.app.task
        def add(a: int, b: int) -> int:
            return a + b

        handle = add.enqueue(1, 2)
        kit.drain()
        assert handle.result() == 3


def test_reset_outside_of_its_block_is_refused(shop: Shop) -> None:
    kit = Kit(shop.app)
    with pytest.raises(InvalidInput, match="inside"):
        kit.reset()
    with kit, pytest.raises(InvalidInput, match="in use"):
        kit.__enter__()


# -- errors ------------------------------------------------------------------------------------


def test_a_drain_raises_what_a_handler_raised_with_its_traceback(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.flaky.enqueue([9])
        with pytest.raises(ConnectionError, match="away") as caught:
            kit.drain()
        (note,) = caught.value.__notes__
        assert "raised by task 'shop.flaky'" in note
        assert 'raise ConnectionError("away")' in note


def test_several_errors_are_raised_together(shop: Shop) -> None:
    @shop.app.task
    def rejects() -> None:
        raise Reject("no such customer")

    with Kit(shop.app) as kit:
        shop.flaky.enqueue([9])
        rejects.enqueue()
        with pytest.raises(ExceptionGroup, match="2 errors") as caught:
            kit.drain()
        assert {type(error) for error in caught.value.exceptions} == {ConnectionError, Reject}


def test_what_a_handler_rejected_is_among_the_exceptions(shop: Shop) -> None:
    @shop.app.task
    def rejects() -> None:
        raise Reject("no such customer")

    with Kit(shop.app) as kit:
        handle = rejects.enqueue()
        kit.drain(raise_errors=False)
        (raised,) = shop.app.exceptions
        assert isinstance(raised.exception, Reject)
        with pytest.raises(TaskFailed, match="no such customer"):
            handle.result()


def test_errors_of_an_earlier_drain_are_not_raised_again(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.flaky.enqueue([9])
        kit.drain(raise_errors=False)
        shop.mail.enqueue("ada")
        assert kit.drain() == 1


# -- what is left ------------------------------------------------------------------------------


def test_a_drain_says_what_it_left_and_why(shop: Shop) -> None:
    shop.app.declare_limiter("smtp", rate=5, burst=1)
    with Kit(shop.app) as kit:
        for to in "abcd":
            shop.mail.using(limiters=["smtp"]).enqueue(to)
        shop.mail.using(delay="1d", tenant="other").enqueue("e")
        shop.app.configure_queue("slow", paused=True)
        shop.mail.using(queue="slow").enqueue("f")
        done = kit.drain()
        assert done == 1
        assert [(left.count, left.state, left.code) for left in done.left] == [
            (3, State.QUEUED, "limiter_rate"),
            (1, State.QUEUED, "queue_paused"),
            (1, State.SCHEDULED, "scheduled"),
        ]
        assert done.left[0].tasks == ("shop.mail",)
        text = repr(done)
        assert text.startswith("<1 attempt; left 3 queued: the rate of limiter 'smtp'")
        assert f"{done}" == str(done) == "1"
        assert {left.text for left in kit.drain(queues=["other"]).left} == {
            "queue 'default' was not drained",
            "queue 'slow' was not drained",
        }


def test_a_task_that_nobody_registered_is_named(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.app.named("shop.unknown", strict=False).enqueue()
        done = kit.drain()
        assert [(left.code, left.text) for left in done.left] == [
            ("unknown_task", "no task 'shop.unknown' is registered in this app")
        ]


def test_no_more_than_a_hundred_tasks_are_looked_at(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.app.enqueue_many(shop.mail.using(delay=60).call(str(n)) for n in range(130))
        done = kit.drain()
        assert (done.left[0].count, done.more) == (100, 30)
        assert "30 more tasks" in repr(done)


def test_a_drain_that_leaves_nothing_says_so(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.mail.enqueue("ada")
        assert repr(kit.drain()) == "<1 attempt; nothing left>"


# -- time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", [2020, 2030])
def test_moments_are_those_of_the_clock(shop: Shop, year: int) -> None:
    with Kit(shop.app, start=datetime(year, 1, 1, tzinfo=UTC)) as kit:
        shop.mail.using(at=datetime(year, 1, 2, tzinfo=UTC)).enqueue("ada")
        assert kit.drain() == 0
        kit.clock.advance("1d")
        assert kit.drain() == 1


def test_retries_run_when_the_clock_says_so(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        handle = shop.flaky.enqueue([2])
        kit.drain(raise_errors=False)
        assert handle.state is State.RETRYING
        kit.clock.advance(59)
        assert kit.drain() == 0
        kit.clock.advance(1)
        assert kit.drain(raise_errors=False) == 1
        kit.clock.advance(timedelta(minutes=2))
        assert kit.drain() == 1
        handle.result()


def test_schedules_fire_each_slot_in_its_own_time(shop: Shop) -> None:
    seen: list[datetime] = []

    @shop.app.schedule("0 * * * *")
    @shop.app.task(name="shop.report")
    def report(ctx: Context) -> None:
        assert ctx.slot is not None
        seen.append(ctx.slot)

    with Kit(shop.app, start=NEW_YEAR) as kit:
        assert kit.elapse("3h") == 3
        assert seen == [NEW_YEAR + timedelta(hours=hour) for hour in (1, 2, 3)]
        assert kit.clock.now == NEW_YEAR + timedelta(hours=3)
        (first, *_) = kit.enqueued("shop.report")
        assert first.schedule == "shop.report"


def test_time_that_leaps_meets_the_rule_for_missed_slots(shop: Shop) -> None:
    seen: list[str] = []

    @shop.app.schedule("0 * * * *", missed="latest")
    @shop.app.task
    def report() -> None:
        seen.append("report")

    with Kit(shop.app, start=NEW_YEAR) as kit:
        kit.drain()
        kit.clock.advance("3h")
        kit.drain()
        assert seen == ["report"]


async def test_everything_due_runs_while_time_elapses(shop: Shop) -> None:
    async with Kit(shop.app) as kit:
        await shop.flaky.aenqueue([2])
        await shop.mail.using(delay="1d").aenqueue("ada")
        done = await kit.aelapse("1h", raise_errors=False)
        assert done == 3
        assert [left.code for left in done.left] == ["scheduled"]


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(InvalidOption, match="time zone"):
        Kit(start=datetime(2027, 1, 1))  # noqa: DTZ001


# -- what was enqueued -------------------------------------------------------------------------


def test_what_was_enqueued_is_found_by_the_names_of_its_arguments(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.mail.using(tenant="acme", priority="high", delay="1h").enqueue("ada")
        shop.mail.enqueue(to="bob", text="bye")
        (ada,) = kit.enqueued("shop.mail", to="ada")
        assert (ada.tenant, ada.priority, ada.delay, ada.queue) == ("acme", "high", 3600, "default")
        assert kit.enqueued("mail", text="bye")[0].arguments == {"to": "bob", "text": "bye"}
        assert len(kit.enqueued("mail")) == 2
        kit.not_enqueued("shop.mail", to="eve")
        with pytest.raises(AssertionError) as missing:
            kit.enqueued("shop.mail", to="eve")
        assert "shop.mail(to='eve') was not enqueued" in str(missing.value)
        assert "shop.mail(to='bob', text='bye')" in str(missing.value)
        with pytest.raises(AssertionError, match="was enqueued"):
            kit.not_enqueued("shop.mail", to="ada")


def test_duplicates_are_not_taken_for_new_tasks(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        for _ in range(2):
            shop.mail.using(id="order-1").enqueue("ada")
        assert len(kit.enqueued("shop.mail")) == 1


def test_members_of_flows_count_once_they_are_committed(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.app.enqueue_flow(shop.mail.call("first") >> shop.mail.call("second"))
        assert [each.arguments["to"] for each in kit.enqueued("mail")] == ["first", "second"]
        assert kit.drain() == 2


def test_a_task_that_is_sent_by_name_shows_its_arguments_by_number(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        shop.app.named("elsewhere.work", strict=False).enqueue(1, two=2)
        assert kit.enqueued("elsewhere.work")[0].arguments == {"0": 1, "two": 2}


# -- handlers alone ----------------------------------------------------------------------------


async def test_a_handler_with_a_context_is_called_directly(shop: Shop) -> None:
    async with Kit(shop.app) as kit:
        context = kit.context(shop.sign_up, attempt=2, tenant="acme", resources={"smtp": "box"})
        assert await shop.sign_up(context, "ada") == "2 acme box"
        assert context.task == "shop.sign_up"
        assert context.reported == [{"step": 1}]
        assert context.left == {"name": "ada"}
        kit.enqueued("shop.mail", to="ada")


def test_a_sync_handler_with_a_context_is_called_directly(shop: Shop) -> None:
    @shop.app.task
    def load(ctx: Context) -> list[int]:
        ctx.progress(0.5)
        ctx.raise_if_cancelled()
        found: int = ctx.xcom.pull("offset", 0)
        return [found + ctx.results["rows"], ctx.attempt]

    with Kit(shop.app) as kit:
        context = kit.context(load, results={"etl.rows": 3}, xcom={"offset": 40})
        assert load(context) == [43, 1]
        assert context.reported == [0.5]
        context.cancel()
        with pytest.raises(Exception, match="cancelled"):
            load(context)


# -- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "runs", "attempts"),
    [("fetched", 1, 1), ("started", 1, 2), ("finished", 2, 2), ("settled", 1, 1)],
)
def test_a_worker_may_die_at_each_transition(
    shop: Shop, at: Crash, runs: int, attempts: int
) -> None:
    with Kit(shop.app) as kit:
        kit.crash(at, "shop.mail")
        handle = shop.mail.enqueue("ada")
        kit.drain()
        assert kit.crashes_left == []
        assert handle.state is State.COMPLETED
        assert len(shop.sent) == runs
        info = handle.info()
        assert info.attempts == attempts


def test_a_task_that_takes_three_workers_down_is_dead(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        kit.crash("started", "mail", times=3)
        handle = shop.mail.enqueue("ada")
        kit.drain()
        info = handle.info()
        assert (info.state, info.reason) == (State.DEAD, "poison")
        assert shop.sent == []


def test_a_crash_strikes_only_the_task_that_was_named(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        kit.crash("started", "shop.sign_up")
        bystander = shop.mail.enqueue("ada")
        victim = shop.sign_up.enqueue("bob")
        kit.drain()
        one, other = bystander.info(), victim.info()
        assert (one.attempts, other.attempts) == (1, 2)


def test_children_of_an_attempt_whose_worker_died_stay(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        kit.crash("finished", "shop.sign_up")
        shop.sign_up.enqueue("ada")
        kit.drain()
        assert shop.sent == ["ada", "ada"]


def test_a_crash_that_never_happened_is_told(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        kit.crash("settled", "shop.mail", times=2)
        shop.mail.enqueue("ada")
        kit.drain()
        assert kit.crashes_left == ["settled of shop.mail"]
        with pytest.raises(InvalidOption, match="fetched, started, finished, settled"):
            kit.crash("later")  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="times"):
            kit.crash("settled", times=0)


def test_two_loops_and_threads_share_the_kit(shop: Shop) -> None:
    with Kit(shop.app) as kit:
        asyncio.run(_enqueue(shop))
        asyncio.run(_enqueue(shop))
        assert kit.drain() == 2


async def _enqueue(shop: Shop) -> None:
    await shop.mail.aenqueue("ada")
