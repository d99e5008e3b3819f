"""Packages that not every installation has: the error names the extra that brings them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.model.errors import InvalidInput


@contextmanager
def needed(package: str, extra: str) -> Iterator[None]:
    """Import inside of this block what an extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f'this needs {package}, which is not installed: pip install "fairlead[{extra}]"'
        ) from error
