"""The guards that must not go: where each stands, how it is taken out, which test must notice.

Most stand twice, in the memory broker and in the scripts of the Redis broker, and are taken out of
each by itself. A mutant is a list of replacements in one file. Each ``old`` text must stand there
exactly once, so that a guard which is rewritten cannot slip out of this list unseen.
"""

from __future__ import annotations

from tests.mutants import (
    api_guards,
    argument_guards,
    batches_guards,
    capacity_guards,
    catalog_guards,
    codec_guards,
    contrib_guards,
    documents_guards,
    doubt_guards,
    drain_guards,
    embedded_guards,
    event_guards,
    fallback_guards,
    functions_guards,
    gap_guards,
    hand_off_guards,
    leadership_guards,
    ledger_guards,
    local_guards,
    log_guards,
    loss_guards,
    manager_guards,
    metrics_guards,
    neighbors_guards,
    once_guards,
    outage_guards,
    outbox_guards,
    outcome_guards,
    page_guards,
    process_guards,
    promotion_guards,
    recorder_guards,
    repair_guards,
    room_guards,
    routes_guards,
    servers_guards,
    settings_guards,
    short_way_guards,
    spool_guards,
    step_guards,
    straight_guards,
    testing_guards,
    transfer_guards,
    up_guards,
)
from tests.mutants.mutant import MACHINE, SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_ENGINE = (
    Guard(
        "token",
        "a worker that lost its lease cannot write",
        SUITE + "test_xcom.py::test_a_write_with_an_earlier_lease_of_the_same_task_is_fenced",
        (
            memory("records.py", (" and self.token == token", "")),
            lua("lib/task.lua", (" and task.token == token", "")),
            lua(
                "lib/fast_path/ends.lua",
                ("fate.untouched and fate.token == token\n", "fate.untouched\n"),
                test=MACHINE + "test_a_settlement_with_an_old_token_is_fenced_for_an_id_that"
                "_fairlead_made",
            ),
        ),
    ),
    Guard(
        "virtual clock",
        "newcomers cannot starve those who wait",
        SUITE
        + "test_fairness.py::test_new_tenants_without_end_do_not_starve_the_one_that_sorts_last",
        (
            memory("fair.py", ("if tenant.tag < self.clock:", "if False:")),
            lua(
                "lib/fair.lua",
                ("if tenant[TAG] < queue.clock then tenant[TAG] = queue.clock end", ""),
            ),
        ),
    ),
    Guard(
        "same sequence",
        "a fetch of n serves tenants as n fetches of one would",
        SUITE + "test_fairness.py::test_weights_of_3_1_1_are_served_3_1_1[*-64]",
        (
            memory(
                "exchange.py",
                (
                    "    now = shard.now\n    while len(taken)",
                    "    seen = set()\n    now = shard.now\n    while len(taken)",
                ),
                (
                    "tenant = queue.first()\n        if tenant is None:\n            return\n",
                    "line = sorted((t.tag, t.name, t) for t in queue.tenants.values()\n"
                    "                      if t.status == 'ready')\n"
                    "        if not line:\n            return\n"
                    "        if all(t.name in seen for _, _, t in line):\n"
                    "            seen.clear()\n"
                    "        tenant = next(t for _, _, t in line if t.name not in seen)\n"
                    "        seen.add(tenant.name)\n",
                ),
            ),
            lua("lib/fair.lua", ("  heap_push(queue.heap, tenant)\n", "")),
            lua(
                "lib/fast_path/fetch.lua",
                ("    if rival_tag and (rival_tag", "    if false and (rival_tag"),
                test=MACHINE + "test_tasks_with_ids_that_fairlead_makes_are_served_in_the_same"
                "_order[64]",
            ),
        ),
    ),
    Guard(
        "cap",
        "a full queue refuses",
        SUITE + "test_backlog.py::test_a_queue_that_is_at_its_limit_refuses",
        (
            memory("enqueue.py", ("+ in_queue > limit", "+ in_queue < 0")),
            lua("lib/flow.lua", ("+ in_queue > queue.max then", "< 0 then")),
        ),
    ),
    Guard(
        "jump guard",
        "a frozen server does not take everyone for dead",
        SUITE
        + "test_leases.py::test_after_a_silence_longer_than_a_heartbeat_no_lease_is_ended_for_one",
        (
            memory("recovery.py", ("if now < shard.guard_until:", "if False:")),
            lua(
                "recover_expired.lua", ("local guarded = now < meta.guard", "local guarded = false")
            ),
        ),
    ),
    Guard(
        "call number",
        "a call whose reply was lost can be asked again",
        SUITE + "test_calls.py::test_the_last_number_again_gives_the_same_answers_and_changes"
        "_nothing[*-settle_and_fetch]",
        (
            memory("session.py", ("if call.number == last.number:", "if False:")),
            lua("lib/call.lua", ("if number > last then", "if number >= last then")),
        ),
    ),
    Guard(
        "trim",
        "finished work does not grow without end",
        SUITE
        + "test_results.py::test_finished_tasks_beyond_the_queues_count_are_forgotten_oldest_first",
        (
            memory("transitions.py", ("while trimmed < most and (id :=", "while False and (id :=")),
            lua(
                "lib/retention_trim.lua",
                (
                    "function shelves.trim(queue, most)\n",
                    "function shelves.trim(queue, most)\n  do return 0 end\n",
                ),
            ),
        ),
    ),
    Guard(
        "enough is trimmed",
        "a full queue forgets what is past its time as well",
        SUITE
        + "test_results.py::"
        + "test_a_full_queue_forgets_what_is_past_its_time_beside_what_is_too_much",
        (
            lua(
                "lib/retention_trim.lua", ("return queue.look > now + LATER and not", "return not")
            ),
            lua(
                "lib/retention_trim.lua",
                (" and not (queue.soon and queue.soon <= now)", ""),
                test=SUITE
                + "test_results.py::test_a_full_queue_keeps_nothing_that_is_not_to_be_kept[valkey]",
            ),
        ),
    ),
    Guard(
        "cycle check",
        "tasks never wait for each other",
        "tests/model/test_topological_sort.py::test_a_cycle_is_refused_with_its_path",
        (
            Mutant(
                "fairlead/model/topological_sort.py",
                (("raise DependencyCycle(error.args[1][::-1]) from None", "return list(edges)"),),
            ),
        ),
    ),
    Guard(
        "breaker",
        "what fails again and again is given a rest",
        SUITE + "test_breaker.py::test_while_it_is_open_nothing_goes_that_needs_it",
        (
            memory(
                "limits.py",
                ("opens = self.circuit.closed_until(self.breaker, now)", "opens = None"),
            ),
            lua(
                "lib/limits.lua",
                ("if now < opens then return max(till or 0, opens) end", ""),
            ),
        ),
    ),
    Guard(
        "crash count",
        "a task that kills its process is taken out",
        SUITE + "test_leases.py::test_the_third_crash_in_a_row_is_poison",
        (
            memory(
                "fairlead/model/retries.py",
                ("    if crashes >= CRASH_LIMIT:\n", "    if False:\n"),
            ),
            lua("lib/lease.lua", ("task.crashes >= CRASH_LIMIT", "false")),
        ),
    ),
    Guard(
        "unique",
        "one task at a time for a key",
        SUITE + "test_unique.py::test_a_unique_key_that_is_held_makes_a_duplicate_that_names_the"
        "_holder[*-done]",
        (
            memory("enqueue.py", ("        if holder is not None:\n", "        if False:\n")),
            lua(
                "lib/accept.lua",
                ("local id = options[4] ~= '0' and unique.holder(key)", "local id = false"),
            ),
        ),
    ),
    Guard(
        "TTL",
        "an XCom value is gone when its time is over",
        SUITE + "test_xcom.py::test_pull_answers_none_where_the_ttl_is_over",
        (
            memory("operator_verbs.py", ("alive = ends > shard.now or", "alive = ends > 0 or")),
            lua("get_xcom.lua", ("(till > now or", "(till > 0 or")),
        ),
    ),
    Guard(
        "pause",
        "a paused queue hands nothing out",
        SUITE + "test_limits.py::test_a_paused_queue_is_passed_over_and_takes_tasks_in",
        (
            memory(
                "exchange.py",
                ("queue is not None and not queue.paused and", "queue is not None and"),
            ),
            lua(
                "lib/lease.lua",
                ("if queue and queue.paused == 0 and #taken", "if queue and #taken"),
            ),
        ),
    ),
    Guard(
        "pins",
        "what an unfinished task will read is not forgotten",
        SUITE + "test_pins.py::test_a_dependency_that_is_completed_already_is_pinned_too[*-parent]",
        (
            memory("enqueue.py", ("if submission.uses_results:", "if False:")),
            lua("lib/accept.lua", ("tonumber(options[3]) >= USES_RESULTS then", "false then")),
        ),
    ),
    Guard(
        "last pin",
        "what nobody will read any more is forgotten in its time",
        SUITE + "test_pins.py::test_what_is_kept_for_no_time_goes_with_its_last_pin",
        (
            memory("pins.py", ("        shard.shelve(parent, parent.keep)", "        pass")),
            lua("lib/pins.lua", ("  shelves.put(parent, keep)\n", "\n")),
        ),
    ),
    Guard(
        "entry of a list",
        "an entry of 'kept' is not that of a task which was pinned since",
        SUITE + "test_pins.py::test_a_call_that_pins_and_forgets_does_not_forget_what_it_pins",
        (
            memory(
                "pins.py",
                ("        parent.tenant.queue.shelf(parent.state).remove(parent)", "        pass"),
            ),
            lua("lib/retention.lua", ("task and to_record(task) or ", "")),
            lua(
                "lib/retention_trim.lua",
                (" and not fate.aside", ""),
                test=SUITE
                + "test_pins.py::test_a_dependency_that_is_completed_already_is_pinned_too[valkey-"
                + "a" * 32
                + "]",
            ),
        ),
    ),
    Guard(
        "XCom of a pinned task",
        "its values outlive their TTL",
        SUITE + "test_pins.py::test_xcom_values_of_a_pinned_task_outlive_their_ttl[*-completed]",
        (
            memory("operator_verbs.py", (" or pins.pinned(shard, writer)", "")),
            lua("get_xcom.lua", ("call('HEXISTS', prefix .. 'pins', writer) == 1", "false")),
        ),
    ),
    Guard(
        "flow guard",
        "nothing of a flow runs before all of it is there",
        SUITE + "test_flows.py::test_nothing_runs_before_all_of_it_is_there[*-120]",
        (
            memory("flows.py", ("[*parents, flow.guard] if guarded else", "")),
            lua("lib/flow_members.lua", (" or not inside end", " end")),
        ),
    ),
    Guard(
        "policy run behind a flow guard",
        "a member that runs whatever becomes of its parents waits for the rest of its flow",
        SUITE + "test_flows.py::test_a_member_that_ends_while_the_rest_is_laid_out_lets_nobody_run"
        "[*-run]",
        (
            memory("flows.py", ('member.on_dependency_failure == "run" or ', "")),
            lua("lib/flow_members.lua", ("policy == POLICY_RUN or ", "")),
        ),
    ),
    Guard(
        "reservation",
        "others cannot take the room of a flow",
        SUITE + "test_flows.py::test_others_cannot_take_the_room_of_a_flow",
        (
            memory("enqueue.py", (' + shard.reserved[name, ""]', "")),
            lua("lib/flow.lua", (" + flows.reserved(queue_name, '')", "")),
        ),
    ),
    Guard(
        "members counted",
        "a flow ends with its last member",
        SUITE + "test_flow_orders.py::test_a_flow_is_completed_when_all_its_members_are",
        (
            memory(
                "transitions.py",
                ("            flow_state.count(self, task.flow, to)", "            pass"),
            ),
            lua("lib/fast_path/ends.lua", ("if kind.flow then", "if false then")),
        ),
    ),
    Guard(
        "one writer",
        "parts of two writers do not mix",
        SUITE + "test_flows.py::test_a_flow_is_written_by_one_incarnation",
        (
            memory("flows.py", (" is not None or flow.writer != writer:", " is not None:")),
            lua("stage.lua", (" or flow.writer ~= CALLER", "")),
        ),
    ),
    Guard(
        "slot",
        "a slot of a schedule is fired once",
        SUITE + "test_schedules.py::test_a_slot_that_was_fired_is_stale",
        (
            memory(
                "schedules.py",
                ("and firing.slot >= record.next_at", ""),
                ("and (record.last_slot is None or firing.slot > record.last_slot)", ""),
            ),
            lua(
                "lib/schedules.lua",
                (" and slot >= schedule.next", ""),
                ("and (not schedule.last or slot > schedule.last)", ""),
            ),
        ),
    ),
    Guard(
        "last slot",
        "a slot stays fired when its schedule is replaced",
        SUITE + "test_schedules.py::test_a_slot_stays_fired_when_the_schedule_is_replaced",
        (
            memory(
                "schedules.py",
                ("and (record.last_slot is None or firing.slot > record.last_slot)", ""),
            ),
            lua("lib/schedules.lua", ("and (not schedule.last or slot > schedule.last)", "")),
        ),
    ),
    Guard(
        "revision",
        "a scheduler that was stopped and wakes with old knowledge does no harm",
        SUITE + "test_schedules.py::test_who_knows_an_old_revision_fires_nothing",
        (
            memory("schedules.py", ("and record.revision == firing.revision", "")),
            lua("lib/schedules.lua", (" and schedule.revision == revision", "")),
        ),
    ),
    Guard(
        "claim",
        "nobody spins on a schedule that somebody has in hand",
        SUITE + "test_schedules.py::test_what_was_handed_out_is_not_due_until_the_claim_is_over",
        (
            memory(
                "schedules.py",
                (
                    "shard.ticks.set(record.name, shard.now + CLAIM)",
                    "shard.ticks.set(record.name, shard.now)",
                ),
            ),
            lua(
                "lib/schedules.lua", ("max(now + CLAIM, schedule.next)", "max(now, schedule.next)")
            ),
        ),
    ),
)

