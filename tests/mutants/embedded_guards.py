"""Guards of the embedded server and the choice of a broker."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

GUARDS: tuple[Guard, ...] = (
    Guard(
        "allocator",
        "no library is loaded from a folder that others can write to",
        "tests/embedded/test_allocator.py::"
        "test_a_folder_that_others_can_write_to_is_no_place_for_it[511]",
        (
            Mutant(
                "fairlead/embedded/allocator.py",
                (
                    (
                        "if shared and not (above and found.st_mode & stat.S_ISVTX):",
                        "if False:",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "containers",
        "the pid of another container says nothing about its process",
        "tests/runtime/test_identity.py::"
        "test_nothing_is_said_of_another_machine_or_container[namespace]",
        (
            Mutant(
                "fairlead/runtime/identity.py",
                (("all(told.get(key) == value for key, value in here.items())", "True"),),
            ),
        ),
    ),
    Guard(
        "strangers",
        "only the server itself is signalled, never another process with its pid",
        "tests/embedded/test_server_errors.py::"
        "test_a_stranger_that_has_the_pid_of_the_server_is_not_ended_in_its_place[namespace]",
        (
            Mutant(
                "fairlead/embedded/valkey_server.py",
                (("if is_same(holder.pid, holder.identity):", "if True:"),),
            ),
        ),
    ),
    Guard(
        "unlocked",
        "a server that lost its lock is not joined by a second one",
        "tests/embedded/test_server_errors.py::"
        "test_a_server_that_lost_its_lock_is_not_joined_by_a_second_one",
        (
            Mutant(
                "fairlead/embedded/valkey.py",
                (("                self._check_nobody_listens()\n", ""),),
            ),
        ),
    ),
    Guard(
        "unlocked elsewhere",
        "it is found whatever the directory is called, also if it hangs",
        "tests/embedded/test_server_errors.py::"
        "test_a_server_that_lost_its_lock_is_found_under_another_name_of_its_directory[True]",
        (
            Mutant(
                "fairlead/embedded/directory.py",
                (("Path(os.path.realpath(path))", "path.absolute()"),),
            ),
            Mutant(
                "fairlead/embedded/valkey_server.py",
                (
                    (
                        "perhaps with others in line before us\n            return True",
                        "\n            return False",
                    ),
                ),
            ),
        ),
    ),
    Guard(
        "first call",
        "the first call on an embedded server keeps its time limit",
        "tests/embedded/test_broker.py::"
        "test_a_first_call_keeps_its_time_limit_and_says_that_nothing_was_sent",
        (
            Mutant(
                "fairlead/broker/redis/embedded.py",
                (("timeout=None if until == math.inf else until - loop.time()", "timeout=None"),),
            ),
        ),
    ),
    Guard(
        "named",
        "a worker without a terminal takes no broker that nobody named",
        "tests/cli/test_worker_broker.py::"
        "test_a_worker_without_a_terminal_takes_no_broker_that_nobody_named",
        (
            Mutant(
                "fairlead/cli/worker_child.py",
                (("if not (app._is_named or plan.terminal):", "if False:"),),
            ),
        ),
    ),
    Guard(
        "warned",
        "whoever starts a server that nobody named is told",
        "tests/test_choice.py::test_whoever_starts_a_server_that_nobody_named_is_warned_once",
        (
            Mutant(
                "fairlead/app/backend.py",
                (("is_default=not is_named", "is_default=False"),),
            ),
        ),
    ),
    Guard(
        "after the calls",
        "a server of one's own is stopped after calls that are finished at exit",
        "tests/runtime/test_process_hooks.py::"
        "test_a_call_of_a_thread_and_a_server_that_is_started_late_end_in_order",
        (
            Mutant(
                "fairlead/embedded/valkey.py",
                (("at_the_end(_at_exit)", "__import__('atexit').register(_at_exit)"),),
            ),
        ),
    ),
    Guard(
        "client only",
        "a client needs nothing that Windows does not have",
        "tests/test_client_only.py::test_a_client_enqueues_and_reads",
        (
            Mutant(
                "fairlead/runtime/process_hooks.py",
                (('if hasattr(os, "register_at_fork"):', "if True:"),),
            ),
        ),
    ),
    Guard(
        "private folder",
        "nothing is written through a link that somebody else made",
        "tests/worker/process/test_status.py::test_a_link_is_not_followed",
        (Mutant("fairlead/runtime/private_folders.py", (("folder.lstat()", "folder.stat()"),)),),
    ),
)
