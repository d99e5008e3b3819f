"""Docstrings as Markdown, those of fields too."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence

__all__ = ("arguments", "below", "prose")

_LITERAL = re.compile(r"``([^`]+)``")
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n      .*)*)", re.MULTILINE)


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: blocks that are indented become code, literals get one backtick."""
    lines = []
    for block in re.split(r"\n\s*\n", docstring or ""):
        if block.startswith("Args:\n"):
            told = (f"- **`{name}`**: {text}" for name, text in arguments(block).items())
            lines.append(_LITERAL.sub(r"`\1`", "\n".join(told)))
        elif block.startswith("    "):
            lines.append(f"```py\n{textwrap.dedent(block)}\n```")
        else:
            lines.append(_LITERAL.sub(r"`\1`", block))
    return "\n\n".join(lines)


def arguments(docstring: str | None) -> dict[str, str]:
    """The text of each parameter that stands below ``Args:`` in a docstring."""
    _, _, block = (docstring or "").partition("Args:\n")
    return {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(block)}


def below(body: Sequence[ast.stmt], statement: ast.stmt) -> str:
    """The string right below a field or an attribute, which editors show as its documentation."""
    place = body.index(statement) + 1
    match body[place : place + 1]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return _LITERAL.sub(r"`\1`", " ".join(text.split()))
    return ""
