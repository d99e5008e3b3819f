"""What a module offers, its names say: others import nothing that begins with an underscore.

`__all__` is for modules that pass on many names of others, and tells the truth.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, at, files, imports, plant, tree


def private_imports(root: Path) -> list[str]:
    """Names with an underscore that a module takes from another one of the package."""
    return [
        at(root, path, found.line, f"imports {found.name}, which {found.module} keeps to itself")
        for path in files(root, "src", ".py")
        for found in imports(root, path)
        if found.reaches("fairlead")
        and found.name is not None
        and found.name.startswith("_")
        and not found.name.startswith("__")
    ]


def untrue_surfaces(root: Path) -> list[str]:
    """Where there is an `__all__`, it is a tuple of names that the module binds, each once."""
    found = []
    for path in files(root, "src", ".py"):
        body = tree(path).body
        if "__all__" not in (bound := set(_bound(body))):
            continue
        names = _declared(body)
        if names is None:
            found.append(at(root, path, 1, "__all__ is not a tuple of strings"))
            continue
        known = bound | _submodules(path)
        found += [
            at(root, path, 1, f"__all__ names {name}, which does not exist")
            for name in names
            if name not in known
        ]
        found += [
            at(root, path, 1, f"__all__ names {name} twice")
            for name in sorted(set(names))
            if names.count(name) > 1
        ]
    return found


def front_door_gaps(root: Path) -> list[str]:
    """What `fairlead` imports from its own parts is exactly what it offers.

    A name that the file itself defines, such as `__version__`, may be offered too.
    """
    path = root / "src/fairlead/__init__.py"
    body = tree(path).body
    offered = set(_declared(body) or ())
    imported = {
        alias.asname or alias.name
        for node in _statements(body)
        if isinstance(node, ast.ImportFrom)
        and (node.level or (node.module or "").split(".")[0] == "fairlead")
        for alias in node.names
    }
    defined = set(_bound(body)) - imported
    return [
        *(
            at(root, path, 1, f"imports {name} but does not offer it")
            for name in sorted(imported - offered)
        ),
        *(
            at(root, path, 1, f"offers {name} but does not import it")
            for name in sorted(offered - imported - defined)
        ),
    ]


def _declared(body: list[ast.stmt]) -> tuple[str, ...] | None:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.Tuple(elts=items)):
                pass
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.Tuple(elts=items)):
                pass
            case _:
                continue
        names = [item.value for item in items if isinstance(item, ast.Constant)]
        strings = tuple(name for name in names if isinstance(name, str))
        return strings if len(strings) == len(items) else None
    return None


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """The names that exist in a module once it has run."""
    for node in _statements(body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name).split(".")[0] for alias in aliases)
            case ast.Assign(targets=targets):
                yield from _targets(targets)
            case ast.AnnAssign(target=target):
                yield from _targets([target])
            case _:
                pass


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Top-level statements, and those inside top-level `if`, `try` and `with`."""
    for node in body:
        yield node
        match node:
            case ast.If():
                yield from _statements([*node.body, *node.orelse])
            case ast.Try():
                handlers = [statement for handler in node.handlers for statement in handler.body]
                yield from _statements([*node.body, *handlers, *node.orelse, *node.finalbody])
            case ast.With():
                yield from _statements(node.body)
            case _:
                pass


def _targets(targets: Iterable[ast.expr]) -> Iterator[str]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, ast.Tuple | ast.List):
            yield from _targets(target.elts)


def _submodules(path: Path) -> set[str]:
    if path.name != "__init__.py":
        return set()
    return {entry.stem for entry in path.parent.iterdir() if entry.suffix in {"", ".py"}}


def test_no_module_takes_what_another_keeps_to_itself() -> None:
    assert private_imports(ROOT) == []


def test_each_surface_that_is_declared_exists() -> None:
    assert untrue_surfaces(ROOT) == []


def test_the_package_offers_exactly_what_it_imports() -> None:
    assert front_door_gaps(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "__all__ = ['fetch']\ndef fetch(): ...\n",
        "__all__ = (fetch.__name__,)\n",
        "__all__ = ('fetch', *more)\ndef fetch(): ...\n",
    ],
)
def test_a_surface_that_is_no_tuple_of_strings_is_found(tmp_path: Path, text: str) -> None:
    plant(tmp_path, "src/fairlead/client/client.py", text)
    assert untrue_surfaces(tmp_path) == [
        "src/fairlead/client/client.py:1: __all__ is not a tuple of strings"
    ]


def test_a_surface_that_promises_too_much_or_twice_is_found(tmp_path: Path) -> None:
    name = "src/fairlead/client/client.py"
    plant(tmp_path, name, "__all__ = ('fetch', 'gone', 'fetch')\ndef fetch(): ...\n")
    assert untrue_surfaces(tmp_path) == [
        f"{name}:1: __all__ names gone, which does not exist",
        f"{name}:1: __all__ names fetch twice",
    ]


def test_every_way_to_bind_a_name_counts(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "src/fairlead/client/__init__.py",
        "import os.path\n"
        "from fairlead.model import Message as M\n"
        "__all__: tuple[str, ...] = ('os', 'M', 'A', 'B', 'C', 'f', 'K', 'D', 'result')\n"
        "A, B = 1, 2\n"
        "C: int = 3\n"
        "if A:\n    async def f(): ...\n"
        "try:\n    class K: ...\nexcept ImportError:\n    D = None\n",
    )
    plant(tmp_path, "src/fairlead/client/result.py", "__all__ = ()\n")
    assert untrue_surfaces(tmp_path) == []


def test_a_private_name_that_is_imported_is_found(tmp_path: Path) -> None:
    name = "src/fairlead/client/client.py"
    plant(
        tmp_path,
        name,
        "from __future__ import annotations\n"
        "from os import _exit\n"
        "from fairlead import __version__\n"
        "from fairlead.client.call import Call\n"
        "from .call import _checked\n",
    )
    assert private_imports(tmp_path) == [
        f"{name}:5: imports _checked, which fairlead.client.call keeps to itself"
    ]


def test_a_front_door_that_hides_or_invents_a_name_is_found(tmp_path: Path) -> None:
    name = "src/fairlead/__init__.py"
    imports = "from importlib.metadata import version\nfrom fairlead.app import Fairlead, Context\n"
    end = "__version__ = version('fairlead')\n"

    plant(tmp_path, name, f"{imports}__all__ = ('Fairlead', 'Context', '__version__')\n{end}")
    assert front_door_gaps(tmp_path) == []

    plant(tmp_path, name, f"{imports}__all__ = ('Fairlead', 'Worker')\n{end}")
    assert front_door_gaps(tmp_path) == [
        f"{name}:1: imports Context but does not offer it",
        f"{name}:1: offers Worker but does not import it",
    ]
