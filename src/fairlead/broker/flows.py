"""Flows: many tasks that depend on each other, taken in as one unit.

A flow is written in parts that nobody sees, and committed by one write. From then on its members
are laid out in steps, each ``deferred``; none of them can run before all of them are there. So a
flow of any size exists as a whole or not at all, and no call of it is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from fairlead.broker.requests import Call, Moved, Submission
from fairlead.model.lifecycle import State

FLOW_PATIENCE = 600.0  # seconds after which a flow that was not committed is removed
MAX_FLOW = 200_000  # members of one flow
MAX_MEMBERS = 500  # members in one part, and in one answer of the verb of that name
MAX_EDGES = 10_000  # dependencies of all members of one part
MAX_SHOWN_EDGES = 50  # dependencies of a member that are told of
MAX_SHARES = 200  # tenants of queues that one flow has tasks of
MAX_FLOWS_KEPT = 10_000  # finished flows of a shard that are remembered
MAX_MEMBERS_KEPT = 200_000  # members of finished flows that are remembered, in all


class Share(msgspec.Struct, frozen=True):
    """How many members of a flow belong to one tenant of one queue."""

    queue: str
    tenant: str
    count: int


class FlowPart(msgspec.Struct, frozen=True, kw_only=True):
    """Some members of a flow that is being written, each behind those it depends on.

    The first part (``number`` 0) says how large the flow will be: its ``shares``, which are those
    of its members in the end. It begins the flow anew if it was begun before. All parts, and the
    commit, come from one incarnation. A dependency is a member of this part or an earlier one, or
    a task that exists. Members have no fence and no unique key. A part has at most 500 of them,
    with at most 10,000 dependencies in all.
    """

    flow: str  # the id of the flow: made or chosen, as that of a task
    number: int  # parts are written in order; a later one, written again, changes nothing
    tenant: str  # whose flow it is
    name: str = ""
    shares: tuple[Share, ...] = ()  # the first part only; at most 200
    members: tuple[Submission, ...] = ()


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a part, or of a commit.

    ``staged``: it is written, and invisible. ``committed``: the flow exists. ``duplicate``: a flow
    with this id exists already, nothing was written. The others removed what was written of the
    flow: ``queue_full``, ``tenant_full`` and ``tenant_bytes`` (``limit``; ``detail`` names the
    queue), ``known`` (``detail`` is the id of a member that is a task, or a member, already),
    ``unknown_dependency`` (``detail`` names it), ``unknown`` (this incarnation is not writing such
    a flow: begin anew), ``incomplete`` (a part is missing, or at the commit a member; or there are
    others than the ``shares`` said), ``closed``.
    """

    code: Literal[
        "staged",
        "committed",
        "duplicate",
        "queue_full",
        "tenant_full",
        "tenant_bytes",
        "known",
        "unknown_dependency",
        "unknown",
        "incomplete",
        "closed",
    ]
    limit: int = 0
    detail: str = ""


class FlowOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order about a whole flow. ``tenant``, if given, must be the flow's own."""

    flow: str
    action: Literal["cancel", "retry"]
    tenant: str | None = None


class FlowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that exists: how far it is.

    Running until every member is final. Then ``completed`` if all are, else ``dead`` if any is,
    else ``cancelled``. A member that is put to work again makes it running again. What was deleted
    or forgotten since counts as what it was.
    """

    id: str
    tenant: str
    name: str = ""
    state: State
    total: int  # members
    laid_out: int  # of these, how many are tasks by now
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    committed_at: float = 0.0
    finished_at: float | None = None


class FlowMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a flow and what it was written to depend on, in the flow or outside."""

    id: str
    depends_on: tuple[str, ...] = ()  # the first 50
    more: bool = False  # so many are told that there may be others


class FlowVerbs(Protocol):
    """What a store of tasks does for flows."""

    async def stage(self, call: Call, part: FlowPart, *, now: float | None = None) -> Staged:
        """Write a part of a flow that no worker, count, listing or dependency sees.

        The first part checks that there is room for the whole flow in its queues and for its
        tenants, and reserves it: what others enqueue cannot take it. A flow that is not committed
        within 10 minutes of its last part is removed by ``tidy``, and its room is free again.
        """
        ...

    async def commit(self, call: Call, flow: str, *, now: float | None = None) -> Staged:
        """Make a flow that was written real, by one write of its record.

        Its members are laid out as tasks from then on, up to 50 in the call (none while
        dependents of other tasks have to be told of ends), the rest by ``deliver``: each accepted
        as ``enqueue`` would do it, but none is released before the last one is laid out. A
        dependency that is unknown by then counts as completed. A member whose id became that of
        another task since it was staged is left out, and counts as cancelled.
        ``committed`` again for a flow that this incarnation committed before, ``duplicate`` if
        another one did: what this one wrote, if it did, is gone.
        """
        ...

    async def alter_flow(
        self, call: Call, order: FlowOrder, *, now: float | None = None
    ) -> Moved | None:
        """Cancel a flow as a whole, or retry its failed part; None if there is no such flow.

        Up to 50 members are seen to in the call (none while dependents have to be told of ends),
        the rest by ``deliver``. **Cancel**: members are
        cancelled from the last to the first, so that none ends for the sake of another; running
        ones are asked to stop. **Retry**: members that are dead are put back to work with a new
        generation, no attempts, no crashes and no deadline. Those that ended because of a
        dependency wait for it again, as they did at first; they are kept as long as dead ones.
        One that still waits waits again for those of its dependencies that were put back. None is
        released before all were seen to. What an order cancelled stays cancelled. What ended for a
        dependency stays as it is if that would end it again, or was forgotten. An order on a flow
        that is still being laid out, or seen to for another, is carried out after that; of several
        that wait the last one is. A flow that was not committed yet is
        removed by a cancel. ``count`` is 0 for a flow in which there is nothing to do.
        """
        ...

    async def flows(
        self, ids: Sequence[str], *, now: float | None = None
    ) -> list[FlowRecord | None]:
        """What is known of these flows; None for those that do not exist (yet).

        Finished flows are kept as long as a completed or dead task by default, at most 10,000 of
        them, of 200,000 members in all; those whose time is over first go first. ``watch`` takes
        ids of flows too; an id that is both is that of the task.
        """
        ...

    async def members(
        self, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
    ) -> list[str]:
        """Ids of a flow's members in the order they were written; empty at its end."""
        ...

    async def graph(
        self, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
    ) -> list[FlowMember]:
        """The same with what each depends on, however far the flow is."""
        ...
