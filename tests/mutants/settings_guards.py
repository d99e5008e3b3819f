"""Guards of settings and of what an app says while its broker is away."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_SETTINGS = "fairlead/settings/"
_SETTINGS_TESTS = "tests/test_settings.py::"
_START = "tests/test_create_queue.py::"
_OUTAGE = "tests/api/test_outage.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "order of sources",
        "an argument goes before a variable, and that before the file",
        _SETTINGS_TESTS + "test_arguments_go_before_the_environment_and_that_before_the_file",
        (
            Mutant(
                _SETTINGS + "__init__.py",
                (("    if argument is not None:\n", "    if False:\n"),),
            ),
            Mutant(_SETTINGS + "sources.py", (("get(key.variable, ", "get('', "),)),
        ),
    ),
    Guard(
        "unknown keys",
        "a key with a slip of the pen is an error, not silence",
        _SETTINGS_TESTS + "test_a_wrong_key_of_the_file_is_named_with_what_to_write",
        _at(_SETTINGS + "sources.py", "raise self.unknown_key(name)", "pass"),
    ),
    Guard(
        "unused parts of the file",
        "a program without a fallback does not fail because of the spool's settings",
        _SETTINGS_TESTS
        + "test_a_program_without_a_fallback_does_not_depend_on_the_spool_of_the_file",
        _at(_SETTINGS + "__init__.py", '    if said == "none":\n', "    if False:\n"),
    ),
    Guard(
        "passwords of settings",
        "fairlead config shows no password",
        "tests/cli/test_config.py::test_no_password_is_shown",
        (
            Mutant(
                "fairlead/cli/config_report.py",
                (("        return value if value == _EMBEDDED else address_of(value)\n",
                  "        return value\n"),),
            ),
            Mutant(
                "fairlead/cli/config_report.py",
                (("        return parse_address(value).shown\n", "        return value\n"),),
            ),
            Mutant(
                "fairlead/cli/config_report.py",
                (("{route: shown_url(url) for", "{route: url for"),),
            ),
        ),
    ),
    Guard(
        "wanted",
        "a server that a program did not ask for is not used",
        _START + "test_our_own_settings_count_where_the_others_say_nothing",
        _at("fairlead/app/startup.py",
            "    if why is not None or not choice.use_redis:\n", "    if why is not None:\n"),
    ),
    Guard(
        "start without a server",
        "a program starts though its server is not there, and says why",
        _START + "test_a_server_that_is_not_there_leaves_tasks_in_memory_with_one_warning",
        _at("fairlead/app/startup.py",
            "    why = _obstacle(choice) if choice.use_redis else None\n", "    why = None\n"),
    ),
    Guard(
        "order of labels",
        "a label with a smaller number never has a later level",
        _START + "test_labels_take_levels_in_the_order_of_their_numbers",
        _at("fairlead/model/priorities.py",
            "    ranks = sorted(set(numbers.values()))\n",
            "    ranks = sorted(set(numbers.values()), reverse=True)\n"),
    ),
    Guard(
        "redis_active",
        "no snapshot says that a server answered when it did not",
        "tests/client/test_snapshots.py::"
        "test_a_snapshot_answers_from_the_spool_while_the_broker_is_away",
        _at("fairlead/app/admin.py",
            "    return Snapshot(now=time.time(), depth=",
            "    return Snapshot(redis_active=True, now=time.time(), depth="),
    ),
    Guard(
        "201 or 202",
        "a task that is only on a disk is not told as one that the broker has",
        _OUTAGE + "test_a_task_is_201_when_the_broker_has_it_and_202_when_the_disk_has_it",
        (
            Mutant(
                "fairlead/api/routes/tasks.py",
                (('    if value.durability == "spooled":\n', "    if False:\n"),),
            ),
            Mutant(
                "fairlead/api/submissions.py",
                (('    return "spooled" if new.durability is UNSET else new.durability\n',
                  '    return "spooled"\n'),),
            ),
        ),
    ),
    Guard(
        "committed in a batch",
        "a task that must not be spooled is not, and stops no other",
        _OUTAGE + "test_a_batch_tells_of_each_task_where_it_is",
        (
            Mutant(
                "fairlead/api/batches.py",
                (('if durability == "spooled" or', "if True or"),),
            ),
            Mutant(
                "fairlead/api/batches.py",
                (("            self._durability[index] = durability_of(new)\n",
                  '            self._durability[index] = "spooled"\n'),),
            ),
        ),
    ),
    Guard(
        "full spool over HTTP",
        "a full spool is back-pressure, not an outage",
        _OUTAGE + "test_a_full_spool_is_429_with_a_time_to_come_again",
        _at("fairlead/api/http/problems.py", "    (SpoolFull, _spool_full),\n", ""),
    ),
    Guard(
        "stale tokens",
        "a token that was last seen long before an outage lets nothing in, and none lets more than "
        "tasks in",
        _OUTAGE + "test_a_token_lasts_as_long_as_the_outage_and_five_minutes_before_it",
        (
            Mutant(
                "fairlead/api/auth/token_cache.py",
                (("        if age >= _KNOWN and not (outage and will_do):\n",
                  "        if age >= _KNOWN and not outage:\n"),),
            ),
            Mutant(
                "fairlead/api/auth/token_cache.py",
                (("will_do = stale and entry.stored is not None and age < _STALE + outage",
                  "will_do = True"),),
            ),
            Mutant(
                "fairlead/api/http/server.py",
                (("        self.is_open_when_away = route.when_away or spools\n",
                  "        self.is_open_when_away = True\n"),),
                test=_OUTAGE
                + "test_what_is_known_of_a_token_from_before_the_outage_is_good_for_tasks_only",
            ),
        ),
    ),
    Guard(
        "degraded",
        "a server that keeps tasks on disk says so, and is not taken out of service for it",
        _OUTAGE + "test_health_is_degraded_and_a_degraded_server_stays_ready",
        (
            Mutant(
                "fairlead/api/service.py",
                (('self.fallback.state in ("spooling", "draining")', "False"),),
            ),
            Mutant(
                "fairlead/api/routes/health.py",
                (("    if fallback is not None and (service.is_degraded or now is None):\n",
                  "    if False:\n"),),
            ),
        ),
    ),
    Guard(
        "spools of ended processes",
        "what a child had on disk is not told when it has ended",
        "tests/telemetry/test_counters.py::"
        "test_what_an_ended_process_had_on_disk_is_not_told_again",
        _at("fairlead/worker/process/child_totals.py",
            "msgspec.structs.replace(child.counted, spools=())", "child.counted"),
    ),
    Guard(
        "order within a millisecond",
        "tasks that are due at the same moment run in the order they were enqueued",
        "tests/runtime/test_ids.py::"
        "test_ids_sort_in_the_order_they_were_made_where_the_clock_hardly_moves_or_goes_back[0]",
        _at("fairlead/runtime/ids.py", "least = now + _PART", "least = 0"),
    ),
)  # fmt: skip
