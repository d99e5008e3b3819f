"""``fairlead flow``: how far a flow is, and orders about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Fairlead, Reject
from fairlead.cli.main import cli, run
from tests.support.servers import Running, server


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server() as made:
        yield made


async def flowed(url: str, id: str, *, drained: bool) -> None:
    async with Fairlead(url) as app:

        @app.task(name="good")
        def good() -> None: ...

        @app.task(name="bad", max_retries=0)
        def bad() -> None:
            raise Reject("no")

        await app.aenqueue_flow(good.call() >> bad.call() >> good.call(), id=id, name="nightly")
        if drained:
            await app.drain()


def asked(running: Running, *args: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(cli, ["flow", *args, "--url", running.url])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_flow_is_shown_with_what_failed(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(flowed(running.url, "failed", drained=True))
    code, out, _ = asked(running, "show", "failed", capsys=capsys)
    assert code == 1
    first, second, *dead = out.splitlines()
    assert first == "flow default:failed nightly  tenant default  dead"
    assert second == "  3 of 3 tasks have ended (100%): 1 completed, 2 dead, 0 cancelled"
    assert dead[0].startswith("  dead  bad  ")
    assert dead[0].endswith("  rejected")
    assert "dependency_failed" in dead[1]

    code, out, _ = asked(running, "show", "failed", "--json", capsys=capsys)
    found: dict[str, Any] = json.loads(out)
    assert (code, found["state"], found["total"], found["progress"]) == (1, "dead", 3, 1.0)
    assert [task["task"] for task in found["failed"]] == ["bad", "good"]


def test_a_flow_that_there_is_not_is_not_called_a_task(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = asked(running, "show", "nope", capsys=capsys)
    assert code == 1
    assert "does not know flow 'default:nope'; its id or tenant may be another one" in err
    assert "(next: check its id and tenant" in err


def test_retry_and_cancel(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(flowed(running.url, "again", drained=True))
    assert asked(running, "retry", "again", capsys=capsys)[0] == 0
    code, out, _ = asked(running, "show", "again", capsys=capsys)
    assert (code, "  running" in out) == (0, True)
    code, _, err = asked(running, "cancel", "again", capsys=capsys)
    assert (code, err) == (0, "flow again: cancelled\n")
    code, _, err = asked(running, "cancel", "again", capsys=capsys)
    assert (code, err) == (1, "flow again: nothing to be cancelled\n")
    assert asked(running, "retry", "again", capsys=capsys)[0] == 1


def test_a_flow_that_runs_is_fine(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(flowed(running.url, "waiting", drained=False))
    assert asked(running, "show", "waiting", capsys=capsys)[0] == 0


def test_a_flow_that_nobody_knows(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = asked(running, "show", "nothing", capsys=capsys)
    assert code == 1
    assert "'default:nothing'" in err
    code, _, err = asked(running, "show", "waiting", "--tenant", "other", capsys=capsys)
    assert code == 1
