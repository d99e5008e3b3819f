"""Guards of processes and signals: who ends with whom, and who waits for whom."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_WORKER = "fairlead/worker/"
_SIGNALS = "tests/acceptance/test_signals.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "terminal",
        "a worker whose terminal is closed does not live on unseen",
        _SIGNALS + "test_a_worker_whose_terminal_is_closed_stops_in_good_time",
        (Mutant(_WORKER + "process/supervisor.py", (("if not self.tied:", "if True:"),)),),
    ),
    Guard(
        "quiet",
        "children that are started while a worker is quiet do not fetch",
        _SIGNALS
        + "test_children_that_are_started_while_a_worker_is_quiet_are_quiet_until_cont[HUP]",
        (
            Mutant(
                _WORKER + "process/supervisor.py",
                (("quiet=self.is_quiet, paused=paused", "quiet=False, paused=paused"),),
            ),
        ),
    ),
    Guard(
        "waited for",
        "the supervisor takes no exit status that others wait for",
        "tests/worker/process/test_subprocess_reaper.py::test_in_a_process_of_its_own"
        "[what somebody waits for is left to them]",
        (
            Mutant(
                _WORKER + "process/subprocess_reaper.py",
                (("if pid in known or is_waited_for():", "if pid in known:"),),
            ),
        ),
    ),
    Guard(
        "slot alone",
        "a slot process that hangs does not outlive its worker",
        "tests/acceptance/test_hang.py::"
        "test_a_slot_process_that_hangs_ends_with_its_worker_without_help_of_the_kernel",
        (
            Mutant(
                "fairlead/cli/worker_slot.py", (("    when_alone(end, _die)", "    # when_alone"),)
            ),
        ),
    ),
    Guard(
        "end of a process",
        "a loop in a daemon thread does not crash the end of its process",
        "tests/runtime/test_daemon_loops.py::"
        "test_a_loop_with_timers_does_not_crash_the_end_of_the_process",
        (
            Mutant(
                "fairlead/runtime/daemon_loops.py",
                (("            stand_still(loop)", "            pass"),),
            ),
            Mutant(
                "fairlead/worker/local_handlers.py",
                (("            stand_still_at_the_end(self._loop)", "            pass"),),
            ),
        ),
    ),
    Guard(
        "end without outputs",
        "a process whose terminal is gone ends with its own exit code",
        "tests/runtime/test_terminals.py::"
        "test_a_process_ends_with_its_own_exit_code_without_its_outputs",
        (
            Mutant(
                "fairlead/runtime/terminals.py",
                (("                _lead_nowhere(stream.fileno())", "                pass"),),
            ),
        ),
    ),
    Guard(
        "own chance",
        "children of one process do not all wait the same pauses",
        "tests/runtime/test_randomness.py::test_forked_children_draw_each_their_own",
        (
            Mutant(
                "fairlead/runtime/randomness.py",
                (("at_fork(after_in_child=generator.seed)", "at_fork()"),),
            ),
        ),
    ),
    Guard(
        "silent readers",
        "a reader that still reads does not lose its place to another",
        SUITE + "test_gaps.py::test_a_reader_that_is_silent_for_long_makes_room_for_another",
        (
            memory(
                "event_log.py",
                ("if place != was or now - seen >= READER_SEEN:", "if place != was:"),
            ),
            lua(
                "events.lua", ("if place == was and now - seen < SEEN then", "if place == was then")
            ),
        ),
    ),
)
