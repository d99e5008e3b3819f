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

__all__ = ("chosen_lua", "counted_lua", "long_lua")

_TAKEN = "  if receipts then return receipts end\n"
COUNTER = "straight"  # a key of no shard


def chosen_lua() -> Path | None:
    """Return the folder of scripts that this run of the tests is about; None: the product's own."""
    return long_lua() if os.environ.get("FAIRLEAD_LONG_WAY") else None


@cache
def long_lua() -> Path:
    """Return a folder of scripts without the straight way."""
    return _changed("enqueue.lua", "-- @include straight_entry\n", "")


@cache
def counted_lua() -> Path:
    """Return a folder of scripts that count in ``COUNTER`` how often the straight way is taken."""
    counted = f"  if receipts then redis.call('INCR', '{COUNTER}') return receipts end\n"
    return _changed("lib/straight_entry.lua", _TAKEN, counted)


def _changed(file: str, old: str, new: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fairlead-lua-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ours = resources.files("fairlead.broker.redis") / "lua"
    with resources.as_file(ours) as path:
        shutil.copytree(path, folder, dirs_exist_ok=True)
    text = (folder / file).read_text()
    if text.count(old) != 1:
        raise LookupError(f"{file} has not one line {old!r}")
    (folder / file).write_text(text.replace(old, new))
    return folder
