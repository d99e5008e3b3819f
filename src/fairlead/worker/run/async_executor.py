"""Lanes: asyncio tasks in which async handlers run, one after the other as long as none waits.

A task of its own for every attempt costs a good part of a short one. Many handlers never wait for
anything, or not this time; they need none. So a lane runs attempt after attempt, each in a context
of its own. As soon as one waits, the lane is its task, for this attempt and no other, and another
lane goes on with the rest. What is kept per task (sessions of a database, for example) is therefore
never shared with an attempt that had a chance to put something there while it waited.

Only a handler whose last attempt did not wait is expected not to. Attempts of the others get tasks
of their own at once, so that all of them begin in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Protocol

_TURN = 100  # attempts that one lane runs before everybody else has a turn of the loop


class Begins(Protocol):
    """An attempt that a lane can run, in one step perhaps."""

    over: bool  # it was taken back

    @property
    def handler(self) -> object:
        """What it is an attempt of."""
        ...

    def run(self) -> Stepped | None:
        """Run it in one step if that will do; else return what has to be run in several."""
        ...


class Stepped(Begins, Protocol):
    """An attempt that may wait."""

    variables: Context

    def steps(self) -> Coroutine[Any, Any, None]:
        """Its code. Must not raise what is not meant for the process."""
        ...

    def suspended(self, task: asyncio.Task[None]) -> None:
        """It waits for something; this is its task from now on."""
        ...

    def ended(self) -> None:
        """Its code has come to its end. Called outside of its variables."""
        ...


class AsyncExecutor:
    """Runs attempts in the order given. Not more than one lane looks for work at a time."""

    def __init__(self) -> None:
        self._ready: deque[Begins] = deque()
        self._awake: asyncio.Task[None] | None = None  # the lane that takes the next one
        self.quick: set[object] = set()  # handlers that did not wait for anything the last time
        self._hosts = False  # this lane is one that has waited for work, and takes any handler
        self.drained: Callable[[], None] = _nothing  # no more is ready, or others have a turn

    def submit(self, attempt: Begins) -> None:
        """Run it, but not before this returns."""
        if attempt.handler in self.quick or (self._hosts and not self._ready):
            self.submit_quick(attempt)
        else:
            _ = _task(self._alone(attempt))  # the attempt keeps it, once it waits

    def submit_quick(self, attempt: Begins) -> None:
        """The same for one whose handler is known to be quick."""
        self._ready.append(attempt)
        if self._awake is None:
            self._awake = _task(self._lane())

    def enter(self) -> bool:
        """Make the running task the lane that takes what is submitted next; False if there is one.

        It has waited for work, and takes any handler: so what came begins in the same turn of the
        loop. ``serve`` must follow.
        """
        if self._awake is not None:
            return False
        self._awake, self._hosts = asyncio.current_task(), True
        return True

    async def serve(self) -> None:
        """Run what was submitted since ``enter``, and be a lane as others are."""
        self._hosts = False
        await self._lane()

    async def _alone(self, attempt: Begins) -> None:
        if attempt.over:
            return
        begun = await self._begin(deque([attempt]))
        if begun is None:
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        begun[0].suspended(task)
        await _go_on(*begun)

    async def _lane(self) -> None:
        begun = None
        try:
            begun = await self._begin(self._ready)
            if begun is not None:
                assert self._awake is not None  # noqa: S101 - it is this one
                begun[0].suspended(self._awake)
        finally:
            self.drained()
            self._awake = None
            self._pass_on(None if begun is None else begun[0].handler)
        if begun is not None:
            await _go_on(*begun)

    def _pass_on(self, waited: object) -> None:
        """This lane takes no more: see to what is ready."""
        self.quick.discard(waited)
        for _ in range(len(self._ready)):
            self.submit(self._ready.popleft())

    @types.coroutine
    def _begin(self, ready: deque[Begins]) -> Generator[None, None, _Begun | None]:
        """Run attempts until one of them waits; that one, or None if none is left."""
        left, lane = _TURN, self._awake
        while True:
            if not ready:
                self.drained()  # which may bring more
                if not ready:
                    return None
            next = ready.popleft()
            if next.over:
                continue
            attempt = next.run()
            if attempt is not None:
                steps = attempt.steps()
                try:
                    waits = attempt.variables.run(steps.send, None)
                except StopIteration:
                    attempt.ended()
                    self.quick.add(attempt.handler)
                else:
                    return attempt, steps, waits
            left -= 1
            if not left:
                left = _TURN
                self.drained()
                yield
            if lane is not None and lane.cancelling():
                return None  # it has left a cancellation behind, which is not for the next


def _nothing() -> None:
    """What is to be done where nobody said it."""


def _task(lane: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(lane, name="fairlead-lane")


_Begun = tuple[Stepped, Coroutine[Any, Any, None], Any]


@types.coroutine
def _go_on(
    attempt: Stepped, steps: Coroutine[Any, Any, None], waits: Any
) -> Generator[Any, Any, None]:
    """The rest of an attempt that has begun to wait, as if this lane had always been its task."""
    variables = attempt.variables
    try:
        while True:
            try:
                value = yield waits
            except GeneratorExit:
                variables.run(steps.close)
                raise
            except BaseException as error:  # noqa: BLE001 - it is meant for the attempt
                waits = variables.run(steps.throw, error)
            else:
                waits = variables.run(steps.send, value)
    except StopIteration:
        attempt.ended()
