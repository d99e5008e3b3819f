"""What operators do with commands is told in the audit trail, as it is over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.cli.common.commands import talk

if TYPE_CHECKING:
    from fairlead.client import Client


async def note(client: Client, action: str, target: str, **details: Any) -> None:
    """Add a line to the trail. What was done stays done if that fails, and a warning says so."""
    import msgspec

    from fairlead.api.views.audit import AUDIT, AuditLine
    from fairlead.model.errors import BrokerError

    line = AuditLine(
        token="", name=_person(), peer="cli", action=action, target=target, details=details
    )
    try:
        await client.note(AUDIT, [msgspec.json.encode(line)])
    except BrokerError as error:
        talk(f"warning: {action} is done, but missing in the audit trail: {error}")


def _person() -> str:
    from getpass import getuser

    try:
        return getuser()
    except (OSError, KeyError):  # no such user in this container
        return ""
