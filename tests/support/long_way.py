"""The scripts without their straight ways: everything goes through the engine.

``FAIRLEAD_LONG_WAY=1`` runs the tests of brokers like that.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

__all__ = (
    "COUNTER",
    "COUNTERS",
    "ENDS",
    "LOANS",
    "READY",
    "SMALL",
    "chosen_lua",
    "counted_lua",
    "long_lua",
    "woken_lua",
)

# Keys of no shard: how often enqueue went straight, how many tasks ended and were lent so, and how
# many calls of exchange never came to the engine.
COUNTER, ENDS, LOANS, SMALL = "straight", "straight-ends", "straight-loans", "straight-small"
READY = "straight-ready"  # and how many calls of ready
COUNTERS = frozenset((COUNTER, ENDS, LOANS, SMALL, READY))

_Edit = tuple[str, str, str]  # file, old, new
_LONG: tuple[_Edit, ...] = (
    ("enqueue.lua", "-- @include straight_entry\n", ""),
    ("enqueue.lua", "-- @include hand_off\n", ""),
    ("exchange.lua", "-- @include straight_exchange\n", ""),
    ("lib/engine.lua", "-- @include straight_ready\n", ""),
    ("lib/straight_settle.lua", "STRAIGHT = true\n", "STRAIGHT = false\n"),
    ("lib/straight_release.lua", "local SHORT = true\n", "local SHORT = false\n"),
    ("lib/recorded_entry.lua", "local SHORT = true\n", "local SHORT = false\n"),
)
_WOKEN: tuple[_Edit, ...] = (("lib/hand_off.lua", "HAND_OFF = true\n", "HAND_OFF = false\n"),)
_COUNTED: tuple[_Edit, ...] = (
    (
        "lib/straight_entry.lua",
        "  if receipts then return receipts end\n",
        f"  if receipts then redis.call('INCR', '{COUNTER}') return receipts end\n",
    ),
    (
        "lib/straight_exchange.lua",
        "  return { text, '', unpack(values) }\n",
        f"  redis.call('INCR', '{SMALL}')\n"
        f"  if n > 0 then redis.call('INCRBY', '{ENDS}', n) end\n"
        f"  if k > 0 then redis.call('INCRBY', '{LOANS}', k) end\n"
        "  return { text, '', unpack(values) }\n",
    ),
    (
        "lib/straight_ready.lua",
        "  if reply then return reply end\n",
        f"  if reply then redis.call('INCR', '{READY}') return reply end\n",
    ),
    (
        "lib/settle.lua",
        "  end_plain(n + 1)\n",
        f"  if plain.total > 0 then redis.call('INCRBY', '{ENDS}', plain.total) end\n"
        "  end_plain(n + 1)\n",
    ),
    (
        "lib/straight_fetch.lua",
        "    if n > 0 then\n      budget.visits",
        f"    if n > 0 then redis.call('INCRBY', '{LOANS}', n) end\n"
        "    if n > 0 then\n      budget.visits",
    ),
)


def chosen_lua() -> Path | None:
    """Return the folder of scripts that this run of the tests is about; None: the product's own."""
    return long_lua() if os.environ.get("FAIRLEAD_LONG_WAY") else None


@cache
def long_lua() -> Path:
    """Return a folder of scripts without the straight ways."""
    return _changed(_LONG)


@cache
def woken_lua() -> Path:
    """Return a folder of scripts that hand nothing over: who waits is woken, and fetches."""
    return _changed(_WOKEN)


@cache
def counted_lua() -> Path:
    """Return a folder of scripts that count how often the straight ways are taken."""
    return _changed(_COUNTED)


def _changed(edits: tuple[_Edit, ...]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fairlead-lua-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ours = resources.files("fairlead.broker.redis") / "lua"
    with resources.as_file(ours) as path:
        shutil.copytree(path, folder, dirs_exist_ok=True)
    for file, old, new in edits:
        text = (folder / file).read_text()
        if text.count(old) != 1:
            raise LookupError(f"{file} has not one line {old!r}")
        (folder / file).write_text(text.replace(old, new))
    return folder
