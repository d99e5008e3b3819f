"""The description that a package index shows: README.md with links that work there.

Links of README.md are relative, so that they work in a checkout and wherever the repository is
hosted. `hatch_build.py` calls this when a package is built.
"""

from __future__ import annotations

import re

__all__ = ("description",)

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z][a-z0-9+.-]*:|#)([^)\s]+)\)")


def description(readme: str, source: str) -> str:
    """Return the text with each relative link turned into one below the repository's address."""

    def absolute(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        return f"{mark}[{text}]({source}/{'raw' if mark else 'blob'}/main/{target})"

    return _LINK.sub(absolute, readme)
