"""Which spooled tasks run here, and what becomes of them, step by step."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.requests import Call, Fetch, LeaseRef, Submission
from fairlead.fallback.codec import SpooledTask, decode_submission, encode_submission, moment_now
from fairlead.fallback.local_tasks import Finished
from fairlead.model.errors import Ambiguous
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import ErrorInfo, Leased, Message
from fairlead.model.spool_errors import SpoolFailed
from fairlead.runtime.ids import new_id
from fairlead.spool import Entry, Kind
from tests.fallback.bench import Bench, submit


class Hands:
    """Handlers that a test drives: they begin when they are told to, and end when it says so."""

    def __init__(self, finished: Finished) -> None:
        self.finished = finished
        self.begun: list[Leased] = []
        self.can = True
        self.closed = 0
        self.claimed: list[bool] = []  # whether each stood in the spool as started when it began
        self.bench: Here | None = None

    def can_run(self, message: Message) -> bool:
        return self.can

    def start(self, leases: Sequence[Leased]) -> None:
        assert self.bench is not None
        started = {
            decode_submission(record.payload).submission.message.id
            for record in self.bench.fallback.spool.pending(0, 1_000)
            if record.started
        }
        self.claimed += [lease.message.id in started for lease in leases]
        self.begun += leases

    def close(self, timeout: float) -> None:
        self.closed += 1


class Here(Bench):
    """A process that runs tasks of the queue ``mail`` itself."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.hands: Hands | None = None
        defaults: dict[str, Any] = {
            "local_queues": frozenset({"mail"}),
            "local_concurrency": 100,
            "settling": 0.0,
        }
        super().__init__(folder, handlers=self._open, **defaults | options)

    def _open(self, finished: Finished) -> Hands:
        self.hands = Hands(finished)
        self.hands.bench = self
        return self.hands

    async def step(self) -> float:
        return await self.fallback.local.step(self.drainer.is_doubted)

    async def away(self, *submissions: Submission) -> None:
        """Let the broker go, and enqueue."""
        self.fail()
        assert set(await self.submit(*submissions)) == {"spooled"}

    @property
    def begun(self) -> list[str]:
        return [] if self.hands is None else [lease.message.id for lease in self.hands.begun]

    async def end(self, id: str, to: State = State.COMPLETED, **end: Any) -> None:
        """The handler of a task ends; keep what that came to."""
        assert self.hands is not None
        self.hands.finished(id, Settlement(id=id, token=5, to=to, **end))
        await self.step()

    def kinds(self) -> list[Kind]:
        return [record.kind for record in self.fallback.spool.pending(0, 1_000)]


def mail(id: str, **options: Any) -> Submission:
    return submit(id, **{"queue": "mail"} | options)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    made = Here(tmp_path / "spool")
    yield made
    made.close()


# -- which, and in which order ----------------------------------------------------------------


async def test_a_task_is_claimed_on_disk_before_its_handler_begins(here: Here) -> None:
    await here.away(mail("a"), mail("b"))
    await here.step()
    assert here.begun == ["a", "b"]
    assert here.hands is not None
    assert here.hands.claimed == [True, True]
    await here.step()
    assert here.begun == ["a", "b"], "once"


@pytest.mark.parametrize(
    "task",
    [
        mail("a", depends_on=["parent"]),
        mail("a", unique="key"),
        mail("a", fence=LeaseRef("parent", "worker", 1)),
        mail("a", limiters=("smtp",)),
        mail("a", deadline=0.0),
        mail("acme:chosen"),
        submit("a", queue="other"),
    ],
    ids=["depends_on", "unique", "fence", "limiters", "expired", "id", "queue"],
)
async def test_what_only_the_broker_can_decide_stays_in_the_spool(
    here: Here, task: Submission
) -> None:
    await here.away(task)
    await here.step()
    assert here.begun == []
    assert [each.started for each in here.fallback.spool.pending()] == [False]


async def test_a_task_that_no_handler_here_knows_stays_in_the_spool(here: Here) -> None:
    await here.away(mail("a"))
    hands = here._open(here.fallback.local._finished)
    hands.can, here.fallback.local._handlers = False, hands
    await here.step()
    assert here.kinds() == [Kind.SUBMISSION]
    assert here.begun == []


