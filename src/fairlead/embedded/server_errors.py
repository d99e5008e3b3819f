"""What can be wrong with a server that was started or found, in words, and what to do about it."""

from __future__ import annotations

from fairlead.embedded.directory import Directory, Holder
from fairlead.model.errors import Refused, Unreachable


def busy(directory: Directory, timeout: float) -> Unreachable:
    return Unreachable(
        "another process has been starting or stopping the embedded server in "
        f"{_at(directory)} for {timeout:g} s; try again"
    )


def loading(directory: Directory, server: Holder | None, timeout: float) -> Unreachable:
    return Unreachable(
        f"the embedded server in {_at(directory)} ({_named(server)}) is still loading its data "
        f"after {timeout:g} s; try again later, or use a longer start_timeout"
    )


def silent(directory: Directory, server: Holder | None, timeout: float) -> Unreachable:
    return Unreachable(
        f"the embedded server in {_at(directory)} ({_named(server)}) does not answer after "
        f"{timeout:g} s; if it hangs, `kill` it where it runs, which keeps its data, and try again"
        + _log(directory)
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


def stray(directory: Directory, server: Holder | None) -> Refused:
    return Refused(
        "state",
        f"a server ({_named(server)}) runs in {_at(directory)}, but state.json, which says how to "
        "reach it, is gone or damaged; `kill` that server, which keeps its data, and try again",
    )


def unlocked(directory: Directory, socket: str) -> Refused:
    return Refused(
        "state",
        f"a server answers at {socket!r}, but does not hold server.lock in {_at(directory)} "
        "(was the file deleted?); a second one would damage its data: stop that server with "
        "SHUTDOWN, which keeps its data, and try again",
    )


def _named(server: Holder | None) -> str:
    return "pid unknown" if server is None else str(server)


def _at(directory: Directory) -> str:
    return repr(str(directory.root))


def _log(directory: Directory) -> str:
    return f". Its log {str(directory.log)!r} ends with:{directory.last_words()}"
