"""What to say when a part is used whose libraries are not installed."""

from __future__ import annotations

from fairlead.model.errors import InvalidInput

__all__ = ("missing_extra",)


def missing_extra(extra: str, error: ModuleNotFoundError) -> Exception:
    """The error to raise: which library is missing, and how to install it."""
    name = (error.name or "").partition(".")[0]
    if name == "fairlead":
        return error
    return InvalidInput(f'{name} is not installed; install it: pip install "fairlead[{extra}]"')
