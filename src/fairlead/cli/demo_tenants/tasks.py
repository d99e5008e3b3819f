"""An app as shops have them: mail, billing, reports and media, with limits, retries and schedules.

Nothing here does any work: handlers wait, and some of them fail. The queues begin with ``demo-``,
so that they are nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
import random

from fairlead import Backoff, Context, Fairlead, Reject, Retry

MAIL, BILLING, REPORTS, MEDIA = "demo-mail", "demo-billing", "demo-reports", "demo-media"

app = Fairlead()
app_log = logging.getLogger("demo")

# What waits and what is kept is bounded: the demo may run for days.
for _queue in (MAIL, BILLING, REPORTS, MEDIA):
    app.declare_queue(
        _queue, max_waiting=5_000, keep_completed="30m", keep_completed_count=5_000, keep_dead="1h"
    )
app.declare_tenant("globex", weight=3)  # pays for three times the share of the others
app.declare_tenant("stark", concurrency=2)  # at most two of its films at a time
app.declare_limiter("demo-partner", rate=4, burst=2)  # what a partner's API allows all of us


class MailboxBusy(Exception):
    """Somebody else's mail server has no time: worth another try."""


@app.task(name="mail.send", queue=MAIL, max_retries=3, backoff=Backoff(initial=0.5, max=5.0))
async def send(to: str) -> str:
    """Send a mail; one in two hundred meets a server that is busy."""
    await asyncio.sleep(random.uniform(0.02, 0.12))
    if random.random() < 0.005:
        raise MailboxBusy(f"421 try again later ({to.rpartition('@')[2]})")
    return f"sent to {to}"


@app.task(name="mail.remind", queue=MAIL)
async def remind(to: str) -> None:
    """Remind somebody, later: these wait for their time."""
    await asyncio.sleep(0.05)
    app_log.debug("reminded %s", to)


@app.task(name="billing.charge", queue=BILLING, max_retries=2, backoff=Backoff(initial=1, max=4))
async def charge(ctx: Context, order: int) -> str:
    """Charge a card: some are declined for good, some banks answer at the second or third try."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    if order % 7 == 0:
        raise Reject("card declined")
    if order % 5 == 0:
        raise ConnectionError("the bank does not answer")
    if order % 3 == 0 and ctx.attempt == 1:
        raise Retry(delay=2, message="the bank is busy")
    return f"order {order} is paid"


@app.task(name="partner.sync", queue=BILLING, limiters=["demo-partner"])
async def sync(item: int) -> None:
    """Tell a partner, whose API takes four calls a second from all tenants together."""
    await asyncio.sleep(0.05)
    app_log.debug("item %d was told", item)


@app.task(name="cache.warm", queue=REPORTS, unique="front-page")
async def warm() -> None:
    """Warm a cache: one at a time is enough, whoever asks for it."""
    await asyncio.sleep(1.5)


@app.task(name="report.extract", queue=REPORTS)
async def extract(day: int) -> list[int]:
    """Begin a flow."""
    await asyncio.sleep(0.3)
    return [day * part for part in range(1, 5)]


@app.task(name="report.transform", queue=REPORTS)
async def transform(part: int) -> int:
    """One of the parts of a flow that run side by side."""
    await asyncio.sleep(random.uniform(0.3, 1.5))
    return part


@app.task(name="report.load", queue=REPORTS)
async def load(day: int) -> str:
    """End a flow: starts when all its parts are done."""
    await asyncio.sleep(0.2)
    return f"day {day} is loaded"


@app.task(name="media.render", queue=MEDIA, timeout="1m")
async def render(ctx: Context, film: int, seconds: float) -> str:
    """Take long, and tell how far it is; some are canceled meanwhile."""
    steps = 20
    for step in range(steps):
        await asyncio.sleep(seconds / steps)
        await ctx.aprogress((step + 1) / steps)
    return f"film {film} is rendered"


@app.schedule(every="15s", name="demo-digest")
@app.task(name="mail.digest", queue=MAIL, tenant="acme")
async def digest() -> None:
    """Come by the clock, without a process for it."""
    await asyncio.sleep(0.1)
