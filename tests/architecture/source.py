"""How the rules read a source tree: its files, their syntax and what they import."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

# Made by tools, never written by hand.
SKIPPED = {"__pycache__", "build", "dist", "node_modules", "static"}


class Import(NamedTuple):
    """One name that a module imports: `from a.b import c` is (line, "a.b", "c")."""

    line: int
    module: str
    name: str | None

    def reaches(self, target: str) -> bool:
        """Whether this brings in `target` or something inside it."""
        paths = [self.module] if self.name is None else [self.module, f"{self.module}.{self.name}"]
        return any(path == target or path.startswith(f"{target}.") for path in paths)


def files(root: Path, folder: str, suffix: str) -> list[Path]:
    """The hand-written files below `root/folder` that end in `suffix`, in a stable order."""
    return sorted(
        path
        for path in (root / folder).rglob(f"*{suffix}")
        if path.is_file() and not _skipped(path.relative_to(root))
    )


def at(root: Path, path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(root).as_posix()}:{line}: {what}"


def tree(path: Path) -> ast.Module:
    return _parsed(path.read_text(encoding="utf-8"))


@cache  # several rules ask, each for the whole tree
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def module_name(root: Path, path: Path) -> str:
    """`src/fairlead/broker/__init__.py` is `fairlead.broker`."""
    parts = path.relative_to(root / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(root: Path, path: Path) -> str:
    """The child of the package that a file belongs to: `broker`, `app`, or "" for the package."""
    _, _, inside = module_name(root, path).partition(".")
    return inside.partition(".")[0]


def imports(root: Path, path: Path) -> tuple[Import, ...]:
    """Every import in the file, lazy ones too, with relative names made absolute."""
    package = module_name(root, path).split(".")
    if path.name != "__init__.py":
        package.pop()
    return _imports(tuple(package), path.read_text(encoding="utf-8"))


@cache
def _imports(package: tuple[str, ...], text: str) -> tuple[Import, ...]:
    return tuple(_found(package, _parsed(text)))


def _found(package: tuple[str, ...], module: ast.Module) -> Iterator[Import]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield from (Import(node.lineno, name, alias.name) for alias in node.names)


def plant(root: Path, name: str, text: str) -> Path:
    """Write a file below `root`, so that a rule can be shown what it must find."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _skipped(path: Path) -> bool:
    folders = path.parts[:-1]
    return any(part in SKIPPED or part.startswith(".") for part in folders)
