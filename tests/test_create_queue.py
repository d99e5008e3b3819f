"""``create_queue``: which broker a program gets when it starts, and what it is told."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fairlead import InvalidInput, InvalidOption, QueueFull, UnknownPriority, create_queue
from fairlead.model.message import LEVEL_NAMES
from fairlead.model.priorities import levels_of
from fairlead.settings.keys import KEYS
from fairlead.settings.queue_choice import queue_choice
from tests.support.servers import Running, free_port, shared
from tests.support.worker_process import until


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [key.variable for key in KEYS.values()]
    for name in (*names, "USE_REDIS_QUEUE", "REDIS_URL", "REDIS_HEALTH_CHECK_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def valkey() -> Iterator[Running]:
    with shared() as running:
        yield running


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def away() -> str:
    """The URL of a server that is not there."""
    return f"redis://user:hunter2@127.0.0.1:{free_port()}/0"


# -- the rule -----------------------------------------------------------------------------------


def test_nothing_is_wanted_so_tasks_are_in_memory_and_no_warning_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", away())  # it may be there for a cache
    for settings in (None, {}, {"use_redis": False}, SimpleNamespace(use_redis=False)):
        with create_queue(settings) as app:
            assert app._url == "memory://"
    assert warnings_of(caplog) == []


def test_a_server_that_answers_is_used(
    valkey: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_queue({"use_redis": True, "redis_url": valkey.url}) as app:
        assert app._url == valkey.url
    monkeypatch.setenv("USE_REDIS_QUEUE", "true")
    monkeypatch.setenv("REDIS_URL", valkey.url)
    monkeypatch.setenv("REDIS_HEALTH_CHECK_TIMEOUT", "2.0")
    with create_queue() as app:
        assert app._url == valkey.url
    assert not [text for text in warnings_of(caplog) if "in memory" in text]


def test_a_server_that_is_not_there_leaves_tasks_in_memory_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"use_redis": True, "redis_url": away(), "redis_health_check_timeout": 0.2}
    with create_queue(settings) as app:
        assert app._url == "memory://"
    [text] = warnings_of(caplog)
    assert "gave no answer within 0.2 s" in text
    assert "Connection refused" in text
    assert "tasks are kept in memory" in text
    assert "hunter2" not in text


def test_a_server_that_is_silent_is_waited_for_no_longer_than_the_time_given(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_HEALTH_CHECK_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with create_queue({"use_redis": True, "redis_url": f"redis://127.0.0.1:{port}"}) as app:
            assert app._url == "memory://"
    [text] = warnings_of(caplog)
    assert f"redis://127.0.0.1:{port} gave no answer within 0.2 s" in text


def test_without_the_package_tasks_are_in_memory_with_one_warning(
    valkey: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with create_queue({"use_redis": True, "redis_url": valkey.url}) as app:
        assert app._url == "memory://"
    [text] = warnings_of(caplog)
    assert "the package redis is not installed" in text


def test_a_server_that_refuses_leaves_tasks_in_memory_with_the_cause(
    valkey: Running, caplog: pytest.LogCaptureFixture
) -> None:
    url = valkey.url.replace("unix://", "unix://:wrong@")
    valkey.admin("CONFIG", "SET", "requirepass", "right")
    valkey.password = "right"
    with create_queue({"use_redis": True, "redis_url": url}) as app:
        assert app._url == "memory://"
    [text] = warnings_of(caplog)
    assert "tasks are kept in memory" in text
    assert "wrong" not in text.replace("wrong password", "").replace("wrong user", "")


def test_a_url_that_cannot_be_right_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="gopher") as caught:
        create_queue({"use_redis": True, "redis_url": "gopher://user:hunter2@host"})
    assert "hunter2" not in str(caught.value)


def test_our_own_settings_count_where_the_others_say_nothing(
    valkey: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", valkey.url)
    with create_queue() as app:
        assert app._url == valkey.url
    monkeypatch.setenv("USE_REDIS_QUEUE", "false")
    with create_queue() as app:
        assert app._url == "memory://"
    monkeypatch.delenv("FAIRLEAD_URL")
    Path("fairlead.toml").write_text(f'url = "{valkey.url}"\n')
    with create_queue({"use_redis": True}) as app:
        assert app._url == valkey.url
    with create_queue({"use_redis": True, "redis_url": "memory://"}) as app:
        assert app._url == "memory://"
    assert not [text for text in warnings_of(caplog) if "in memory" in text]


def test_the_fallback_is_on_unless_the_settings_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert queue_choice({"use_redis": True}).fallback == "spool"
    monkeypatch.setenv("FAIRLEAD_FALLBACK", "none")
    assert queue_choice({"use_redis": True}).fallback is None


# -- what it is told ----------------------------------------------------------------------------


def test_settings_may_be_a_mapping_or_any_object() -> None:
    @dataclass
    class Data:
        use_redis: bool = True
        redis_url: str = "redis://data"
        max_in_memory: int | None = None

    class Plain:
        use_redis = True
        warn_depth = 7

        def helper(self) -> None: ...

        @property
        def derived(self) -> int:
            return 5

    module = ModuleType("settings")
    module.__dict__.update(use_redis=True, redis_url="redis://module", sys=sys, unrelated=5)
    assert queue_choice(Data()).url == "redis://data"
    assert queue_choice(Plain).warn_depth == queue_choice(Plain()).warn_depth == 7
    assert queue_choice(SimpleNamespace(redis_url="redis://space")).url == "redis://space"
    assert queue_choice(module).url == "redis://module"
    assert queue_choice({"use_redis": True}).url == "redis://localhost:6379/0"


def test_what_the_program_says_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_REDIS_QUEUE", "1")
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    monkeypatch.setenv("REDIS_HEALTH_CHECK_TIMEOUT", "3")
    found = queue_choice()
    assert (found.use_redis, found.url, found.timeout) == (True, "redis://environment", 3.0)
    found = queue_choice(
        {"use_redis": "off", "redis_url": "redis://said", "redis_health_check_timeout": "500ms"}
    )
    assert (found.use_redis, found.url, found.timeout) == (False, "redis://said", 0.5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_reids": True}, r"no setting 'use_reids'; did you mean use_redis\?"),
        ({"color": 1}, "no setting 'color'; there are priorities, strict_priorities, "),
        ({"use_redis": 5}, "use_redis=5 .*true or false"),
        ({"redis_url": 5}, "redis_url='int' .*text"),
        ({"max_in_memory": -1}, "max_in_memory=-1 .*whole number"),
        ({"warn_depth": True}, "warn_depth=True .*whole number"),
        ({"redis_health_check_timeout": "soon"}, "redis_health_check_timeout='soon'"),
        ({"priorities": ["high"]}, "priorities=.*a number for each label"),
        ({"priorities": {"high": "first"}}, r"priorities\['high'\].*a whole number"),
        ({"priorities": {label: n for n, label in enumerate("abcdefghi")}}, "at most 8 different"),
        ({"strict_priorities": 1}, "strict_priorities=1 .*true or false"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        create_queue(settings)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_REDIS_QUEUE", "maybe")
    with pytest.raises(InvalidOption, match="USE_REDIS_QUEUE='maybe'"):
        create_queue()
    monkeypatch.setenv("USE_REDIS_QUEUE", "no")
    monkeypatch.setenv("REDIS_HEALTH_CHECK_TIMEOUT", "never")
    with pytest.raises(InvalidOption, match="REDIS_HEALTH_CHECK_TIMEOUT='never'"):
        create_queue()


def test_names_of_keys_on_the_server_are_understood_and_mean_nothing() -> None:
    create_queue({"redis_ready_key": "a:ready", "redis_scheduled_key": "a:later"}).close()


# -- priorities and limits ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "levels"),
    [
        ({"high": 0, "normal": 5, "low": 10}, {"high": "high", "normal": "normal", "low": "low"}),
        ({"normal": 5, "low": 10}, {"normal": "normal", "low": "low"}),
        ({"high": 0, "normal": 5}, {"high": "high", "normal": "normal"}),
        ({"urgent": 0, "normal": 5}, {"urgent": "high", "normal": "normal"}),
        ({"now": 1, "later": 2}, {"now": "high", "later": "low"}),
        ({"all": 3}, {"all": "normal"}),
        ({"a": 1, "b": 2, "c": 3}, {"a": "high", "b": "normal", "c": "low"}),
        ({"d": 9, "a": -1, "c": 3, "b": 2},
         {"a": "critical", "b": "high", "c": "normal", "d": "low"}),
        ({"a": 1, "b": 1, "low": 3}, {"a": "high", "b": "high", "low": "low"}),
        ({"low": 0, "high": 10}, {"low": "high", "high": "low"}),
        ({"critical": 0, "normal": 5}, {"critical": "critical", "normal": "normal"}),
        ({}, {}),
    ],
)  # fmt: skip
def test_labels_take_levels_in_the_order_of_their_numbers(
    numbers: dict[str, int], levels: dict[str, str]
) -> None:
    found = levels_of(numbers)
    assert {label: LEVEL_NAMES[found[label]] for label in numbers} == levels
    assert all(found[number] == found[label] for label, number in numbers.items())


@pytest.mark.parametrize("use_redis", [True, False], ids=["valkey", "memory"])
def test_priorities_and_capacity_hold(valkey: Running, use_redis: bool) -> None:
    settings = {
        "use_redis": use_redis,
        "redis_url": valkey.url,
        "max_in_memory": 3,
        "priorities": {"urgent": 0, "usual": 5, "rest": 10},
    }
    ran: list[str] = []
    with create_queue(settings) as app:

        @app.task
        async def job(label: str) -> None:
            ran.append(label)

        job.using(priority="rest", delay="1h").enqueue("later")
        for label in ("usual", "urgent"):
            job.using(priority=label).enqueue(label)
        with pytest.raises(QueueFull):
            job.enqueue("one too many")
        with pytest.raises(UnknownPriority, match="urgent"):
            job.using(priority="unknown").enqueue("x")
        assert asyncio.run(app.drain()) == 2
    assert ran == ["urgent", "usual"]


async def test_a_queue_that_reaches_its_warn_depth_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = create_queue({"warn_depth": 3})

    @app.task
    async def job() -> None: ...

    async with app, app.worker(concurrency=1):
        await app.aconfigure_queue("default", paused=True)
        for _ in range(4):
            await job.aenqueue()
        await until(lambda: bool(warnings_of(caplog)), "the line of the log")
    assert warnings_of(caplog) == ["the queue default reached its warn_depth: 3 tasks wait"]


def test_a_snapshot_tells_whether_a_server_answered(valkey: Running) -> None:
    for url in (valkey.url, f"{valkey.url}?shards=mail=m"):
        with create_queue({"use_redis": True, "redis_url": url}) as app:
            assert app.snapshot().redis_active
    with create_queue() as app:
        found = app.snapshot()
        assert (found.redis_active, found.depth, found.ready, found.scheduled) == (False, 0, 0, 0)
        assert not found.shutdown
    assert app.snapshot().shutdown
