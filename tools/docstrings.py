"""Docstrings and comments as Markdown."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize

__all__ = ("Comments", "prose")

_LITERAL = re.compile(r"``([^`]+)``")


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: blocks that are indented become code, literals get one backtick."""
    lines = []
    for block in re.split(r"\n\s*\n", docstring or ""):
        if block.startswith("    "):
            lines.append(f"```py\n{textwrap.dedent(block)}\n```")
        else:
            lines.append(_LITERAL.sub(r"`\1`", block))
    return "\n\n".join(lines)


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
