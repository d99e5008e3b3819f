"""The reads of a store of tasks: part of the contract, but no task needs them to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fairlead.broker.records import (
    Finding,
    Library,
    Mended,
    Page,
    Parts,
    Settings,
    ShardLayout,
    Snapshot,
    TaskRecord,
    WorkerRecord,
)
from fairlead.broker.standing import StandingReads
from fairlead.broker.stats import StatsReads
from fairlead.model.lifecycle import State


class Inspector(StatsReads, StandingReads, Protocol):
    """Reads for people: bounded, never needed to run tasks."""

    async def snapshot(
        self,
        queue: str | None = None,
        *,
        tenants: bool = True,
        tenant: str | None = None,
        now: float | None = None,
    ) -> Snapshot:
        """Counts of queues, their tenants and limiters, without walking tasks.

        With ``queue`` of that one only, and of no limiter; without ``tenants`` of none of them.
        With ``tenant`` of that one instead of those that have work, where anything of it is known.
        What is told of a queue and its tenants is of one moment, and so is each limiter. Many are
        read one after the other, in short calls: of several queues the snapshot is no moment, but
        one that is there from the first call to the last is counted, once.
        """
        ...

    async def find(
        self, ids: Sequence[str], *, parts: Parts = "all", now: float | None = None
    ) -> list[TaskRecord | None]:
        """What is known of these tasks; None for unknown ones and those past their retention.

        ``parts`` says what of them: the body and the result may be large. However much it is, no
        call to a server moves more than 4 MiB and one task.
        """
        ...

    async def page(
        self,
        *,
        state: State | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> Page:
        """Tasks in an order of the store's own; examines at most 1,000 in a call.

        A task that is there from the first page to the last is listed at least once. Of each the
        page has the beginning of its body, and neither its result nor its checkpoint.
        """
        ...

    async def workers(
        self, *, silent: bool = False, now: float | None = None
    ) -> list[WorkerRecord]:
        """Workers heard of in the last 15 seconds.

        With ``silent`` also those not heard of for longer that still hold leases.
        """
        ...

    async def settings(
        self,
        queue: str | None = None,
        *,
        tenant: str | None = None,
        limiter: str | None = None,
        cursor: str | None = None,
        now: float | None = None,
    ) -> Settings:
        """A page of what is set for queues, tenants and limiters, in an order of the store's own.

        With ``queue`` what is in force for that one, whether it is known or not; with ``limiter``
        what is for that one, unless nothing is; with ``tenant`` what is set for that one in all
        queues, and with ``queue`` as well what is in that one. Queues that nobody
        configured are not listed otherwise: they have the defaults. What is set from the first page
        to the last is listed at least once. A page may be empty and not the last.
        """
        ...

    async def audit(
        self, *, now: float | None = None, progress: Callable[[int], None] | None = None
    ) -> list[str]:
        """What is wrong with the stored state, a sentence each; empty if nothing is.

        The one read that walks everything; ``progress`` is told now and then how far it came.
        """
        ...

    async def repair(
        self,
        *,
        apply: bool = False,
        now: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Mended]:
        """Find what has to be built anew from the records of tasks; with ``apply`` do so.

        For a store whose keys were damaged from outside. Goes in small steps, each of which looks
        again at what it mends, so workers may go on. Empty if there is nothing to mend.
        """
        ...

    async def forget_reader(self, reader: str) -> bool:
        """Forget the place of a named reader of events; false if it had none."""
        ...

    async def libraries(self) -> list[Library]:
        """List the function libraries of this release, and of others that are on the server."""
        ...

    async def load_libraries(self) -> list[str]:
        """Load the libraries of this release; return the names of those that were missing."""
        ...

    async def delete_library(self, name: str) -> None:
        """Delete a function library of Fairlead; whoever still needs it loads it again."""
        ...

    async def layouts(self) -> list[ShardLayout]:
        """Return in which layout each shard is stored; the one read that works with any of them."""
        ...

    async def migrate(
        self, *, discard: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        """Bring all shards to the layout of this release, in bounded steps.

        Every release is refused meanwhile. What was interrupted is done again. A shard for which
        there is no way raises ``Refused`` and is left alone; with ``discard`` it is emptied.
        """
        ...

    async def diagnose(self) -> list[Finding]:
        """What the store says of itself and of its server: can tasks be trusted to it?

        For people: what is looked at may change with every release.
        """
        ...
