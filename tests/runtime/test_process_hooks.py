"""In which order things are done when a process ends."""

from __future__ import annotations

from tests.runtime.programs import run


def test_the_end_comes_after_all_exit_handlers_whenever_it_was_asked_for() -> None:
    said = run(
        """
import atexit
import fairlead
from fairlead.runtime.process_hooks import at_exit, at_the_end

atexit.register(print, "a user's")
at_the_end(print, "the end of what was there first")
at_the_end(print, "the end")
at_exit(print, "ours")
"""
    )
    assert said.splitlines() == ["ours", "a user's", "the end", "the end of what was there first"]


def test_a_call_of_a_thread_and_a_server_that_is_started_late_end_in_order() -> None:
    said = run(
        """
import fairlead
from fairlead.client import thread_lines

order = []
lines = type("Lines", (), {"busy": property(lambda self: order.append("calls"))})()
thread_lines._all.add(lines)
from fairlead.embedded import valkey

valkey._in_use.add(type("Server", (), {"stop": lambda self: print(*order, "server")})())
"""
    )
    assert said.splitlines() == ["calls server"]
