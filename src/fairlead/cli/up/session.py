"""One ``fairlead up``: starts everything, says what to do next, and ends everything."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import click

from fairlead.app.services import missing_extra
from fairlead.broker import address_of, connect
from fairlead.cli.common.commands import talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.up.banner import banner, command_name
from fairlead.cli.up.folder_lock import held
from fairlead.cli.up.listener import open_listener
from fairlead.cli.up.output import Output
from fairlead.cli.up.parts import DEMO, parts_of
from fairlead.cli.up.servers import Servers
from fairlead.cli.up.stack import Stack
from fairlead.cli.up.target import Target
from fairlead.client import Client

try:
    from fairlead.api.auth.sign_in import create_code, link_of
except ModuleNotFoundError as error:
    raise missing_extra("server", error) from None

T = TypeVar("T")

_SCOPES = ("read",)  # of the page, which changes nothing
_SIGN_IN = 86_400.0  # seconds in which the link can be used


class Session:
    """One run, from the start of the servers to their end."""

    def __init__(
        self,
        target: Target,
        output: Output,
        began: float,
        *,
        demo: bool,
        ledger: bool,
        reload: bool,
    ) -> None:
        self._target = target
        self._output = output
        self._began = began
        self._demo = demo
        self._ledger = ledger
        self._reload = reload

    async def run(self, host: str, port: int | None, concurrency: int | None, level: str) -> int:
        """Start everything, say so, and end everything after a signal."""
        target, servers, stack = self._target, Servers(self._output), Stack(self._output)
        stack.listen_to_signals()
        if sys.stdout.isatty():
            click.echo("Fairlead starts ...\r", nl=False)  # the first line is written over it
        with open_listener(host, port) as listener, held(target, listener):
            try:
                url, ledger = await self._servers(servers)
                parts = parts_of(
                    target,
                    demo=self._demo,
                    ledger=ledger is not None,
                    concurrency=concurrency,
                    level=level,
                    listener=listener.fileno(),
                    reload=self._reload,
                )
                if stack.is_stopping:
                    return OK
                environment = _environment(url, ledger)
                stack.start(parts, environment)
                link = await _link(url, listener)
                code = await stack.wait_ready(listener)
                if code is not None:
                    return code
                self._say(link)
                self._output.release()
                if self._demo:
                    stack.start([DEMO], environment)
                keeping = asyncio.create_task(servers.keep())
                await stack.wait_stopped()
                keeping.cancel()
                return OK
            finally:
                await stack.end()
                await servers.stop()
                self._output.release()
                talk("ended")

    async def _servers(self, servers: Servers) -> tuple[str, str | None]:
        """Return the URLs of broker and ledger, once those of our own have started."""
        target = self._target
        own_ledger = self._ledger and target.ledger is None
        if target.url is None:
            broker = asyncio.create_task(servers.start_valkey(target.folder, target.options))
        else:
            broker = asyncio.create_task(_known(target.url))
        if own_ledger:
            ledger = asyncio.create_task(_optional(servers.start_postgres(target.folder)))
        else:
            ledger = asyncio.create_task(_known(target.ledger))
        await asyncio.wait((broker, ledger))  # both, though one fails: the other is stopped later
        url = broker.result()
        return (f"{url}?{target.more}" if target.more else url), ledger.result()

    def _say(self, link: str) -> None:
        target = self._target
        if target.url is None:
            shown = os.path.relpath(target.folder)
            broker = f"a Valkey of its own in {shown if shown.startswith('.') else './' + shown}"
            where = (
                "" if target.folder == Path(".fairlead").absolute() else f"--url embedded://{shown}"
            )
        else:
            broker = address_of(target.url)
            where = "--url ..."
        text = banner(
            link,
            seconds=time.monotonic() - self._began,
            command=command_name(),
            broker=broker,
            where=where,
            has_worker=self._demo or target.app is not None,
            has_demo=self._demo,
            has_ledger=self._ledger and target.ledger is None,
        )
        click.echo(text)


def _environment(url: str, ledger: str | None) -> dict[str, str]:
    """What the processes find there. An app that names its broker itself names the same one."""
    found = {**os.environ, "FAIRLEAD_URL": url, "PYTHONUNBUFFERED": "1"}
    if ledger is not None:
        found["FAIRLEAD_LEDGER"] = ledger
    return found


async def _known(url: T) -> T:
    return url


async def _optional(started: Awaitable[str]) -> str | None:
    return await started


async def _link(url: str, listener: socket.socket) -> str:
    """Make a link to the page that signs in once."""
    host, port = listener.getsockname()[:2]
    store = connect(url)
    client = Client(store)
    try:
        code = await create_code(client, scopes=_SCOPES, name="fairlead up", valid_for=_SIGN_IN)
    finally:
        await client.close()
        await store.close()
    shown = f"[{host}]" if ":" in host else host
    return link_of(f"http://{shown}:{port}", code)
