"""``app.drain``: run all that is due, and tell what is left and why that did not run. For tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from fairlead.app.worker import worker_of
from fairlead.client import Client, Explanation, TaskRecord
from fairlead.client.handle import explained
from fairlead.model.errors import FairleadError
from fairlead.model.lifecycle import State
from fairlead.model.message import task_name
from fairlead.model.names import DEFAULT_QUEUE

if TYPE_CHECKING:
    from fairlead.app.facade import Fairlead
    from fairlead.worker.runner import Raised
    from fairlead.worker.worker import Worker

_EXPLAINED = 100  # tasks that are looked at one by one
_COUNTS = {  # where a snapshot counts what is not finished
    State.QUEUED: "ready",
    State.SCHEDULED: "scheduled",
    State.RETRYING: "retrying",
    State.DEFERRED: "deferred",
    State.RUNNING: "running",
}
_NO_WORKER = "no_worker"  # holds after each drain: its worker has gone
_UNROUTABLE = "unroutable"


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that a drain left behind for one reason."""

    count: int
    state: State
    code: str  # of the reason, as in ``handle.explain()``
    text: str  # one sentence, about the first of them
    tasks: tuple[str, ...]  # names of the tasks, each once

    def __str__(self) -> str:
        return f"{self.count} {self.state}: {self.text}"


class Drained(int):
    """The number of attempts; ``left`` says what was not run, and why.

    It counts and compares like any number. Its ``repr``, which a failed assertion shows, tells of
    what is left.
    """

    left: tuple[Left, ...]
    more: int  # tasks that are left and were not looked at

    def __new__(cls, attempts: int, left: Sequence[Left] = (), more: int = 0) -> Drained:
        """Count so many attempts."""
        made = super().__new__(cls, attempts)
        made.left = tuple(left)
        made.more = more
        return made

    def __str__(self) -> str:
        return int.__repr__(self)

    def __repr__(self) -> str:
        attempts = f"{int(self)} attempt{'' if self == 1 else 's'}"
        told = [str(each) for each in self.left]
        if self.more:
            told.append(f"{self.more:,} more tasks")
        return f"<{attempts}; left {'; '.join(told)}>" if told else f"<{attempts}; nothing left>"


async def drain(
    app: Fairlead,
    *,
    queues: Sequence[str] | None = None,
    limit: int | None = 10_000,
    raise_errors: bool = False,
) -> Drained:
    """Run all that is due now and all that comes of it; return how many attempts there were.

    For tests: what is due later stays where it is, and retries get their full backoff, whatever
    the jitter. The number that is returned has ``left``: what did not run, and why. What
    handlers raised is in ``exceptions``. A task that enqueues itself would keep this going for
    ever: ``limit`` ends it. A handler that does not stop when its time is up is
    waited for.

    Args:
        queues: The names of the queues to serve, in order. Default: all that there are.
        limit: More attempts raise an error; None is no limit. Default: 10,000.
        raise_errors: True raises in the end what handlers raised. Default: False.
    """

    async def worker() -> Worker:
        served = await _all_queues(app) if queues is None else queues
        return worker_of(app, queues=served, hooks=False)

    before = app.exceptions
    async with app._lifespan:  # once, though there is more than one worker
        attempts = await _run_all(worker, limit)
    client = app._clients.current()
    if raise_errors:
        raised = [each for each in app.exceptions if all(each is not old for old in before)]
        error = await _errors_of(client, raised)
        if error is not None:
            raise error
    return await drained(client, attempts, queues)


async def _all_queues(app: Fairlead) -> list[str]:
    said = (spec.options.queue for spec in app._registry)
    named = {queue for queue in said if isinstance(queue, str)}
    return sorted({DEFAULT_QUEUE, *named, *(await app.asnapshot(tenants=False)).queues})


async def _run_all(new_worker: Callable[[], Awaitable[Worker]], limit: int | None) -> int:
    """Let one worker after the other drain the broker; return how many attempts there were.

    More than ``limit`` attempts raise an error.
    """
    total, left = 0, limit
    while True:
        worker = await new_worker()
        try:
            attempts = await worker.drain(limit=left)
        except FairleadError as error:
            if total:  # the error knows of this worker only
                error.add_note(f"{total:,} attempts were made before, in the same drain")
            raise
        total += attempts
        left = None if left is None else left - attempts
        if not attempts:  # asked once more, for queues that did not exist before
            return total


async def drained(client: Client, attempts: int, queues: Sequence[str] | None) -> Drained:
    """Return what a drain of these queues, or of all, has to tell."""
    snapshot = await client.store.snapshot(tenants=False)
    counts = {state: getattr(snapshot, name) for state, name in _COUNTS.items()}
    found: dict[tuple[object, ...], Left] = {}
    seen = 0
    for state in [state for state, count in counts.items() if count]:
        cursor: str | None = None
        while seen < _EXPLAINED:
            page = await client.page({"state": state, "cursor": cursor, "limit": _EXPLAINED})
            for record in page.tasks[: _EXPLAINED - seen]:
                seen += 1
                left = await _left(client, record, queues)
                key = left.state, left.code, _subject(left)
                found[key] = left if key not in found else _joined(found[key], left)
            cursor = page.cursor
            if cursor is None:
                break
    return Drained(attempts, tuple(found.values()), max(sum(counts.values()) - seen, 0))


async def _left(client: Client, record: TaskRecord, queues: Sequence[str] | None) -> Left:
    message = record.message
    name = task_name(message.body)
    code, text = _why(await explained(client, message.id, message.tenant))
    if record.state is not State.RUNNING:
        if record.reason == _UNROUTABLE:
            code, text = "unknown_task", f"no task {name!r} is registered in this app"
        elif queues is not None and message.queue not in queues:
            code, text = "not_drained", f"queue {message.queue!r} was not drained"
    return Left(count=1, state=record.state, code=code, text=text, tasks=(name,))


def _why(found: Explanation) -> tuple[str, str]:
    for reason in found.reasons:
        if reason.code != _NO_WORKER:
            return reason.code, reason.text
    return "next", "nothing stands in its way any more; drain again"


def _subject(left: Left) -> object:
    """What tasks that wait for one thing have in common: their texts differ by times and ids."""
    if left.code in ("scheduled", "retrying", "waits", "tasks_ahead", "tenants_ahead"):
        return None
    return left.text.partition(" has its next token")[0].partition(" for another")[0]


def _joined(one: Left, other: Left) -> Left:
    names = tuple(dict.fromkeys((*one.tasks, *other.tasks)))
    return msgspec.structs.replace(one, count=one.count + other.count, tasks=names)


async def _errors_of(client: Client, raised: Sequence[Raised]) -> Exception | None:
    """Return what handlers raised, as one error: itself, or a group of several.

    What was kept of them has no frames; the stored traceback stands in the notes.
    """
    errors: list[Exception] = []
    for each in raised:
        error = each.exception
        if not isinstance(error, Exception):
            error = RuntimeError(f"{type(error).__name__}: {error}")
        (record,) = await client.find([each.task_id])
        where = f"raised by task {each.task!r} ({each.task_id}) in attempt {each.attempt}"
        if record is not None and record.error is not None and record.error.traceback:
            where = f"{where}\n{record.error.traceback.rstrip()}"
        if where not in getattr(error, "__notes__", ()):  # one object may be raised twice
            error.add_note(where)
        errors.append(error)
    if len(errors) > 1:
        return ExceptionGroup(f"handlers raised {len(errors)} errors", errors)
    return errors[0] if errors else None
