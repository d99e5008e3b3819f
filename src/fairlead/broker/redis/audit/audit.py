"""Find what must never be stored: a task in two places, or none, counts that are off, and the like.

It reads everything, in steps that hold up nobody else, so it is for operators and tests. It asks
all that ``memory/audit.py`` does, and what only a store can get wrong.
"""

from __future__ import annotations

from fairlead.broker.redis.audit.edges import check_edges
from fairlead.broker.redis.audit.flows import check_flows
from fairlead.broker.redis.audit.pins import check_pins
from fairlead.broker.redis.audit.queues import check_queues
from fairlead.broker.redis.audit.rest import check_rest
from fairlead.broker.redis.audit.tasks import check_tasks
from fairlead.broker.redis.audit.walk import Command, Progress, walk
from fairlead.broker.redis.keys import Keys

_CHECKS = (check_tasks, check_edges, check_pins, check_queues, check_rest, check_flows)


async def audit(
    command: Command,
    keys: Keys,
    *,
    test_clock: bool = False,
    confirm: bool = True,
    progress: Progress | None = None,
) -> list[str]:
    """Everything that is wrong with what is stored, a sentence each; empty if nothing is.

    A walk is not one moment: tasks that move meanwhile are seen in two places or none. With
    ``confirm`` only what a second walk finds as well, word for word, is reported. ``progress`` is
    told how many keys of the walk under way were read.
    """
    found = await _once(command, keys, test_clock, progress)
    if not found or not confirm:
        return found
    again = set(await _once(command, keys, test_clock, progress))
    return [finding for finding in found if finding in again]


async def _once(
    command: Command, keys: Keys, test_clock: bool, progress: Progress | None
) -> list[str]:
    shard = await walk(command, keys, progress)
    shard.now = shard.meta.get("now", 0.0)
    if not test_clock:
        seconds, micros = await command("TIME")
        shard.now = max(shard.now, int(seconds) + int(micros) / 1e6)
    checked = dict.fromkeys(finding for check in _CHECKS for finding in check(shard))
    return [*shard.findings, *checked]
