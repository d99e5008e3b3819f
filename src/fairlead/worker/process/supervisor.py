"""Keeps the children of a worker alive. Never imports an app: nothing of it can hurt this process.

A child that an operator ordered to stop is not replaced; with the last one this process ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from fairlead.broker import Store
from fairlead.runtime.component import within
from fairlead.runtime.randomness import generator
from fairlead.worker.process.child import Child
from fairlead.worker.process.child_totals import ChildTotals
from fairlead.worker.process.ipc import Plan, Refusal
from fairlead.worker.process.subprocess_reaper import adopt_orphans, end_orphans, reap_orphans

log = logging.getLogger("fairlead.worker")

_YOUNG = 10.0  # seconds; a child that dies earlier is not started again at once
_FIRST_PAUSE = 0.5  # seconds, doubled with each child that dies young
_LONGEST_PAUSE = 30.0  # seconds
_LAST_WORDS = 10.0  # seconds that a child has beyond its grace before it is killed
_LOOK = 5.0  # seconds between two looks for processes that have ended
_AGAIN = 60.0  # seconds until a child that could not be replaced is tried again
_READY = 60.0  # seconds in which a replacement must have introduced itself


class Supervisor:
    """``count`` children that follow one plan."""

    def __init__(
        self,
        command: Sequence[str],
        plan: Plan,
        connect: Callable[[str], Store],
        *,
        count: int,
        stall_timeout: float = 60.0,
        tied: bool = False,
    ) -> None:
        """``tied``: it belongs to a terminal, and ends with it."""
        self._command = command
        self._plan = plan
        self._connect = connect
        self.count = count
        self._stall_timeout = stall_timeout
        self.tied = tied
        self._stores: dict[str, Store] = {}
        self._children: dict[Child, asyncio.Task[int]] = {}
        self.ended = ChildTotals()  # what is left of children that have ended
        self.refusal: Refusal | None = None
        self._stopping = asyncio.Event()
        self._leaving = asyncio.Event()
        self._renewals = [asyncio.Event() for _ in range(count)]
        self._turn = asyncio.Lock()  # children are replaced one at a time
        self.is_quiet = False
        self._ever_introduced = False  # a child was
        self._dismissed = 0  # seats that stay empty, because an operator stopped their child
        self.changed = asyncio.Event()  # a child began or ended: whoever shows this looks again

    @property
    def children(self) -> list[Child]:
        """Those that live, the replaced ones that still end among them."""
        return list(self._children)

    async def run(self) -> int:
        """Supervise until told to stop; the exit code."""
        adopt_orphans()
        seats = [
            asyncio.ensure_future(self._supervise_seat(number)) for number in range(self.count)
        ]
        reaping = asyncio.ensure_future(self._reap())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await self._until_stopped(stopping, seats)
            await self._stop()
        finally:
            for task in (stopping, reaping, *seats):
                task.cancel()
            await asyncio.gather(stopping, reaping, *seats, return_exceptions=True)
            await self._kill_rest()
        for seat in seats:
            if not seat.cancelled() and (error := seat.exception()) is not None:
                raise error
        if self.refusal is not None:
            return self.refusal.code
        return 0

    async def _until_stopped(
        self, stopping: asyncio.Future[Any], seats: Sequence[asyncio.Task[None]]
    ) -> None:
        """Until there is a reason to stop: a signal, a seat that failed, or none that is left."""
        left = set(seats)
        while left and not stopping.done():
            done, _ = await asyncio.wait([stopping, *left], return_when=asyncio.FIRST_COMPLETED)
            left -= done
            failed = (seat in done and seat.exception() is not None for seat in seats)
            if self.refusal is not None or any(failed):
                return

    @property
    def wanted(self) -> int:
        """How many children there should be: an operator may have dismissed some."""
        return self.count - self._dismissed

    def stop(self) -> None:
        """Stop in good time; told twice, at once."""
        if self._stopping.is_set():
            self._leaving.set()
        else:
            log.info(_stopping_text(self.children, self._plan.grace))
        self._stopping.set()

    def quiet(self) -> None:
        """Fetch no more; what runs goes on. Children that are started later are quiet, too."""
        log.info("worker is quiet: it fetches no more")
        self.is_quiet = True
        for child in self.children:
            child.order("quiet")

    def resume(self) -> None:
        """Fetch again, if it was made quiet. A shell sends CONT to what was not, as well."""
        if self.is_quiet:
            log.info("worker is no longer quiet: it fetches again")
            self.is_quiet = False
            for child in self.children:
                child.order("resume")

    def hang_up(self) -> None:
        """Stop in good time, if the terminal is gone; otherwise replace all children."""
        if not self.tied:
            self.renew()
        elif not self._stopping.is_set():  # the kernel and the shell may both send it
            log.warning("worker stops: its terminal is gone")
            self.stop()

    def renew(self) -> None:
        """Replace all children, one after the other."""
        log.info("rolling restart", extra={"children": self.count})
        for event in self._renewals:
            event.set()

    async def show_stacks(self) -> None:
        """Log where the code of each child is."""
        for child in self.children:
            if stack := await child.stacks():
                log.warning("stacks", extra={"pid": child.pid, "stack": stack})

    # -- one seat: there is always a child in it -------------------------------------------------

    async def _supervise_seat(self, number: int) -> None:
        young, paused = 0, False
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                first = self._start(paused)
            except OSError:  # no more files or memory; perhaps later
                log.exception("child not started")
                await within(_LONGEST_PAUSE, self._stopping)
                continue
            child = await self._wait_or_replace(first, self._renewals[number])
            if self._stopping.is_set():
                return
            if child.dismissed.is_set():
                self._dismissed += 1
                return
            paused = child.is_paused  # the order is for whoever sits here
            if child.refusal is not None and child.introduction is None:
                if not self._ever_introduced:
                    self.refusal = child.refusal  # it would say the same again
                    return
                log.error("child cannot start: %s", child.refusal.text)
            young = young + 1 if time.monotonic() - began < _YOUNG else 0
            if young > 1 or child.introduction is None:
                pause = min(_FIRST_PAUSE * 2 ** min(young, 16), _LONGEST_PAUSE)
                pause *= 0.75 + 0.5 * generator.random()
                log.warning("child restarts later", extra={"seconds": round(pause, 1)})
                await within(pause, self._stopping)

    async def _wait_or_replace(self, child: Child, renew: asyncio.Event) -> Child:
        """Until the child in the seat has died; replaced ones go on to end by themselves."""
        while True:
            events = (renew, child.retiring, child.dismissed)
            wishes = [asyncio.ensure_future(each.wait()) for each in events]
            life = _life(child)
            try:
                await asyncio.wait([life, *wishes], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wish in wishes:
                    wish.cancel()
            if child.dismissed.is_set() and child.alive:
                child.order("stop")
                self._watch_end(child)
            if life.done() or self._stopping.is_set() or child.dismissed.is_set():
                await asyncio.wait([life])
                return child
            async with self._turn:
                asked = child.retiring.is_set()
                renew.clear()
                child.retiring.clear()
                if not self._stopping.is_set() and not life.done():
                    old, child = child, await self._replaced(child, asked=asked)
                    if old.dismissed.is_set():  # meanwhile: the order is for whoever sits here
                        child.dismissed.set()

    async def _replaced(self, old: Child, *, asked: bool) -> Child:
        try:
            fresh = self._start(old.is_paused)
        except OSError:
            log.exception("child not replaced", extra={"pid": old.pid})
            return self._keep_old(old, asked=asked)
        life = _life(fresh)
        introduced = asyncio.ensure_future(fresh.introduced.wait())
        await asyncio.wait([life, introduced], timeout=_READY, return_when="FIRST_COMPLETED")
        introduced.cancel()
        if not fresh.introduced.is_set():
            fresh.kill()
            why = fresh.refusal.text if fresh.refusal is not None else "it did not start"
            log.error("child not replaced: %s", why, extra={"pid": old.pid})
            return self._keep_old(old, asked=asked)
        old.order("stop")
        self._watch_end(old)
        return fresh

    def _keep_old(self, old: Child, *, asked: bool) -> Child:
        """It could not be replaced; if it asked for that itself, it is tried again later."""
        if asked:
            asyncio.get_running_loop().call_later(_AGAIN, old.retiring.set)
        return old

    def _watch_end(self, child: Child) -> None:
        """See to it that a child that was told to stop does."""

        def late() -> None:
            if child.alive:
                log.error("child killed: it does not stop", extra={"pid": child.pid})
                child.kill()

        asyncio.get_running_loop().call_later(self._plan.grace + _LAST_WORDS, late)

    def _start(self, paused: bool) -> Child:
        plan = msgspec.structs.replace(
            self._plan, quiet=self.is_quiet, paused=paused, first=not self.ended.starts
        )
        child = Child(self._command, plan, self._store, stall_timeout=self._stall_timeout)
        self.ended.starts += 1
        child.life = self._children[child] = asyncio.ensure_future(self._live(child))
        return child

    async def _live(self, child: Child) -> int:
        announcing = asyncio.ensure_future(self._announce(child))
        try:
            code = await child.live()
            if child.ordered:
                log.info("child ended", extra={"pid": child.pid, "exit_code": code})
            return code
        except OSError as error:  # the system gives no more processes, memory or files
            log.exception("child not started", extra={"error": type(error).__name__})
            return -1
        finally:
            announcing.cancel()
            del self._children[child]
            self.ended.add(child)
            self.changed.set()
            end_orphans([child.pid])

    async def _announce(self, child: Child) -> None:
        await child.introduced.wait()
        who = child.introduction
        assert who is not None  # noqa: S101 - that is what introduced means
        self._ever_introduced = True
        self.changed.set()
        fields = {
            "incarnation": who.incarnation,
            "pid": os.getpid(),
            "child": child.pid,
            "broker": child.broker,
            "queues": list(who.queues),
            "tasks": list(who.tasks),
            "concurrency": who.concurrency,
        }
        log.info("worker started", extra=fields)

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = self._connect(url)
        return self._stores[url]

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            pids = [child.pid for child in self._children]
            if all(pids):  # one that is just being started is not known yet
                reap_orphans(pids)

    # -- the end -------------------------------------------------------------------------------

    async def _stop(self) -> None:
        self._order_all("stop")
        await self._await_ends(self._plan.grace + _LAST_WORDS, self._leaving)
        if self._leaving.is_set() and self._children:
            log.warning("worker leaves at once")
            self._order_all("leave")
            await self._await_ends(_LAST_WORDS)

    def _order_all(self, what: Literal["stop", "leave"]) -> None:
        for child in self.children:
            child.order(what)

    async def _await_ends(self, seconds: float, sooner: asyncio.Event | None = None) -> None:
        """Until all children have ended, the time is over or the event comes."""
        lives = list(self._children.values())
        if not lives:
            return
        tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(_all_of(lives))]
        if sooner is not None:
            tasks.append(asyncio.ensure_future(sooner.wait()))
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _kill_rest(self) -> None:
        """Whatever still lives is killed, and what it held given back."""
        for child in self.children:
            if child.alive:
                log.error("child killed: it does not stop", extra={"pid": child.pid})
            child.kill()
        if self._children:
            await asyncio.wait(list(self._children.values()))
        for store in self._stores.values():
            await store.close()


def _stopping_text(children: Iterable[Child], grace: float) -> str:
    """Return what a worker waits for that was told to stop, and how to leave at once."""
    count = sum(row.started for child in children for row in child.shared_state.lent())
    if not count:
        return "worker stops: no task runs"
    tasks = "1 task has" if count == 1 else f"{count} tasks have"
    back = "hands it back" if count == 1 else "hands them back"
    return f"worker stops: {tasks} {grace:g} s to finish; Ctrl-C (or TERM) again {back} at once"


def _life(child: Child) -> asyncio.Task[int]:
    assert child.life is not None  # noqa: S101 - it was started here
    return child.life


async def _all_of(tasks: Sequence[asyncio.Task[int]]) -> object:
    return await asyncio.wait(tasks)
