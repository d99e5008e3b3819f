"""Submissions as the ledger keeps them: bytes with a version, and the texts that are sent there.

The delay and the deadline are columns of the ledger, because they count from the commit and not
from the push. A fence cannot be kept: the lease that it names may be over by then.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from fairlead.broker.flows import MAX_SHARES
from fairlead.broker.requests import MAX_ENQUEUE, Submission
from fairlead.broker.submission_checks import check_submission
from fairlead.client.flow_submit import Draft
from fairlead.model.errors import InvalidInput, TooLarge
from fairlead.model.lifecycle import DependencyPolicy
from fairlead.model.message import Message, task_name
from fairlead.model.options import Dependency, Unique, UniqueUntil

MAX_DRAFT = 64 * 1024 * 1024  # bytes of a flow
_MAX_BYTES = 8 * 1024 * 1024  # of bodies in one statement
_VERSION = 1

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_to_json = msgspec.json.Encoder().encode


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A submission in the order of its stored fields. New ones come at the end."""

    version: int
    message: bytes
    depends_on: tuple[tuple[str, bool], ...]
    on_dependency_failure: DependencyPolicy
    uses_results: bool
    unique: tuple[str, UniqueUntil, float] | None


class _StoredDraft(msgspec.Struct, frozen=True, array_like=True):
    """A flow in the order of its stored fields."""

    version: int
    id: str
    tenant: str
    name: str
    members: tuple[tuple[bytes, float, float | None], ...]  # submission, delay, deadline


class _Row(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One object of the text for ``fairlead.enqueue_tasks``. Bytes become base64."""

    id: str
    queue: str
    tenant: str
    name: str
    level: int
    submission: bytes
    content: bytes
    depends_on: list[str] | None = None
    delay: float = 0.0
    deadline: float | None = None


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """What stands in front of both."""

    version: int


_head = msgspec.msgpack.Decoder(_Head)
_submission = msgspec.msgpack.Decoder(_Stored)
_draft = msgspec.msgpack.Decoder(_StoredDraft)


def encode_submission(submission: Submission) -> bytes:
    """Return the stored form, without the delay and the deadline; refuse a fence."""
    if submission.fence is not None:
        raise InvalidInput(
            f"task {submission.message.id!r} was to be enqueued under the lease of task "
            f"{submission.fence.id!r}, which a transaction cannot check; enqueue it with "
            "task.using(tx=...).enqueue(...) instead of through the context"
        )
    unique = submission.unique
    return _encode(  # the fields of _Stored
        (
            _VERSION,
            submission.message.encode(),
            tuple((each.id, each.known) for each in submission.depends_on),
            submission.on_dependency_failure,
            submission.uses_results,
            None if unique is None else (unique.key, unique.until, unique.window),
        )
    )


def decode_submission(
    data: bytes, *, delay: float = 0.0, deadline: float | None = None
) -> Submission:
    """Return the submission that was stored, with what is left of its delay and its deadline."""
    stored = _read(data, _submission, "submission")
    unique = stored.unique
    return Submission(
        message=Message.decode(stored.message),
        delay=delay,
        deadline=deadline,
        depends_on=tuple(Dependency(id, known) for id, known in stored.depends_on),
        on_dependency_failure=stored.on_dependency_failure,
        uses_results=stored.uses_results,
        unique=None if unique is None else Unique(key=unique[0], until=unique[1], window=unique[2]),
    )


def content_of(message: Message) -> bytes:
    """Return a digest that is equal where ``Message.same_content`` holds.

    Dependencies and unique keys do not count: brokers do not compare them either.
    """
    content = (
        message.version,
        message.queue,
        message.tenant,
        message.level,
        float(message.cost),
        message.limiters,
        message.body,
    )
    return hashlib.blake2b(_encode(content), digest_size=16).digest()


def batches(submissions: Sequence[Submission]) -> Iterator[list[Submission]]:
    """Cut submissions into what one statement takes: 500 tasks, 8 MiB of bodies."""
    batch: list[Submission] = []
    size = 0
    for submission in submissions:
        size += len(submission.message.body)
        if batch and (len(batch) == MAX_ENQUEUE or size > _MAX_BYTES):
            yield batch
            batch, size = [], len(submission.message.body)
        batch.append(submission)
    if batch:
        yield batch


def tasks_text(submissions: Sequence[Submission]) -> str:
    """Return the parameter of ``fairlead.enqueue_tasks``; refuse what a broker would refuse."""
    return _to_json([_row(submission) for submission in submissions]).decode()


def _row(submission: Submission) -> _Row:
    check_submission(submission)
    message = submission.message
    return _Row(
        message.id,
        message.queue,
        message.tenant,
        task_name(message.body),
        message.level,
        encode_submission(submission),
        content_of(message),
        [each.id for each in submission.depends_on] if submission.depends_on else None,
        submission.delay,
        submission.deadline,
    )


# -- flows ------------------------------------------------------------------------------------


def encode_draft(draft: Draft, submissions: Sequence[Submission]) -> bytes:
    """Return the stored form of a flow; its members are ``submissions``."""
    shares = {(each.message.queue, each.message.tenant) for each in submissions}
    if len(shares) > MAX_SHARES:
        raise TooLarge("the flow", len(shares), MAX_SHARES, "tenants of queues")
    for submission in submissions:
        check_submission(submission)
    members = tuple((encode_submission(each), each.delay, each.deadline) for each in submissions)
    data = _encode(_StoredDraft(_VERSION, draft.id, draft.tenant, draft.name, members))
    if len(data) > MAX_DRAFT:
        error = TooLarge(f"flow {draft.id!r}", len(data), MAX_DRAFT)
        error.add_note("Enqueue it in parts, or without tx=: then it is written piece by piece.")
        raise error
    return data


def decode_draft(data: bytes, *, age: float = 0.0) -> Draft:
    """Return the flow that was stored, without the calls that it was made of.

    ``age`` is how many seconds ago it was enqueued: they are taken off delays and deadlines.
    """
    stored = _read(data, _draft, "flow")
    return Draft(
        id=stored.id,
        tenant=stored.tenant,
        name=stored.name,
        calls=[],
        submissions=[
            decode_submission(
                member,
                delay=max(delay - age, 0.0),
                deadline=None if deadline is None else max(deadline - age, 0.0),
            )
            for member, delay, deadline in stored.members
        ],
        last=[],
    )


def flow_text(draft: Draft, submissions: Sequence[Submission]) -> str:
    """Return the parameter of ``fairlead.enqueue_flow``."""
    stored = b64encode(encode_draft(draft, submissions)).decode()
    flow = {
        "id": draft.id,
        "tenant": draft.tenant,
        "name": draft.name,
        "draft": stored,
        "members": len(submissions),
        "ids": [each.message.id for each in submissions],
    }
    return _to_json(flow).decode()


def _read(data: bytes, decoder: msgspec.msgpack.Decoder[T], what: str) -> T:
    """Decode an array; fields behind those that this release knows are left out."""
    try:
        version = _head.decode(data).version
        if version > _VERSION:
            raise InvalidInput(
                f"a stored {what} has version {version}, and this release reads up to {_VERSION}; "
                "upgrade the managers before the programs that enqueue"
            )
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"not a stored {what}: {error}") from None
