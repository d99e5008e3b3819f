"""What the broker says of itself and of its server."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from fairlead.api.moments import moment
from fairlead.api.route import Request, Route
from fairlead.api.shapes import about
from fairlead.model.errors import BrokerError

__all__ = ("ROUTES", "Health", "HealthFinding")

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
    status: Annotated[Status, about("The worst of the findings.")]
    findings: Annotated[list[HealthFinding], about("Empty for a token of a tenant.")]


async def _health(request: Request) -> Health:
    try:
        async with asyncio.timeout(request.service.settings.patience):
            now, found = await request.client.now(), await request.client.diagnose()
    except (BrokerError, TimeoutError) as error:
        # Without the words of the error, which may name the address of the broker.
        text = f"the broker does not answer ({type(error).__name__})"
        away = HealthFinding(name="broker", status="fail", text=text)
        return Health(
            now=None, status="fail", findings=[] if request.access.tenant is not None else [away]
        )
    states = {finding.status for finding in found}
    return Health(
        now=moment(now),
        status=next((status for status in _WORST if status in states), "ok"),
        findings=[]
        if request.access.tenant is not None
        else [
            HealthFinding(name=each.name, status=each.status, text=each.text, hint=each.hint)
            for each in found
        ],
    )


ROUTES = (
    Route(
        method="GET",
        path="/health",
        handler=_health,
        scope="read",
        summary="Show what the broker and its server say of themselves.",
        answer=Health,
        when_away=True,
    ),
)
