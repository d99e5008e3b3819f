"""Looks after the files of a program, and says when one of them has changed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

log = logging.getLogger("fairlead.worker")

_INTERVAL = 0.5  # seconds between two looks
_SUFFIXES = (".py", ".toml")
_MOST = 20_000  # files; beyond that a look would take the time that the tasks need
# Not of the program, and large. A folder with a pyvenv.cfg is left out whatever its name is.
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")


class Reloader:
    """Calls ``changed`` when a Python or TOML file below a folder is written, added or removed.

    It asks the file system for times, which works on every system and in containers; hidden
    folders and virtual environments are left out.
    """

    name = "reloader"

    def __init__(
        self, folder: Path, changed: Callable[[], object], *, interval: float = _INTERVAL
    ) -> None:
        self._folder = folder
        self._changed = changed
        self._interval = interval
        self._known = self._times()
        if len(self._known) >= _MOST:
            log.warning("only %d files below %s are looked after", _MOST, folder)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            if await asyncio.to_thread(self.look):
                self._changed()

    def look(self) -> list[str]:
        """Return the files that differ from the last look, and log them."""
        before, self._known = self._known, self._times()
        files = sorted(
            each
            for each in before.keys() | self._known.keys()
            if before.get(each) != self._known.get(each)
        )
        if files:
            shown = [os.path.relpath(each, self._folder) for each in files[:5]]
            log.info("files changed", extra={"files": shown, "count": len(files)})
        return files

    def _times(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for entry in _files(self._folder):
            try:
                stat = entry.stat()
            except OSError:
                continue  # it is being replaced: the next look finds it
            found[entry.path] = stat.st_mtime_ns, stat.st_size
            if len(found) == _MOST:
                break
        return found


def _files(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda each: each.name)
    except OSError:
        return
    if any(entry.name == "pyvenv.cfg" for entry in listed):
        return
    for entry in listed:
        if entry.name.startswith(".") or entry.name in _LEFT_OUT:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
        elif entry.name.endswith(_SUFFIXES):
            yield entry
