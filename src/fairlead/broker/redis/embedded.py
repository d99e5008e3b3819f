"""The broker on the server that comes with Fairlead: started when it is first needed."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from fairlead.broker.namespace import with_namespace
from fairlead.broker.records import Finding
from fairlead.broker.redis.address import Address, Place, parse
from fairlead.broker.redis.broker import RedisBroker
from fairlead.broker.redis.loop_session import LoopSession
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import SHARD, Call
from fairlead.embedded.endpoint import Endpoint
from fairlead.embedded.options import SCHEME, parse_embedded
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import Refused, Unreachable
from fairlead.runtime.native_threads import are_threads_patched
from fairlead.settings import VARIABLE

log = logging.getLogger("fairlead")

T = TypeVar("T")

_Key = tuple[asyncio.AbstractEventLoop, int]  # and the process, which may have been forked


class EmbeddedBroker(RedisBroker):
    """A RedisBroker that has its server with it: ``embedded://PATH``.

    Every event loop that opens a connection makes sure first that the server runs, and so does
    every reconnect. ``close`` leaves the server, which ends with its last user; whoever asks
    something afterwards joins it again.
    """

    def __init__(self, url: str, *, is_default: bool = False, **options: Any) -> None:
        path, chosen = parse_embedded(url)
        self._path = path.absolute()
        self._joining: dict[_Key, asyncio.Future[Endpoint]] = {}  # starts under way
        self._is_default = is_default  # nobody named it, and nobody was told so far
        self._valkey = EmbeddedValkey(path, **chosen)
        # Where it listens, and its password, are known once it runs.
        nowhere = Address(kind="unix", places=(Place(path=f"{path}/valkey"),))
        super().__init__(nowhere, revive=self._bring_back, **options)

    @property
    def destination(self) -> str:
        """Which broker this is, wherever it listens this time."""
        where = with_namespace(f"{SCHEME}://{self._path}", self.namespace)
        return where if self.shard == SHARD else f"{where}#{self.shard}"

    async def run(
        self, verb: str, args: Sequence[Value], call: Call | None = None, **options: Any
    ) -> Any:
        if call is not None and call.until is not None and self._known() is None:
            await self._open(call.until)
        return await super().run(verb, args, call, **options)

    async def open_here(self) -> LoopSession:
        now = asyncio.get_running_loop().time()
        return await self._open(now + self.patience if self.patience else math.inf)

    async def _open(self, until: float) -> LoopSession:
        """Start or join the server and return a session on it, by ``until`` of the loop's clock."""
        endpoint = await self._joined(until)
        self._found(endpoint)
        self._tell(endpoint)
        # Another call of this loop may have come so far while this one waited for its thread.
        return self._known() or await super().open_here()

    def _known(self) -> LoopSession | None:
        """The session of the running loop, if there is one."""
        session = self._sessions.get(asyncio.get_running_loop())
        return None if session is None or session.pid != os.getpid() else session

    async def _joined(self, until: float) -> Endpoint:
        """Where the server is, once it runs.

        A start goes on when the time of its caller is over: the next call joins it there.
        """
        loop = asyncio.get_running_loop()
        key = loop, os.getpid()
        joining = self._joining.get(key)
        if joining is None:
            joining = self._joining[key] = _in_thread(self._valkey.start)
            joining.add_done_callback(partial(self._end_joining, key))
        await asyncio.wait((joining,), timeout=None if until == math.inf else until - loop.time())
        if not joining.done():
            raise Unreachable(
                f"{self._valkey} has not come up in time, so nothing was sent; if it loads its "
                "data, try again or give the call a longer timeout; if it hangs, `kill` it where "
                "it runs, which keeps its data"
            )
        return joining.result()

    def _end_joining(self, key: _Key, joining: asyncio.Future[Endpoint]) -> None:
        del self._joining[key]
        if not joining.cancelled():
            joining.exception()  # it may be that nobody waits for it any more

    async def _bring_back(self) -> None:
        """Before a reconnect: the server may have been killed."""
        if self._found(await _in_thread(self._valkey.ensure)):
            raise Refused(
                "emptied",
                f"the directory of {self._valkey} was deleted, and a new server was started in "
                "it; try again, and enqueue again what is missing",
            )

    def _tell(self, endpoint: Endpoint) -> None:
        """Warn of a server that nobody asked for: tasks in it are seen by this machine only."""
        if self._is_default and endpoint.owner:
            self._is_default = False
            log.warning(
                "no broker was named, so tasks go to a private server in %s (pid %d), which no "
                "other machine or container sees; set %s, to embedded:// if this is meant",
                self._path,
                endpoint.pid,
                VARIABLE,
            )

    def _found(self, endpoint: Endpoint) -> bool:
        """Take in where the server is; whether it is another one than before."""
        found = parse(endpoint.url)
        with self._lock:
            known, self.address = self.address, found
            changed = known.login.password is not None and known != found
            if changed:  # connections made so far know only the old password
                self._sessions.clear()
        return changed

    async def diagnose(self) -> list[Finding]:
        """As always, and which allocator the server has."""
        found = await super().diagnose()
        try:
            library = await _in_thread(self._valkey.jemalloc)
        except OSError:  # it runs where nobody here can look
            return found
        if library is not None:
            text = f"jemalloc, from {library}"
        else:
            text = (
                "the C library's; with jemalloc (libjemalloc2 of Debian, jemalloc elsewhere) the "
                "server of the wheel takes a fifth less processor time from its next start on"
            )
        return [*found, Finding(name="allocator", status="ok", text=text)]

    async def close(self) -> None:
        """As always, and then leave the server, which ends if nobody else uses it."""
        await super().close()
        await _in_thread(self._valkey.stop)


def _in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Starting and stopping a server takes a while, in which the loop has other things to do."""
    if are_threads_patched():
        raise Refused(
            "gevent",
            "embedded:// cannot be used where gevent has replaced threads and subprocesses: run "
            "the server in a process of its own and name that, as in redis://localhost",
        )
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(None, function)
    except RuntimeError:  # there are no more threads to be had: the interpreter is shutting down
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(function())
        return done
