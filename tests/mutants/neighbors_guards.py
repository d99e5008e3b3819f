"""Guards of retention and quotas of tenants."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, lua, memory

__all__ = ("GUARDS",)

_NEIGHBORS = SUITE + "test_neighbors.py::"
_QUOTAS = SUITE + "test_quotas.py::"
_READERS = SUITE + "test_quotas_of_readers.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "who gives",
        "nobody's finished tasks go because of another's",
        _NEIGHBORS + "test_a_flood_of_completed_tasks_does_not_push_out_what_others_keep",
        (
            memory(
                "retention.py",
                ("order = self._of_giver() if over and self._own else None", "order = None"),
            ),
            lua(
                "lib/retention_trim.lua",
                ("(over > 0 or full) then tenant, many = giver(shelf) end", "false then end"),
            ),
            lua(
                "lib/retention_trim.lua",
                ("(over > 0 or full) then tenant, many", "over > 0 then tenant, many"),
                test=_NEIGHBORS + "test_a_flood_of_dead_tasks_does_not_push_out_those_of_others",
            ),
        ),
    ),
    Guard(
        "who gives, in one call",
        "a task that ends without ever having run is not taken for one of the tenant that gives",
        _NEIGHBORS + "test_what_is_cancelled_is_kept_although_another_holds_all_the_room",
        (
            lua(
                "lib/retention.lua",
                ("(task and to_record(task) or latest[id] or", "(latest[id] or"),
            ),
        ),
    ),
    Guard(
        "the largest gives",
        "of two tenants that keep much the one with more gives first",
        _NEIGHBORS + "test_of_two_that_keep_much_the_one_that_keeps_more_gives_first",
        (
            memory(
                "retention.py",
                (
                    "self._large.set(tenant, -self._share(tenant))",
                    "self._large.set(tenant, self._share(tenant))",
                ),
            ),
            lua(
                "lib/retention.lua",
                (
                    "set_at(shelf.large, tenant[NAME], -shelves.share(shelf, tenant))",
                    "set_at(shelf.large, tenant[NAME], shelves.share(shelf, tenant))",
                ),
            ),
        ),
    ),
    Guard(
        "its own order ages",
        "what a large tenant keeps is forgotten at its time",
        _NEIGHBORS + "test_what_a_tenant_keeps_in_an_order_of_its_own_is_forgotten_at_its_time",
        (
            memory("retention.py", ("return self._own[own[1]]", "return self._common")),
            lua(
                "lib/retention_trim.lua",
                (
                    "local heads = shelf.queue[shelf.larges] > 0 and firsts(shelf.heads, 2) or {}",
                    "local heads = {}",
                ),
            ),
        ),
    ),
    Guard(
        "the oldest in turn",
        "of many tenants that keep about the same, the oldest of all go",
        _NEIGHBORS
        + "test_of_many_that_keep_about_the_same_the_oldest_of_all_go[valkey-70-deadlines]",
        (
            lua(
                "lib/retention_trim.lua",
                (
                    "local limit = min(of_all, heads[front + 1] and heads[front + 1][1] or huge)",
                    "local limit = of_all",
                ),
            ),
        ),
    ),
    Guard(
        "tomb",
        "a chosen id is known for its own time though its task was forgotten for want of room",
        _NEIGHBORS + "test_a_chosen_id_is_known_for_its_own_time_though_its_task_was_forgotten"
        "_for_want_of_room",
        (
            memory("transitions.py", ("self.tombs.put(task, task.expires_at or 0.0)", "pass")),
            lua(
                "lib/retention_trim.lua", ("if life > 0 then tombs.put", "if false then tombs.put")
            ),
            lua(
                "lib/task.lua",
                ("  if meta.tombs > 0 then tombs.look_at(ids) end\n", ""),
            ),
        ),
    ),
    Guard(
        "dropped",
        "a dead task that is dropped for want of room leaves an event",
        _NEIGHBORS + "test_a_dead_task_that_is_dropped_for_want_of_room_leaves_an_event",
        (
            memory(
                "transitions.py",
                ('            self.emit("dropped", task, "keep_dead_bytes")\n', ""),
            ),
            lua("lib/retention_trim.lua", ("row('dropped', DEAD", "row('deleted', DEAD")),
        ),
    ),
    Guard(
        "bytes of a tenant",
        "a tenant has room for so many bytes, whichever way its tasks come in",
        _QUOTAS + "test_what_is_beyond_the_limit_of_a_tenant_is_refused",
        (
            memory("enqueue.py", ("and has + many > limit else None", "and has > limit else None")),
            lua("lib/flow.lua", ("if bytes + (tenant and", "if (tenant and")),
            lua("lib/fast_path/enqueue.lua", (" or more > top then", " then")),
        ),
    ),
    Guard(
        "bytes are freed",
        "whatever ends a task frees what it counted for",
        _QUOTAS + "test_what_completes_in_the_usual_way_makes_room",
        (
            memory("transitions.py", ("tenant.live_bytes - task.size, 0", "tenant.live_bytes, 0")),
            lua(
                "lib/accept.lua",
                (
                    "tenant[LIVE_BYTES] = tenant[LIVE_BYTES] - bytes_of(task)",
                    "tenant[LIVE_BYTES] = tenant[LIVE_BYTES]",
                ),
            ),
            lua(
                "lib/fast_path/ends.lua",
                (
                    "= tenant[LIVE_BYTES] - live, tenant[DONE_BYTES]",
                    "= tenant[LIVE_BYTES], tenant[DONE_BYTES]",
                ),
            ),
        ),
    ),
    Guard(
        "bytes of parts",
        "checkpoints, progress and errors of unfinished tasks count",
        _QUOTAS + "test_what_is_stored_of_a_task_on_its_way_counts",
        (
            memory(
                "operator_verbs.py",
                (
                    "checkpoint(task.kept, item.value)\n            shard.weigh(task)\n",
                    "checkpoint(task.kept, item.value)\n",
                ),
            ),
            memory("exchange.py", ("        shard.weigh(task)\n", "")),
            lua("lib/task.lua", ("  if task.state < COMPLETED then\n", "  if false then\n")),
        ),
    ),
    Guard(
        "bytes come back",
        "a task that is put to work again counts again",
        _QUOTAS + "test_a_requeued_task_counts_again_and_is_never_refused",
        (
            memory(
                "transitions.py",
                ("        elif origin in FINAL:\n            self.weigh(task)\n", ""),
            ),
            lua("lib/accept.lua", ("elseif from >= COMPLETED then", "elseif false then")),
        ),
    ),
    Guard(
        "bytes of flows",
        "members of a flow count from the moment they are written",
        _QUOTAS + "test_the_members_of_a_flow_count_from_the_moment_they_are_written",
        (
            memory("flows.py", ("        shard.reserve_bytes(share, size)\n", "")),
            lua("stage.lua", ("    flows.reserve_bytes(own[i], own[i + 1], weights[field])\n", "")),
            lua(
                "lib/flow.lua",
                ("(meta.reserved > 0 and flows.reserved(queue.name, tenant .. SEP) or 0)", "0"),
            ),
        ),
    ),
    Guard(
        "bytes of XCom values",
        "XCom values of a tenant have so much room in all",
        _QUOTAS + "test_xcom_values_of_a_tenant_have_so_much_room",
        (
            memory(
                "state.py",
                (
                    "            return False\n        self.xcom_bytes",
                    "            pass\n        self.xcom_bytes",
                ),
            ),
            memory("state.py", (" - (xcom_bytes(old[0], old[2]) if old is not None else 0)", "")),
            lua("lib/documents.lua", ("then return false end", "then end")),
            lua("lib/documents.lua", ("size - size_of(field)", "size")),
        ),
    ),
    Guard(
        "XCom values go",
        "an XCom value that is over makes room",
        _QUOTAS + "test_xcom_values_that_are_over_make_room",
        (
            memory(
                "state.py",
                ("        self.xcom_bytes[key[0]] -= xcom_bytes(value, writer)\n", ""),
            ),
            lua("expire.lua", ("      xcom.drop(each[2])\n", "")),
        ),
    ),
    Guard(
        "bytes of pinned tasks",
        "a tenant has so much room for what others will read",
        _READERS + "test_a_tenant_has_so_much_room_for_what_others_will_read",
        (
            memory("pins.py", ("+ task.counted_bytes() <= limit", "<= limit")),
            memory("pins.py", ("    task.tenant.pinned_bytes += task.size\n", "")),
            lua("lib/pins.lua", ("t[PIN_BYTES] + bytes_of(task) <= most", "t[PIN_BYTES] <= most")),
            lua("lib/pins.lua", ("t[PIN_BYTES] + by * bytes_of(task), true", "0, true")),
        ),
    ),
    Guard(
        "pins beyond the room",
        "what there is no room for is kept like any other, and its pins come and go",
        _READERS + "test_pins_come_and_go_beyond_the_room",
        (
            memory(
                "pins.py", ("        if aside:\n", "        if parent.state is State.COMPLETED:\n")
            ),
            lua("lib/pins.lua", ("  if not aside then return end\n", "")),
            lua(
                "lib/retention.lua",
                ("if pins.known(task.id)", "if pins.holds(task.id)"),
                test=_READERS + "test_a_task_beyond_the_room_takes_its_pins_with_it",
            ),
        ),
    ),
    Guard(
        "bytes of refused flows",
        "room in bytes that a flow does not need is free again",
        _QUOTAS + "test_a_flow_that_does_not_fit_is_refused_as_a_whole",
        (
            memory(
                "flow_state.py",
                ("            shard.reserve_bytes(share, -flow.bytes[share])\n", ""),
            ),
            lua(
                "lib/flow.lua",
                ("    flows.reserve_bytes(share.queue, share.tenant, -share.bytes)\n", ""),
            ),
        ),
    ),
)
