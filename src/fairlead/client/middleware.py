"""Middleware around an enqueue: sees each task before it is written, and what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec

from fairlead.broker.requests import Receipt, Submission
from fairlead.broker.submission_checks import MAX_TRACE
from fairlead.client.errors import error_of
from fairlead.model.errors import InvalidInput, TooLarge
from fairlead.model.message import Body, Trace
from fairlead.model.safe_repr import safe_repr


class Enqueuing(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is about to be enqueued. ``headers`` may be filled: they travel with it."""

    task: str
    """The name that the task is registered under."""
    id: str
    """The id that the task will have."""
    tenant: str
    """Whose task it is."""
    queue: str
    """The queue that it goes to."""
    correlation_id: str
    """What joins it with other tasks."""
    headers: dict[str, str]
    """What travels with the task, to be changed; handlers read it as ``ctx.headers``."""


#: Makes a context manager that is entered before a task is written and left afterwards.
AroundEnqueue = Callable[[Enqueuing], AbstractAsyncContextManager[Any]]


async def through(
    around: Sequence[AroundEnqueue],
    submissions: Sequence[Submission],
    send: Callable[[Sequence[Submission]], Awaitable[list[Receipt]]],
) -> list[Receipt]:
    """Send submissions with the middleware around each of them.

    If it raises before anything is sent, nothing is. It learns of a refusal, but cannot make one
    good by swallowing it: there would be no task to return.
    """
    if not around:
        return await send(submissions)
    passing: list[_Passing] = []
    try:
        for submission in submissions:
            passing.append(await _enter(around, submission))  # noqa: PERF401 - those before it leave
        receipts = await send([each.submission for each in passing])
    except BaseException as error:
        for each in reversed(passing):
            await each.leave(error)
        raise
    raised: BaseException | None = None
    for each, receipt in zip(reversed(passing), reversed(receipts), strict=True):
        raised = await each.leave(error_of(receipt, each.submission)) or raised
    if raised is not None:
        raise raised
    return receipts


class _Passing:
    """One submission, inside the middleware."""

    __slots__ = ("_stack", "submission")

    def __init__(self, submission: Submission, stack: AsyncExitStack) -> None:
        self.submission = submission
        self._stack = stack

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Tell the middleware what happened; the error that it raised itself."""
        try:
            trace = None if error is None else error.__traceback__
            await self._stack.__aexit__(None if error is None else type(error), error, trace)
        except BaseException as raised:  # noqa: BLE001 - the others are told too, then it is raised
            return None if raised is error else raised
        return None


async def _enter(around: Sequence[AroundEnqueue], submission: Submission) -> _Passing:
    message = submission.message
    origin = Trace.of(message).correlation_id
    view = Enqueuing(
        task=Body.decode(message.body).task,
        id=message.id,
        tenant=message.tenant,
        queue=message.queue,
        correlation_id=origin,
        headers={},
    )
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        try:
            for each in around:
                await stack.enter_async_context(each(view))
            if view.headers:
                message = msgspec.structs.replace(message, trace=_trace(origin, view.headers))
                submission = msgspec.structs.replace(submission, message=message)
        except BaseException as error:
            failure = error
            raise
        return _Passing(submission, stack.pop_all())
    # One of them swallowed what another raised. The task was not to be written all the same.
    raise failure or RuntimeError("unreachable")


def _trace(origin: str, headers: dict[str, str]) -> bytes:
    """Checked here: the broker would refuse the whole call, and others share it."""
    for name, value in headers.items():
        for part in (name, value):
            if type(part) is not str:
                raise InvalidInput(
                    f"header {safe_repr(name)} must be plain text, not {type(part).__name__}"
                )
    try:
        data = Trace(correlation_id=origin, headers=headers).encode()
    except ValueError:  # half a surrogate pair
        raise InvalidInput("a header cannot be stored: it is not valid Unicode") from None
    if len(data) > MAX_TRACE:
        raise TooLarge("the headers", len(data), MAX_TRACE)
    return data
