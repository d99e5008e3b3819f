"""A shard that has something of everything, and ways to spoil it behind the broker's back."""

from __future__ import annotations

import struct
from typing import Any

import redis

from fairlead.broker.documents import DocumentChange
from fairlead.broker.flows import FlowPart
from fairlead.broker.records import WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.layout import NUMBERS, NUMBERS_FIELD
from fairlead.broker.requests import (
    MAX_STEP,
    Alter,
    Declaration,
    Firing,
    LimiterChange,
    QueueChange,
    TenantChange,
    Write,
)
from fairlead.broker.schedules import ScheduleOrder
from fairlead.model.options import Dependency, Unique
from tests.support.flows import commit, make, parts_of, stage
from tests.support.store import NOW, Client, completed, dead, failed, submit

__all__ = ("CHILDREN", "MADE", "PREFIX", "SLOT", "Spoiler", "fill", "staged_parts")

PREFIX = "fl1:{0}:"
MADE = "0" * 32  # an id as Fairlead makes them: it is never used twice
SLOT = NOW + 100_000.0  # when the schedules are due
CHILDREN = 2 * MAX_STEP + 20  # more than the call which ends their parent, and one more, see to

# As long as ids that Fairlead makes: what has such an id is kept in a list once it is completed.
DONE, TOO = "completed".ljust(32, "-"), "completed-too".ljust(32, "-")


class Spoiler:
    """Writes past the broker. Keys are named without the prefix."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def do(self, command: str, key: str | bytes, *args: Any) -> Any:
        name = key.encode() if isinstance(key, str) else key
        return self._client.execute_command(command, PREFIX.encode() + name, *args)  # type: ignore[no-untyped-call]

    def after(self, id: str) -> str:
        """The key of what waits for a task in its present life."""
        (life,) = struct.unpack_from("<I", self.do("HGET", "tasks", id), 8)
        return f"after:{life}:{id}"

    def tie(self, id: str, letters: str) -> None:
        """Say something else of who waits for a task; its dependents stay behind that."""
        few = self.do("HGET", "ties", id).partition(b"\x1d")
        self.do("HSET", "ties", id, letters.encode() + few[1] + few[2])

    def token(self, id: str) -> str:
        """Under which a task runs."""
        (token,) = struct.unpack_from("<d", self.do("HGET", "records", id), 12)
        return f"{token:.0f}"

    def poke(self, key: str, field: str, offset: int, form: str, value: float) -> None:
        """Overwrite one number of a stored value; an offset below 0 counts from its end."""
        stored = bytearray(self.do("HGET", key, field))
        struct.pack_into(f"<{form}", stored, offset % len(stored), value)
        self.do("HSET", key, field, bytes(stored))

    def number(self, name: str, value: float) -> None:
        """Overwrite one of the shard's own numbers."""
        self.poke("meta", NUMBERS_FIELD, 8 * NUMBERS.index(name), "d", value)

    def look(self, queue: str, at: float) -> None:
        """Have tidy look at a queue at another moment; 0: never."""
        self.poke("queues", queue, 105, "d", at)
        self.do(*(("ZADD", "trims", at, queue) if at else ("ZREM", "trims", queue)))


async def fill(broker: RedisBroker) -> None:
    """Tasks in every state, tenants of every status, and all that may hang on them."""
    c = Client(broker, "w1")
    await c.configure(Declaration(QueueChange(queue="declared", warn_depth=1000)))
    await c.configure(
        LimiterChange(name="gpu", concurrency=1),
        LimiterChange(name="api", failures=1),
        LimiterChange(name="db", failures=1, cooldown=0.5),
        TenantChange(tenant="one-at-a-time", concurrency=1),
        TenantChange(tenant="slow", rate=0.001),
        TenantChange(tenant="stopped", paused=True),
        QueueChange(queue="rated", rate=0.001),
    )
    await _finished(c)
    await _running(c)
    await _parked(c)
    await _broken(c)
    await _waiting(c)
    await _wide(c)
    await _flows(c)
    await _schedules(c)
    (brief,) = await c.run(submit("brief", "gone", "brief"), queues=["brief"])
    await c.settle(completed(brief, keep=0.0))  # nothing is left of its tenant but its tally
    await broker.beat("w1", worker=WorkerRecord(incarnation="w1", queues=("default",)), now=NOW)
    await broker.order_worker(c.call(), "w1", "pause", now=NOW)
    await broker.lead("manager", "m1", ttl=60.0, now=NOW)
    await broker.events(reader="reader")
    await _documents(c)
    await _pinned(c)
    await _crowded(c)
    await _in_transit(c)


