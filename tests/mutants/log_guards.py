"""Guards of the lines that handlers keep with their task."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_LINES = "tests/worker/run/test_log_buffer.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "log-bounds",
        "a task keeps so many lines and no more",
        SUITE + "test_logs.py::test_any_order_of_writes_stores_what_the_model_says",
        (
            lua("write.lua", ("while lines > MAX_LINES or #entries", "while #entries")),
            memory(
                "fairlead/model/log_lines.py",
                ("while lines > MAX_LINES or len(entries) - place > MAX_LOG:", "while False:"),
            ),
        ),
    ),
    Guard(
        "log-before-outcome",
        "the last lines of an attempt are sent while it has its lease",
        _LINES + "test_light_attempts_keep_lines_and_codecs_hide_them",
        (
            Mutant(
                "fairlead/worker/runner.py",
                (("elif outcome is None or not lines.has_lines:", "elif True:"),),
            ),
            Mutant(
                "fairlead/worker/run/light_attempt.py",
                ((" or context._cleanups or context._lines:", " or context._cleanups:"),),
            ),
        ),
    ),
    Guard(
        "log-codec",
        "lines that no codec takes are counted",
        _LINES + "test_lines_that_no_codec_takes_are_counted_and_said_once_for_a_task",
        (
            Mutant(
                "fairlead/worker/run/log_buffer.py",
                (("            self._missed += count\n", "            pass\n"),),
            ),
        ),
    ),
)
