"""Guards of documents, trails, orders to workers, and of tasks that are moved by operators."""

from __future__ import annotations

from tests.mutants.mutant import SUITE, Guard, Mutant, lua, memory

__all__ = ("GUARDS",)

_DOCUMENTS = SUITE + "test_documents.py::"
_ORDERS = SUITE + "test_worker_orders.py::"
_MOVES = SUITE + "test_run_and_prioritize.py::"

GUARDS = (
    Guard(
        "document revision",
        "a document that somebody else has changed is not overwritten",
        _DOCUMENTS + "test_a_change_of_another_revision_is_stale",
        (
            memory("documents.py", ("if change.revision not in (None, revision):", "if False:")),
            lua("lib/documents.lua", ("if wanted and wanted ~= revision then", "if false then")),
        ),
    ),
    Guard(
        "document end",
        "what is past its TTL is gone for everybody, though nobody has tidied yet",
        _DOCUMENTS + "test_what_is_past_its_ttl_is_gone_for_everybody_at_once",
        (
            memory("documents.py", ("or document.expires_at > now", "or True")),
            lua(
                "lib/documents.lua",
                ("(till == 0 or till > now) and revision or 0, true", "revision, true"),
            ),
            lua("documents.lua", ("if till and (till == 0 or till > now) then", "if till then")),
        ),
    ),
    Guard(
        "full kind",
        "documents of a kind cannot fill the server",
        _DOCUMENTS + "test_a_kind_holds_so_many_and_what_is_over_makes_room",
        (
            memory("documents.py", (">= MAX_DOCUMENTS\n", "> MAX_DOCUMENTS\n")),
            lua("lib/documents.lua", ("if new and count(shelf) >= MAX_DOCUMENTS", "if false")),
            lua(
                "lib/documents.lua",
                (" - call('ZCOUNT', shelf.ends.key, '-inf', now) end", " end"),
            ),
        ),
    ),
    Guard(
        "trail bytes",
        "a trail keeps no more than so many bytes",
        _DOCUMENTS + "test_a_trail_keeps_so_many_bytes",
        (
            memory("documents.py", (" or self.bytes > MAX_TRAIL_BYTES:", ":")),
            lua("note.lua", (" or bytes > TRAIL_BYTES do", " do")),
        ),
    ),
    Guard(
        "trail count",
        "a trail keeps no more than so many notes",
        _DOCUMENTS + "test_a_trail_keeps_its_last_notes",
        (
            memory("documents.py", ("while len(self.notes) > MAX_NOTES or ", "while ")),
            lua("note.lua", ("while count > NOTES or ", "while ")),
        ),
    ),
    Guard(
        "order of a stranger",
        "only a worker that is registered can be ordered",
        _ORDERS + "test_an_unknown_worker_cannot_be_ordered",
        (
            memory(
                "recovery.py",
                ("    if not shard.knows_worker(name):\n        return False\n", ""),
            ),
            lua(
                "lib/workers.lua",
                ("if not registered.knows(name) then return false end", ""),
            ),
        ),
    ),
    Guard(
        "order along",
        "a pause outlives a heartbeat that was lost",
        _ORDERS + "test_a_worker_that_is_not_registered_brings_its_order_along[*-True]",
        (
            memory("recovery.py", ('if worker.order in ("pause", "stop"):', "if False:")),
            lua(
                "lib/workers.lua",
                ("if order ~= '' then write('HSET', prefix .. 'orders', name, order) end", ""),
            ),
        ),
    ),
    Guard(
        "moved entry",
        "what a task left behind in a level does not stand for it any more",
        _MOVES + "test_a_task_that_comes_back_to_a_level_is_at_its_back[*-made]",
        (
            memory("operator_verbs.py", ("        task.entry[0] = None\n", "")),
            lua("lib/task.lua", ("(task.moved > 0 and '.' .. task.moved or '')", "''")),
        ),
    ),
    Guard(
        "content of a moved task",
        "a duplicate is known by what was accepted, not by the level that an operator gave",
        _MOVES + "test_a_prioritized_task_is_still_the_same_content[*-chosen]",
        (
            lua(
                "lib/accept.lua",
                ("if content_of(parsed(came).base or came) ~= content_of(head)", "if false"),
            ),
            lua(
                "lib/accept.lua",
                (
                    "if rest_of(task.fields.base or task.head) ~= rest_of(head)",
                    "if task.head ~= head",
                ),
            ),
        ),
    ),
    Guard(
        "moved while asleep",
        "a task that was given another level before it was due goes to that level",
        _MOVES + "test_each_task_that_waits_can_be_given_a_level",
        (
            memory("fair.py", ("self.levels[task.level]", "self.levels[task.message.level]")),
            lua("lib/promote.lua", (" or record:byte(FATE_END + 1) >= MOVED", "")),
        ),
    ),
    Guard(
        "workers of the first shard",
        "over shards a worker joins once",
        "tests/broker/redis/test_shard_verbs.py::"
        "test_a_worker_is_ordered_in_the_first_shard_which_tells_of_it",
        (
            Mutant(
                "fairlead/broker/sharded/waits.py",
                (("if each.kind not in _OF_WORKERS", "if True"),),
            ),
        ),
    ),
)
