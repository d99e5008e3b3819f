"""A history of calls, drawn from a seed, for two brokers that must store the same after it."""

from __future__ import annotations

import random
from typing import Any

from fairlead.broker.requests import (
    Alter,
    Fetch,
    LimiterChange,
    QueueChange,
    Submission,
    TenantChange,
)
from fairlead.model.message import Leased
from fairlead.model.options import Unique
from tests.broker.redis.straight_pair import LARGE, PREFIX, Pair, made
from tests.support.store import NOW, completed, dead, failed, released, submit

__all__ = ("History",)


class History:
    """What happens to a pair, drawn from a seed: mostly plain tasks, and a bit of everything."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pair = Pair(event_bytes=self.draw.choice((6_400, 1_000_000)))
        self.now = NOW
        self.number = 0
        self.held: list[Leased] = []
        self.last: list[Submission] = []
        # In one of three histories some tasks have levels that few tenants use.
        self.levels = (2, 2, 2, 0, 1, 3, *((4, 6) if seed % 3 == 0 else ()))

    def submission(self) -> Submission:
        draw = self.draw
        self.number += 1
        id = made(self.number)
        if draw.random() < 0.03:
            id = made(draw.randint(1, self.number))
        elif draw.random() < 0.03:
            id = f"order-{draw.randint(1, 20)}"
        options: dict[str, Any] = {}
        if draw.random() < 0.04:
            options = draw.choice(
                (
                    {"delay": draw.choice((0.5, 2.0))},
                    {"deadline": 3.0},
                    {"unique": Unique(key=draw.choice("xy"))},
                    {"after": [made(draw.randint(1, self.number))]},
                    {"body": LARGE},
                    {"limiters": ("gpu",)},
                )
            )
        return submit(
            id,
            draw.choice("aaabbc"),
            draw.choice(("default",) * 9 + ("mail",)),
            level=draw.choice(self.levels),
            cost=draw.choice((1.0, 1.0, 3.0)),
            **options,
        )

    def recorded(self, count: int) -> list[Submission]:
        """Tasks of one call that have records, and some plain ones among them."""
        draw, call, unlike = self.draw, list[Submission](), self.draw.random() < 0.5
        kind = draw.choice(("delay", "unique", "after", "plain"))
        tenant, level = draw.choice("aaabbcd"), draw.choice((2, 2, 2, 0, 1, 3))
        for _ in range(count):
            self.number += 1
            if unlike:
                kind = draw.choice(("delay", "unique", "after", "plain"))
                tenant, level = draw.choice("aaabbcd"), draw.choice((2, 2, 2, 0, 1, 3))
            options: dict[str, Any] = {}
            if kind == "delay":
                options = {"delay": draw.choice((0.5, 0.5, 2.0, 20.0))}
            elif kind == "unique":
                until: Any = draw.choice(("done", "done", "started", "window"))
                key = draw.choice("xy") if draw.random() < 0.1 else f"k{self.number}"
                options = {"unique": Unique(key=key, until=until, window=3.0)}
            elif kind == "after" and call:
                several = {draw.choice(call).message.id for _ in range(draw.choice((1, 1, 2, 3)))}
                options = {"after": sorted(several), "delay": draw.choice((0.0, 0.0, 0.0, 1.0))}
            call.append(submit(made(self.number), tenant, level=level, **options))
        return call

    async def enqueue(self) -> None:
        count = self.draw.choice((1, 1, 1, 2, 5, 20))
        if self.draw.random() < 0.3:
            self.last = self.recorded(count)
        elif self.draw.random() < 0.5:  # of one kind, as programs send them
            one = self.submission().message
            self.last = [
                submit(made(self.number + n), one.tenant, one.queue, level=one.level)
                for n in range(count)
            ]
            self.number += count
        else:
            self.last = [self.submission() for _ in range(count)]
        await self.pair.do(lambda client: client.enqueue(*self.last, now=self.now))

    async def again(self) -> None:
        await self.pair.again(self.draw.choice((0, 0, 1)), self.last, self.now)

    async def exchange(self) -> None:
        ends = [
            self.draw.choice((completed, completed, completed, failed, dead, released))(lease)
            for lease in self.held
        ]
        fetch = Fetch(queues=("default", "mail"), max=self.draw.choice((1, 5, 20)))
        reply = await self.pair.do(lambda c: c.exchange(ends, fetch=fetch, now=self.now))
        self.held = reply.leased

    async def configure(self) -> None:
        draw = self.draw
        queue: dict[str, Any] = draw.choice(
            (
                {"paused": draw.random() < 0.3},
                {"max_waiting": draw.choice((None, 5, 50))},
                {"max_tenant_waiting": draw.choice((None, 5))},
                {"max_tenant_bytes": draw.choice((None, 3_000, 100_000))},
                {"warn_depth": draw.choice((None, 10))},
                {"concurrency": draw.choice((None, 3))},
                {"rate": draw.choice((None, 5.0))},
                {"keep_completed_count": 20},
            )
        )
        tenant: dict[str, Any] = draw.choice(
            (
                {"paused": draw.random() < 0.3},
                {"weight": draw.choice((0.5, 1.0, 3.0))},
                {"concurrency": draw.choice((None, 2))},
            )
        )
        change = draw.choice(
            (
                QueueChange(queue="default", **queue),
                TenantChange(tenant=draw.choice("abc"), **tenant),
                LimiterChange(name="gpu", concurrency=draw.choice((None, 1))),
            )
        )
        await self.pair.do(lambda client: client.configure(change, now=self.now))

    async def free(self) -> None:
        """Lift all limits of the queue: else it would have one for the rest of its history."""
        change = QueueChange(
            queue="default",
            paused=False,
            max_waiting=None,
            max_tenant_waiting=None,
            warn_depth=None,
            concurrency=None,
            rate=None,
        )
        await self.pair.do(lambda client: client.configure(change, now=self.now))

    async def alter(self) -> None:
        action: Any = self.draw.choice(("cancel", "requeue", "delete", "run", "prioritize"))
        level = self.levels[-1] if action == "prioritize" else None
        order = Alter(id=made(self.draw.randint(1, self.number + 1)), action=action, level=level)
        await self.pair.do(lambda client: client.alter(order, now=self.now))

    async def upkeep(self) -> None:
        verb = self.draw.choice(("promote", "tidy", "sweep", "deliver"))
        await self.pair.do(lambda client: getattr(client.broker, verb)(now=self.now))

    async def ready(self) -> None:
        """Somebody pops the bell."""
        self.pair.spoil("DEL", f"{PREFIX}bell:default")

    async def run(self, steps: int, stride: int = 1) -> int:
        """How often the straight way was taken; every key is compared at each stride."""
        self.pair.stride = stride
        ways = {
            self.enqueue: 10,
            self.again: 1,
            self.exchange: 5,
            self.configure: 1,
            self.free: 2,
            self.alter: 1,
            self.upkeep: 1,
            self.ready: 1,
        }
        try:
            await self.enqueue()
            for _ in range(steps):
                self.now += self.draw.choice((0.0, 0.001, 0.3, 0.3, 5.0))
                if self.draw.random() < 0.01:
                    self.now += 3600.0
                (way,) = self.draw.choices(list(ways), list(ways.values()))
                await way()
            self.pair.compare()
            return self.pair.taken
        finally:
            await self.pair.close()
