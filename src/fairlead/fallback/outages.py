"""How each shard stands, for all loops and threads of a process; one log line for each change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from fairlead.model.errors import Ambiguous, BrokerError, Refused, Unreachable
from fairlead.model.outage import BrokerState, Outage, worst

log = logging.getLogger("fairlead.fallback")

# Causes of ``Refused`` that do not pass by themselves, and yet say nothing about the task.
_ELSEWHERE = frozenset({"emptied", "oom"})


def leads_to_spool(error: BrokerError) -> bool:
    """Whether an error is the broker's trouble, and not its answer about the task."""
    if isinstance(error, Unreachable | Ambiguous):
        return error.passes  # not where the connection was closed here, by ourselves
    return isinstance(error, Refused) and (error.passes or error.cause in _ELSEWHERE)


class Outages:
    """The state machines by shard. ``changed`` is called without a lock, from any thread."""

    def __init__(
        self,
        shards: Iterable[str],
        *,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.changes = 0  # of state, of all shards
        self._shards = tuple(shards)
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._machines = {shard: Outage(clock()) for shard in self._shards}
        self._since = dict.fromkeys(self._shards, time.time())

    @property
    def state(self) -> BrokerState:
        """How the broker stands as a whole: as its worst shard does."""
        return worst([machine.state for machine in self._machines.values()])

    @property
    def since(self) -> float:
        """When that began, in unix seconds."""
        state = self.state
        found = (self._since[each] for each in self._shards if self.of(each) == state)
        return min(found, default=0.0)

    def of(self, shard: str) -> BrokerState:
        """Return how a shard stands."""
        return self._machines[shard].state

    def is_away(self, shard: str) -> bool:
        """Whether a call to a shard should not even be tried."""
        return self._machines[shard].state == "spooling"

    def away_for(self, shard: str) -> float:
        """Return for how many seconds a shard has been away; 0 if it is not."""
        machine = self._machines[shard]
        return self._clock() - machine.since if machine.is_away else 0.0

    def away(self) -> list[str]:
        """Return the shards that are away."""
        return [shard for shard in self._shards if self.is_away(shard)]

    def failed(self, shard: str, error: BrokerError, *, sure: bool = False) -> None:
        """Take in that a round of a call failed; ``sure``: no other round would tell more."""
        fields = {"error": type(error).__name__}
        self._step(shard, lambda each: each.failed(self._clock(), sure=sure), fields)

    def succeeded(self, shard: str) -> None:
        """Take in that a call went well."""
        machine = self._machines[shard]
        if machine.state == "healthy" and not machine.is_doubted:  # the way of almost every call
            return
        self._step(shard, lambda each: each.succeeded(self._clock()))

    def probed(self, shard: str, *, good: bool) -> None:
        """Take in what a probe came to."""
        self._step(shard, lambda each: each.probed(self._clock(), good=good))

    def found(self, shard: str) -> None:
        """Take in that there is something to send."""
        self._step(shard, lambda each: each.found(self._clock()))

    def drained(self, shard: str) -> None:
        """Take in that nothing is left to send."""
        self._step(shard, lambda each: each.drained(self._clock()))

    def patience(self, shard: str) -> float:
        """Return how many times the usual silence a shard is given."""
        return self._machines[shard].patience

    def pause(self, shard: str, dice: float) -> float:
        """Return the seconds until the next probe of a shard."""
        return self._machines[shard].pause(dice)

    def renew(self) -> None:
        """Begin anew, in a forked child."""
        self._lock = threading.Lock()
        self._machines = {shard: Outage(self._clock()) for shard in self._shards}

    def _step(
        self, shard: str, step: Callable[[Outage], bool], fields: dict[str, str] | None = None
    ) -> None:
        with self._lock:
            machine = self._machines[shard]
            if not step(machine):
                return
            state = machine.state
            self._since[shard] = time.time()
            self.changes += 1
        _tell(shard, state, fields or {})
        self._changed()


_LINES: dict[BrokerState, tuple[int, str]] = {
    "healthy": (logging.INFO, "broker is healthy: tasks go straight to it"),
    "suspect": (logging.INFO, "broker is suspect: a call to it failed"),
    "spooling": (logging.WARNING, "broker is away: tasks are kept in the spool until it is back"),
    "draining": (logging.INFO, "broker answers: what is in the spool is sent to it"),
}


def _tell(shard: str, state: BrokerState, fields: dict[str, str]) -> None:
    level, text = _LINES[state]
    log.log(level, text, extra={"state": state, "shard": shard, **fields})
