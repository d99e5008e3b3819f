"""What scripts are told: exit codes."""

from __future__ import annotations

from fairlead.model.errors import Ambiguous, InvalidInput, Refused, Unreachable
from fairlead.model.ledger_errors import LedgerAmbiguous, LedgerUnreachable

OK, FAILURE, USAGE, UNREACHABLE, TIMEOUT, INTERRUPTED = 0, 1, 2, 3, 4, 130


def exit_code(error: BaseException) -> int:
    """What scripts are told about an error."""
    match error:
        case Unreachable() | Ambiguous() | LedgerUnreachable() | LedgerAmbiguous():
            return UNREACHABLE
        case Refused(cause="auth"):  # another try changes nothing, but neither can it be reached
            return UNREACHABLE
        case TimeoutError():
            return TIMEOUT
        case InvalidInput():
            return USAGE
        case _:
            return FAILURE