async def test_a_task_that_the_broker_may_have_stays_in_the_spool(here: Here) -> None:
    here.fail(Ambiguous("the reply was lost"))
    here.broker.is_executed = True
    assert await here.submit(mail("a")) == ["spooled"]
    here.broker.is_executed = False
    await here.away(mail("b"))
    await here.step()
    assert here.begun == ["b"]


async def test_a_task_that_the_drain_has_sent_without_a_reply_stays_in_the_spool(
    here: Here,
) -> None:
    await here.away(submit("a", queue="mail"))
    await here.recover()
    here.fail(Ambiguous("the reply was lost"))
    here.broker.is_executed = True
    await here.drainer.step()
    assert here.fallback.state == "spooling"
    await here.step()
    assert here.begun == []


async def test_a_short_outage_starts_nothing(tmp_path: Path) -> None:
    here = Here(tmp_path / "spool", settling=3_600.0)
    await here.away(mail("a"))
    assert 3_000.0 < await here.step() <= 3_600.0
    assert here.begun == []
    here.close()


async def test_nothing_begins_once_the_broker_is_back(here: Here) -> None:
    await here.away(mail("a"), mail("b"))
    await here.recover()
    await here.step()
    assert (here.fallback.state, here.begun) == ("draining", [])
    await here.drain()
    assert await here.states("a", "b") == ["queued", "queued"]


async def test_tenants_take_turns_and_each_has_its_order(tmp_path: Path) -> None:
    here = Here(tmp_path / "spool", local_concurrency=1)
    big = [mail(f"big{n}", tenant="big") for n in range(4)]
    few = [mail(f"few{n}", tenant="few", level=level) for n, level in enumerate((2, 2, 0))]
    await here.away(*big, *few)
    for _ in range(7):
        await here.step()
        await here.end(here.begun[-1])
    assert here.begun == ["big0", "few2", "big1", "few0", "big2", "few1", "big3"]
    here.close()


async def test_no_more_run_at_a_time_than_the_setting_says(tmp_path: Path) -> None:
    here = Here(tmp_path / "spool", local_concurrency=2)
    await here.away(*(mail(f"t{n}") for n in range(5)))
    await here.step()
    await here.step()
    assert here.begun == ["t0", "t1"]
    await here.end("t0")
    assert here.begun == ["t0", "t1", "t2"]
    here.close()


async def test_a_delayed_task_runs_when_it_is_due(here: Here) -> None:
    await here.away(mail("soon", delay=30.0), mail("late", delay=3_600.0), mail("now"))
    wait = await here.step()
    assert here.begun == ["now"]
    assert 20.0 < wait <= 30.0
    here.fallback.local._clock = lambda: 1e12  # both are due by the clock of this object only
    await here.step()
    assert here.begun == ["now", "soon", "late"]


async def test_more_tasks_than_are_looked_at_ahead_all_run(tmp_path: Path) -> None:
    here = Here(tmp_path / "spool", local_concurrency=400)
    ids = [f"t{number:04}" for number in range(1_500)]
    for start in range(0, 1_500, 500):
        await here.away(*(mail(id) for id in ids[start : start + 500]))
    while len(here.begun) < 1_500:
        before = len(here.begun)
        await here.step()
        for id in here.begun[before:]:
            assert here.hands is not None
            here.hands.finished(id, Settlement(id=id, token=1, to=State.COMPLETED))
        assert len(here.begun) > before
    assert here.begun == ids
    await here.step()
    assert here.fallback.local.ran == 1_500
    here.close()


# -- ends -------------------------------------------------------------------------------------


async def test_only_the_end_of_what_ran_here_is_sent(here: Here) -> None:
    await here.away(mail("a"), submit("other"))
    await here.step()
    await here.end("a", result=b"r")
    assert here.kinds() == [Kind.SUBMISSION, Kind.LOCAL_DONE]
    await here.recover()
    await here.drain()
    (found,) = await here.broker.inner.find(["a"])
    assert found is not None
    assert (found.state, found.reason, found.result) == (State.COMPLETED, "local", b"r")
    assert await here.fetched(queue="mail") == []
    assert await here.fetched() == ["other"]
    assert (here.fallback.spool.depth, here.fallback.is_spooled("a")) == (0, False)
    assert here.fallback.local.outcomes.find("a") is None, "the broker knows"


