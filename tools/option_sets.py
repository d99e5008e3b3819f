"""The options that functions take as ``**options: Unpack[...]``, with the texts of their fields."""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Iterator
from functools import cache

from tools.docstrings import below

__all__ = ("fields", "option_sets", "options")


def options(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr, str]]:
    """The name, the type and the text of each option that a function takes this way."""
    match node.args.kwarg:
        case ast.arg(
            annotation=ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=name))
        ):
            yield from fields(name)


def fields(name: str) -> Iterator[tuple[str, ast.expr, str]]:
    """The name, the type and the text of each field of a TypedDict; first those it inherits."""
    node = option_sets()[name]
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in option_sets():
            yield from fields(base.id)
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, each.annotation, below(node.body, each)


@cache
def option_sets() -> dict[str, ast.ClassDef]:
    """Every TypedDict of fairlead, as far as it is imported, by its name."""
    found: dict[str, ast.ClassDef] = {}
    for name in sorted(each for each in sys.modules if each.startswith("fairlead.")):
        module = sys.modules[name]
        if any(
            typing.is_typeddict(kind) and kind.__module__ == name for kind in vars(module).values()
        ):
            classes = [
                each
                for each in ast.parse(inspect.getsource(module)).body
                if isinstance(each, ast.ClassDef) and typing.is_typeddict(vars(module)[each.name])
            ]
            found.update((each.name, each) for each in classes)
    return found
