"""Which shards have the tasks of a queue, and in which order a fetch asks them.

A queue has one *home*. A level that is routed lies in another shard, whatever the queue, so a queue
may be in several shards: ``placed`` says where a new task goes, ``shards_of`` where some may be.
Flows and the tasks of schedules stay in the home of their queue, whatever their level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairlead.broker.requests import SHARD, Change, Declaration, LimiterChange
from fairlead.broker.shards import check_shard
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.message import LEVEL_NAMES, LEVELS

_SHARE = 8  # of so many fetches one begins with another shard than the first


class Places:
    """Where tasks go and where they are looked for."""

    def __init__(
        self,
        shards: Iterable[str],
        queues: Mapping[str, str],
        *,
        default: str = SHARD,
        levels: Mapping[int, str] | None = None,
        drained: Sequence[str] = (),
    ) -> None:
        """``queues``: the home of each queue that is not at home in ``default``.

        ``levels``: the shard of each level that is routed. From ``drained`` shards all queues are
        served, and nothing new goes there by that.
        """
        self._shards = known = [check_shard(name) for name in shards]
        self.default = default
        self.levels = dict(levels or {})
        self._queues = dict(queues)
        for shard in (default, *queues.values(), *self.levels.values(), *drained):
            if check_shard(shard) not in known:
                raise InvalidOption("shard", shard, f"one of {', '.join(known)}")
        # Homes stand at the lowest of the first four that is not routed, or behind all that are.
        unrouted = (level for level in range(len(LEVELS)) if level not in self.levels)
        lowest = max(unrouted, default=len(LEVEL_NAMES))
        # By shard of levels: the lowest that it has.
        worst = {shard: level for level, shard in sorted(self.levels.items())}
        by_level = sorted(worst, key=worst.__getitem__)
        self._above = [shard for shard in by_level if worst[shard] < lowest]
        self._below = [shard for shard in by_level if worst[shard] > lowest]
        self._drained = list(dict.fromkeys(drained))

    def __str__(self) -> str:
        """Where new tasks go, as one line."""
        queues = (f"{queue}={shard}" for queue, shard in sorted(self._queues.items()))
        levels = (f"{LEVEL_NAMES[level]}={shard}" for level, shard in sorted(self.levels.items()))
        return ", ".join((*queues, *levels, f"others={self.default}"))

    @property
    def is_plain(self) -> bool:
        """Whether every queue is in its home only."""
        return not (self.levels or self._drained)

    def home(self, queue: str) -> str:
        """Return where a queue lives, but for its tasks of routed levels."""
        return self._queues.get(queue, self.default)

    def placed(self, queue: str, level: int) -> str:
        """Return where a new task goes."""
        return self.levels.get(level) or self.home(queue)

    def shards_of(self, queue: str) -> list[str]:
        """Return all shards that may have tasks of a queue, in the order of their levels."""
        shards = (*self._above, self.home(queue), *self._below, *self._drained)
        return list(dict.fromkeys(shards))

    def check_level(self, id: str, level: int, shard: str, addresses: Mapping[str, str]) -> None:
        """Raise ``InvalidInput`` if tasks of that level lie elsewhere: none changes servers."""
        target = self.levels.get(level)
        if shard == target or (target is None and shard not in self.levels.values()):
            return
        there = "with their queue" if target is None else f"on {addresses.get(target, target)}"
        raise InvalidInput(
            f"task {id} is on {addresses.get(shard, shard)}, and tasks of priority "
            f"{LEVEL_NAMES[level]} are {there}: it cannot change servers; "
            "cancel it and enqueue it with that priority"
        )

    def split(self, queues: Sequence[str], turn: int = 0) -> dict[str, list[str]]:
        """Return queues by shard, in the order in which the ``turn``-th fetch asks the shards.

        First the levels above, then homes in the order of their first queue, then levels below, and
        drained shards last. Of eight turns one begins with another of these groups, so that no
        backlog keeps the groups behind it waiting for ever.
        """
        homes: dict[str, list[str]] = {}
        for queue in queues:
            homes.setdefault(self.home(queue), []).append(queue)
        if self.is_plain:
            return homes
        groups = [[shard] for shard in self._above]
        groups += [list(homes), *([shard] for shard in (*self._below, *self._drained))]
        if turn % _SHARE == _SHARE - 1 and len(groups) > 1:
            group = groups.pop(1 + turn // _SHARE % (len(groups) - 1))
            groups.insert(0, group)
        everywhere = {*self._above, *self._below, *self._drained}
        return {
            shard: list(queues) if shard in everywhere else homes[shard]
            for group in groups
            for shard in group
        }

    def split_changes(self, changes: Sequence[Change]) -> dict[str, list[Change]]:
        """Return changes of settings by shard: of a queue where it is, all others everywhere."""
        parts: dict[str, list[Change]] = {}
        for change in changes:
            target = change.change if isinstance(change, Declaration) else change
            queue = None if isinstance(target, LimiterChange) else target.queue
            for shard in self._shards if queue is None else self.shards_of(queue):
                parts.setdefault(shard, []).append(change)
        return parts
