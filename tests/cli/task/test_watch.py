"""``fairlead task enqueue`` and ``fairlead task watch``, beside a worker that is there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fairlead import Context, Fairlead
from fairlead.cli.task.enqueue import read_arguments
from tests.cli.conftest import Operator


@pytest.mark.parametrize(
    ("texts", "args", "kwargs"),
    [
        ([], [], {}),
        (["ann", "2", "true"], ["ann", 2, True], {}),
        (["to=ann", "count=2", "tags=[1]"], [], {"to": "ann", "count": 2, "tags": [1]}),
        (["ann", "note=a=b"], ["ann"], {"note": "a=b"}),
        (['["ann", 2]'], ["ann", 2], {}),
        (['{"to": "ann"}'], [], {"to": "ann"}),
        (["2026-11-17"], ["2026-11-17"], {}),
    ],
)
def test_words_stand_for_arguments(
    texts: list[str], args: list[Any], kwargs: dict[str, Any]
) -> None:
    assert read_arguments(texts) == (args, kwargs)


def test_without_a_worker_a_task_is_accepted_and_it_is_said_that_it_waits(
    app: Fairlead, operator: Operator
) -> None:
    answer = operator("task", "enqueue", "shop.mail", "to=ann", "--queue", "mail", "--id", "o-7")
    assert (answer.returncode, answer.stdout) == (0, "default:o-7\n")
    assert "no live worker serves queue 'mail'" in answer.stderr
    answer = operator("task", "enqueue", "shop.mail", "to=ann", "--queue", "mail", "--id", "o-7")
    assert "was there already" in answer.stderr


async def test_with_a_worker_names_and_arguments_are_checked_and_results_printed(
    app: Fairlead, operator: Operator
) -> None:
    async def enqueue(*args: str) -> tuple[int, str, str]:
        answer = await asyncio.to_thread(operator, "task", "enqueue", *args)
        return answer.returncode, answer.stdout, answer.stderr

    async with app.worker() as worker:
        await worker.publisher.publish()
        await worker.heartbeater.beat()
        code, out, _ = await enqueue("shop.mail", "to=ann", "--wait", "--timeout", "30s")
        assert (code, out) == (0, '"ann"\n')
        code, out, err = await enqueue("shop.mial", "to=ann")
        assert (code, out) == (2, "")
        assert "did you mean shop.mail? --unknown sends it all the same (next:" in err
        code, out, err = await enqueue("shop.mail", "whom=ann")
        assert (code, out) == (2, "")
        assert "whom" in err
        code, out, err = await enqueue("shop.mail", "bad", "--wait", "--json")
        assert code == 1
        assert "no mailbox" in err
        assert (await enqueue("shop.mail", "ann"))[2] == ""  # there is a worker: no warning
    await app.aclose()


async def test_watch_shows_states_and_progress_until_the_end(
    app: Fairlead, operator: Operator
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(name="report", max_retries=0)
    async def report(ctx: Context, fail: bool) -> None:
        await ctx.aprogress({"rows": 10})
        begun.set()
        await go.wait()
        if fail:
            raise ValueError("no paper")

    for fail, code, last in ((False, 0, "completed"), (True, 1, "dead")):
        begun.clear()
        go.clear()
        handle = await report.aenqueue(fail)
        watching = asyncio.create_task(
            asyncio.to_thread(operator, "task", "watch", handle.id, "--json", "--timeout", "30")
        )
        async with app.worker():
            await begun.wait()
            go.set()
            answer = await watching
        lines = [json.loads(line) for line in answer.stdout.splitlines()]
        assert (answer.returncode, lines[-1]["state"]) == (code, last)
        assert lines[-1]["error"] == ("ValueError: no paper" if fail else None)
    await app.aclose()


def test_watch_gives_up_after_its_timeout_with_its_own_code(mail: Any, operator: Operator) -> None:
    handle = mail.enqueue("ann")
    answer = operator("task", "watch", handle.id, "--timeout", "0.3")
    assert answer.returncode == 4
    assert "queued" in answer.stdout
    assert "had not ended" in answer.stderr
    assert operator("task", "watch", "order-8").returncode == 1
