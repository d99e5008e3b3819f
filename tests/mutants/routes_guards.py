"""Guards of the routes of management: what is whose, and what an order about many tasks touches."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_API = "fairlead/api/"
_TESTS = "tests/api/routes/"
_CROSSING = _TESTS + "test_crossing.py::test_a_tenant_neither_sees_nor_changes_what_is_anothers"
_BULK = _TESTS + "test_bulk.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(_API + file, ((old, new),)),)


def _in_act(old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant("fairlead/client/bulk_actions.py", ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "for operators",
        "workers, limiters and settings are not for tenants",
        _CROSSING,
        _at("views/paging.py", "    if request.access.tenant is not None:\n", "    if False:\n"),
    ),
    Guard(
        "queues of a tenant",
        "a tenant sees the queues in which it has something",
        _CROSSING,
        _at(
            "routes/queues.py",
            "    if tenant is None:\n        return found.queues\n",
            "    if True:\n        return found.queues\n",
        ),
    ),
    Guard(
        "schedules of a tenant",
        "a tenant reaches its own schedules",
        _CROSSING,
        _at(
            "routes/schedules.py",
            "    return own is not None and _tenant_of(record) != own\n",
            "    return False\n",
        ),
    ),
    Guard(
        "flows of a tenant",
        "a tenant reaches its own flows",
        _CROSSING,
        _at(
            "routes/flows.py",
            "    if record is None or (tenant is not None and record.tenant != tenant):\n",
            "    if record is None:\n",
        ),
    ),
    Guard(
        "members of others",
        "a tenant's order about its flow reaches no task of another",
        _TESTS + "test_flows.py::test_members_of_other_tenants_are_hidden_and_out_of_reach",
        _at(
            "routes/flows.py",
            "            if task is not None and task.message.tenant != own:\n",
            "            if False:\n",
        ),
    ),
    Guard(
        "schedules submit",
        "a schedule takes the scope to submit",
        _TESTS + "test_schedules.py::test_a_schedule_submits_so_it_takes_both_scopes",
        _at(
            "routes/schedules.py",
            '    require(request.access, "submit")  # it enqueues, again and again\n',
            "",
        ),
    ),
    Guard(
        "what came later",
        "an order about many tasks leaves those alone that came after it began",
        _BULK + "test_tasks_that_came_later_are_left_alone",
        _in_act("            and record.enqueued_at <= place.began\n", ""),
    ),
    Guard(
        "an end",
        "an order about many tasks ends while new ones come in",
        _BULK + "test_an_act_ends_while_new_tasks_come_in",
        _in_act("found.cursor is None or after.pages <= 0,", "found.cursor is None,"),
    ),
    Guard(
        "the caller is gone",
        "an order about many tasks stops with its connection",
        _BULK + "test_an_act_stops_when_its_caller_is_gone",
        _at("bulk_actions.py", "and not gone.done() and not", "and not"),
    ),
    Guard(
        "as it was seen",
        "a task that changed since it was chosen is left alone",
        SUITE + "test_alter.py::test_a_task_that_stands_as_it_was_seen_is_altered",
        (
            memory(
                "operator_verbs.py",
                ("    if seen is not None and seen != Seen(\n", "    if False and seen != Seen(\n"),
            ),
            lua(
                "change_tasks.lua",
                ("  elseif seen ~= '' and seen ~=", "  elseif false and seen ~="),
            ),
        ),
    ),
    Guard(
        "what was seen goes along",
        "an order about many tasks says how each stood when it was chosen",
        _BULK + "test_a_task_that_changed_since_it_was_read_is_left_alone",
        _in_act("level=level, seen=seen)", "level=level)"),
    ),
)
