"""``fairlead workers`` and ``fairlead tasks``: what they say, what they order, exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import click
import msgspec
import pytest

from fairlead import Fairlead
from fairlead.broker.requests import WorkerOrder
from fairlead.cli.main import cli, run
from fairlead.cli.task.types import signature
from fairlead.client.client import Client
from fairlead.client.declaration import declared
from fairlead.model.catalog import entry_of
from fairlead.model.errors import Unreachable
from fairlead.model.priorities import Priorities
from tests.cli.running import fairlead
from tests.support.servers import Running, server


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture
def app(valkey: Running) -> Fairlead:
    valkey.admin("FLUSHALL")
    made = Fairlead(valkey.url)

    @made.task(name="shop.mail", queue="mail")
    async def mail(to: str, count: int = 1) -> None:
        """Send a letter."""

    return made


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(valkey: Running, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in a thread of its own, so that a worker of this loop goes on."""

    def call(*args: str) -> tuple[int, str, str]:
        code = run(cli, [*args, "--url", valkey.url])
        out, err = capsys.readouterr()
        return code, out, err

    return call


async def aside(command: Command, *args: str) -> tuple[int, str, str]:
    return await asyncio.to_thread(command, *args)


async def test_workers_are_listed_with_what_they_do(app: Fairlead, command: Command) -> None:
    async with app.worker() as worker:
        await worker.heartbeater.beat()
        code, out, _ = await aside(command, "workers", "list")
        [head, row] = out.splitlines()
        assert code == 0
        assert head.split() == ["ID", "HOST", "PID", "STATE", "ORDERED", "RUNNING", "UP", "QUEUES"]
        assert row.split()[0] == worker.incarnation
        assert row.split()[3:5] == ["working", "0/10"]
        assert row.split()[-1] == "default,mail"
        code, out, _ = await aside(command, "workers", "list", "--json")
        [found] = json.loads(out)["workers"]
        assert (found["incarnation"], found["order"]) == (worker.incarnation, "")
        assert found["details"]["state"] == "working"
    await app.aclose()


async def test_a_worker_is_paused_resumed_and_stopped_from_elsewhere(
    app: Fairlead, command: Command
) -> None:
    async with app.worker() as worker:
        await worker.heartbeater.beat()
        code, out, _ = await aside(command, "workers", "quiet", worker.incarnation[-8:])
        assert (code, out) == (0, f"{worker.incarnation}  will pause\n")
        await worker.heartbeater.beat()
        assert worker.describe().details["state"] == "paused"
        _, out, _ = await aside(command, "workers", "list")
        assert out.splitlines()[1].split()[4] == "pause"
        assert (await aside(command, "workers", "resume", "--all"))[0] == 0
        await worker.heartbeater.beat()
        assert worker.describe().details["state"] == "working"
        code, out, _ = await aside(command, "workers", "stop", worker.incarnation, "--json")
        assert json.loads(out) == {"order": "stop", "workers": {worker.incarnation: "ordered"}}
        await worker.heartbeater.beat()
        await worker.stopped()
    await app.aclose()


async def test_one_worker_is_shown_with_what_it_runs(app: Fairlead, command: Command) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(name="shop.wait")
    async def wait() -> None:
        begun.set()
        await go.wait()

    async with app.worker() as worker:
        handle = await wait.aenqueue()
        await begun.wait()
        await worker.heartbeater.beat()
        code, out, _ = await aside(command, "workers", "show", worker.incarnation[-8:])
        lines = [line.split() for line in out.splitlines()]
        assert code == 0
        assert ["worker", worker.incarnation] in lines
        assert ["running", "1", "of", "10"] in lines
        assert ["runs", "shop.wait", handle.id] in lines
        _, out, _ = await aside(command, "workers", "show", worker.incarnation, "--json")
        assert json.loads(out)["incarnation"] == worker.incarnation
        code, out, err = await aside(command, "workers", "show", "nobody")
        assert (code, out) == (1, "")
        assert err == "error: worker 'nobody' is not known (next: fairlead workers list)\n"
        go.set()
    await app.aclose()


async def test_an_id_that_is_not_known_or_fits_several_is_told_and_nobody_is_ordered(
    app: Fairlead, command: Command
) -> None:
    async with app.worker() as one, app.worker() as two:
        await one.heartbeater.beat()
        await two.heartbeater.beat()
        code, out, err = await aside(command, "workers", "pause", "nobody")
        assert (code, out) == (1, "")
        assert err == "error: worker 'nobody' is not known (next: fairlead workers list)\n"
        code, _, err = await aside(command, "workers", "pause", one.incarnation[:6])
        assert code == 1
        assert "is one of 2 whose ids fit" in err
        await one.heartbeater.beat()
        assert (one.state, two.state) == ("working", "working")
    await app.aclose()


