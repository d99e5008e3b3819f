"""The log of an attempt, ``ctx.log``: a logger, and lines that are kept with the task.

Lines are sent together, within a second, and before the outcome of the attempt. What the broker
does not take waits here, up to the bounds of a log. None of it is the handler's business.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from fairlead.broker.requests import LeaseRef, Write
from fairlead.model.argument_packing import pack
from fairlead.model.codecs import CodecError, Codecs
from fairlead.model.errors import Fenced, InvalidInput
from fairlead.model.log_lines import (
    MAX_CHUNK,
    MAX_CHUNK_LINES,
    MAX_LINE,
    MAX_LINES,
    MAX_LOG,
    chunk_of,
    packed_line,
)
from fairlead.model.safe_repr import safe_repr
from fairlead.worker.run.progress_writer import Writes

if TYPE_CHECKING:
    _LoggerAdapter = logging.LoggerAdapter[logging.Logger]
else:
    _LoggerAdapter = logging.LoggerAdapter

log = logging.getLogger("fairlead.worker")

_SOON = 0.5  # seconds until lines are sent
_AGAIN = 2.0  # seconds, after the broker did not take them
_NO_FIELDS = b"\x80"


class TaskLog(_LoggerAdapter):
    """Called with a text and fields, it keeps a line with the task. It is a logger as well.

    As a logger it keeps the fields that a call brings itself; the stdlib's adapter drops them.
    """

    def __init__(
        self,
        logger: logging.Logger,
        extra: dict[str, object],
        keep: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """``keep`` takes the lines of the task."""
        super().__init__(logger, extra)
        self._keep = keep

    def __call__(self, text: object, /, **fields: Any) -> None:
        """Keep a line with the task: ``handle.logs()``, ``fairlead task show``, the HTTP API.

        It is sent with others, within a second, and never fails: the oldest lines of more than 500,
        or 64 KiB, are dropped, and what is too long is cut.
        """
        self._keep(str(text), fields)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class LogBuffer:
    """Takes lines in any thread, and sends them on the worker's loop."""

    __slots__ = (
        "_armed", "_codecs", "_is_over", "_lease", "_lines", "_lock", "_loop", "_missed", "_size",
        "_task", "_timer", "_told", "_writer",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: Writes,
        lease: LeaseRef,
        codecs: Codecs | None,
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._lease = lease
        self._codecs = codecs
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._size = self._missed = 0
        self._armed = self._is_over = self._told = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def has_lines(self) -> bool:
        """Whether something has not been sent, or not heard of."""
        return bool(self._lines or self._missed or self._task)

    def add(self, attempt: int, text: str, fields: Mapping[str, Any]) -> None:
        """Take a line; of too many that wait the oldest is dropped."""
        line = packed_line(time.time(), attempt, text, fields_of(fields))
        with self._lock:
            if self._is_over:
                return
            self._put(line)
            is_first, self._armed = not self._armed, True
        if is_first:
            try:
                self._loop.call_soon_threadsafe(self._arm, _SOON)
            except RuntimeError:  # the worker has ended: there is nobody to send it
                return

    async def close(self) -> None:
        """Send what is there, once, and take nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._send()
        self.drop()

    def drop(self) -> None:
        """Take nothing more, and send nothing."""
        with self._lock:
            self._is_over = True
            self._lines.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _put(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        while len(self._lines) > MAX_LINES or self._size > MAX_LOG:
            self._size -= len(self._lines.popleft())
            self._missed += 1

    def _arm(self, seconds: float) -> None:
        if not self._is_over:
            self._timer = self._loop.call_later(seconds, self._begin)

    def _begin(self) -> None:
        if self._task is not None:  # the broker takes its time: one call at a time keeps the order
            self._arm(_SOON)
            return
        self._task = self._loop.create_task(self._send_later(), name="log lines")

    async def _send_later(self) -> None:
        with self._lock:
            self._armed = False
        written = await self._send()
        self._task = None
        with self._lock:
            again, self._armed = bool(self._lines) and not self._armed, bool(self._lines)
        if again:
            self._arm(_SOON if written else _AGAIN)

    async def _send(self) -> bool:
        """Send what is there; whether the broker took it."""
        while True:
            with self._lock:
                lines, missed = self._taken()
            if not lines:
                return True
            try:
                chunk = chunk_of(lines, missed, self._codecs)
            except (CodecError, InvalidInput) as error:
                self._give_up(len(lines) + missed, error)
                await asyncio.sleep(0)  # the loop is not kept by a handler that goes on writing
                continue
            try:
                if await self._writer.report(Write(lease=self._lease, kind="log", value=chunk)):
                    continue
            except Fenced:  # the task is somebody else's: so is its log
                return False
            with self._lock:  # back in front of what has come meanwhile
                self._missed += missed
                newer = list(self._lines)
                self._lines.clear()
                self._size = 0
                for line in (*lines, *newer):
                    self._put(line)
            return False

    def _give_up(self, count: int, error: Exception) -> None:
        """Count lines that no codec takes with those that were dropped; say so once."""
        with self._lock:
            self._missed += count
        if not self._told:
            self._told = True
            kind, id = type(error).__name__, self._lease.id
            fields = {"task_id": id, "error": kind}
            log.warning("log lines of task %s dropped: %s: %s", id, kind, error, extra=fields)

    def _taken(self) -> tuple[list[bytes], int]:
        lines: list[bytes] = []
        size = 0
        while self._lines and len(lines) < MAX_CHUNK_LINES:
            size += len(self._lines[0])
            if lines and size > MAX_CHUNK - 64:
                break
            lines.append(self._lines.popleft())
            self._size -= len(lines[-1])
        missed = self._missed if lines else 0
        self._missed -= missed
        return lines, missed


def fields_of(fields: Mapping[str, Any]) -> bytes:
    """Return the fields of a line, packed; what cannot be stored as it is becomes a text."""
    if not fields:
        return _NO_FIELDS
    try:
        return pack(dict(fields), "a field", MAX_LOG)
    except InvalidInput:
        return pack({_text(key): _storable(value) for key, value in fields.items()}, "a field")


def _storable(value: Any) -> Any:
    try:
        pack(value, "a field", MAX_LINE)
    except InvalidInput:
        return _text(safe_repr(value))
    return value


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()
