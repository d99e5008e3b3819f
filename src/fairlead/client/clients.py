"""The clients of one app: one for each running loop, and the portal's for sync code."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from fairlead.broker import Store
from fairlead.broker.repeats import LIMIT
from fairlead.broker.requests import Durability, Receipt, Submission
from fairlead.broker.submissions import Row, filled
from fairlead.client.client import Client
from fairlead.client.middleware import AroundEnqueue
from fairlead.client.submit_path import count_accepted
from fairlead.client.thread_lines import ThreadLines
from fairlead.model.codecs import Codecs
from fairlead.model.errors import InvalidInput
from fairlead.model.priorities import DEFAULT, Priorities
from fairlead.runtime.portal import portal
from fairlead.runtime.process_hooks import at_fork
from fairlead.telemetry.counters import Counters

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback
    from fairlead.fallback.outcomes import Outcomes
    from fairlead.ledger.ledger import Ledger

T = TypeVar("T")

_PACKAGE = str(Path(__file__).parents[1])
_running_loop = asyncio._get_running_loop  # unlike the public one it raises nothing

_log = logging.getLogger("fairlead.client")


class Clients:
    """Finds the client for whoever asks. The store behind them is one."""

    def __init__(
        self,
        store: Store,
        limit: float = LIMIT,
        ledger: str | None = None,
        fallback: Fallback | None = None,
        priorities: Priorities = DEFAULT,
        codecs: Codecs | None = None,
    ) -> None:
        """``limit`` is how many seconds a call may take that does not say so itself.

        ``ledger`` is the URL of the ledger; nothing is opened before it is used. ``fallback`` takes
        tasks while the broker is away. ``priorities`` are the names that reads show. ``codecs``
        encode what is stored of arguments and values.
        """
        self.fallback = fallback
        self.priorities = priorities
        self.codecs = codecs
        self.store = store
        self.limit = limit
        self.ledger_url = ledger
        self.around: list[AroundEnqueue] = []  # middleware; the first is outermost
        self.counters = Counters()  # of what was enqueued, and of what workers of the app ran
        if fallback is not None:
            self.counters.observe_spool(fallback.figures)
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()
        self._ledgers: WeakKeyDictionary[asyncio.AbstractEventLoop, Ledger] = WeakKeyDictionary()
        # The one that was found last: most apps have one loop, and ask for its client often.
        self._last: tuple[asyncio.AbstractEventLoop, Client] | None = None
        self._lock = threading.Lock()
        self._inherited: list[object] = []
        self._is_warned = False  # that async code should use something else
        self._lines = ThreadLines(self.sync)
        _all.add(self)

    def current(self) -> Client:
        """The client of the running loop; made at the first call."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0] is loop:
            return last[1]
        with self._lock:
            client = self._by_loop.get(loop)
            if client is None:
                # A client may hold on to its loop, and so keep the weak key alive.
                for closed in [each for each in self._by_loop if each.is_closed()]:
                    del self._by_loop[closed]
                client = self._by_loop[loop] = Client(
                    self.store,
                    around=self.around,
                    limit=self.limit,
                    counters=self.counters,
                    fallback=self.fallback,
                    priorities=self.priorities,
                    codecs=self.codecs,
                )
            self._last = loop, client
            return client

    @property
    def outcomes(self) -> Outcomes | None:
        """Where workers keep outcomes while the broker is away; None without a fallback."""
        return None if self.fallback is None else self.fallback.outcomes

    @property
    def ledger(self) -> Ledger:
        """The ledger of the running loop, whose connections are that loop's; made at the first use.

        Raises InvalidInput if the app has none.
        """
        if self.ledger_url is None:
            raise InvalidInput(
                'this app has no ledger; give it one: Fairlead(url, ledger="postgresql://..."), '
                "FAIRLEAD_LEDGER, or ledger in fairlead.toml"
            )
        # Here: most programs have none.
        from fairlead.ledger.ledger import Ledger

        loop = asyncio.get_running_loop()
        with self._lock:
            ledger = self._ledgers.get(loop)
            if ledger is None:
                for closed in [each for each in self._ledgers if each.is_closed()]:
                    del self._ledgers[closed]
                ledger = self._ledgers[loop] = Ledger(self.ledger_url)
            return ledger

    @property
    def ledger_or_none(self) -> Ledger | None:
        """The ledger of the running loop; None if the app has none."""
        return None if self.ledger_url is None else self.ledger

    def sync(self, action: Callable[[Client], Awaitable[T]]) -> T:
        """Carry out ``action`` with the portal's client and wait for it. For sync code.

        On the thread of a running loop it logs a warning, once: what enqueues is often called from
        both sides, and is short as a rule.
        """
        if _running_loop() is not None and not self._is_warned:
            self._warn()
        return portal.run(lambda: action(self.current()))

    def blocking(self, action: Callable[[Client], Awaitable[T]], name: str) -> T:
        """``sync`` for what is refused on the thread of a running loop; ``name`` is the call's.

        Its twin for async code has an ``a`` before the last part of the name.
        """
        if _running_loop() is not None:
            owner, _, call = name.rpartition(".")
            raise InvalidInput(
                f"{name} would block the event loop that runs in this thread; "
                f"in async code use: await {owner}.a{call}(...)"
            )
        return portal.run(lambda: action(self.current()))

    def submit(self, row: Row, limit: float | None, durability: Durability) -> Receipt:
        """Enqueue one task from sync code: over a line of this thread, or over the portal."""
        # On the thread of a loop the portal's way warns; middleware and a fallback need a loop.
        if _running_loop() is None and not self.around and self.fallback is None:
            receipt = self._lines.submit(row, self.limit if limit is None else limit)
            if receipt is not None:
                if receipt.code == "conflict" and self.codecs is not None:
                    return self._recognized(filled(row), receipt)
                if self.counters.on:
                    count_accepted(self.counters, (filled(row),), (receipt,))
                return receipt
        return self.sync(lambda client: client.submit(row, limit, durability))

    def _recognized(self, submission: Submission, receipt: Receipt) -> Receipt:
        async def look(client: Client) -> list[Receipt]:
            return await client.recognized([submission], [receipt])

        return self.sync(look)[0]

    def _warn(self) -> None:
        """Once: whoever does it does it often."""
        self._is_warned = True
        where = next(
            (
                f"{frame.filename}:{frame.lineno}"
                for frame in reversed(traceback.extract_stack())
                if not frame.filename.startswith(_PACKAGE)
            ),
            "unknown",
        )
        _log.warning(
            "sync call on the thread of a running event loop, which stands still meanwhile "
            "(up to %g s in an outage); in async code use the form with an a in front: "
            "await task.aenqueue(...)",
            self.limit,
            extra={"where": where},
        )

    def sync_wait(self, action: Callable[[Client], Awaitable[T]]) -> T:
        """``sync`` for what only waits: the end of the process does not wait with it."""
        return portal.run(lambda: action(self.current()), flushed=False)

    def sync_close(self) -> None:
        """Finish what sync code has outstanding, then close the store."""
        portal.run(self.close)

    async def close(self) -> None:
        """Finish what the running loop's client has outstanding, then close store and ledger."""
        # Taken out: whoever calls later gets a new one, and the answer of a closed store.
        with self._lock:
            self._last = None
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        await self._lines.close()
        if self.fallback is not None:
            await self.fallback.close()
        try:
            await self.store.close()
        finally:
            await self.close_ledger()

    async def close_ledger(self) -> None:
        """Close the connections that the running loop has to the ledger."""
        ledger = self._ledgers.pop(asyncio.get_running_loop(), None)
        if ledger is not None:
            await ledger.close()

    @contextmanager
    def replaced(self, store: Store, ledger: str | None = None) -> Iterator[None]:
        """Use another broker and ledger, and no fallback, until the block ends. For tests.

        All that was made of these clients follows: tasks, schedules, workers that start meanwhile.
        Nothing is closed; ``close_ledger`` does so for the running loop.
        """
        with self._lock:
            kept = self.store, self.ledger_url, self.fallback
            found = self._by_loop, self._ledgers, self._lines
            self._use(store, ledger, None)
        try:
            yield
        finally:
            with self._lock:
                self._use(*kept)
                self._by_loop, self._ledgers, self._lines = found

    def _use(self, store: Store, ledger: str | None, fallback: Fallback | None) -> None:
        self.store, self.ledger_url, self.fallback = store, ledger, fallback
        self._by_loop, self._ledgers = WeakKeyDictionary(), WeakKeyDictionary()
        self._last = None
        self._lines = ThreadLines(self.sync)

    def _renew(self) -> None:
        """In a forked child: new clients, hence new incarnations, whose calls count from one."""
        # The parent's clients are kept unused: collecting their pending tasks here would complain.
        self._inherited += [dict(self._by_loop), dict(self._ledgers)]
        self._by_loop, self._ledgers, self._last = WeakKeyDictionary(), WeakKeyDictionary(), None
        self._lock = threading.Lock()
        self._lines = ThreadLines(self.sync)  # what the parent's have open is closed here only
        self.counters.renew()


_all: weakref.WeakSet[Clients] = weakref.WeakSet()


def _renew_all() -> None:
    for clients in list(_all):
        clients._renew()


at_fork(after_in_child=_renew_all)
