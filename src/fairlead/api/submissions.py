"""From the JSON of a new task to what the broker gets."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from fairlead.api.http.problems import Forbidden, Invalid, Spooled
from fairlead.api.http.route import Request
from fairlead.broker.requests import Durability, Receipt, Submission
from fairlead.client import CallOptions, TaskCall, call_of, error_of
from fairlead.model.errors import InvalidName, UnknownDependency
from fairlead.model.lifecycle import State

_SHARES = ("cost", "limiters")  # decide about what others get
_Seconds = float | int | str  # seconds, or text such as "5m"


class NewTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to be enqueued. What is left out is as the task was registered.

    Durations are seconds, or text such as "90s", "5m", "1h", "7d".
    """

    task: str  # the name it is registered under
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET  # a token that belongs to a tenant says this already
    priority: str | int | UnsetType = UNSET  # critical, high, normal, low
    delay: _Seconds | UnsetType = UNSET  # from now until it is due
    deadline: _Seconds | UnsetType = UNSET  # from now until it must have started
    id: str | UnsetType = UNSET  # chosen by the caller, belongs to the tenant
    unique: str | UnsetType = UNSET
    unique_until: Literal["started", "done"] | UnsetType = UNSET
    unique_for: _Seconds | UnsetType = UNSET
    depends_on: list[str] | UnsetType = UNSET  # ids
    on_dependency_failure: Literal["dead", "cancel", "run", "wait"] | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    cost: float | UnsetType = UNSET
    limiters: list[str] | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    timeout: _Seconds | UnsetType = UNSET  # of an attempt
    retention: _Seconds | UnsetType = UNSET
    #: ``committed``: refuse it while the broker is away, where it would be kept on disk.
    durability: Durability | UnsetType = UNSET
    #: Whether a name must be known. Left out: unless no worker is known at all.
    strict: bool | UnsetType = UNSET


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was accepted: ``duplicate`` if it was there before.

    ``durability`` says who has it: ``committed``, the broker; ``spooled``, this server on its disk,
    which sends it when the broker is back. Of that one the state is not known.
    """

    id: str
    tenant: str
    state: State | None
    durability: Durability
    duplicate: bool = False


_OPTIONS = tuple(
    name
    for name in NewTask.__struct_fields__
    if name not in ("task", "args", "kwargs", "tenant", "strict", "durability")
)


async def submission_of(request: Request, new: NewTask, *, id: str | None = None) -> Submission:
    """Check a new task; what the broker gets. Errors name the field."""
    said: dict[str, Any] = {
        name: value for name in _OPTIONS if (value := getattr(new, name)) is not UNSET
    }
    access = request.access
    if access.tenant is not None and not access.may("manage"):
        for name in _SHARES:
            if name in said:
                detail = f"{name} decides about the share of others; it takes the scope 'manage'"
                raise Forbidden(detail, field=name, rule="left out")
    tenant = request.tenant(None if new.tenant is UNSET else new.tenant)
    if tenant is not None:
        said["tenant"] = tenant
    if id is not None and said.setdefault("id", id) != id:
        raise Invalid("the body has another id", field="Idempotency-Key", value=id, rule="the id")
    try:
        kind = await request.service.known_tasks.find(
            request.client,
            new.task,
            new.args,
            new.kwargs,
            cast(CallOptions, said),
            strict=None if new.strict is UNSET else new.strict,
            patience=request.service.catalog_patience,
        )
        call: TaskCall[Any] = call_of(kind, tuple(new.args), new.kwargs)
        if request.large:  # a megabyte of small values takes a second; others have requests too
            return await asyncio.to_thread(call.submission)
        return call.submission()
    except InvalidName as error:
        if error.value != said.get("id") and error.value in said.get("depends_on", ()):
            raise _no_dependency(error) from None
        raise


def durability_of(new: NewTask) -> Durability:
    """Return the least that will do for a task."""
    return "spooled" if new.durability is UNSET else new.durability


def _no_dependency(error: InvalidName) -> Invalid:
    return Invalid(str(error), field="depends_on", value=error.value, rule=error.rule)


async def check_dependencies(request: Request, submission: Submission) -> None:
    """Refuse a dependency on a task of another tenant as if there were no such task."""
    for id, dependency in (await foreign_dependencies(request, [submission])).items():
        raise UnknownDependency(id, dependency)


async def foreign_dependencies(request: Request, submissions: list[Submission]) -> dict[str, str]:
    """By the id of a submission, a dependency of it that the caller must not know of."""
    own = request.access.tenant
    asked = {dependency.id for each in submissions for dependency in each.depends_on}
    if own is None or not asked:
        return {}
    ids = list(asked - {each.message.id for each in submissions})
    if spooled := [id for id in ids if request.service.is_spooled(id)]:
        detail = "a dependency is not known to the broker yet, so it cannot be told whose it is"
        raise Spooled(detail, field="depends_on", ids=spooled, retry_after=2.0)
    found = await request.client.find(ids)
    foreign = {
        id
        for id, record in zip(ids, found, strict=True)
        if record is None or record.message.tenant != own
    }
    return {
        each.message.id: dependency.id
        for each in submissions
        for dependency in each.depends_on
        if dependency.id in foreign
    }


def accepted(receipt: Receipt, submission: Submission) -> Accepted:
    """What the caller is told of a receipt; raises the error that a refusal stands for."""
    error = error_of(receipt, submission)
    if error is not None:
        raise error
    return Accepted(
        id=receipt.id,
        tenant=submission.message.tenant,
        state=receipt.state,
        durability=receipt.durability,
        duplicate=receipt.code == "duplicate",
    )
