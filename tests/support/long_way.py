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
    "LAID",
    "LOANS",
    "ONCE",
    "ONE",
    "READY",
    "SMALL",
    "chosen_lua",
    "copied_lua",
    "counted_lua",
    "inner_lua",
    "long_lua",
    "clockless_lua",
    "slow_lua",
    "woken_lua",
)

# Keys of no shard: how often enqueue went straight, how many tasks ended and were lent so, and how
# many calls of exchange never came to the engine.
COUNTER, ENDS, LOANS, SMALL = "straight", "straight-ends", "straight-loans", "straight-small"
ONE = "straight-one"  # of these, how many in which one task ends and one is lent at most
ONCE = "straight-once"  # how often one task of each of many tenants was lent in one go
READY = "straight-ready"  # and how many calls of ready
LAID = "straight-members"  # and how many members of flows became tasks
COUNTERS = frozenset((COUNTER, ENDS, LOANS, SMALL, ONE, ONCE, READY, LAID))

_Edit = tuple[str, str, str]  # file, old, new
_LONG: tuple[_Edit, ...] = (
    ("enqueue.lua", " fast_path/enqueue.enter engine", " engine"),
    ("exchange.lua", " fast_path/exchange.exchange_straight", ""),
    ("lib/engine.lua", " fast_path/exchange.look", ""),
    ("lib/fast_path/ends.lua", "STRAIGHT = true\n", "STRAIGHT = false\n"),
    ("lib/fast_path/records.lua", "SHORT = true\nreleases", "SHORT = false\nreleases"),
    ("lib/fast_path/records.lua", "SHORT = true\n-- Options", "SHORT = false\n-- Options"),
    ("lib/fast_path/records.lua", "SHORT = true\nlocal MEMBER", "SHORT = false\nlocal MEMBER"),
)
_SLOW: tuple[_Edit, ...] = (("lib/call.lua", "ENOUGH=0.001\n", "ENOUGH=-1\n"),)
_CLOCKLESS: _Edit = ("lib/call.lua", "return os.clock end", "return not_there.clock end")
_WOKEN: tuple[_Edit, ...] = (
    ("lib/fast_path/hand_off.lua", "HAND_OFF = true\n", "HAND_OFF = false\n"),
)
_COUNTED: tuple[_Edit, ...] = (
    (
        "lib/fast_path/enqueue.lua",
        "  if receipts then return receipts end\n",
        f"  if receipts then redis.call('INCR', '{COUNTER}') return receipts end\n",
    ),
    (
        "lib/fast_path/exchange.lua",
        "  return { text, exchange.lent > exchange.start",
        f"  redis.call('INCR', '{SMALL}')\n"
        f"  if exchange.settled > 0 then redis.call('INCRBY', '{ENDS}', exchange.settled) end\n"
        f"  if exchange.lent > 0 then redis.call('INCRBY', '{LOANS}', exchange.lent) end\n"
        "  return { text, exchange.lent > exchange.start",
    ),
    (
        "lib/fast_path/exchange_one.lua",
        "  return { text, '', value }\n",
        f"  redis.call('INCR', '{SMALL}')\n"
        f"  redis.call('INCR', '{ENDS}')\n"
        f"  redis.call('INCR', '{ONE}')\n"
        f"  if id then redis.call('INCR', '{LOANS}') end\n"
        "  return { text, '', value }\n",
    ),
    (
        "lib/fast_path/exchange_once.lua",
        "  queue.adds, queue.drops = adds, drops\n",
        f"  redis.call('INCR', '{ONCE}')\n  queue.adds, queue.drops = adds, drops\n",
    ),
    (
        "lib/fast_path/exchange.lua",
        "  if reply then return reply end\n",
        f"  if reply then redis.call('INCR', '{READY}') return reply end\n",
    ),
    (
        "lib/fast_path/records.lua",
        "  if place > first then entered(",
        f"  if place > first then redis.call('INCRBY', '{LAID}', place - first) end\n"
        "  if place > first then entered(",
    ),
    (
        "lib/settle.lua",
        "  end_plain(total + 1)\n",
        f"  if plain.total > 0 then redis.call('INCRBY', '{ENDS}', plain.total) end\n"
        "  end_plain(total + 1)\n",
    ),
    (
        "lib/fast_path/fetch.lua",
        "    if lent > 0 then\n      budget.visits",
        f"    if lent > 0 then redis.call('INCRBY', '{LOANS}', lent) end\n"
        "    if lent > 0 then\n      budget.visits",
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
def slow_lua() -> Path:
    """Return a folder of scripts for which each call has taken long enough at once.

    Not for a broker with a test's clock, which stands still during a call.
    """
    return _changed(_SLOW)


@cache
def clockless_lua() -> Path:
    """Return the same as on a server that has no clock for scripts."""
    return _changed((*_SLOW, _CLOCKLESS))


@cache
def woken_lua() -> Path:
    """Return a folder of scripts that hand nothing over: who waits is woken, and fetches."""
    return _changed(_WOKEN)


@cache
def counted_lua() -> Path:
    """Return a folder of scripts that count how often the straight ways are taken."""
    return _changed(_COUNTED)


@cache
def inner_lua() -> Path:
    """Return the same without the ways before the engine: tasks go straight inside of it."""
    files = ("enqueue.lua", "exchange.lua")
    counted = tuple(edit for edit in _COUNTED if SMALL not in edit[2])
    return _changed((*counted, *(edit for edit in _LONG if edit[0] in files)))


def copied_lua() -> Path:
    """Return a folder of the scripts as they are, which are put together anew for it."""
    return _changed(())


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