async def _documents(c: Client) -> None:
    kept = [("stays", None), ("brief", 60.0)]
    changes = [DocumentChange(kind="token", name=n, value=b"v", ttl=ttl) for n, ttl in kept]
    await c.broker.write_documents(c.call(), changes, now=NOW)
    await c.broker.note(c.call(), "audit", [b"one", b"two"], now=NOW)


async def _schedules(c: Client) -> None:
    revision = await c.planned("nightly", "weekly", next_at=SLOT)
    await c.fire(
        Firing(
            schedule="weekly",
            slot=SLOT,
            submission=submit("fired"),
            revision=revision,
            next_at=SLOT + 60.0,
        )
    )
    await c.planned("stopped", next_at=SLOT)
    await c.plan(ScheduleOrder(name="stopped", action="pause"))


async def _finished(c: Client) -> None:
    names = (DONE, TOO, "dead", "again")
    done, too, gone, again = await c.run(*map(submit, names))
    await c.enqueue(submit("cancelled"))
    await c.settle(completed(done, b"result"), completed(too), dead(gone), dead(again))
    await c.cancel("cancelled")


async def _crowded(c: Client) -> None:
    """Tenants that hold much of what a queue keeps, and have an order of their own."""
    keep = QueueChange(queue="crowded", keep_completed_count=10, keep_dead_bytes=1_000)
    await c.configure(keep)
    names = (f"{MADE[1:]}1", f"{MADE[1:]}2", "crowded-dead", "crowded")
    listed, too, gone, chosen = await c.run(
        *(submit(id, "large", "crowded") for id in names), queues=["crowded"]
    )
    await c.settle(completed(listed), completed(too), dead(gone), completed(chosen))
    await c.configure(QueueChange(queue="tombs", keep_completed_count=0))
    (lease,) = await c.run(submit("buried", "large", "tombs"), queues=["tombs"])
    await c.settle(completed(lease))


async def _running(c: Client) -> None:
    submissions = [
        submit("running", "r", unique=Unique(key="until-done")),
        submit("stopping", "r"),
        submit("in-gpu", "r", limiters=("gpu",)),
        submit("one", "one-at-a-time"),
        submit("slow-one", "slow"),
        submit("retrying"),
    ]
    leases = {lease.message.id: lease for lease in await c.run(*submissions)}
    await c.broker.watch("w2", ["running", "retrying"])
    await c.cancel("stopping")
    await c.settle(failed(leases["retrying"], delay=60.0))
    ref = c.ref(leases["running"])
    await c.write(
        Write(lease=ref, kind="progress", value=b"half"),
        Write(lease=ref, kind="checkpoint", value=b"here"),
        Write(lease=ref, kind="xcom", key="key", value=b"value"),
    )


async def _wide(c: Client) -> None:
    """A task that waits for so many that a text is not the place for them."""
    parents = [f"parent-{n}" for n in range(20)]
    await c.enqueue(*(submit(id, queue="wide", delay=900.0) for id in parents))
    await c.enqueue(submit("wide", queue="wide", after=parents))


def staged_parts() -> list[FlowPart]:
    """A flow of two tasks that wait for many, of which one is written."""
    handles = [Dependency(f"gone-{n}", known=True) for n in range(60)]
    members = [submit(f"staged-{n}", queue="flow", after=handles) for n in (1, 2)]
    return parts_of("flow-staged", *members, size=1)


