"""What goes wrong between Fairlead and the ledger.

    FairleadError
    ├── LedgerError
    │   ├── LedgerUnreachable       not executed; try again
    │   ├── LedgerAmbiguous         perhaps executed: look, or repeat what may be repeated
    │   ├── LedgerRefused           understood and refused, nothing changed; ``cause`` is one word
    │   └── LostLeadership          another manager leads, under a later term; nothing changed
    └── TaskError
        └── TaskRefused             a transaction committed it, but the broker does not take it

Messages hold neither values of rows nor passwords.
"""

from __future__ import annotations

from fairlead.model.errors import FairleadError, TaskError
from fairlead.model.safe_repr import safe_repr

# Causes of ``LedgerRefused`` that are likely to pass by themselves.
_PASSING = frozenset({"busy", "timeout", "read_only", "disk", "resources"})


class LedgerError(FairleadError):
    """The ledger did not do what was asked; the subclass says what may be assumed.

    ``passes`` says that it is likely to go better a while later, without anybody doing anything.
    """

    passes = False


class LedgerUnreachable(LedgerError):
    """The statement was not executed."""

    passes = True


class LedgerAmbiguous(LedgerError):
    """The connection was lost while something was written: it may have been executed."""

    passes = True


class LedgerRefused(LedgerError):
    """The ledger understood and refused; nothing changed. ``cause`` is one word.

    ``code`` is the SQLSTATE, where the server gave one.
    """

    def __init__(self, cause: str, message: str, code: str = "") -> None:
        super().__init__(message)
        self.cause, self.code = cause, code
        self.passes = cause in _PASSING
        """True: it may work later."""


class LostLeadership(LedgerError):
    """Another manager leads: what was asked under ``term`` was refused, and nothing changed."""

    def __init__(self, term: int, found: int | None = None) -> None:
        stands = "another one" if found is None else str(found)
        super().__init__(f"term {term} does not lead any more; the ledger has {stands}")
        self.term, self.found = term, found


class TaskRefused(TaskError):
    """A transaction committed the task, or a spool has taken it, but the broker does not.

    ``reason`` says why. ``stands_for`` is the id of the task that stands for it; empty if there is
    none.
    """

    def __init__(
        self, id: str, reason: str, stands_for: str = "", *, was: str = "committed"
    ) -> None:
        instead = f"; task {safe_repr(stands_for)} stands for it" if stands_for else ""
        super().__init__(
            id, f"task {safe_repr(id)} was {was}, but the broker refused it ({reason}){instead}"
        )
        self.reason, self.stands_for = reason, stands_for