async def test_a_task_that_nothing_is_left_to_try_of_is_dead(here: Here) -> None:
    await here.away(mail("a"))
    await here.step()
    error = ErrorInfo("ValueError", "no")
    await here.end("a", State.DEAD, reason="exhausted", error=error)
    await here.recover()
    await here.drain()
    (found,) = await here.broker.inner.find(["a"])
    assert found is not None
    assert (found.state, found.reason, found.error) == (State.DEAD, "exhausted", error)


@pytest.mark.parametrize("to", [State.RETRYING, State.SCHEDULED, State.QUEUED, None])
async def test_after_any_other_end_the_broker_gets_the_task_as_it_was(
    here: Here, to: State | None
) -> None:
    await here.away(mail("a"))
    await here.step()
    assert here.hands is not None
    here.hands.finished("a", None if to is None else Settlement(id="a", token=1, to=to))
    await here.step()
    assert here.begun == ["a"], "one attempt"
    await here.recover()
    await here.drain()
    assert await here.fetched(queue="mail") == ["a"]


async def test_what_runs_when_the_broker_is_back_is_not_sent_before_its_end(here: Here) -> None:
    await here.away(mail("a"), mail("b"))
    await here.step()
    await here.recover()
    await here.drain()
    assert await here.states("a", "b") == [None, None]
    states = [here.fallback.state]
    await here.end("a")
    await here.drain()
    assert await here.states("a", "b") == ["completed", None]
    await here.end("b")
    await here.drain()
    assert await here.states("a", "b") == ["completed", "completed"]
    assert await here.fetched(queue="mail") == []
    assert [*states, here.fallback.state] == ["draining", "healthy"]


async def test_a_second_call_of_the_same_id_does_not_run_it_again(tmp_path: Path) -> None:
    here = Here(tmp_path / "spool", local_concurrency=1)
    await here.away(mail("a"), mail("a"))
    await here.step()
    await here.step()
    assert here.begun == ["a"]
    await here.end("a")
    await here.step()
    assert here.begun == ["a"]
    await here.recover()
    for _ in range(2):
        await here.drain()
        here.now += 10.0
    assert await here.states("a") == ["completed"]
    assert await here.fetched(queue="mail") == []
    assert here.fallback.spool.depth == 0
    here.close()


async def test_a_task_that_depends_on_it_goes_after_its_end(here: Here) -> None:
    await here.away(mail("a"), submit("b", depends_on=["a"]))
    await here.step()
    await here.end("a", result=b"r")
    await here.recover()
    here.broker.calls.clear()
    for _ in range(2):
        await here.drain()
        here.now += 10.0
    assert [call for call in here.broker.calls if call] == [["a"], ["b"]]
    assert await here.fetched() == ["b"]


async def test_one_that_waits_at_the_broker_is_ended(here: Here) -> None:
    await here.away(mail("a"))
    await here.step()
    await here.broker.inner.enqueue(Call(new_id(), 1), [mail("a")])
    await here.end("a", result=b"r")
    await here.recover()
    await here.drain()
    assert await here.states("a") == ["completed"]
    assert await here.fetched(queue="mail") == []


