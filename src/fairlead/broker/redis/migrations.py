"""From one layout of what is stored to the next, or to nothing.

While a shard is being migrated its layout is ``MOVING``, which every release refuses, so that
nothing is written beside the conversion. ``from`` in ``meta`` keeps the layout that it had: what
was interrupted is simply done again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol

from fairlead.broker.records import ShardLayout
from fairlead.broker.redis.keys import Keys
from fairlead.broker.redis.layout import NUMBERS
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import LAYOUT, LEAST_LAYOUT, MOVING
from fairlead.model.errors import Refused

_STEP = 500  # keys that one command looks at, or deletes
# Only while the shard is being migrated: another one who empties it may have been faster, and
# workers may have begun anew.
_DELETE = """\
if redis.call('HGET', KEYS[1], 'layout') ~= ARGV[1] then return 0 end
redis.call('UNLINK', unpack(KEYS, 2))
return 1
"""

Progress = Callable[[int], None]


class Command(Protocol):
    """Issue one command, as ``connection.Server.command`` does."""

    def __call__(self, *args: Value) -> Awaitable[object]: ...


class Step(Protocol):
    """Convert a shard in steps of some milliseconds each; may be done again from the beginning."""

    def __call__(self, command: Command, keys: Keys, progress: Progress) -> Awaitable[None]: ...


async def _nothing(command: Command, keys: Keys, progress: Progress) -> None:
    """All that is stored in layout 2 means the same in layout 3.

    Layout 3 lets a task have another level than its message: what knows nothing of that takes its
    entry for one of a task that is gone, and drops it.
    """


_PACK = """\
local numbers = {}
for i, name in ipairs(ARGV) do numbers[i] = tonumber(redis.call('HGET', KEYS[1], name) or 0) end
if redis.call('HDEL', KEYS[1], unpack(ARGV)) > 0 then
  local form = '<' .. ('d'):rep(#ARGV)
  redis.call('HSET', KEYS[1], 'numbers', struct.pack(form, unpack(numbers)))
end
"""


async def _pack_numbers(command: Command, keys: Keys, progress: Progress) -> None:
    """Layout 4 has the shard's own numbers in one field of ``meta``, where layout 3 has texts."""
    await command("EVAL", _PACK, 1, keys.meta, *NUMBERS)
    progress(1)


#: How a layout becomes the next one. None: there is no way. Layout 1 was never released.
STEPS: Mapping[int, Step | None] = {1: None, 2: _nothing, 3: _pack_numbers}


async def layout_of(command: Command, keys: Keys, shard: str) -> ShardLayout:
    """Return the layout of a shard, whatever it is, and what can be done about it."""
    found = await command("HMGET", keys.meta, "layout", "least", "from")
    tasks = await command("HLEN", keys.tasks)
    if not isinstance(found, list) or not isinstance(tasks, int):
        raise Refused("layout", f"shard {shard!r} holds what no release of Fairlead writes")
    layout, least, before = (int(text or 0) for text in found)
    moving = layout == MOVING
    if moving:
        layout, least = before, before
    way = _way(layout, least)
    if moving and way == "nothing":  # it was interrupted when all was done but for saying so
        way = "convert"
    return ShardLayout(shard=shard, layout=layout, tasks=tasks, way=way)


def _way(layout: int, least: int) -> Literal["nothing", "convert", "discard", "upgrade"]:
    if layout in (0, LAYOUT):  # 0: nothing is there yet
        return "nothing"
    if layout > LAYOUT:
        return "nothing" if least <= LAYOUT else "upgrade"
    steps = [STEPS.get(each) for each in range(layout, LAYOUT)]
    return "discard" if None in steps else "convert"


async def migrate(
    command: Command, keys: Keys, shard: str, *, discard: bool, progress: Progress
) -> ShardLayout:
    """Bring a shard to the layout of this release; return how it was before.

    Raises ``Refused``, and changes nothing, where there is no way, unless what is stored may be
    thrown away.
    """
    found = await layout_of(command, keys, shard)
    if found.way == "upgrade" or (found.way == "discard" and not discard):
        raise Refused("layout", f"shard {shard!r} cannot be migrated from layout {found.layout}")
    if found.way == "nothing":
        return found
    fields: tuple[Value, ...] = ("layout", MOVING, "least", MOVING, "from", found.layout)
    await command("HSET", keys.meta, *fields)
    if found.way == "discard":
        await _empty(command, keys, progress)
        return found
    for layout in range(found.layout, LAYOUT):
        step = STEPS[layout]
        if step is not None:
            await step(command, keys, progress)
        await command("HSET", keys.meta, "from", layout + 1)
    await command("HSET", keys.meta, "layout", LAYOUT, "least", LEAST_LAYOUT)
    await command("HDEL", keys.meta, "from")
    return found


async def _empty(command: Command, keys: Keys, progress: Progress) -> None:
    """Delete all keys of a shard, the one that keeps others out last."""
    cursor: Value = 0
    gone = 0
    pattern = keys.prefix.replace("[", "\\[").replace("?", "\\?").replace("*", "\\*") + "*"
    while True:
        reply = await command("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP)
        if not isinstance(reply, list):
            raise Refused("layout", "the server does not list its keys")
        cursor, names = reply
        others = [name for name in names if name != keys.meta.encode()]
        for start in range(0, len(others), _STEP):
            part = others[start : start + _STEP]
            if not await command("EVAL", _DELETE, 1 + len(part), keys.meta, *part, MOVING):
                return
        gone += len(others)
        progress(gone)
        if cursor in (b"0", "0", 0):
            break
    await command("EVAL", _DELETE, 2, keys.meta, keys.meta, MOVING)
