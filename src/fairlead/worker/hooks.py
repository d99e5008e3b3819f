"""Calls the functions of a program for events: each event in one process, at least once.

Every hook has a place in the stream of events, kept in a document of the broker together with who
holds it. One process holds a hook for as long as it renews that document; when it is gone, another
one takes the hook over and goes on behind the last place that was kept. The revision of the
document is the fence: whoever was taken the hook from keeps no place any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from fairlead.broker import Broker, Caller
from fairlead.broker.documents import Document, DocumentChange
from fairlead.broker.repeats import Limit, late
from fairlead.model.errors import BrokerError, InvalidInput
from fairlead.runtime.component import Outage
from fairlead.runtime.ids import new_id
from fairlead.runtime.randomness import generator
from fairlead.worker.hook_calls import HookCalls

KIND = "hook"  # of documents
_LEASE = 10.0  # seconds after which a hook that was not renewed may be taken over
_RENEW = 2.0  # seconds between two renewals
_LOST = 5.0  # seconds without one after which the holder stops, within _CONFIRM, _WRITE and _GRACE
_CONFIRM = 0.5  # seconds between two writes of a place that moves
_LOOK = 2.0  # seconds between two looks for hooks that nobody holds, on average
_KEPT = 7 * 86_400.0  # seconds that a place is kept which nobody uses
_WRITE = 2.0  # seconds for one write
_GRACE = 2.0  # seconds that a call has to end when the hook is let go
_PAUSES = (0.5, 2.0, 8.0)  # seconds before the second, third and fourth try
_GAP = "stream.gap"

log = logging.getLogger("fairlead.worker")


class HookEvent(Protocol):
    """What a hook is called with."""

    @property
    def id(self) -> str: ...
    @property
    def type(self) -> str: ...


class HookEvents(Protocol):
    """A stream of them, from a place on."""

    @property
    def place(self) -> str:
        """Behind all that is finished."""
        ...

    async def start(self) -> None: ...
    def finish(self) -> None: ...
    async def __anext__(self) -> HookEvent: ...


@dataclass(frozen=True, kw_only=True)
class Hook:
    """A function, and how to open the events that it is for."""

    name: str
    function: Callable[[Any], Any]
    open: Callable[[str | None], HookEvents]  # from behind a place, or from now
    timeout: float  # seconds that one call may take


class _Held(msgspec.Struct, frozen=True):
    """What a document says."""

    holder: str  # empty: nobody
    place: str


class _Lost(Exception):
    """Somebody else holds the hook, or may soon."""


class HookRunner:
    """Takes hooks that nobody holds, and calls them. It never ends by an error of theirs."""

    name = "hooks"

    def __init__(
        self,
        broker: Broker,
        hooks: Sequence[Hook],
        *,
        dice: Callable[[], float] = generator.random,
    ) -> None:
        self._broker = broker
        self._hooks = hooks
        self._dice = dice
        self._id = new_id()
        self._caller = Caller(f"{self._id}:hooks")
        self._held: dict[str, asyncio.Task[None]] = {}
        self._calls = {hook.name: HookCalls(hook.function) for hook in hooks}

    @property
    def held(self) -> list[str]:
        """The names of the hooks that this process calls now."""
        return list(self._held)

    async def prepare(self) -> None:
        """Let hooks that are new begin now: they are called for what happens from here on.

        Called before the first task is fetched. If the broker cannot, they begin a little later.
        """
        if not self._hooks:
            return
        try:
            async with asyncio.timeout(_WRITE):
                page = await self._broker.documents(KIND, [hook.name for hook in self._hooks])
                known = {document.name for document in page.documents}
                for hook in self._hooks:
                    if hook.name not in known:
                        await self._holding(hook, "", 0).begin()
        except (BrokerError, TimeoutError) as error:
            log.warning("hooks begin later", extra={"error": type(error).__name__})

    async def run(self) -> None:
        """Look for hooks to take, and call those that are taken, until cancelled."""
        outage = Outage(self.name)
        try:
            while self._hooks:
                try:
                    await self.look()
                except BrokerError as error:
                    outage.failed(error)
                else:
                    outage.over()
                await asyncio.sleep(_LOOK * (0.5 + self._dice()))
        finally:
            tasks = list(self._held.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def look(self) -> None:
        """Take all hooks that nobody holds, or whose holder has not been heard of."""
        free = {hook.name: hook for hook in self._hooks if hook.name not in self._held}
        if not free:
            return
        page = await self._broker.documents(KIND, list(free))
        known = {document.name: document for document in page.documents}
        for name, hook in free.items():
            document = known.get(name)
            held = None if document is None else _decoded(document)
            silent = document is not None and page.now - document.changed_at > _LEASE
            if held is None or held.holder in ("", self._id) or silent:
                revision = 0 if document is None else document.revision
                holding = self._holding(hook, self._id, revision)
                task = asyncio.create_task(
                    holding.run(None if held is None else held.place), name=f"hook {name}"
                )
                self._held[name] = task
                task.add_done_callback(lambda _, name=name: self._held.pop(name, None))  # type: ignore[misc]

    def _holding(self, hook: Hook, holder: str, revision: int) -> _Holding:
        calls = self._calls[hook.name]
        return _Holding(self._broker, self._caller, hook, calls, holder, revision)


class _Holding:
    """One hook, for as long as this process holds it."""

    def __init__(
        self,
        broker: Broker,
        caller: Caller,
        hook: Hook,
        calls: HookCalls,
        holder: str,
        revision: int,
    ) -> None:
        self._broker = broker
        self._caller = caller
        self._hook = hook
        self._calls = calls
        self._holder = holder
        self._revision = revision
        self._written = ""  # the place that is kept

    async def begin(self) -> None:
        """Keep the present as the place of a hook that has none, for whoever takes it."""
        events = self._hook.open(None)
        await events.start()
        with contextlib.suppress(_Lost):  # somebody else has begun it
            await self._write("", events.place)

    async def run(self, place: str | None) -> None:
        """Take the hook and call it, until it is lost or this task is cancelled. Never raises."""
        try:
            events = self._open(place)
            if not place:
                await events.start()  # a hook that is new begins now
            await self._write(self._holder, place or events.place)
        except (BrokerError, _Lost):
            return  # somebody was faster, or the broker is away: it is looked at again
        log.info("hook taken", extra={"hook": self._hook.name})
        work = asyncio.ensure_future(self._call_all(events))
        keep = asyncio.ensure_future(self._keep(events))
        try:
            await asyncio.wait((work, keep), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, keep):
                task.cancel()
            await asyncio.wait((work, keep))
            for task in (work, keep):
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._say(error)
            await self._release(events)

    def _open(self, place: str | None) -> HookEvents:
        try:
            return self._hook.open(place or None)
        except InvalidInput:
            log.warning("place of a hook cannot be read", extra={"hook": self._hook.name})
            return self._hook.open(None)

    def _say(self, error: BaseException) -> None:
        fields = {"hook": self._hook.name, "error": type(error).__name__}
        if isinstance(error, _Lost):
            log.warning("hook lost: another process may call it", extra=fields)
        elif isinstance(error, BrokerError):
            log.warning("hook let go: events cannot be read", extra=fields)
        else:
            stack = "".join(traceback.format_exception(error))
            log.error("hook let go after an error of ours", extra={**fields, "stack": stack})

    # -- the place ------------------------------------------------------------------------------

    async def _keep(self, events: HookEvents) -> None:
        clock = asyncio.get_running_loop().time
        renewed = clock()
        while True:
            await asyncio.sleep(_CONFIRM)
            began = clock()
            place = events.place or self._written  # until it has begun to read, it has none
            if place == self._written and began - renewed < _RENEW:
                continue
            try:
                await self._write(self._holder, place)
            except BrokerError:
                if clock() - renewed >= _LOST:
                    raise _Lost from None
            else:
                renewed = began

    async def _write(self, holder: str, place: str) -> None:
        """Keep a place, and the hook. Raises ``_Lost`` if somebody else has written since."""
        limit = Limit(asyncio.get_running_loop().time() + _WRITE)
        if not await self._written_as(holder, place, limit):
            await self._recognise(limit)
            if not await self._written_as(holder, place, limit):
                raise _Lost

    async def _written_as(self, holder: str, place: str, limit: Limit) -> bool:
        change = DocumentChange(
            kind=KIND,
            name=self._hook.name,
            value=msgspec.json.encode(_Held(holder, place)),
            ttl=_KEPT,
            revision=self._revision,
        )
        (answer,) = await self._caller.call(
            lambda call: self._broker.write_documents(call, [change]), limit
        )
        if answer.code == "done":
            self._revision, self._written = answer.revision, place
        return answer.code == "done"

    async def _recognise(self, limit: Limit) -> None:
        """Find the revision by which it is still ours; raises ``_Lost`` if it is not.

        The answer to the last write may have been lost, and so may the document, with all that the
        server had: whoever began anew would miss what happened since.
        """
        try:
            async with asyncio.timeout_at(limit.until):
                page = await self._broker.documents(KIND, [self._hook.name])
        except TimeoutError:
            raise late(in_flight=False) from None
        document = next(iter(page.documents), None)
        held = None if document is None else _decoded(document)
        if not self._holder or (
            document is not None and (held is None or held.holder != self._holder)
        ):
            raise _Lost
        self._revision = 0 if document is None else document.revision

    async def _release(self, events: HookEvents) -> None:
        """Let another process take the hook at once."""
        try:
            async with asyncio.timeout(_WRITE):
                await self._write("", events.place or self._written)
        except (BrokerError, TimeoutError, _Lost):
            return  # it is taken over when its time is over, or was already

    # -- calls ----------------------------------------------------------------------------------

    async def _call_all(self, events: HookEvents) -> None:
        while True:
            event = await anext(events)
            if event.type == _GAP:
                log.warning("hook missed events: they are gone", extra=self._fields(event))
            else:
                await self._call(event, events)
            events.finish()

    async def _call(self, event: HookEvent, events: HookEvents) -> None:
        """Call the function, again if it fails, and go on without it in the end."""
        for pause in (*_PAUSES, None):
            if self._calls.is_full:
                log.error("hook waits: too many calls hang", extra=self._fields(event))
            task = await self._calls.begin(event)
            try:
                await asyncio.wait([task], timeout=self._hook.timeout)
            except asyncio.CancelledError:
                await asyncio.wait([task], timeout=_GRACE)
                if task.done() and not task.cancelled() and task.exception() is None:
                    events.finish()
                task.cancel()
                raise
            if not task.done():  # it may go on: to call it again would be a second one beside it
                task.cancel()
                fields = {**self._fields(event), "seconds": self._hook.timeout}
                log.error("hook given up: %s takes too long", self._hook.name, extra=fields)
                return
            error = None if task.cancelled() else task.exception()
            if error is None and not task.cancelled():
                return
            self._failed(event, error or asyncio.CancelledError(), pause)
            if pause is not None:
                await asyncio.sleep(pause)

    def _failed(self, event: HookEvent, error: BaseException, pause: float | None) -> None:
        kind = type(error).__name__
        # The stack without the words of the error, which may repeat what a user sent.
        stack = "".join(traceback.format_tb(error.__traceback__))
        fields = {**self._fields(event), "error": kind, "stack": stack}
        if pause is None:
            log.error(
                "hook given up: %s failed for %s, %s",
                self._hook.name,
                event.type,
                kind,
                extra=fields,
            )
        else:
            log.warning(
                "hook failed and is called again: %s, %s", self._hook.name, kind, extra=fields
            )

    def _fields(self, event: HookEvent) -> dict[str, object]:
        return {
            "hook": self._hook.name,
            "event": event.type,
            "event_id": event.id,
            "task_id": getattr(event, "task_id", ""),
        }


def _decoded(document: Document) -> _Held | None:
    try:
        return _decode(document.value)
    except msgspec.DecodeError:  # of a later release: to be written anew
        return None


_decode = msgspec.json.Decoder(_Held).decode