async def test_one_that_a_worker_runs_stands_and_is_told_and_counted(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    await here.away(mail("a"), mail("b"))
    await here.step()
    inner = here.broker.inner
    await inner.enqueue(Call(new_id(), 1), [mail("a"), mail("b")])
    await inner.exchange(Call("w", 1), fetch=Fetch(queues=("mail",), max=2))
    await here.end("a")
    await here.end("b")
    await here.recover()
    with caplog.at_level(logging.WARNING, "fairlead.fallback"):
        await here.drain()
    assert await here.states("a", "b") == ["running", "running"]
    assert (here.fallback.local.outcomes.fenced, here.fallback.spool.depth) == (2, 0)
    said = [each.message for each in caplog.records if "by a worker" in each.message]
    assert said == [
        "a task ran in a process without the broker, and by a worker as well",
        "a task ran in a process without the broker, and by a worker as well: 1 more (fenced)",
    ]
    assert here.rejected() == []


async def test_an_end_that_the_broker_lost_again_is_sent_again_as_an_end(here: Here) -> None:
    await here.away(mail("a"))
    await here.step()
    await here.end("a", result=b"r")
    await here.recover()
    await here.drain()
    window = here.fallback.recent_enqueues
    calls = [call for shard in here.fallback.parts.stores for call in window.calls(shard)]
    lost = [each for call in calls for each in call.submissions if each.message.id == "a"]
    await here.fallback.keep_again([SpooledTask(each, moment_now()) for each in lost])
    (record,) = here.fallback.spool.pending()
    kept = decode_submission(record.payload).submission
    assert kept.ended is not None
    assert (kept.ended.to, kept.ended.result) == (State.COMPLETED, b"r")
    await here.drain()
    assert await here.fetched(queue="mail") == []
    assert here.fallback.local.outcomes.fenced == 0, "it is the same end"


# -- deaths and disks -------------------------------------------------------------------------


async def test_what_a_dead_process_had_begun_goes_to_the_broker(here: Here, tmp_path: Path) -> None:
    await here.away(mail("begun"), mail("ended"), submit("child", depends_on=["ended"]))
    await here.step()
    await here.end("ended", result=b"r")
    here.close()
    after = Here(tmp_path / "spool")
    after.fallback.spool.adopt(any_broker=True)  # each broker in memory is another one
    after.fail()
    await after.submit(mail("new"))
    await after.step()
    assert after.begun == ["new"], "it may have killed its process"
    await after.end("new")
    await after.recover()
    for _ in range(2):
        await after.drain()
        after.now += 10.0
    assert await after.states("begun", "ended", "new") == ["queued", "completed", "completed"]
    assert await after.fetched(queue="mail") == ["begun"]
    assert after.fallback.spool.depth == 0
    after.close()


async def test_a_task_whose_claim_the_disk_does_not_take_does_not_begin(
    here: Here, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await here.away(mail("a"))

    async def full(entries: Sequence[Entry]) -> list[int]:
        raise SpoolFailed("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(here.fallback.spool, "aappend", full)
        assert await here.step() <= 1.0
        await here.step()
    assert here.begun == []
    assert len([each for each in caplog.records if "no space left" in each.message]) == 1
    await here.step()
    assert here.begun == ["a"]


async def test_an_end_that_the_disk_does_not_take_is_tried_again(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.away(mail("a"))
    await here.step()

    async def full(entries: Sequence[Entry]) -> list[int]:
        raise SpoolFailed("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(here.fallback.spool, "aappend", full)
        await here.end("a", result=b"r")
    await here.recover()
    await here.drain()
    assert await here.states("a") == [None], "it is ours still"
    await here.step()
    await here.drain()
    assert await here.states("a") == ["completed"]


async def test_handlers_are_closed_when_the_broker_is_back_and_all_has_ended(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    await here.away(mail("a"), mail("b"))
    with caplog.at_level(logging.WARNING, "fairlead.fallback"):
        await here.step()
        hands = here.hands
        assert hands is not None
        await here.end("a")
        await here.recover()
        await here.step()
        assert hands.closed == 0
        await here.end("b", State.RETRYING)
    assert hands.closed == 1
    assert [each.message for each in caplog.records if "process" in each.message] == [
        "tasks of these queues run in this process now: mail",
        "no more tasks run in this process: 1 ended here, 1 are left to the broker",
    ]


def test_an_end_is_stored_in_a_version_of_its_own() -> None:
    end = Settlement(id="a", token=0, to=State.COMPLETED, result=b"r", reason="local")
    plain = mail("a")
    ended = SpooledTask(Submission(message=plain.message, ended=end), moment_now())
    assert decode_submission(encode_submission(ended)) == ended
    first = {encode_submission(SpooledTask(each, moment_now()))[1] for each in (plain,)}
    assert (first, encode_submission(ended)[1]) == ({1}, 2)