GUARDS: tuple[Guard, ...] = (
    *_ENGINE,
    *doubt_guards.GUARDS,
    *capacity_guards.GUARDS,
    *catalog_guards.GUARDS,
    *batches_guards.GUARDS,
    *neighbors_guards.GUARDS,
    *once_guards.GUARDS,
    *outbox_guards.GUARDS,
    *embedded_guards.GUARDS,
    *event_guards.GUARDS,
    *leadership_guards.GUARDS,
    *loss_guards.GUARDS,
    *process_guards.GUARDS,
    *promotion_guards.GUARDS,
    *recorder_guards.GUARDS,
    *functions_guards.GUARDS,
    *gap_guards.GUARDS,
    *ledger_guards.GUARDS,
    *repair_guards.GUARDS,
    *room_guards.GUARDS,
    *metrics_guards.GUARDS,
    *page_guards.GUARDS,
    *api_guards.GUARDS,
    *argument_guards.GUARDS,
    *codec_guards.GUARDS,
    *log_guards.GUARDS,
    *documents_guards.GUARDS,
    *routes_guards.GUARDS,
    *servers_guards.GUARDS,
    *settings_guards.GUARDS,
    *short_way_guards.GUARDS,
    *manager_guards.GUARDS,
    *outage_guards.GUARDS,
    *fallback_guards.GUARDS,
    *drain_guards.GUARDS,
    *local_guards.GUARDS,
    *outcome_guards.GUARDS,
    *spool_guards.GUARDS,
    *step_guards.GUARDS,
    *straight_guards.GUARDS,
    *hand_off_guards.GUARDS,
    *testing_guards.GUARDS,
    *transfer_guards.GUARDS,
    *contrib_guards.GUARDS,
    *up_guards.GUARDS,
)
