"""What the server says is told to the caller in its own words: cause, and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import redis

from fairlead.broker.redis.connection import Server
from fairlead.broker.redis.server_errors import ScriptError, understand
from fairlead.model.errors import Refused, Unreachable
from tests.broker.redis.harness import (
    COUNT,
    ECHO,
    KEY,
    Opener,
    listens,
    script,
    soon,
)
from tests.support.servers import (
    Running,
    server,
)


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", "misconf", "repeat"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "oom", "raise"),
        ("NOAUTH Authentication required.", "auth", "raise"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", "auth", "raise"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "corrupt", "raise"),
        ("LOADING Valkey is loading the dataset in memory", "loading", "repeat"),
        ("BUSY Valkey is busy running a script.", "busy", "repeat"),
        ("CLUSTERDOWN The cluster is down", "clusterdown", "repeat"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "moving", "repeat"),
        ("ASK 866 127.0.0.1:7001", "moving", "repeat"),
        ("NOREPLICAS Not enough good replicas to write.", "noreplicas", "repeat"),
    ],
)
def test_a_refusal_has_a_cause(text: str, cause: str, remedy: str) -> None:
    verdict = understand(f"{text} script: on @user_script:1.")

    assert isinstance(verdict.error, Refused)
    assert verdict.error.cause == cause
    assert verdict.remedy == remedy


def test_a_command_that_the_acl_forbids_is_named() -> None:
    text = "NOPERM User careful has no permissions to run the 'function|load' command"
    assert "'function|load' command" in str(understand(text).error)


def test_a_server_without_functions_is_called_that() -> None:
    """There are servers that say they are Redis 7 and know no functions."""
    verdict = understand("ERR unknown command 'FCALL', with args beginning with: 'secret'")
    assert isinstance(verdict.error, Refused)
    assert verdict.error.cause == "version"
    assert "has no functions" in str(verdict.error)


def test_a_node_of_a_cluster_says_how_to_name_the_cluster() -> None:
    assert "redis+cluster://" in str(understand("MOVED 866 127.0.0.1:7001").error)


def test_no_argument_is_repeated_in_a_message() -> None:
    verdict = understand("ERR unknown command 'X', with args beginning with: 'secret' ")

    assert str(verdict.error) == "the server answered with an error: ERR unknown command 'X'"


@pytest.mark.parametrize(
    "raised", ["return redis.error_reply(text)", "return {err = text}", "error({err = text})"]
)
async def test_a_script_s_own_refusal_has_a_code_and_fields(
    raised: str, valkey: Running, connect: Opener
) -> None:
    refusing = script(f"local text = 'FAIRLEAD outoforder 3 7' {raised}")

    with pytest.raises(ScriptError) as caught:
        await connect(valkey.url).run(refusing, KEY, [])
    assert (caught.value.code, caught.value.fields) == ("outoforder", ("3", "7"))


async def test_out_of_memory_is_refused_at_once(valkey: Running, connect: Opener) -> None:
    broker = connect(valkey.url)
    await broker.run(ECHO, KEY, ["x"])
    valkey.admin("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(Refused, match="maxmemory") as caught:
        await broker.run(COUNT, KEY, [])
    assert caught.value.cause == "oom"


async def test_a_key_of_another_type_is_called_corrupt(valkey: Running, connect: Opener) -> None:
    valkey.admin("RPUSH", f"{KEY}n", "x")

    with pytest.raises(Refused, match="doctor --audit") as caught:
        await connect(valkey.url).run(COUNT, KEY, [])
    assert caught.value.cause == "corrupt"


@pytest.mark.parametrize("given", ["", ":wrong-word@", "nobody:wrong-word@"])
async def test_a_wrong_password_is_refused_at_once_and_not_shown(
    given: str, connect: Opener
) -> None:
    with server(password="right-word") as running:
        broker = connect(f"unix://{given}{running.path}")
        with pytest.raises(Refused) as caught:
            await broker.command("PING")
        assert caught.value.cause == "auth"
        assert "word" not in str(caught.value).replace("password", "")

        assert await connect(running.url).command("PING") == b"PONG"


async def test_a_busy_server_is_asked_again_until_it_is_free(connect: Opener) -> None:
    with server(config={"busy-reply-threshold": "20"}) as running:
        broker = connect(running.url)
        await broker.command("PING")

        def hog() -> None:
            with contextlib.suppress(redis.RedisError):
                running.admin("EVAL", "while true do end", 0)

        hogging = threading.Thread(target=hog)
        hogging.start()
        with pytest.raises(Refused, match="busy"):
            await soon_refused(broker)
        call = asyncio.create_task(broker.command("ECHO", "x"))
        await asyncio.sleep(0.1)
        running.admin("SCRIPT", "KILL")

        assert await call == b"x"
        hogging.join(5)


async def soon_refused(broker: Server) -> None:
    for _ in range(500):
        await broker.command("PING", patience=0)
        await asyncio.sleep(0.01)


async def test_a_loading_server_is_waited_for(connect: Opener) -> None:
    slow = {"key-load-delay": "300", "loading-process-events-interval-bytes": "1024"}
    with server(config=slow) as running:
        running.admin("DEBUG", "POPULATE", "2000")
        running.admin("SAVE")
        running.kill()
        running.start(ready=False)
        broker = connect(running.url)
        await soon(lambda: listens(running))

        with pytest.raises(Refused) as caught:
            await broker.command("DBSIZE", patience=0)
        assert caught.value.cause == "loading"
        assert await broker.command("DBSIZE") == 2000


async def test_a_replica_is_not_written_to(connect: Opener) -> None:
    with server(tcp=True) as running:
        broker = connect(running.url)
        assert await broker.run(COUNT, KEY, []) == 1
        running.admin("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(Unreachable, match="replica"):
            await broker.run(COUNT, KEY, [], patience=1.0)

        call = asyncio.create_task(broker.run(COUNT, KEY, []))
        await asyncio.sleep(0.05)
        running.admin("REPLICAOF", "NO", "ONE")

        assert await call == 2


async def test_too_few_replicas_are_waited_for(valkey: Running, connect: Opener) -> None:
    broker = connect(valkey.url)
    valkey.admin("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(Refused) as caught:
        await broker.run(COUNT, KEY, [], patience=1.0)
    assert caught.value.cause == "noreplicas"

    call = asyncio.create_task(broker.run(COUNT, KEY, []))
    await asyncio.sleep(0.02)
    valkey.admin("CONFIG", "SET", "min-replicas-to-write", "0")
    assert await call == 1
