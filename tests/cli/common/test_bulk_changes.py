"""Orders about very many tasks: progress, Ctrl-C in the middle, a server that is not blocked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from fairlead import Fairlead
from fairlead.cli.common import bulk_changes
from fairlead.cli.common.progress import Progress, interruptible
from tests.cli.conftest import Operator
from tests.cli.running import fairlead
from tests.support.servers import Running

MANY = 20_000


def enqueue(app: Fairlead, mail: Any, count: int) -> None:
    for start in range(0, count, 10_000):
        part = range(start, min(start + 10_000, count))
        app.enqueue_many([mail.using(tenant=f"t{n % 20}").call(f"{n}") for n in part])


def test_a_task_that_pages_list_twice_counts_once(
    app: Fairlead, mail: Any, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.client.client import Client

    enqueue(app, mail, 300)
    page = Client.page

    async def twice(client: Client, selection: Any) -> Any:
        found = await page(client, selection)
        return msgspec.structs.replace(found, tasks=[*found.tasks, *found.tasks])

    monkeypatch.setattr(Client, "page", twice)
    answer = operator("task", "cancel", "--all-matching", "--dry-run")
    assert answer.stderr == "300 tasks would be cancelled, the first 10 of them above\n"
    listed = json.loads(operator("task", "list", "--limit", "1000", "--json").stdout)["tasks"]
    assert len(listed) == len({each["id"] for each in listed}) == 300
    answer = operator("task", "cancel", "--all-matching", "--yes")
    assert answer.stderr == "300 tasks were cancelled\n"


def test_the_first_interruption_ends_it_after_a_step_and_says_what_was_done(
    app: Fairlead, mail: Any, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(app, mail, 1_000)

    class Interrupting(Progress):
        """Presses Ctrl-C when it is told of the first step."""

        def show(self, done: int) -> None:
            if done == 200:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(bulk_changes, "Progress", Interrupting)
    answer = operator("task", "cancel", "--all-matching", "--queue", "mail", "--yes")
    assert answer.returncode == 130
    done = 1_000 - app.snapshot("mail").depth
    assert 200 <= done < 1_000
    assert (
        answer.stderr == f"interrupted: {done:,} tasks were cancelled, the others are untouched\n"
    )


def test_a_broker_that_goes_away_in_the_middle_leaves_word_of_what_was_done(
    app: Fairlead, mail: Any, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.client.client import Client
    from fairlead.model.errors import Unreachable

    enqueue(app, mail, 500)
    page = Client.page
    calls = 0

    async def sometimes(client: Client, selection: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Unreachable("the server went away")
        return await page(client, selection)

    monkeypatch.setattr(Client, "page", sometimes)
    answer = operator("task", "cancel", "--all-matching", "--yes")
    assert answer.returncode == 3
    done = 500 - app.snapshot("mail").depth
    assert done > 0
    assert f"{done} tasks were cancelled before this" in answer.stderr


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress("retried", 1_000)
    progress.show(500)
    assert "[###############---------------] 500 of 1,000 retried" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    progress = Progress("retried")
    progress.show(500)  # not before some seconds have passed
    assert capsys.readouterr().err == ""


def spent(valkey: Running) -> tuple[float, int]:
    """The processor time of the server so far, in seconds, and the calls it answered."""
    cpu, calls = valkey.admin("INFO", "cpu"), valkey.admin("INFO", "commandstats")
    used = cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]
    verbs = ("cmdstat_fcall", "cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall_ro")
    return used, sum(calls[verb]["calls"] for verb in verbs if verb in calls)


@pytest.mark.slow
@pytest.mark.long(30)
def test_very_many_tasks_go_in_steps_that_can_be_interrupted_and_are_short(
    app: Fairlead, mail: Any, valkey: Running
) -> None:
    enqueue(app, mail, MANY)
    before = spent(valkey)
    args = ("task", "cancel", "--all-matching", "--queue", "mail", "--yes")
    command = subprocess.Popen(
        [sys.executable, "-m", "fairlead", *args],
        env={**os.environ, "FAIRLEAD_URL": valkey.url},
        stderr=subprocess.PIPE,
        text=True,
    )
    asyncio.run(_until(app, MANY - 1_000))
    command.send_signal(signal.SIGINT)
    _, told = command.communicate(timeout=60)
    left = app.snapshot("mail").depth
    assert command.returncode == 130
    assert 0 < left < MANY
    assert f"interrupted: {MANY - left:,} tasks were cancelled" in told
    answer = fairlead(*args, FAIRLEAD_URL=valkey.url)
    assert answer.returncode == 0
    assert f"{left:,} tasks were cancelled" in answer.stderr
    after = spent(valkey)
    # Of each call: the server's own time, since others want this machine as well.
    assert (after[0] - before[0]) / (after[1] - before[1]) < 0.010


async def _until(app: Fairlead, depth: int) -> None:
    """Wait until no more tasks wait than this."""
    async for _ in app.events("cancelled", after="oldest"):
        if (await app.asnapshot("mail", tenants=False)).depth <= depth:
            return


def test_where_no_signals_are_taken_errors_come_through_alone() -> None:
    async def work() -> None:
        with interruptible() as interruption:
            assert not interruption.came
            raise KeyError("of the work")

    with (
        ThreadPoolExecutor(1) as thread,  # only the main thread takes signals
        pytest.raises(KeyError) as raised,
    ):
        thread.submit(asyncio.run, work()).result(timeout=30)
    assert raised.value.__context__ is None
