"""Builds indexes anew from what is known of tasks, for a shard whose keys were damaged.

A walk says what may be wrong, twice, since it is not one moment. The server judges each of these
things by what is stored at one moment (``lua/repair.lua``) and mends what is wrong then: so
workers may go on. What one round brings to light is mended in the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import groupby
from typing import NamedTuple

from fairlead.broker.records import Mended
from fairlead.broker.redis.audit.reading import read_tenant
from fairlead.broker.redis.audit.values import READY, Tenant
from fairlead.broker.redis.audit.walk import Command, Progress, walk
from fairlead.broker.redis.damage import Thing, find_damage
from fairlead.broker.redis.keys import Keys
from fairlead.broker.redis.wire import Value

_ROUNDS = 5
_TRIES = 3  # to read the tenants of a queue while nobody works on it
# Kinds in the order in which they are mended, how many fit into one step, and how they are told.
_KINDS = {
    "record": (50, "records written again from what indexes know of the task"),
    "tenant": (1, "tenants counted anew"),
    "place": (100, "tasks put where their state says that they stand"),
    "status": (50, "tenants put among the runnable ones, or taken from there"),
    "queue": (1, "queues counted anew"),
    "limiter": (20, "limiters counted anew"),
    "xcom": (1, "XCom values of tenants counted anew"),
    "edge": (50, "tasks let go that waited for one which is lost"),
    "drop": (100, "entries removed that belong to nothing"),
}
_SUMMED = frozenset(("tenant", "place", "status"))  # after which the sums of a queue may be others


class Judged(NamedTuple):
    """What a step says: how many things it saw to, how many are wrong, or could not be judged."""

    seen: int
    wrong: int
    busy: int


Step = Callable[..., Awaitable[Judged]]  # the kind of a step and its arguments


class _Repair:
    """One run, with or without changing something."""

    def __init__(self, command: Command, keys: Keys, step: Step, progress: Progress | None) -> None:
        self._command, self._keys, self._step, self._progress = command, keys, step, progress
        self.done: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()

    async def mend(self) -> None:
        """Mend all that is wrong, in some rounds; what still is after the last one is ``left``."""
        for _ in range(_ROUNDS):
            found, self.busy = await self._judge("mend")
            self.done += found
            if not found.total() and self.busy.total() == self.busy["moving"]:
                return
        await self.look()

    async def look(self) -> None:
        """Find out what is wrong at this moment."""
        self.left, self.busy = await self._judge("look")

    async def _judge(self, mode: str) -> tuple[Counter[str], Counter[str]]:
        """Have the server judge what may be wrong: how much is, and how much it cannot tell."""
        found, moving = await self._suspects()
        wrong: Counter[str] = Counter()
        busy: Counter[str] = Counter(moving=moving)
        queues = {thing[2][0] for thing in found if thing[0] == "queue"}
        for kind in _KINDS:
            if kind == "queue":
                for name in sorted(map(str, queues)):
                    _add(wrong, busy, kind, await self._queue(mode, name))
                continue
            things = (thing for thing in found if thing[0] == kind)
            for (_, queue), group in groupby(things, key=lambda thing: thing[:2]):
                for judged in [j async for j in self._steps(mode, kind, queue, group)]:
                    _add(wrong, busy, kind, judged)
                    if kind in _SUMMED and judged.wrong and mode == "mend":
                        queues.add(queue)
        return wrong, busy

    async def _steps(
        self, mode: str, kind: str, queue: str, group: Iterable[Thing]
    ) -> AsyncIterator[Judged]:
        things, most = [thing[2] for thing in group], _KINDS[kind][0]
        first: tuple[Value, ...] = (queue,) if kind == "status" else ()
        while things:
            args = [value for thing in things[:most] for value in thing]
            judged = await self._step(mode, kind, *first, *args)
            del things[: judged.seen]
            yield judged

    async def _queue(self, mode: str, name: str) -> Judged:
        """Compare a queue with the sums over its tenants; if they are many, read in pages."""
        judged = await self._step(mode, "queue", name)
        if judged.seen:
            return judged
        for _ in range(_TRIES):
            version = await self._command("HGET", self._keys.queues, name) or b""
            tenants = [
                read_tenant(value)
                for value in (await _hash(self._command, self._keys.tenants(name))).values()
            ]
            judged = await self._step(mode, "sums", name, version, *_sums(tenants))
            if not judged.busy:
                break
        return judged

    async def _suspects(self) -> tuple[list[Thing], int]:
        """What two walks agree on, and how many tenants they cannot agree on, for they move."""
        found = await self._walk()
        if not found:
            return [], 0
        again = await self._walk()
        same = set(again)
        agreed = [thing for thing in found if thing in same]
        wrong = _tenants(found) & _tenants(again)
        return agreed, len(wrong - _tenants(agreed))

    async def _walk(self) -> list[Thing]:
        # Before the walk: whoever is as it was then has not moved while its tasks were counted.
        versions: dict[str, dict[str, bytes]] = {}
        async for key in _scan(self._command, self._keys.tenants("*")):
            versions[self._keys.suffix(key).decode()] = await _hash(self._command, key)
        shard = await walk(self._command, self._keys, self._progress)
        return find_damage(shard, versions)


async def repair(
    command: Command,
    keys: Keys,
    step: Step,
    *,
    apply: bool,
    progress: Progress | None = None,
) -> list[Mended]:
    """What is wrong, by kind; with ``apply`` what was mended, and what still is wrong after it."""
    run = _Repair(command, keys, step, progress)
    await (run.mend() if apply else run.look())
    run.busy["tenant"] += run.busy.pop("moving", 0)
    return [
        Mended(
            kind=kind,
            text=text,
            done=run.done[kind],
            left=run.left[kind],
            busy=run.busy[kind],
        )
        for kind, (_, text) in _KINDS.items()
        if run.done[kind] or run.left[kind] or run.busy[kind]
    ]


def _add(wrong: Counter[str], busy: Counter[str], kind: str, judged: Judged) -> None:
    wrong[kind] += judged.wrong
    busy[kind] += judged.busy


def _tenants(found: list[Thing]) -> set[tuple[Value, ...]]:
    return {args[:2] for kind, _, args in found if kind == "tenant"}


def _sums(tenants: list[Tenant]) -> list[Value]:
    """What a queue says of its tenants, as the step ``sums`` wants it."""
    ready = [tenant for tenant in tenants if tenant.status == READY]
    lowest = min((tenant.tag for tenant in ready), default=math.inf)
    return [
        *(sum(tenant.counts[state] for tenant in tenants) for state in range(8)),
        sum(tenant.weight for tenant in ready),
        repr(sum(tenant.done_bytes for tenant in tenants)),
        repr(sum(tenant.dead_bytes for tenant in tenants)),
        sum(tenant.large & 1 for tenant in tenants),
        sum(tenant.large >> 1 for tenant in tenants),
        "" if lowest == math.inf else repr(lowest),
    ]


async def _hash(command: Command, key: str | bytes) -> dict[str, bytes]:
    fields: dict[str, bytes] = {}
    cursor = b"0"
    while True:
        cursor, page = await command("HSCAN", key, cursor, "COUNT", 500)
        for field, value in zip(page[::2], page[1::2], strict=True):
            fields[field.decode("utf-8", "backslashreplace")] = value
        if cursor == b"0":
            return fields


async def _scan(command: Command, pattern: str) -> AsyncIterator[bytes]:
    cursor = b"0"
    while True:
        cursor, page = await command("SCAN", cursor, "MATCH", pattern, "COUNT", 500)
        for key in page:
            yield key
        if cursor == b"0":
            return
