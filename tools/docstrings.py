"""Docstrings and comments as Markdown."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize

__all__ = ("Comments", "arguments", "below", "prose")

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


def below(node: ast.ClassDef, field: ast.stmt) -> str:
    """The string right below a field of a class, which editors show as its documentation."""
    place = node.body.index(field) + 1
    match node.body[place : place + 1]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return _LITERAL.sub(r"`\1`", " ".join(text.split()))
    return ""


class Comments:
    """The comments of a module, by the lines they stand on."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines()
        self._found = {
            token.start[0]: token.string.lstrip("#: ").strip()
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }

    def beside(self, node: ast.stmt) -> str:
        """The comment at the end of a statement, or the ``#:`` lines right above it."""
        last = node.end_lineno or node.lineno
        if last in self._found:
            return self._cleaned(self._found[last])
        above: list[str] = []
        line = node.lineno - 1
        while self._lines[line - 1].strip().startswith("#:"):
            above.insert(0, self._found[line])
            line -= 1
        return self._cleaned(" ".join(above))

    @staticmethod
    def _cleaned(comment: str) -> str:
        if comment.startswith(("noqa", "type:", "fmt:")):
            return ""
        return _LITERAL.sub(r"`\1`", re.sub(r"\s*#\s*(?:noqa|type:).*$", "", comment))
