"""Trace one plain task from ``aenqueue`` to ``aresult`` and count the hops of its walk.

    python -m tools.walk redis://127.0.0.1:6379/0

A hop is a call from one source file into a function of another one that the task passes: which is
handed the task in any form (its id, arguments, message, loan, settlement, reply or result), or
returns it, or calls something that is. Every entry counts, also the third one into the same
function. What waits for the task already (a worker, a collecting call) counts where it goes on.
What stays in its file does not count, nor does returning, nor what never sees the task: clocks,
counters, the worker's next look for work.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

import fairlead
from fairlead import Fairlead

__all__ = ("LEGS", "Hop", "Walk", "whole_walk")

ROOT = str(Path(fairlead.__file__).parent) + "/"
LEGS = ("enqueue", "loan to handler", "outcome", "result")

_ARGUMENT = "an-argument-like-no-other"
_RESULT = "a-result-like-no-other"
_NEW_ID = ("runtime/ids.py", "_maker.<locals>.new_id")
_WHOLE = {
    _NEW_ID,
    ("broker/redis/answers.py", "handed"),
    ("broker/redis/answers.py", "letters"),
    ("worker/run/light_attempt.py", "LightAttempt.run"),
}
_HELD_UP = 0.05  # seconds: until then the result was asked for
_DEEPEST = 4  # levels of containers in which the task is looked for


@dataclass
class Hop:
    """One entry into a function."""

    file: str  # below the package
    function: str
    crosses: bool  # it was called from another file
    leg: str
    depth: int
    caller: Hop | None
    waited: bool  # since before the task was there: whatever called it did not do so for the task
    passes: bool = False  # the task passes it

    def __str__(self) -> str:
        return f"{self.leg:16}{'  ' * self.depth}{self.file} {self.function}"


@dataclass
class Walk:
    """All functions of the package that were entered while one task was under way."""

    entered: list[Hop] = field(default_factory=list)

    @property
    def hops(self) -> list[Hop]:
        """Return the hops of the task, in order."""
        return [hop for hop in self.entered if hop.crosses and hop.passes]

    @property
    def is_whole(self) -> bool:
        """Return whether the task was handed over and waited for, by one that was met before."""
        entered = {(hop.file, hop.function) for hop in self.entered}
        return entered >= _WHOLE

    @property
    def legs(self) -> Counter[str]:
        """Return how many hops each leg has."""
        return Counter(hop.leg for hop in self.hops)


class _Tracer:
    """Notes which functions are entered, and which of them the task passes."""

    def __init__(self) -> None:
        self.walk = Walk()
        self.marks: list[str] = [_ARGUMENT, _RESULT]
        self.accepted = self.handled = False
        self._open: dict[FrameType, Hop] = {}
        self._last: dict[str, str] = {}  # by leg: the file of its last hop

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(ROOT):
            return
        if event == "call":
            hop = self._open.get(frame)
            if hop is None:  # otherwise it is resumed
                self._entered(frame, code)
        elif event == "return":
            hop = self._open.get(frame)
            if hop is not None and (hop.file, hop.function) == _NEW_ID:
                self.marks.append(arg)
            if hop is not None and not hop.passes and self._carries(arg):
                self._mark(hop)

    def _entered(self, frame: FrameType, code: CodeType) -> None:
        back = frame.f_back
        while back is not None and not back.f_code.co_filename.startswith(ROOT):
            back = back.f_back
        caller = None if back is None else self._open.get(back)
        file = code.co_filename.removeprefix(ROOT)
        leg = self._leg(file, caller)
        # What the loop calls goes on from where the leg was.
        before = self._last.get(leg) if caller is None else caller.file
        depth = 0 if caller is None else caller.depth + 1
        waited = code.co_code[frame.f_lasti + 1] & 3 != 0  # of RESUME: 0 only at the very begin
        hop = Hop(file, code.co_qualname, before != file, leg, depth, caller, waited)
        self._open[frame] = hop  # keeps the frame: another one may not have its place
        self.walk.entered.append(hop)
        if any(self._carries(value) for value in _arguments(frame, code)):
            self._mark(hop)

    def _mark(self, hop: Hop | None) -> None:
        if hop is not None and not hop.passes:
            hop.passes = True
            self._last[hop.leg] = hop.file
            if not hop.waited:
                self._mark(hop.caller)

    def _leg(self, file: str, caller: Hop | None) -> str:
        files = {file}
        while caller is not None:
            files.add(caller.file)
            caller = caller.caller
        if any(each.startswith(("worker/", "broker/redis/hand_off")) for each in files):
            return "outcome" if self.handled else "loan to handler"
        return "result" if self.accepted else "enqueue"

    def _carries(self, value: Any, deep: int = 0) -> bool:
        if isinstance(value, str):
            return any(mark in value for mark in self.marks)
        if isinstance(value, bytes | bytearray):
            return any(mark.encode() in value for mark in self.marks)
        if deep == _DEEPEST:
            return False
        return any(self._carries(part, deep + 1) for part in _parts(value))


def _arguments(frame: FrameType, code: CodeType) -> Iterator[Any]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **kwargs
    for name in code.co_varnames[:count]:
        if name not in ("self", "cls"):
            yield frame.f_locals.get(name)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    elif isinstance(value, partial):
        yield from (*value.args, *value.keywords.values())
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield getattr(value, name)
    elif type(value).__module__.startswith("fairlead.worker.") and hasattr(value, "lease"):
        yield value.lease


async def whole_walk(url: str, tries: int = 100) -> Walk:
    """Return the walk of a task that was handed to a waiting worker, and whose caller had to wait.

    A handed task has run before its caller could ask for its result, so the worker's exchange is
    held up for a moment. If a reply of the server comes late all the same, a task may be fetched
    instead: then another one is sent.
    """
    app = Fairlead(url)
    tracer = _Tracer()

    @app.task
    async def echo(text: str) -> str:
        tracer.handled = True
        return _RESULT if text else ""

    async with app.worker() as worker:
        line = worker.syncer._line  # of exchanges
        for _ in range(5):  # until all is loaded, and the handler is known to be quick
            await (await echo.aenqueue(_ARGUMENT)).aresult()
        for _ in range(tries):
            await asyncio.sleep(0.2)  # until the worker waits for work
            tracer = _Tracer()
            await line.acquire()
            asyncio.get_running_loop().call_later(_HELD_UP, line.release)
            sys.setprofile(tracer)
            try:
                handle = await echo.aenqueue(_ARGUMENT)
                tracer.accepted = True
                assert await handle.aresult() == _RESULT
            finally:
                sys.setprofile(None)
            if tracer.walk.is_whole:
                return tracer.walk
    raise AssertionError(f"no task of {tries} went the whole way")


if __name__ == "__main__":
    found = asyncio.run(whole_walk(sys.argv[1]))
    print(*found.hops, sep="\n")
    print(*(f"{leg}: {found.legs[leg]}" for leg in LEGS), sep="\n")
    entered = [hop for hop in found.entered if hop.crosses]
    distinct = {(hop.file, hop.function) for hop in found.hops}
    print(f"{len(found.hops)} hops, {len(distinct)} functions; entered in all: {len(entered)}")
