"""A method is found in one place: classes are composed, not mixed from others of ours."""

import ast
from pathlib import Path

from tests.architecture.source import ROOT, at, files, plant, tree


def mixed(root: Path) -> list[str]:
    """Classes with several bases of ours; a protocol may gather others."""
    classes = [
        (path, node)
        for path in files(root, "src/fairlead", ".py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    ]
    names = {node.name for _, node in classes}
    found = []
    for path, node in classes:
        bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
        ours = names.intersection(bases)
        if len(ours) > 1 and "Protocol" not in bases:
            found.append(at(root, path, node.lineno, f"{node.name} has {len(ours)} bases"))
    return found


def test_classes_are_not_mixed_from_others() -> None:
    assert mixed(ROOT) == []


def test_a_mixin_is_found(tmp_path: Path) -> None:
    text = "class B: ...\nclass C: ...\nclass A(B, C): ...\nclass D(B, C, Protocol): ...\n"
    plant(tmp_path, "src/fairlead/a.py", text)
    assert mixed(tmp_path) == ["src/fairlead/a.py:3: A has 2 bases"]
