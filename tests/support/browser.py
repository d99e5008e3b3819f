"""A headless Chromium, driven over its DevTools protocol: what a page shows and complains of.

Tests skip where there is none. Each browser has a folder of its own and dies with the tests.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.servers import die_with_parent

__all__ = ("Page", "chromium", "open_page")

PATIENCE = 20.0  # seconds for anything that is waited for
_STEP = 0.05  # seconds between two looks
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str | None:
    """The program, if this machine has it."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


class Page:
    """One tab. ``complaints``: what its console got of errors and violations of the CSP."""

    def __init__(self, socket: ClientConnection) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []  # the addresses of all that was asked for
        self._socket = socket
        self._number = 0
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Stop reading; the browser is ended by whoever started it."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol, and its result."""
        self._number += 1
        answer = self._calls[self._number] = asyncio.get_running_loop().create_future()
        command = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send(json.dumps(command))
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def open(self, url: str) -> None:
        """Go to an address."""
        found = await self.call("Page.navigate", url=url)
        assert "errorText" not in found, found

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript (or the promise that it is) comes to in the page."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, expression: str, within: float = PATIENCE) -> Any:
        """Look until an expression is true in the page, and return what it is."""
        end = time.monotonic() + within
        while not (found := await self._tried(expression)):
            if time.monotonic() > end:
                shown = await self.value("document.body.innerText")
                raise AssertionError(f"never true: {expression}\n{shown}\n{self.complaints}")
            await asyncio.sleep(_STEP)
        return found

    async def text(self, selector: str) -> str:
        """The text of an element as it is shown; empty if there is none."""
        return str(
            await self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        )

    async def resize(self, width: int, height: int = 900) -> None:
        """Make the window this large, in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def prefer(self, **features: str) -> None:
        """What a person prefers: ``color_scheme="dark"``, ``reduced_motion="reduce"``."""
        named = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        await self.call("Emulation.setEmulatedMedia", features=named)

    async def picture(self, file: Path) -> None:
        """Write a picture of the whole page."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        found = await self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1}
        )
        file.write_bytes(base64.b64decode(found["data"]))

    async def _tried(self, expression: str) -> Any:
        # While a page is left for another, an expression may have nowhere to run.
        try:
            return await self.value(expression)
        except (AssertionError, RuntimeError):
            return None

    async def _read(self) -> None:
        async for data in self._socket:
            message = json.loads(data)
            if "id" in message:
                call = self._calls.pop(message["id"], None)
                if call is None or call.done():
                    continue
                if "error" in message:
                    call.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    call.set_result(message["result"])
            else:
                self._heard(message["method"], message["params"])

    def _heard(self, method: str, found: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(found["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(found["args"])[:500])
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            entry = found["entry"]
            self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")


@contextlib.asynccontextmanager
async def open_page(width: int = 1280) -> AsyncIterator[Page]:
    """A browser with one empty tab."""
    program = chromium()
    assert program is not None, "there is no Chromium on this machine"
    with tempfile.TemporaryDirectory(
        prefix="fairlead-browser-", ignore_cleanup_errors=True
    ) as folder:
        process = await asyncio.create_subprocess_exec(
            program, *_FLAGS, f"--user-data-dir={folder}", "about:blank",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            address = await asyncio.to_thread(_tab, Path(folder) / "DevToolsActivePort")
            async with connect(address, max_size=None, proxy=None) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{domain}.enable")
                await page.resize(width)
                try:
                    yield page
                finally:
                    await page.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(5.0):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started


def _tab(file: Path) -> str:
    """The address of the socket of the first tab, once the browser listens."""
    end = time.monotonic() + PATIENCE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            port = file.read_text(encoding="ascii").splitlines()[0]
            with opener.open(f"http://127.0.0.1:{port}/json/list", timeout=5.0) as answer:
                tabs = json.loads(answer.read())
            return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
        except (OSError, IndexError, StopIteration):
            if time.monotonic() > end:
                raise
            time.sleep(_STEP)
