"""What systemd hears of a service, and that nobody else is told anything."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator

import pytest

from fairlead.runtime.systemd import notifying


@pytest.fixture(params=["file", "abstract"])
def heard(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket on which systemd would listen."""
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with tempfile.TemporaryDirectory() as folder:
        name = f"{folder}/n" if request.param == "file" else f"\0fairlead-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(name)
            listener.settimeout(5.0)
            monkeypatch.setenv("NOTIFY_SOCKET", name.replace("\0", "@"))
            yield listener


async def test_a_service_is_ready_and_then_stopping(heard: socket.socket) -> None:
    async with notifying():
        assert heard.recv(99) == b"READY=1"
        await asyncio.sleep(0)
    assert heard.recv(99) == b"STOPPING=1"


async def test_a_loop_that_turns_is_told_of_for_as_long_as_it_is_watched(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    async with notifying():
        assert heard.recv(99) == b"READY=1"
        for _ in range(3):
            assert await asyncio.to_thread(heard.recv, 99) == b"WATCHDOG=1"
    rest = heard.recv(99)
    assert rest in (b"WATCHDOG=1", b"STOPPING=1")


async def test_the_watchdog_of_another_process_is_not_ours(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    async with notifying():
        await asyncio.sleep(0.01)
    assert [heard.recv(99), heard.recv(99)] == [b"READY=1", b"STOPPING=1"]


@pytest.mark.parametrize("address", ["", "/nowhere/at/all"])
async def test_without_systemd_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    async with notifying():
        pass
