"""The command line, without a terminal: as a user starts it, or in this process."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from fairlead.cli.main import cli, run

__all__ = ("answered", "fairlead")


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


def answered(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same without a process: for commands that look, say something and end."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in {"FAIRLEAD_DEBUG": "", **environment}.items():
            patch.setenv(name, value)
        code = run(cli, args)
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())
