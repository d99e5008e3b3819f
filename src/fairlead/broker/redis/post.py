"""What a shard says to other shards: its outbox, and what it takes in from theirs.

Not part of the contract of a broker: ``fairlead.broker.sharded`` carries entries from one shard's
outbox to another shard. Every step may be repeated, by anybody, without changing anything more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

from fairlead.broker import checks
from fairlead.broker.redis import answers, codec
from fairlead.broker.redis.edges import read_edges, read_ties
from fairlead.broker.redis.frame import Frame
from fairlead.broker.redis.stored import STATES
from fairlead.broker.redis.wire import Value
from fairlead.broker.verbs import Call, Firing, Receipt, Submission
from fairlead.model.lifecycle import State

__all__ = ("Posting",)

_AT_ONCE = 1_000  # ids that one call asks for: a batch may name half a million
_SCANNED = 500  # keys that one step of a listing asks for
_OPTIONS = 9  # separators between the options of a submission

Edge = tuple[str, str, str]


class Posting(Frame):
    """The part of the broker that other shards see."""

    async def where(
        self, ids: Sequence[str], *, now: float | None = None
    ) -> list[tuple[State | None, int, str]]:
        """State (None: unknown here), and while it runs token and incarnation, of each task."""
        clock = self._clock(now)
        found: list[tuple[State | None, int, str]] = []
        for start in range(0, len(ids), _AT_ONCE):
            row = await self._run("where", [clock, *ids[start : start + _AT_ONCE]])
            found += (
                (STATES[row[i]], int(row[i + 1]), row[i + 2].decode())
                for i in range(0, len(row), 3)
            )
        return found

    async def enter(
        self,
        call: Call,
        items: Sequence[Submission | Firing],
        elsewhere: Mapping[str, str],
        *,
        now: float | None = None,
    ) -> list[Receipt]:
        """``enqueue`` or ``fire``, with dependencies that live in the shards of ``elsewhere``.

        A dependency that is known here as well is the one that counts.
        """
        verb: Literal["enqueue", "fire"] = "enqueue"
        submissions: list[Submission] = []
        firings: list[Firing] = []
        for item in items:
            if isinstance(item, Firing):
                verb = "fire"
                firings.append(item)
                submissions.append(item.submission)
            else:
                submissions.append(item)
        checks.check_submissions(submissions)
        checks.check_slots(firings)
        ids = [submission.message.id for submission in submissions]
        if self._closed:
            self._clock(now)
            return [Receipt(id=id, code="closed") for id in ids]
        args = codec.firing_args(firings) if firings else codec.submission_args(submissions)
        if elsewhere:
            args = [_with_edges(arg, elsewhere) for arg in args]
        return answers.receipts(await self._numbered(verb, call, now, args), ids)

    async def outbox(self, shards: Sequence[str], limit: int) -> list[list[bytes]]:
        """The oldest entries for each of these shards."""
        reply: list[list[bytes]] = await self._run("outbox", [limit, *shards])
        return reply

    async def receive(
        self, source: str, entries: Sequence[bytes], *, now: float | None = None
    ) -> int:
        """Take in entries of another shard's outbox; how many tasks were told of an end."""
        args: list[Value] = [self._clock(now), source, *entries]
        return int(await self._run("receive", args))

    async def confirm(self, shard: str, entries: Sequence[bytes]) -> int:
        """Forget entries that the shard took in; how many there still were."""
        last = entries[-1].partition(b"\x1f")[0]
        return int(await self._run("confirm", [shard, last, len(entries)]))

    async def far_edges(self) -> tuple[set[Edge], set[Edge]]:
        """Edges to and from other shards, each as (the other shard, child, parent).

        First those of children here, then those of children elsewhere that parents here know of.
        Walks all keys, for the audit.
        """
        waits: set[Edge] = set()
        known: set[Edge] = set()
        async for id, stored in self._fields(self.keys.before):
            for parent, where in read_edges(stored):
                if where.startswith("@"):
                    waits.add((where[1:], id, parent))
        async for id, member in self._members("before:"):
            parent, mark, shard = member.rpartition("\x1f@")
            if mark:
                waits.add((shard, id, parent))
        async for id, member in self._members("after:"):
            shard, *rest = member.split("\x1f")
            if rest:
                known.add((shard, rest[0], id.partition(":")[2]))
        async for id, stored in self._fields(self.keys.ties):
            for _, member in read_ties(stored)[1]:
                shard, *rest = member.split("\x1f")
                if rest:
                    known.add((shard, rest[0], id))
        return waits, known

    async def _fields(self, key: str) -> AsyncIterator[tuple[str, bytes]]:
        server = (await self._session()).server
        cursor = b"0"
        while True:
            cursor, page = await server.command("HSCAN", key, cursor, "COUNT", _SCANNED)
            for id, stored in zip(page[::2], page[1::2], strict=True):
                yield id.decode(), stored
            if cursor == b"0":
                return

    async def _members(self, family: str) -> AsyncIterator[tuple[str, str]]:
        server = (await self._session()).server
        # In a pattern the braces of the prefix stand for themselves.
        prefix = f"{self.keys.prefix}{family}"
        cursor = b"0"
        while True:
            cursor, keys = await server.command(
                "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _SCANNED
            )
            for key in keys:
                for member in await server.command("ZRANGE", key, 0, -1):
                    yield key.decode()[len(prefix) :], member.decode()
            if cursor == b"0":
                return


def _with_edges(arg: Value, elsewhere: Mapping[str, str]) -> Value:
    """The options of a submission with the shards of its dependencies; anything else as it is.

    The options are the only texts with nine RS, and dependencies come last; see lua/lib/accept.
    """
    if not isinstance(arg, str) or arg.count("\x1e") != _OPTIONS:
        return arg
    others, separator, edges = arg.rpartition("\x1e")
    marked = [
        f"@{elsewhere[edge[1:]]}\x1f{edge[1:]}" if edge[1:] in elsewhere else edge
        for edge in edges.split("\x1d")
    ]
    return others + separator + "\x1d".join(dict.fromkeys(marked))
