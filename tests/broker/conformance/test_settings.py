"""What is in force can be read: of queues, tenants and limiters, as changes that would set it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from fairlead.broker import Store
from fairlead.broker.records import DEFAULTS, Settings
from fairlead.broker.requests import (
    Declaration,
    LimiterChange,
    QueueChange,
    Setting,
    TenantChange,
)
from fairlead.model.errors import InvalidInput
from tests.support.store import NOW, Client, completed, submit

FULL = QueueChange(
    queue="full",
    paused=True,
    max_waiting=1_000,
    max_tenant_waiting=100,
    max_tenant_bytes=10_000,
    max_tenant_pinned_bytes=0,
    warn_depth=500,
    concurrency=7,
    rate=2.5,
    burst=3,
    charge_run_time=True,
    strict_priorities=True,
    keep_completed=60.5,
    keep_completed_count=9,
    keep_completed_bytes=99,
    keep_dead=120.0,
    keep_dead_bytes=999,
)


async def settings(broker: Store) -> list[Setting]:
    found: list[Setting] = []
    cursor = None
    while True:
        page = await broker.settings(cursor=cursor, now=NOW)
        assert page.now == NOW
        found += [*page.queues, *page.tenants, *page.limiters]
        cursor = page.cursor
        if cursor is None:
            return sorted(found, key=repr)


async def in_force(broker: Store, queue: str) -> QueueChange:
    page = await broker.settings(queue, now=NOW)
    (found,) = page.queues
    assert page == Settings(now=NOW, queues=[found])
    return found


async def test_nothing_is_set_at_first(c: Client) -> None:
    assert await settings(c.broker) == []


async def test_of_a_queue_everything_that_is_in_force_is_told(c: Client) -> None:
    await c.configure(FULL, QueueChange(queue="part", warn_depth=5))
    part = QueueChange(queue="part", **{**DEFAULTS, "warn_depth": 5})
    assert await settings(c.broker) == sorted([FULL, part], key=repr)
    assert await in_force(c.broker, "full") == FULL
    await c.configure(QueueChange(queue="full", paused=False, rate=None, max_tenant_bytes=None))
    changed = msgspec.structs.replace(FULL, paused=False, rate=None, max_tenant_bytes=None)
    assert await in_force(c.broker, "full") == changed


async def test_a_queue_that_nobody_configured_has_the_defaults(c: Client) -> None:
    await c.enqueue(submit("t1"))
    for queue in ("default", "unknown"):
        assert await in_force(c.broker, queue) == QueueChange(queue=queue, **DEFAULTS)
    assert await settings(c.broker) == []


async def test_the_defaults_are_what_they_are_said_to_be(c: Client) -> None:
    """Lifting a limit of a new queue changes nothing else."""
    await c.configure(QueueChange(queue="q", max_waiting=None))
    assert await in_force(c.broker, "q") == QueueChange(queue="q", **DEFAULTS)


async def test_of_a_tenant_that_is_told_which_was_set(c: Client) -> None:
    everywhere = TenantChange(tenant="acme", weight=2.5, concurrency=3)
    here = TenantChange(tenant="acme", queue="q", paused=True, rate=0.5, burst=4)
    other = TenantChange(tenant="other: ü", paused=False)
    await c.configure(everywhere, here, other)
    assert await settings(c.broker) == sorted([everywhere, here, other], key=repr)
    await c.configure(TenantChange(tenant="acme", concurrency=None))
    found = [each for each in await settings(c.broker) if isinstance(each, TenantChange)]
    (acme,) = [each for each in found if each.tenant == "acme" and each.queue is None]
    assert (acme.weight, acme.concurrency, acme.rate) == (2.5, None, UNSET)


async def test_of_a_limiter_everything_that_is_in_force_is_told(c: Client) -> None:
    gpu = LimiterChange(
        name="gpu", concurrency=2, rate=None, burst=1, failures=None, cooldown=30.0, probes=1
    )
    api = LimiterChange(
        name="api", concurrency=None, rate=5.0, burst=2, failures=3, cooldown=9.5, probes=4
    )
    await c.configure(
        LimiterChange(name="gpu", concurrency=2),
        LimiterChange(name="api", rate=5.0, burst=2, failures=3, cooldown=9.5, probes=4),
    )
    assert await settings(c.broker) == [api, gpu]


async def test_a_limiter_that_nobody_limits_is_not_told_of(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=2))
    (lease,) = await c.run(submit("t1", limiters=("free", "gpu")))
    await c.configure(LimiterChange(name="gpu", concurrency=None))
    assert await settings(c.broker) == []
    await c.settle(completed(lease))


async def test_what_is_declared_is_in_force(c: Client) -> None:
    await c.configure(Declaration(QueueChange(queue="q", concurrency=4)))
    assert (await in_force(c.broker, "q")).concurrency == 4
    await c.configure(QueueChange(queue="q", concurrency=9))
    await c.configure(Declaration(QueueChange(queue="q", concurrency=4)))
    assert (await in_force(c.broker, "q")).concurrency == 9


async def test_a_queue_that_was_deleted_is_told_of_no_more(c: Client) -> None:
    await c.configure(QueueChange(queue="q", concurrency=4))
    await c.broker.delete_queue(c.call(), "q", now=NOW)
    assert await settings(c.broker) == []
    assert await in_force(c.broker, "q") == QueueChange(queue="q", **DEFAULTS)


async def test_many_settings_are_read_in_parts(c: Client) -> None:
    changes: list[Setting] = [TenantChange(tenant=f"t{n}", weight=2.0) for n in range(1_500)]
    changes += [LimiterChange(name=f"l{n}", concurrency=n) for n in range(300)]
    changes += [QueueChange(queue=f"q{n}", concurrency=n) for n in range(300)]
    for start in range(0, len(changes), 500):
        await c.configure(*changes[start : start + 500])
    pages = 0
    found: set[str] = set()
    cursor = None
    while pages == 0 or cursor is not None:
        page = await c.broker.settings(cursor=cursor, now=NOW)
        assert len(page.queues) + len(page.tenants) + len(page.limiters) <= 1_000
        found |= {each.queue for each in page.queues} | {each.name for each in page.limiters}
        found |= {each.tenant for each in page.tenants}
        pages, cursor = pages + 1, page.cursor
    assert pages > 1
    assert len(found) == 2_100


@pytest.mark.parametrize("cursor", ["", "x", "z9", "0"])
async def test_a_cursor_that_no_page_gave_is_refused(c: Client, cursor: str) -> None:
    with pytest.raises(InvalidInput):
        await c.broker.settings(cursor=cursor, now=NOW)


async def test_what_is_set_can_be_asked_for_by_name(c: Client) -> None:
    everywhere = TenantChange(tenant="a:ü", weight=2.0)
    here = TenantChange(tenant="a:ü", queue="q", concurrency=3)
    await c.configure(
        everywhere,
        here,
        TenantChange(tenant="b", weight=9.0),
        LimiterChange(name="gpu", failures=3),
        LimiterChange(name="cpu", concurrency=1),
        QueueChange(queue="q", rate=2.0),
    )
    found = await c.broker.settings(tenant="a:ü", now=NOW)
    assert (found.now, found.queues, found.tenants, found.cursor) == (NOW, [], [everywhere], None)
    both = await c.broker.settings("q", tenant="a:ü", now=NOW)
    assert both.tenants == [everywhere, here]
    assert [each.rate for each in both.queues] == [2.0]
    limiters = (await c.broker.settings(limiter="gpu", now=NOW)).limiters
    assert [(each.name, each.failures) for each in limiters] == [("gpu", 3)]
    nothing = await c.broker.settings("new", tenant="c", limiter="disk", now=NOW)
    assert (nothing.tenants, nothing.limiters) == ([], [])
    assert nothing.queues == [QueueChange(queue="new", **DEFAULTS)]
