"""The command line as a user starts it: in a process of its own, without a terminal."""

import os
import subprocess
import sys

__all__ = ("fairlead",)


def fairlead(
    *args: str, seconds: float = 90.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *args],
        env={**os.environ, "FAIRLEAD_DEBUG": "", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=seconds,
    )
