"""What the broker says of itself and of its server."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from fairlead.api.http.route import Request, Route
from fairlead.api.views.paging import about
from fairlead.api.views.timestamps import moment
from fairlead.fallback.fallback import Fallback
from fairlead.model.errors import BrokerError
from fairlead.model.outage import BrokerState

Status = Literal["ok", "warn", "fail"]
_WORST: tuple[Status, ...] = ("fail", "warn")


class HealthFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, in a sentence."""

    name: str
    status: Status
    text: str
    hint: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tasks can be trusted to the broker. What is looked at may change any time."""

    now: Annotated[datetime | None, about("By the broker; null: it does not answer.")]
    status: Annotated[
        Literal["ok", "warn", "degraded", "fail"],
        about(
            "The worst of the findings; or degraded: tasks are accepted, and kept on the disk of"
            " this server until the broker has them."
        ),
    ]
    broker: Annotated[
        BrokerState | None, about("How this server stands to it; null: it has no fallback.")
    ] = None
    findings: Annotated[list[HealthFinding], about("Empty for a token of a tenant.")]


async def _health(request: Request) -> Health:
    service = request.service
    now: float | None = None
    try:
        if service.outage:
            raise TimeoutError  # others have asked, and go on to
        async with asyncio.timeout(service.settings.patience):
            now, found = await request.client.now(), await request.client.store.diagnose()
    except (BrokerError, TimeoutError) as error:
        # Without the words of the error, which may name the address of the broker.
        text = f"the broker does not answer ({type(error).__name__})"
        now, findings = None, [HealthFinding(name="broker", status="fail", text=text)]
    else:
        findings = [
            HealthFinding(name=each.name, status=each.status, text=each.text, hint=each.hint)
            for each in found
        ]
    states = {finding.status for finding in findings}
    status: Literal["ok", "warn", "degraded", "fail"]
    status = next((each for each in _WORST if each in states), "ok")
    fallback = service.fallback
    if fallback is not None and (service.is_degraded or now is None):
        status = "degraded"
        findings.append(_spool_of(fallback))
    return Health(
        now=moment(now),
        status=status,
        broker=None if fallback is None else fallback.state,
        findings=[] if request.access.tenant is not None else findings,
    )


def _spool_of(fallback: Fallback) -> HealthFinding:
    stats = fallback.spool.stats()
    return HealthFinding(
        name="spool",
        status="warn",
        text=f"{stats.depth:,} records ({stats.bytes:,} bytes) wait on the disk of this server",
        hint="they are sent once the broker is back; fairlead spool list shows them",
    )


ROUTES = (
    Route(
        method="GET",
        path="/health",
        handler=_health,
        scope="read",
        summary="Show what the broker and its server say of themselves.",
        when_away=True,
    ),
)
