"""What a new connection says first, and what becomes of one that is not welcome."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.crc
import uvloop
from hiredis import ReplyError
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.redis.address import Login, Place, Tls
from fairlead.broker.redis.discovery import slot_of
from fairlead.broker.redis.login import check_login, commands, ssl_context
from fairlead.broker.redis.wire import Wire, open_wire
from fairlead.model.errors import BrokerError, Refused, Unreachable
from tests.support.servers import server

HERE = Place("127.0.0.1", 6379)
ANYBODY = Login()


async def opened(
    place: Place,
    login: Login = ANYBODY,
    *,
    db: int = 0,
    tls: Tls | None = None,
    seconds: float = 2.0,
) -> Wire:
    return await open_wire(place, login, tls=tls, db=db, connect_timeout=seconds, call_timeout=5.0)


@pytest.mark.parametrize(
    ("login", "db", "said"),
    [
        (Login(), 0, []),
        (Login(password="p"), 0, [("AUTH", "p")]),
        (Login("u", "p"), 3, [("AUTH", "u", "p"), ("SELECT", 3)]),
        (Login("u"), 0, [("AUTH", "u", "")]),
    ],
)
def test_a_login_comes_before_all_else(login: Login, db: int, said: list[tuple[str, ...]]) -> None:
    name = ("CLIENT", "SETNAME", "fairlead")
    login_first = [each for each in said if each[0] == "AUTH"]
    assert commands(login, db) == [*login_first, name, *said[len(login_first) :]]


def test_a_password_that_is_no_text_is_refused_without_being_told() -> None:
    with pytest.raises(Refused, match="lone surrogates") as caught:
        commands(Login(password="hunter\udc80"), 0)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("replies", "kind", "text"),
    [
        (["WRONGPASS invalid username-password pair", "NOAUTH x"], Refused, "check user and"),
        (["ERR AUTH <password> called without any password", b"OK"], Refused, "check user and"),
        ([b"OK", "NOAUTH Authentication required."], Refused, "check user and password"),
        ([b"OK", "NOPERM this user has no permissions"], Refused, "check user and password"),
        (["ERR max number of clients reached", b"OK"], Unreachable, "max number of clients"),
        (["DENIED Redis is running in protected mode", b"OK"], Refused, "protected mode"),
        ([b"OK", "LOADING the dataset"], Unreachable, "still loading"),
        ([b"OK", "ERR unknown command"], BrokerError, "unknown command"),
    ],
)
def test_an_answer_that_is_no_welcome_says_why(
    replies: list[bytes | str], kind: type[BrokerError], text: str
) -> None:
    answers = [each if isinstance(each, bytes) else ReplyError(each) for each in replies]
    with pytest.raises(kind, match=text):
        check_login(HERE, commands(Login(password="secret"), 0), answers)


@pytest.mark.parametrize("login", [Login(), Login(password="wrong"), Login("nobody", "hunter2")])
async def test_a_wrong_password_is_refused_without_being_told(login: Login) -> None:
    with server(password="hunter2", tcp=True) as running:
        with pytest.raises(Refused, match="refused the login") as caught:
            await opened(Place("127.0.0.1", running.port), login)
        assert caught.value.cause == "auth"
        assert "wrong" not in str(caught.value)
        assert "hunter2" not in str(caught.value)
        wire = await opened(Place("127.0.0.1", running.port), Login(password="hunter2"), db=2)
        told = (await wire.ask("CLIENT", "INFO")).decode()
        assert "name=fairlead" in told
        assert "db=2" in told
        wire.drop()


async def test_a_server_that_takes_nobody_any_more_is_unreachable() -> None:
    with server(tcp=True, config={"maxclients": "1"}) as running:
        place = Place("127.0.0.1", running.port)
        first = await opened(place)
        with pytest.raises(Unreachable, match=r"max number of clients|the server closed it|reset"):
            await opened(place)
        first.drop()


@contextlib.asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[Place]:
    """Somebody who takes connections, and answers with this or closes (None)."""
    writers = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if answer is None:
            writer.close()
        else:
            await reader.read(1)
            writer.write(answer)

    async with await asyncio.start_server(met, "127.0.0.1", 0) as listener:
        yield Place("127.0.0.1", listener.sockets[0].getsockname()[1])
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "the server closed it|reset"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no reply to any call"),
        (b"", "within 0.3 s"),
        (b"+OK\r\n" * 5, "no reply to any call"),
    ],
)
async def test_whoever_is_no_server_of_ours_is_unreachable_and_nothing_is_left(
    answer: bytes | None, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(answer) as place:
        with pytest.raises(Unreachable, match=text):
            await opened(place, Login(password="secret"), seconds=0.3 if answer == b"" else 2.0)
    assert caplog.records == []  # no future whose error nobody asked for


async def test_a_caller_that_gives_up_leaves_no_connection_behind() -> None:
    async with listening(b"") as place:
        opening = asyncio.ensure_future(opened(place, seconds=60.0))
        await asyncio.sleep(0.05)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_connection_that_is_closed_in_the_moment_it_is_made_is_unreachable(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then uvloop knows of no socket any more."""

    class Closed(Wire):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._transport.abort()

    monkeypatch.setattr("fairlead.broker.redis.wire.Wire", Closed)

    async def use() -> None:
        serving = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with serving:
            with pytest.raises(Unreachable, match="could not connect to 127"):
                await opened(Place("127.0.0.1", serving.sockets[0].getsockname()[1]))

    run(use())


async def test_a_file_for_tls_that_is_not_there_is_said() -> None:
    with pytest.raises(Unreachable, match="No such file"):
        await opened(HERE, tls=Tls(ca="/nowhere/ca.pem"))


def test_tls_checks_who_the_server_is_unless_it_is_told_not_to(tmp_path: Path) -> None:
    careful, careless = ssl_context(Tls()), ssl_context(Tls(verify=False))
    assert (careful.verify_mode, careful.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)


@given(st.binary(max_size=40) | st.from_regex(rb"[a-z{}]{0,12}", fullmatch=True))
def test_a_key_has_the_slot_that_the_servers_give_it(key: bytes) -> None:
    assert slot_of(key) == redis.crc.key_slot(key)
