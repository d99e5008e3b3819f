"""What can be wrong with a server that was started or found, in words, and what to do about it."""

from __future__ import annotations

from fairlead.embedded.directory import Directory
from fairlead.model.errors import Refused, Unreachable

__all__ = ("busy", "died", "loading", "not_launched", "silent", "stray")


def busy(directory: Directory, timeout: float) -> Unreachable:
    return Unreachable(
        "another process has been starting or stopping the embedded server in "
        f"{_at(directory)} for {timeout:g} s; try again"
    )


def loading(directory: Directory, pid: int | None, timeout: float) -> Unreachable:
    return Unreachable(
        f"the embedded server in {_at(directory)} (pid {pid}) is still loading its data after "
        f"{timeout:g} s; try again later, or use a longer start_timeout"
    )


def silent(directory: Directory, pid: int | None, timeout: float) -> Unreachable:
    return Unreachable(
        f"the embedded server in {_at(directory)} (pid {pid}) does not answer after {timeout:g} s; "
        "if it hangs, `kill` it, which keeps its data, and try again" + _log(directory)
    )


def not_launched(directory: Directory, timeout: float) -> Unreachable:
    return Unreachable(
        f"the embedded server in {_at(directory)} could not be launched within {timeout:g} s; "
        "is the machine very busy? Try again"
    )


def died(directory: Directory) -> Refused:
    return Refused(
        "server",
        f"the embedded server in {_at(directory)} ended while it started" + _log(directory),
    )


def stray(directory: Directory, pid: int | None) -> Refused:
    return Refused(
        "state",
        f"a server (pid {pid}) runs in {_at(directory)}, but state.json, which says how to reach "
        "it, is gone or damaged; `kill` that server, which keeps its data, and try again",
    )


def _at(directory: Directory) -> str:
    return repr(str(directory.root))


def _log(directory: Directory) -> str:
    return f". Its log {str(directory.log)!r} ends with:{directory.last_words()}"
