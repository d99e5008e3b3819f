"""Calls survive what happens to servers and networks, and say what may be assumed if they fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import uvloop

from fairlead.broker.redis.address import parse
from fairlead.broker.redis.connection import Server
from fairlead.broker.redis.discovery import Ask
from fairlead.model.errors import Ambiguous, Unreachable
from tests.broker.redis.harness import (
    COUNT,
    ECHO,
    KEY,
    Opener,
    blocked,
    clients,
    ran,
)
from tests.support.proxy import Proxy
from tests.support.servers import (
    Running,
    binary,
    free_port,
    server,
    wait_for,
)

# --- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [each for each in ("valkey", "redis") if binary(each)])
async def test_a_script_is_run_and_loaded_when_the_server_does_not_know_it(
    kind: Any, connect: Opener
) -> None:
    with server(kind) as running:
        broker = connect(running.url)
        assert await broker.run(ECHO, KEY, [b"\x00\xff", "ü", 3, 2.5]) == [
            KEY.encode(),
            b"\x00\xff",
            4,
        ]

        running.admin("FUNCTION", "FLUSH")
        assert await broker.run(ECHO, KEY, ["x"]) == [KEY.encode(), b"x", 1]
        assert await broker.command("ECHO", "hello") == b"hello"


async def test_concurrent_calls_get_their_own_replies(valkey: Running, connect: Opener) -> None:
    broker = connect(valkey.url)

    replies = await asyncio.gather(*(broker.command("ECHO", f"{n}") for n in range(500)))

    assert replies == [b"%d" % n for n in range(500)]
    assert clients(valkey, "connected") == 2  # ours, and the one that asks


async def test_a_cancelled_caller_leaves_no_reply_for_the_next(
    valkey: Running, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url)
    await broker.command("PING")
    between.swallow(up=False)
    call = asyncio.create_task(broker.command("ECHO", "first"))
    await asyncio.sleep(0)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    between.heal()

    assert await broker.command("ECHO", "second") == b"second"


async def test_nothing_is_opened_before_the_first_call(between: Proxy, connect: Opener) -> None:
    broker = connect(between.url)
    assert between.connections == 0

    await broker.close()
    with pytest.raises(Unreachable, match="closed"):
        await broker.command("PING")


# --- failures on the way -------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Proxy.drop_reply, Proxy.cut_reply])
async def test_a_lost_reply_is_asked_for_again(
    fault: Callable[[Proxy], Any], valkey: Running, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url)
    await broker.run(COUNT, KEY, [])
    planted = fault(between)

    assert await broker.run(COUNT, KEY, []) == 3  # executed by the attempt whose reply was lost
    assert planted.happened.is_set()


@pytest.mark.parametrize("fault", [Proxy.drop_reply, Proxy.cut_reply])
async def test_without_patience_a_lost_reply_is_ambiguous(
    fault: Callable[[Proxy], Any], valkey: Running, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url)
    await broker.run(COUNT, KEY, [])
    fault(between)

    with pytest.raises(Ambiguous):
        await broker.run(COUNT, KEY, [], patience=0)
    assert ran(valkey) == 2
    assert await broker.run(COUNT, KEY, []) == 3


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
async def test_a_black_hole_is_noticed_and_left(
    up: bool, down: bool, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url, call_timeout=0.2, connect_timeout=0.2)
    await broker.command("PING")
    between.swallow(up=up, down=down)

    began = time.monotonic()
    with pytest.raises(Ambiguous, match=r"no reply within 0\.2 s"):
        await broker.command("PING", patience=0)
    assert time.monotonic() - began < 4  # without the limit it is the connection's patience, five

    between.heal()
    assert await broker.command("PING") == b"PONG"


async def test_who_cannot_connect_is_told_that_nothing_was_executed(
    between: Proxy, connect: Opener
) -> None:
    await between.refuse()
    broker = connect(between.url)

    began = time.monotonic()
    with pytest.raises(Unreachable, match="could not connect to 127"):
        await broker.command("PING", patience=0.3)
    assert time.monotonic() - began >= 0.3


async def test_one_doubtful_attempt_makes_the_call_doubtful(
    valkey: Running, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url)
    await broker.run(COUNT, KEY, [])
    await between.refuse()
    between.drop_reply()

    with pytest.raises(Ambiguous, match="may have been executed"):
        await broker.run(COUNT, KEY, [], patience=0.2)


async def test_a_defect_while_connecting_leaves_a_call_in_doubt(
    valkey: Running, between: Proxy, connect: Opener
) -> None:
    defects = 0

    async def on_connect(_: Ask) -> None:
        nonlocal defects
        if between.connections > 1:
            defects += 1
            raise ZeroDivisionError

    broker = connect(between.url, on_connect=on_connect)
    await broker.run(COUNT, KEY, [])
    between.drop_reply()

    with pytest.raises(Ambiguous, match="may have been executed"):
        await broker.run(COUNT, KEY, [], patience=0.5)
    assert ran(valkey) == 2
    assert defects > 1
    with pytest.raises(ZeroDivisionError):
        await broker.run(COUNT, KEY, [], patience=0.5)


async def test_a_name_that_does_not_resolve_is_unreachable(connect: Opener) -> None:
    with pytest.raises(Unreachable, match="could not connect to"):
        await connect("redis://fairlead.invalid:1").command("PING", patience=0)


async def test_a_server_that_speaks_no_tls_is_unreachable(between: Proxy, connect: Opener) -> None:
    url = between.url.replace("redis:", "rediss:")

    with pytest.raises(Unreachable):
        await connect(url, connect_timeout=0.3).command("PING", patience=0)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_calls_go_over_tls(run: Any, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    config = certified(cert, key)
    with server("redis", tcp=True, config=config) as running:
        url = f"rediss://127.0.0.1:{config['tls-port']}?ca={cert}"

        async def use() -> None:
            broker = Server(parse(url))
            waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=5))
            await blocked(running)
            assert await broker.run(ECHO, KEY, ["x" * 200_000]) == [KEY.encode(), ANY, 1]
            await broker.command("RPUSH", "bell", "one")
            assert await waiting == [b"bell", b"one"]
            await broker.close()

            stranger = Server(parse(url.partition("?")[0]))
            with pytest.raises(Unreachable, match="certificate"):
                await stranger.command("PING", patience=0)

        run(use())


def certified(cert: Path, key: Path) -> dict[str, str]:
    """The settings of a server with a certificate of its own making."""
    openssl = shutil.which("openssl")
    if openssl is None or binary("redis") is None:
        pytest.skip("needs openssl and a server that speaks TLS")
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subject = ["-nodes", "-days", "2", "-subj", "/CN=fl", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *request, *subject, *files], check=True, capture_output=True)
    return {
        "tls-port": str(free_port()),
        "tls-cert-file": str(cert),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(cert),
        "tls-auth-clients": "no",
    }


async def test_calls_go_on_after_a_restart(valkey: Running, connect: Opener) -> None:
    revived: list[str] = []

    async def revive() -> None:
        revived.append("asked")
        await asyncio.to_thread(valkey.start)

    broker = connect(valkey.url, revive=revive)
    await broker.run(ECHO, KEY, ["x"])
    assert revived == []
    valkey.kill()

    assert await broker.run(ECHO, KEY, ["x"]) == [KEY.encode(), b"x", 1]
    assert revived == ["asked"]


async def test_calls_go_on_after_the_server_cut_us_off(valkey: Running, connect: Opener) -> None:
    broker = connect(valkey.url)
    await broker.command("PING")
    valkey.admin("CLIENT", "KILL", "TYPE", "normal")

    assert await broker.command("PING") == b"PONG"


async def test_callers_share_one_attempt_to_connect(between: Proxy, connect: Opener) -> None:
    broker = connect(between.url)
    await asyncio.gather(*(broker.command("PING") for _ in range(50)))
    between.cut()
    await asyncio.gather(*(broker.command("PING") for _ in range(50)))

    assert between.connections == 2


async def test_each_new_connection_is_shown_before_it_is_used(
    valkey: Running, between: Proxy, connect: Opener
) -> None:
    shown: list[Any] = []

    async def on_connect(ask: Ask) -> None:
        shown.append(await ask("INCR", "connects"))

    broker = connect(between.url, on_connect=on_connect)
    assert await broker.command("GET", "connects") == b"1"
    between.cut()

    assert await broker.command("GET", "connects") == b"2"
    assert shown == [1, 2]


async def test_what_the_hook_raises_reaches_the_caller(valkey: Running, connect: Opener) -> None:
    async def on_connect(ask: Ask) -> None:
        raise RuntimeError("not my server")

    with pytest.raises(RuntimeError, match="not my server"):
        await connect(valkey.url, on_connect=on_connect).command("PING")


# --- loops and processes -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # uvloop's: what is left open is the point
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_another_loop_gets_connections_of_its_own(run: Any, valkey: Running) -> None:
    broker = Server(parse(valkey.url))

    async def use() -> bytes:
        await broker.block("BLPOP", "bell", seconds=0.01)
        return bytes(await broker.command("ECHO", "x"))

    assert [run(use()) for _ in range(3)] == [b"x"] * 3
    assert clients(valkey, "connected") <= 3

    run(broker.close())
    wait_for(lambda: clients(valkey, "connected") == 1, "the end")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_forked_child_uses_no_socket_of_its_parent(run: Any, valkey: Running) -> None:
    run(fork_while_waiting(valkey, run))


async def fork_while_waiting(valkey: Running, run: Any) -> None:
    broker = Server(parse(valkey.url))
    own = await broker.command("CLIENT", "ID")
    waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=60))
    await blocked(valkey)

    child = os.fork()
    if child == 0:  # it leaves no trace but its exit status
        status = 1
        with contextlib.suppress(BaseException):
            asyncio.events._set_running_loop(None)
            status = 0 if run(in_child(broker)) != own else 2
        os._exit(status)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert await broker.command("CLIENT", "ID") == own
    await broker.command("RPUSH", "bell", "one")
    assert await asyncio.wait_for(waiting, 5) == [b"bell", b"one"]
    await broker.close()


async def in_child(broker: Server) -> int:
    found = int(await broker.command("CLIENT", "ID"))
    await broker.close()
    return found
