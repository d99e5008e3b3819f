"""Hands tasks that no handler here knows to workers that know them, during a deploy.

Other workers are asked for only when such a task comes: what is usual costs nothing. See
docs/decisions/0049-what-a-worker-does-not-know-goes-to-one-that-does.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from fairlead.broker import Caller, Store
from fairlead.broker.orders import alter_all
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import MAX_EXCHANGE, MAX_STEP, Alter, Seen
from fairlead.model.errors import BrokerError
from fairlead.model.lifecycle import State
from fairlead.model.message import Leased
from fairlead.model.referral import Candidate, Pressure, Returns, TurnedDown, candidates
from fairlead.model.retries import Outcome, Released, Unroutable
from fairlead.runtime.component import Outage, within
from fairlead.runtime.randomness import generator
from fairlead.worker.inflight import Inflight

log = logging.getLogger("fairlead.worker")

TAKES_OVER = "takes_over"  # in the details of a worker's record: it understands such letters
_FRESH = 1.0  # seconds for which it is known who works and knows what
_SHARE = 20  # as many times as long, if finding that out takes longer than a twentieth of it
_MOST_WAITING = 2 * MAX_EXCHANGE  # tasks; more of them come back in a moment
_MOST_DOWN = 1_000  # tasks that nobody knew
_LONGEST_PAUSE = 10.0  # seconds between two looks for somebody who knows them
_MOST_TOLD = 1_000  # names of tasks

_Unknown = tuple[Leased, Unroutable]


class Referrer:
    """Takes what the runner cannot route, and finds somebody who can run it.

    What nobody knows goes the way of unroutable tasks, and runs as soon as a worker comes that
    knows it; what all who know it have no room for comes back after a moment. Neither uses up an
    attempt.
    """

    name = "referrer"

    def __init__(
        self,
        store: Store,
        inflight: Inflight,
        *,
        incarnation: str,
        settle: Callable[[Leased, Outcome], None],
    ) -> None:
        """``settle`` decides what follows for a task that nobody takes."""
        self._store = store
        self._inflight = inflight
        self._incarnation = incarnation
        self._settle = settle
        self._waiting: list[_Unknown] = []
        self._news = asyncio.Event()
        self._is_open = False
        self._returns = Returns()
        self._pressure = Pressure()
        self._outage = Outage(self.name)
        self._workers: list[Candidate] = []
        self._known_until = -math.inf  # by the monotonic clock
        self._told: set[str] = set()
        self._down: OrderedDict[str, TurnedDown] = OrderedDict()  # by id: what nobody knew
        self._pause = _FRESH  # seconds until it is looked for somebody who does
        self._caller = Caller(f"{incarnation}:referrals")

    def take(self, lease: Leased, unknown: Unroutable) -> bool:
        """Take a task over from the runner; False if it has to see to it itself."""
        if not (self._is_open and unknown.task):
            return False
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((lease, unknown))
            self._news.set()
        else:
            self._settle(lease, Released(delay=self._pressure.pause))
        return True

    async def run(self) -> None:
        """Refer what comes, until cancelled; what is left then is given back with the leases."""
        self._is_open = True
        try:
            while True:
                if not self._down:
                    await self._news.wait()
                elif not await within(self._pause, self._news):
                    await self._try_again()
                    continue
                self._news.clear()
                batch, self._waiting = self._waiting[:MAX_EXCHANGE], self._waiting[MAX_EXCHANGE:]
                if self._waiting:
                    self._news.set()
                await self._refer(batch)
        finally:
            self._is_open = False

    async def _try_again(self) -> None:
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        try:
            await self.look_again()
            self._outage.over()
        except BrokerError as error:
            self._outage.failed(error)

    async def _refer(self, batch: Sequence[_Unknown]) -> None:
        try:
            workers = await self._others()
            self._outage.over()
        except BrokerError as error:
            self._outage.failed(error)
            workers = []
        groups: dict[tuple[str, int, str], list[_Unknown]] = {}
        for lease, unknown in batch:
            key = unknown.task, unknown.version, lease.message.queue
            groups.setdefault(key, []).append((lease, unknown))
        for (task, version, queue), group in groups.items():
            able = candidates(task, version, queue, workers)
            if able:
                self._tell(task)
                await self._hand_on([lease for lease, _ in group], able)
            else:
                for lease, unknown in group:
                    self._turn_down(lease, unknown)

    def _turn_down(self, lease: Leased, unknown: Unroutable) -> None:
        message = lease.message
        self._down.pop(message.id, None)
        self._down[message.id] = TurnedDown(
            unknown.task, unknown.version, message.queue, lease.generation, lease.attempt - 1
        )
        if len(self._down) > _MOST_DOWN:
            self._down.popitem(last=False)
        self._pause = _FRESH
        self._settle(lease, unknown)

    async def look_again(self) -> int:
        """Put tasks back into their queues that nobody knew, and somebody knows by now."""
        workers = await self._others()
        known = {
            key: bool(candidates(*key, workers)) for key in {d.key for d in self._down.values()}
        }
        found = [id for id, each in self._down.items() if known[each.key]]
        for start in range(0, len(found), MAX_STEP):
            await self._run_now(found[start : start + MAX_STEP])
        return len(found)

    async def _run_now(self, ids: Sequence[str]) -> None:
        orders = [
            Alter(id=id, action="run", seen=Seen(state=State.RETRYING, **self._down[id].seen))
            for id in ids
        ]
        await alter_all(self._store, self._caller, orders)
        for id in ids:
            self._down.pop(id, None)

    async def _hand_on(self, leases: Sequence[Leased], able: Sequence[Candidate]) -> None:
        now = time.monotonic()
        left: list[Leased] = []
        for lease in leases:
            if pause := self._returns.pause(lease.message.id, now):
                self._settle(lease, Released(delay=pause))
            else:
                left.append(lease)
        # First a fair part for each, then whatever others had no room for.
        try:
            for place, worker in enumerate((*able, *able)):
                part = left[: math.ceil(len(left) / max(len(able) - place, 1))]
                if part:
                    refused = await self._transfer(part, worker)
                    left = left[len(part) :] + refused
        except BrokerError as error:  # what was moved all the same is fenced: it is another's
            self._outage.failed(error)
        self._pressure.felt(time.monotonic(), refused=bool(left))
        for lease in left:
            self._returns.refused(lease.message.id)
            self._settle(lease, Released(delay=self._pressure.pause))

    async def _transfer(self, leases: Sequence[Leased], worker: Candidate) -> list[Leased]:
        """Give loans to a worker; those that it had no room for."""
        answers = await self._store.transfer(
            [self._inflight.ref(lease) for lease in leases], worker.incarnation, room=worker.room
        )
        refused = []
        for lease, answer in zip(leases, answers, strict=True):
            if answer == "full":
                refused.append(lease)
            else:
                self._inflight.over(lease.message.id, lease.token)
        return refused

    async def _others(self) -> list[Candidate]:
        began = time.monotonic()
        if began >= self._known_until:
            found = await self._store.workers()
            self._workers = [_candidate(each) for each in found if self._may_take(each)]
            generator.shuffle(self._workers)  # not all who ask should begin with the same one
            took = time.monotonic() - began
            self._known_until = began + max(_FRESH, _SHARE * took)
        return self._workers

    def _may_take(self, worker: WorkerRecord) -> bool:
        details = worker.details
        return (
            worker.incarnation != self._incarnation
            and details.get(TAKES_OVER) is True
            and details.get("state") == "working"
            and not worker.order
        )

    def _tell(self, task: str) -> None:
        if task not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(task)
            text = "task %s is not known here as it was called: it goes to workers that know it"
            log.info(text, task, extra={"task": task})


def _candidate(worker: WorkerRecord) -> Candidate:
    said = worker.details.get("versions")
    versions = said if isinstance(said, dict) else {}
    return Candidate(
        incarnation=worker.incarnation,
        queues=frozenset(worker.queues),
        versions={task: versions.get(task, 1) for task in worker.tasks},
        concurrency=worker.concurrency,
        running=worker.running,
    )
