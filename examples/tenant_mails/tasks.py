"""fairlead worker tenant_mails.tasks:app"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fairlead import Backoff, Context, Fairlead, Handle, Reject

app = Fairlead()
app.declare_limiter("smtp", concurrency=20, failures=5, cooldown="1m")  # the server of all
app.declare_tenant("acme", weight=3)  # pays for three times the share of others
sent: list[tuple[str, str]] = []  # stands for a mail server


@app.task(queue="mail", limiters=["smtp"], max_retries=8, backoff=Backoff(initial=30))
async def send(ctx: Context, to: str, text: str) -> None:
    """Send one mail. What can never be sent is not tried again."""
    if "@" not in to:
        raise Reject(f"{to} is no address")
    sent.append((ctx.tenant, to))


def newsletter(
    company: str, number: int, subscribers: Iterable[str], text: str
) -> list[Handle[None]]:
    """Enqueue a newsletter. Sent again after a crash, it reaches nobody twice."""
    return app.enqueue_many(
        send.using(tenant=company, priority="low", id=_once(number, to)).call(to, text)
        for to in subscribers
    )


def _once(number: int, to: str) -> str:
    """Return the same id for the same mail; ids have no room for every address."""
    return f"mail-{hashlib.sha256(f'{number} {to}'.encode()).hexdigest()[:32]}"