async def _flows(c: Client) -> None:
    """Flows in every phase, and edges of a task that waited for many."""
    await make(c, "flow-done", submit("flow-member", queue="flow"))
    (lease,) = await c.fetch(1, ["flow"])
    await c.settle(completed(lease))
    await stage(c, staged_parts()[0])
    await stage(c, *parts_of("flow-whole", submit("whole-1", queue="flow")))
    wide = [submit(f"leaf-{n}", queue="flow") for n in range(60)]
    wide.append(submit("fan-in", queue="flow", after=[each.message.id for each in wide]))
    await make(c, "flow-wide", *wide)
    await c.broker.watch("w2", ["flow-wide"])
    members = [submit(f"laid-{n}", queue="laid") for n in range(60)]
    await stage(c, *parts_of("flow-laying", *members))
    await commit(c, "flow-laying")


async def _parked(c: Client) -> None:
    await c.enqueue(
        submit("for-gpu", "g", limiters=("gpu",)),
        submit("two", "one-at-a-time"),
        submit("slow-two", "slow"),
        submit("rated-one", queue="rated"),
        submit("rated-two", queue="rated"),
    )
    assert await c.fetch(10) == []  # parks whoever cannot run
    assert len(await c.fetch(10, ["rated"])) == 1


async def _broken(c: Client) -> None:
    """A breaker that is open, and one that is half open: a tenant waits at each."""
    tasks = [submit(f"{name}-bad", "p", name, limiters=(name,)) for name in ("api", "db")]
    leases = await c.run(*tasks, queues=["api", "db"])
    await c.settle(*(dead(lease) for lease in leases))
    names = [("for-api", "api"), ("db-one", "db"), ("db-two", "db")]
    await c.enqueue(*(submit(id, id, name, limiters=(name,)) for id, name in names))
    assert len(await c.fetch(10, ["api", "db"], now=NOW + 1)) == 1


async def _waiting(c: Client) -> None:
    await c.enqueue(
        submit(MADE, "q"),
        submit("chosen", "q", unique=Unique(key="for-a-while", until="window", window=60.0)),
        submit("hole", "q"),
        submit("low", "q", level=3),
        submit("paused", "stopped"),
        submit("scheduled", delay=60.0),
        submit("in-time", "q", deadline=60.0),
        submit("deferred", after=["running"]),
        submit("told", "t"),
    )
    await c.requeue("again")
    await c.enqueue(submit("moved", "m", "moved", level=3))
    await c.alter(Alter(id="moved", action="prioritize", level=1))
    await c.broker.watch("w2", ["told", "hole"])
    await c.cancel("hole")


async def _in_transit(c: Client) -> None:
    """The last calls, because every other one would go on with what these leave to do."""
    children = [submit(f"child-{i}", queue="graph", after=["parent"]) for i in range(CHILDREN)]
    (parent,) = await c.run(submit("parent", queue="graph"), queues=["graph"])
    await c.enqueue(*children)
    (lease,) = await c.fetch(1, ["pins"])
    await c.settle(completed(parent), dead(lease))
    await c.cancel("fan-in")


async def _pinned(c: Client) -> None:
    """Tasks that others will read: one completed before, one after; and one that pins many."""
    names = [f"read-{n}".ljust(32, "-") for n in range(CHILDREN)]
    leases = await c.run(*(submit(id, queue="pins") for id in names), queues=["pins"])
    await c.settle(
        *(completed(lease, keep=None if lease is leases[0] else 1e9) for lease in leases)
    )
    (lease,) = await c.run(submit("pinned", queue="pins"), queues=["pins"])
    await c.enqueue(
        submit("user", queue="pins", after=["pinned", names[0]], uses=True, delay=900.0),
        submit("reader", queue="pins", after=names, uses=True),
    )
    await c.settle(completed(lease))
    await c.configure(QueueChange(queue="tight", max_tenant_pinned_bytes=0))
    (lease,) = await c.run(submit("beyond", queue="tight"), queues=["tight"])
    await c.enqueue(submit("late", queue="tight", after=["beyond"], uses=True, delay=900.0))
    await c.settle(completed(lease))  # there is no room to keep it aside