async def test_all_are_ordered_although_it_fails_for_one(
    app: Fairlead, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.worker() as one, app.worker() as two:
        for worker in (one, two):
            await worker.heartbeater.beat()
        ordered = Client.order_worker

        async def refused(client: Client, incarnation: str, order: WorkerOrder) -> bool:
            if incarnation == min(one.incarnation, two.incarnation):
                raise Unreachable("the server did not answer")
            return await ordered(client, incarnation, order)

        monkeypatch.setattr(Client, "order_worker", refused)
        code, out, err = await aside(command, "workers", "pause", "--all")
        first, second = sorted((one.incarnation, two.incarnation))
        assert (code, out) == (3, f"{second}  will pause\n")
        assert err == f"error: worker {first!r}: the server did not answer\n"
        for worker in (one, two):
            await worker.heartbeater.beat()
        assert {one.incarnation: one.state, two.incarnation: two.state} == {
            first: "working",
            second: "paused",
        }
    await app.aclose()


def test_usage_errors_exit_with_2(command: Command) -> None:
    for args in (("pause",), ("stop", "--all", "someone"), ("halt",)):
        code, out, err = command("workers", *args)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")


def test_an_empty_broker_has_neither_workers_nor_tasks(valkey: Running, command: Command) -> None:
    valkey.admin("FLUSHALL")
    assert command("workers", "list") == (0, "", "there are no workers\n")
    assert command("workers", "pause", "--all") == (0, "", "there are no workers\n")
    assert command("tasks") == (0, "", "no worker tells of any task\n")
    assert command("tasks", "--json") == (0, '{"tasks": []}\n', "")
    assert command("workers", "list", "--json") == (0, '{"workers": []}\n', "")


async def test_tasks_are_listed_as_workers_tell_of_them(app: Fairlead, command: Command) -> None:
    async with app.worker() as worker:
        await worker.publisher.publish()
        await worker.heartbeater.beat()
        code, out, _ = await aside(command, "tasks")
        assert code == 0
        assert [line.split(maxsplit=4) for line in out.splitlines()] == [
            ["TASK", "VERSION", "QUEUE", "WORKERS", "PARAMETERS"],
            ["shop.mail", "1", "mail", "1", "(to: string, count: integer = 1)"],
        ]
        code, out, _ = await aside(command, "tasks", "shop.mail")
        assert out.splitlines()[:2] == [
            "task       shop.mail(to: string, count: integer = 1)",
            "about      Send a letter.",
        ]
        code, out, err = await aside(command, "tasks", "shop.mial", "--json")
        assert (code, json.loads(out)) == (1, {"tasks": []})
        assert "did you mean shop.mail?" in err
        code, out, _ = await aside(command, "tasks", "--json")
        [task] = json.loads(out)["tasks"]
        [entry] = task["entries"]
        assert (task["name"], task["workers"], entry["queue"]) == ("shop.mail", 1, "mail")
        assert entry["priority"] == "normal"
        assert entry["parameters"][1] == {
            "name": "count",
            "kind": "positional_or_keyword",
            "required": False,
            "schema": {"type": "integer", "default": 1},
        }
    await app.aclose()


def test_a_broker_that_is_away_exits_with_3() -> None:
    answer = fairlead("tasks", "--url", "redis://127.0.0.1:1?timeout=200ms")
    assert (answer.returncode, answer.stdout) == (3, "")


class Item(msgspec.Struct):
    n: int


def everything(
    a: int,
    /,
    b: Item | None,
    c: Any = None,
    *rest: float,
    d: Annotated[str, "x"],
    e: bytes = b"",
    **kw: Any,
) -> None:
    pass


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (lambda: None, "()"),
        (lambda a, /, b, *, c: None, "(a, /, b, *, c)"),
        (lambda a, b=[1], *, c, d="x", **e: None, '(a, b = [1], *, c, d = "x", **e)'),
        (
            everything,
            "(a: integer, /, b: Item | null, c = null, *rest: number, d: string, e: string = …, "
            "**kw)",
        ),
    ],
)
def test_parameters_are_shown_as_people_write_them(handler: Any, text: str) -> None:
    priorities = Priorities()
    spec = declared(handler, {"name": "work"}, priorities, None)
    assert signature(entry_of(spec, priorities)) == text


def test_the_memory_broker_cannot_be_looked_into() -> None:
    with pytest.raises(click.UsageError, match="lives inside the process"):
        cli.main(["tasks", "--url", "memory://"], standalone_mode=False)


async def test_over_shards_workers_tell_of_their_tasks_and_obey_as_well(
    valkey: Running, command: Command
) -> None:
    valkey.admin("FLUSHALL")
    app = Fairlead(valkey.url, shards={"mail": "second"})

    @app.task(name="shop.mail", queue="mail")
    async def mail(to: str) -> str:
        return to

    front = Fairlead(valkey.url, shards={"mail": "second"})
    async with app.worker() as worker:
        await worker.publisher.publish()
        await worker.heartbeater.beat()
        handle = await front.asend("shop.mail", "ann")
        assert await handle.aresult(timeout=10.0) == "ann"
        assert (await aside(command, "workers", "pause", worker.incarnation))[0] == 0
        await worker.heartbeater.beat()
        assert worker.state == "paused"
    await app.aclose()
    await front.aclose()
