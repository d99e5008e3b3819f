"""What a store must offer beyond the contract to be a shard among others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fairlead.broker.flows import FlowPart, Staged
from fairlead.broker.inspector import Inspector
from fairlead.broker.protocol import Broker
from fairlead.broker.requests import Call, Firing, Receipt, Submission
from fairlead.model.lifecycle import State


class ShardStore(Broker, Inspector, Protocol):
    """A shard. Its outbox holds what others have to be told, until they have taken it in.

    ``outbox``, ``receive`` and ``confirm`` may be repeated, by anybody, and change nothing more.
    """

    async def where(
        self, ids: Sequence[str], *, now: float | None = None
    ) -> list[tuple[State | None, int, str]]:
        """State (None: unknown here), and while it runs token and incarnation, of each task."""
        ...

    async def enter(
        self,
        call: Call,
        items: Sequence[Submission | Firing],
        elsewhere: Mapping[str, str],
        *,
        now: float | None = None,
    ) -> list[Receipt]:
        """``enqueue`` or ``fire``; ``elsewhere`` has the shards of dependencies not known here."""
        ...

    async def stage_from(
        self, call: Call, part: FlowPart, elsewhere: Mapping[str, str], *, now: float | None = None
    ) -> Staged:
        """``stage``; ``elsewhere`` has the shards of dependencies not known here."""
        ...

    async def outbox(self, shards: Sequence[str], limit: int) -> list[list[bytes]]:
        """The oldest entries for each of these shards."""
        ...

    async def receive(
        self, source: str, entries: Sequence[bytes], *, now: float | None = None
    ) -> int:
        """Take in entries of another shard's outbox; how many tasks were told of an end."""
        ...

    async def confirm(self, shard: str, entries: Sequence[bytes]) -> int:
        """Forget entries that the shard took in; how many there still were."""
        ...

    async def far_edges(self) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]:
        """Edges to and from other shards, each as (the other shard, child, parent)."""
        ...
