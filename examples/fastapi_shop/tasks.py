"""The tasks: imported by the web server and by the workers."""

from __future__ import annotations

from fairlead import Backoff, Context, Fairlead

queue = Fairlead()
queue.declare_limiter("smtp", rate=50, burst=10)
outbox: list[tuple[str, str]] = []  # stands for a mail server


@queue.task(limiters=["smtp"], max_retries=5, backoff=Backoff(initial=10))
async def send_mail(ctx: Context, to: str, text: str) -> str:
    """Send one mail; the tenant is the customer's company."""
    await ctx.aprogress("sending")
    outbox.append((to, text))
    return f"sent to {to} for {ctx.tenant}"


@queue.schedule("0 6 * * *", tz="Europe/Berlin")
@queue.task
async def morning_report() -> int:
    """Count what was sent."""
    return len(outbox)
