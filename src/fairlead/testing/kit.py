"""The kit: an app whose tasks are in memory, with a clock that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Self, cast

from fairlead.app import Fairlead
from fairlead.app.drain import Drained, drained
from fairlead.broker import Caller, Store, connect
from fairlead.client import Task
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput
from fairlead.model.names import DEFAULT_QUEUE, DEFAULT_TENANT
from fairlead.model.options import seconds
from fairlead.runtime.ids import new_id
from fairlead.testing.clock import ManualClock
from fairlead.testing.context import RecordingContext, new_context
from fairlead.testing.crashes import Crash
from fairlead.testing.enqueued import EnqueuedTask, enqueued_task, matches, shown_calls
from fairlead.testing.recording_broker import RecordingBroker

_LIMIT = 10_000  # attempts of a drain, and moments of ``elapse``


class Kit:
    """An app under test: ``with Kit(app) as kit: ...``.

    While the block lasts the app works with a broker in memory that is new and empty, whatever its
    URL says, and time stands still until ``clock`` is moved. It has no fallback then, and no ledger
    but the one that is named here. In the end the app is what it was.
    """

    def __init__(
        self,
        app: Fairlead | None = None,
        *,
        start: float | datetime | None = None,
        ledger: str | None = None,
    ) -> None:
        """Prepare the kit for an app, or for a new one.

        Args:
            app: The app whose broker it replaces. Default: a new one.
            start: The moment its clock begins at. Default: now.
            ledger: The URL of a PostgreSQL as the record. Default: none.
        """
        self.app = Fairlead("memory://") if app is None else app
        self.clock = ManualClock(start)
        self._ledger = ledger
        self._stack: ExitStack | None = None
        self._broker = self._new_broker()

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise InvalidInput("this kit is in use already; make another one")
        self._stack = ExitStack()
        self._install(self._stack)
        return self

    def __exit__(self, *error: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        self.app._raised.clear()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        try:
            await self.app._clients.close_ledger()
        finally:
            self.__exit__(*error)

    def reset(self) -> None:
        """Begin anew: no tasks, no ids in use, no settings, no exceptions. The clock stays."""
        if self._stack is None:
            raise InvalidInput("reset() is for use inside of: with Kit(app) as kit")
        self._stack.close()
        self._broker = self._new_broker()
        self._install(self._stack)

    def _new_broker(self) -> RecordingBroker:
        return RecordingBroker(connect("memory://", clock=self.clock))

    def _install(self, stack: ExitStack) -> None:
        store = cast(Store, self._broker)
        stack.enter_context(self.app._clients.replaced(store, self._ledger))
        self.app._raised.clear()

    # -- running -------------------------------------------------------------------------------

    async def adrain(
        self,
        *,
        queues: Sequence[str] | None = None,
        limit: int | None = _LIMIT,
        raise_errors: bool = True,
    ) -> Drained:
        """Run all that is due now and all that comes of it; the number of attempts.

        What handlers raise is raised here: the error itself, or an ExceptionGroup of several.
        ``left`` of the answer says what did not run, and why. What workers held that a test let die
        is given back, and run by another.

        Args:
            queues: The names of the queues to serve, in order. Default: all that there are.
            limit: More attempts raise an error; None is no limit. Default: 10,000.
            raise_errors: False keeps what handlers raise in ``app.exceptions``. Default: True.
        """
        attempts = 0
        while True:
            done = await self.app.drain(queues=queues, limit=limit, raise_errors=raise_errors)
            attempts += done
            if not await self._broker.bury():
                break
        if attempts == done:
            return done
        return await drained(self.app._clients.current(), attempts, queues)

    def drain(
        self,
        *,
        queues: Sequence[str] | None = None,
        limit: int | None = _LIMIT,
        raise_errors: bool = True,
    ) -> Drained:
        """Run all that is due, from sync code; see ``adrain``.

        Args:
            queues: The names of the queues to serve, in order. Default: all that there are.
            limit: More attempts raise an error; None is no limit. Default: 10,000.
            raise_errors: False keeps what handlers raise in ``app.exceptions``. Default: True.
        """
        _no_loop("drain", "adrain")
        return asyncio.run(self.adrain(queues=queues, limit=limit, raise_errors=raise_errors))

    async def aelapse(self, duration: Duration, *, raise_errors: bool = True) -> Drained:
        """Let time pass from one due moment to the next, and drain at each; all attempts.

        Unlike ``clock.advance`` it is as if workers had been there all the time: a schedule fires
        every slot in its own time, and a retry runs when it is due.

        Args:
            raise_errors: False keeps what handlers raise in ``app.exceptions``. Default: True.
        """
        ends = self.clock.wall() + seconds("duration", duration)
        caller = Caller(f"kit:{new_id()}")
        attempts = int(await self.adrain(raise_errors=raise_errors))
        for _ in range(_LIMIT):
            left = ends - self.clock.wall()
            reply = await caller.call(self._broker.exchange)
            if reply.due_in is None or reply.due_in > left:
                self.clock.advance(max(left, 0.0))
                last = await self.adrain(raise_errors=raise_errors)
                return Drained(attempts + last, last.left, last.more)
            # A little more: the moment itself may be a fraction of a microsecond away.
            self.clock.advance(min(reply.due_in + 1e-6, max(left, 0.0)))
            attempts += await self.adrain(raise_errors=raise_errors)
        raise InvalidInput(
            f"something was due at {_LIMIT:,} moments within {duration!r}; let less time pass"
        )

    def elapse(self, duration: Duration, *, raise_errors: bool = True) -> Drained:
        """Let time pass, from sync code; see ``aelapse``.

        Args:
            raise_errors: False keeps what handlers raise in ``app.exceptions``. Default: True.
        """
        _no_loop("elapse", "aelapse")
        return asyncio.run(self.aelapse(duration, raise_errors=raise_errors))

    def crash(self, at: Crash, task: str | None = None, *, times: int = 1) -> None:
        """Let the next worker die that comes to this point with a task of that name, or any.

        ``fetched``: it has the task in hand. ``started``: it has begun, and the crash is charged to
        the task. ``finished``: the handler has ended, and the broker does not know. ``settled``:
        the broker knows. ``drain`` goes on with another worker.

        Args:
            task: Only workers with a task of this name die. Default: with any.
            times: How often that happens. Default: 1.
        """
        self._broker.crashes.plan(at, task, times)

    @property
    def crashes_left(self) -> list[str]:
        """What was asked for with ``crash`` and has not happened."""
        return self._broker.crashes.pending

    # -- looking -------------------------------------------------------------------------------

    @property
    def enqueued_tasks(self) -> list[EnqueuedTask]:
        """All that the broker accepted since the beginning or the last ``reset``, in order."""
        registry, priorities = self.app._registry, self.app._priorities
        codecs = self.app._clients.codecs
        return [
            enqueued_task(each.submission, registry, priorities, each.schedule, codecs)
            for each in self._broker.recorded
        ]

    def enqueued(self, name: str, /, **arguments: Any) -> list[EnqueuedTask]:
        """Assert that a task was enqueued with these arguments, and perhaps others; all of them.

        ``name`` is that of the task, in full or behind its last dot. Arguments are compared by the
        names of the parameters, however they were given.
        """
        tasks = self.enqueued_tasks
        found = [task for task in tasks if matches(task, name, arguments)]
        if not found:
            raise AssertionError(f"{_call(name, arguments)} was not enqueued; {shown_calls(tasks)}")
        return found

    def not_enqueued(self, name: str, /, **arguments: Any) -> None:
        """Assert that no task of this name was enqueued with these arguments."""
        found = [task for task in self.enqueued_tasks if matches(task, name, arguments)]
        if found:
            raise AssertionError(f"{_call(name, arguments)} was enqueued; {shown_calls(found)}")

    def context(
        self,
        task: Task[..., Any] | str = "test",
        *,
        id: str | None = None,
        attempt: int = 1,
        tenant: str = DEFAULT_TENANT,
        queue: str = DEFAULT_QUEUE,
        headers: Mapping[str, str] | None = None,
        correlation_id: str = "",
        resources: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
        xcom: Mapping[str, Any] | None = None,
    ) -> RecordingContext:
        """A context for calling a handler directly: ``await send(kit.context(), "ada")``.

        What the handler reports is in ``reported``, what it leaves for others in ``left``, and what
        it enqueues is enqueued.

        Args:
            task: The task, or a name for it. Default: "test".
            id: The id of the task. Default: a new one.
            attempt: The number of the attempt. Default: 1.
            tenant: Whose task it is. Default: "default".
            queue: The queue it came through. Default: "default".
            headers: What ``ctx.headers`` has. Default: nothing.
            correlation_id: What ``ctx.correlation_id`` is. Default: empty.
            resources: What a worker would have opened, by name. Default: nothing.
            results: What dependencies returned, by the names of their tasks. Default: nothing.
            xcom: What other tasks left, by key. Default: nothing.
        """
        return new_context(
            self.app,
            task if isinstance(task, str) else task.name,
            id=id,
            attempt=attempt,
            tenant=tenant,
            queue=queue,
            headers=headers,
            correlation_id=correlation_id,
            resources=resources,
            results=results,
            xcom=xcom,
        )


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{name}({given})" if given else name


def _no_loop(name: str, better: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(f"{name}() is for sync tests; in async code use: await kit.{better}()")
