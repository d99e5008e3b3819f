"""End what the bench has started when the bench itself was killed and cannot do it.

`python guard.py` reads its input until that ends: `+ID` is a process group to end then, `-ID` one
that is over, `/PATH` a folder to remove. A bench that ends in good order has said so of each.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable

__all__ = ("guard",)


def guard(lines: Iterable[str]) -> None:
    """Read to the end, then end the groups and remove the folders that are left."""
    groups: set[int] = set()
    folders: set[str] = set()
    for line in lines:
        said = line.rstrip("\n")
        if said.startswith("+"):
            groups.add(int(said[1:]))
        elif said.startswith("-"):
            groups.discard(int(said[1:]))
        else:
            folders.add(said)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guard(sys.stdin)
