"""What a program declares comes back by itself when the broker lost its data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, InvalidInput, InvalidOption, QueueFull
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import Hello
from fairlead.broker.schedules import Scheduled
from fairlead.model.errors import Refused, Unreachable
from fairlead.worker import healthchecker
from fairlead.worker.declarer import Declarer
from tests.support.servers import Running, server


@pytest.fixture
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


async def soon(condition: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> float:
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < seconds
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_schedules_and_limits_hold_again_after_the_server_was_emptied(
    valkey: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthchecker, "_INTERVAL", 0.2)
    app = Fairlead(valkey.url)
    fired: list[float] = []
    app.declare_queue("mail", max_waiting=2)
    app.declare_tenant("acme", weight=3.0, concurrency=1)
    app.declare_limiter("smtp", concurrency=1)

    @app.schedule(every="1s")
    @app.task(name="tick")
    async def tick() -> None:
        fired.append(time.monotonic())

    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    async with app, app.worker(queues=["default"]):
        await soon(lambda: _true(bool(fired)))
        with pytest.raises(QueueFull):
            await _three(send)

        valkey.admin("FLUSHALL")
        emptied = time.monotonic()

        await soon(lambda: _exists(app, "tick"))
        await soon(lambda: _true(fired[-1] > emptied + 0.5))
        with pytest.raises(QueueFull):
            await _three(send)
        limiters = valkey.admin("HKEYS", "fl1:{0}:limiters")
        assert limiters == [b"smtp"]
        assert valkey.admin("HKEYS", "fl1:{0}:tenant-settings") == [b"\x1facme"]


async def _three(task: object) -> None:
    for _ in range(3):
        await task.aenqueue()  # type: ignore[attr-defined]


async def _true(value: bool) -> bool:
    return value


async def _exists(app: Fairlead, name: str) -> bool:
    return name in [info.name for info in await app.schedules.alist()]


async def test_what_was_configured_at_run_time_outlives_a_restart_of_the_worker() -> None:
    app = Fairlead(store=MemoryBroker())
    app.declare_queue("default", max_waiting=1)

    @app.task(name="work")
    async def work() -> None: ...

    async with app:
        async with app.worker(queues=["other"]):
            pass
        await app.aconfigure_queue("default", max_waiting=2)
        async with app.worker(queues=["other"]):
            await work.aenqueue()
            await work.aenqueue()
            with pytest.raises(QueueFull):
                await work.aenqueue()


def test_a_declaration_is_checked_at_once_and_made_once() -> None:
    app = Fairlead("memory://")
    app.declare_queue("mail", concurrency=2)
    app.declare_tenant("acme")
    app.declare_tenant("acme", queue="mail", weight=2)
    with pytest.raises(InvalidInput, match="queue mail is declared twice"):
        app.declare_queue("mail", max_waiting=5)
    with pytest.raises(InvalidInput, match="tenant acme in queue mail is declared twice"):
        app.declare_tenant("acme", queue="mail")
    with pytest.raises(InvalidOption, match="paused"):
        app.declare_queue("other", paused=True)
    with pytest.raises(InvalidOption, match="weight"):
        app.declare_tenant("other", weight=-1.0)
    with pytest.raises(InvalidInput, match="concurency"):
        app.declare_limiter("smtp", concurency=1)  # type: ignore[call-arg]
    app.close()


async def test_another_broker_is_told_once_and_a_refusal_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = [Refused("full", "no room"), Refused("full", "no room")]
    written: list[int] = []

    async def write() -> None:
        if errors:
            raise errors.pop()
        written.append(1)

    declarer = Declarer(write)
    first = Hello(now=1.0, generation="a", replication="x")
    for _ in range(4):
        await declarer.declare(first)
    assert (len(written), caplog.messages) == (1, ["declarations not written"])

    errors.append(Unreachable("gone"))
    for _ in range(3):  # a failover may have lost them
        await declarer.declare(Hello(now=2.0, generation="a", replication="y"))
    assert len(written) == 2
    await declarer.declare(Hello(now=2.0, generation="b", replication="y"))
    assert len(written) == 3
    assert caplog.messages[-1] == "the broker changed: schedules and limits were declared again"


@pytest.mark.parametrize("refused", ["limits", "schedules"])
async def test_a_declaration_that_is_refused_does_not_keep_the_others_from_the_broker(
    caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    class Picky(MemoryBroker):
        async def configure(self, *args: Any, **kwargs: Any) -> None:
            if refused == "limits":
                raise Refused("acl", "this user may not")
            await super().configure(*args, **kwargs)

        async def plan(self, *args: Any, **kwargs: Any) -> list[Scheduled]:
            if refused == "schedules":
                raise Refused("acl", "this user may not")
            return await super().plan(*args, **kwargs)

    app = Fairlead(store=Picky())
    app.declare_queue("mail", max_waiting=2)

    @app.schedule(every="1h")
    @app.task(name="tick")
    async def tick() -> None: ...

    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    async with app, app.worker(queues=["default"]):
        if refused == "limits":
            await soon(lambda: _exists(app, "tick"))
        else:
            with pytest.raises(QueueFull):
                await _three(send)
        await soon(lambda: _true("declarations not written" in caplog.messages))


async def test_the_file_declares_beside_the_program_and_an_operators_change_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "fairlead.toml"
    file.write_text('[queues.mail]\nrate = "300/m"\nmax_waiting = 9\n[tenants.acme]\nweight = 3\n')
    store = MemoryBroker()

    async def restarted() -> Fairlead:
        app = Fairlead(store=store)
        app.declare_queue("mail", max_waiting=5)  # the program goes before the file
        await app._limits.write(app._clients.current())
        return app

    app = await restarted()
    found = await app.aqueue_settings("mail")
    assert (found["rate"], found["max_waiting"]) == (5.0, 5)
    assert (await app.atenant_settings("acme"))["weight"] == 3.0
    await app.aconfigure_queue("mail", rate=1)
    await app.aconfigure_tenant("acme", weight=7)
    app = await restarted()
    assert (await app.aqueue_settings("mail"))["rate"] == 1
    file.write_text("[queues.mail]\nrate = 8\n[tenants.acme]\nweight = 3\n")
    app = await restarted()
    assert (await app.aqueue_settings("mail"))["rate"] == 8.0
    assert (await app.atenant_settings("acme"))["weight"] == 7.0  # its declaration is the same


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[queues.mail]\nrate = 'often'\n", r"\[queues.mail\].*300/m"),
        ("[queues.mail]\nmax_waitin = 1\n", "max_waiting"),
        ("[tenants.acme]\npaused = true\n", "pauses are made at run time"),
        ("[limiters]\nsmtp = 5\n", r"write \[limiters.smtp\]"),
    ],
)
def test_a_wrong_declaration_of_the_file_keeps_a_worker_from_starting(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairlead.toml").write_text(text)
    with pytest.raises(InvalidInput, match=words):
        Fairlead("memory://").worker()
