"""How much memory another process has, where the system tells."""

from __future__ import annotations

import os
from pathlib import Path


def can_measure() -> bool:
    """Whether the system tells how much memory other processes have."""
    return Path("/proc/self/statm").exists()


def resident(pid: int) -> int:
    """The bytes of memory that a process has in use; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
        return int(text.split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0
