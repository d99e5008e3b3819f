"""Builds indexes anew from what is known of tasks, for a shard whose keys were damaged.

A walk finds out what is wrong, twice, since it is not one moment; the server looks at each thing
again before it mends it (``lua/repair.lua``). What one round brings to light is mended in the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import groupby

from fairlead.broker.redis.audit.walk import Command, Progress, walk
from fairlead.broker.redis.damage import Thing, find_damage
from fairlead.broker.redis.keys import Keys
from fairlead.broker.redis.wire import Value
from fairlead.broker.views import Mended

__all__ = ("repair",)

Step = Callable[..., Awaitable[int]]  # the kind of a step and its arguments; how many were mended

_ROUNDS = 5
# Kinds in the order in which they are mended, how many fit into one step, and how they are told.
_KINDS = {
    "record": (50, "records written again from what indexes know of the task"),
    "tenant": (1, "tenants counted anew"),
    "place": (100, "tasks put where their state says that they stand"),
    "status": (50, "tenants put among the runnable ones, or taken from there"),
    "queue": (1, "queues counted anew"),
    "limiter": (1, "limiters counted anew"),
    "xcom": (1, "XCom values of tenants counted anew"),
    "drop": (100, "entries removed that belong to nothing"),
}


async def repair(
    command: Command,
    keys: Keys,
    step: Step,
    *,
    apply: bool,
    progress: Progress | None = None,
) -> list[Mended]:
    """What has to be mended, by kind; with ``apply`` what was, and what could not be.

    ``left`` are things that are still wrong after the last round: somebody worked on them.
    """
    done: Counter[str] = Counter()
    found: list[Thing] = []
    for _ in range(_ROUNDS):
        found = await _wrong(command, keys, progress)
        if not found or not apply:
            break
        for kind in _KINDS:
            for (_, group), things in groupby(
                (thing for thing in found if thing[0] == kind), key=lambda thing: thing[:2]
            ):
                done[kind] += await _mend(step, kind, group, [thing[2] for thing in things])
    else:
        found = await _wrong(command, keys, progress)
    left = Counter(kind for kind, _, _ in found)
    return [
        Mended(kind=kind, text=text, done=done[kind], left=left[kind])
        for kind, (_, text) in _KINDS.items()
        if done[kind] or left[kind]
    ]


async def _mend(step: Step, kind: str, group: str, things: list[tuple[Value, ...]]) -> int:
    most, mended = _KINDS[kind][0], 0
    for start in range(0, len(things), most):
        args = [value for thing in things[start : start + most] for value in thing]
        mended += await step(kind, *((group, *args) if kind == "status" else args))
    return mended


async def _wrong(command: Command, keys: Keys, progress: Progress | None) -> list[Thing]:
    """What two walks agree on."""
    found = await _once(command, keys, progress)
    if not found:
        return []
    again = set(await _once(command, keys, progress))
    return [thing for thing in found if thing in again]


async def _once(command: Command, keys: Keys, progress: Progress | None) -> list[Thing]:
    # Before the walk: whoever is as it was then has not moved while its tasks were counted.
    versions = {"limiters": await _hash(command, keys.limiters)}
    async for key in _scan(command, keys.tenants("*")):
        versions[keys.suffix(key).decode()] = await _hash(command, key)
    shard = await walk(command, keys, progress)
    return find_damage(shard, versions)


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
