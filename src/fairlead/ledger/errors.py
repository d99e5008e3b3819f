"""What an error of psycopg means: nothing was done, perhaps something was, or it was refused.

Texts of the server may hold values of rows, so only its codes and names of constraints are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.model.ledger_errors import (
    LedgerAmbiguous,
    LedgerError,
    LedgerRefused,
    LedgerUnreachable,
)

if TYPE_CHECKING:
    import psycopg

# Two transactions came into each other's way: the same again, a moment later, is likely to do.
_COLLISIONS = frozenset({"40001", "40P01", "55P03"})

# By SQLSTATE, or by its first two characters: the cause, and what to do.
_REFUSALS = {
    "25006": ("read_only", "it takes no writes now; is it a standby, or is its disk protected?"),
    "53100": ("disk", "its disk is full; make room"),
    "53": ("resources", "it is short of memory, disk or connections"),
    "57014": ("timeout", "the statement took too long and was given up"),
    "23": ("constraint", "a rule of the schema forbids it"),
    "42501": ("permission", "grant this role its rights on the tables of the schema fairlead"),
    "42P01": ("schema", "run `fairlead db migrate`"),
    "42703": ("schema", "run `fairlead db migrate`"),
    "42883": ("schema", "run `fairlead db migrate`"),
    "3F000": ("schema", "run `fairlead db migrate`"),
    "28": ("login", "check the user and the password in the URL of the ledger"),
    "3D000": ("database", "create the database, or name another in the URL of the ledger"),
}

# Errors of a connection that was not made come without a code, and with words for people.
_FATAL = (
    (("authentication failed",), "28"),
    (("role", "does not exist"), "28"),
    (("no pg_hba.conf entry",), "28"),
    (("database", "does not exist"), "3D000"),
)


def is_collision(error: psycopg.Error) -> bool:
    """Return whether the same statement is likely to do if it is tried again at once."""
    return error.sqlstate in _COLLISIONS


def at_connect(error: Exception, where: str) -> LedgerError:
    """Return what it means that no connection was to be had."""
    code = getattr(error, "sqlstate", None) or ""
    refusal = _REFUSALS.get(code) or _REFUSALS.get(code[:2])
    if refusal is not None and refusal[0] in ("login", "database"):
        return LedgerRefused(refusal[0], f"the ledger at {where} refuses: {refusal[1]}", code)
    # Nothing of ours has been sent, so this names hosts and ports only.
    why = " ".join(str(error).split()) or type(error).__name__
    for words, code in _FATAL:
        if "FATAL" in why and all(word in why for word in words):
            cause, advice = _REFUSALS[code]
            return LedgerRefused(cause, f"the ledger at {where} refuses: {advice}", code)
    return LedgerUnreachable(f"the ledger at {where} cannot be reached: {why}")


def meaning(error: psycopg.Error, where: str, *, is_in_doubt: bool) -> LedgerError:
    """Return what an error of a statement means.

    ``is_in_doubt``: if the connection was lost, something may have been written all the same.
    """
    code = error.sqlstate or ""
    if not code or code.startswith(("08", "57P")):
        if is_in_doubt:
            return LedgerAmbiguous(
                f"the connection to the ledger at {where} was lost while it wrote; it may have "
                "been done"
            )
        return LedgerUnreachable(f"the connection to the ledger at {where} was lost")
    if is_collision(error):
        what = "others hold what it needs to write; try again"
        return LedgerRefused("busy", f"the ledger at {where} refuses ({code}): {what}", code)
    cause, advice = _REFUSALS.get(code) or _REFUSALS.get(code[:2]) or ("error", "see its log")
    if cause == "constraint" and error.diag.constraint_name:
        advice = f"the rule {error.diag.constraint_name!r} of the schema forbids it"
    return LedgerRefused(cause, f"the ledger at {where} refuses ({code}): {advice}", code)
