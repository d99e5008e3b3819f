"""How a fallback begins and ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from fairlead.broker import connect
from fairlead.fallback import fallback as module
from fairlead.fallback.background import BackgroundLoop
from fairlead.fallback.fallback import Fallback, FallbackOptions


def made(folder: Path) -> Fallback:
    return Fallback(connect("memory://"), FallbackOptions(directory=folder))


async def test_first_calls_of_several_threads_start_one_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback, keepers, pid = made(tmp_path / "spool"), list[BackgroundLoop](), os.getpid()

    class Counted(BackgroundLoop):
        def __init__(self, *args: Fallback) -> None:
            keepers.append(self)
            super().__init__(*args)

    def slow() -> int:
        time.sleep(0.02)  # all threads have read what is compared with it
        return pid

    with monkeypatch.context() as patch:
        patch.setattr(module, "BackgroundLoop", Counted)
        patch.setattr(os, "getpid", slow)
        threads = [threading.Thread(target=fallback.start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert len(keepers) == 1
    await fallback.close()
    fallback.start()
    assert fallback._background is None


async def test_a_close_that_waits_for_the_disk_does_not_hold_up_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback, synced, heard = made(tmp_path / "spool"), threading.Event(), list[bool]()
    close = fallback.spool.close

    def slow() -> None:
        heard.append(synced.wait(2.0))
        close()

    monkeypatch.setattr(fallback.spool, "close", slow)
    asyncio.get_running_loop().call_later(0.02, synced.set)
    await fallback.close()
    assert heard == [True]
