"""The audit trail: who changed what, and when."""

from __future__ import annotations

from typing import Any

import msgspec

AUDIT = "audit"  # the trail of operators
#: That of tokens which are bound to a tenant. A trail keeps its last lines only: no tenant is to
#: push out what operators did.
TENANTS_AUDIT = "audit-of-tenants"


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what. The trail adds when."""

    token: str  # the id of the token; empty: a caller of this machine
    name: str  # of the token, or of the person
    peer: str  # the address, or "cli"
    action: str  # "queue.pause"
    target: str
    tenant: str | None = None  # the token's
    details: dict[str, Any] = {}
