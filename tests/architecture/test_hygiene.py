"""What never appears in the source, wherever it would be convenient."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, at, files, imports, layer, plant, tree

# Loading one of these formats runs code that whoever wrote the bytes has chosen.
UNSAFE_FORMATS = ("cloudpickle", "dill", "marshal", "pickle", "shelve")

BROAD = {"Exception", "BaseException"}
MAYBE_BROAD = re.compile(r"\bException\b|\bBaseException\b|\bexcept\s*:")

# A reason has at least three words. Ruff wants the `noqa` in front, unless the error is logged.
REASON = re.compile(r"#.*\bBLE001 - \S+ \S+ \S+")

# Written in pieces, so that the rule does not find itself.
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")


def unsafe_formats(root: Path) -> list[str]:
    return [
        at(root, path, entry.line, f"imports {unsafe}")
        for path in files(root, "src", ".py")
        if any(unsafe in path.read_text(encoding="utf-8") for unsafe in UNSAFE_FORMATS)
        for entry in imports(root, path)
        for unsafe in UNSAFE_FORMATS
        if entry.reaches(unsafe)
    ]


def run_strings(root: Path) -> list[str]:
    return [*_calls(root, "eval"), *_calls(root, "exec")]


def prints(root: Path) -> list[str]:
    """Only the command line talks to a terminal."""
    return [*_calls(root, "print", outside="cli")]


def shared_randomness(root: Path) -> list[str]:
    """The generator that `random` shares is the program's. The demo's tenants are programs."""
    return [
        at(root, path, entry.line, "imports random: draw from runtime/randomness.py")
        for path in files(root, "src", ".py")
        if path.name != "randomness.py" and path.parent.name != "demo_tenants"
        if "random" in path.read_text(encoding="utf-8")  # else no need to parse it
        for entry in imports(root, path)
        if entry.reaches("random")
    ]


def unreasoned_broad_handlers(root: Path) -> list[str]:
    """Whoever catches everything and lets it end there says why, on the same line."""
    found = []
    for path in files(root, "src", ".py"):
        text = path.read_text(encoding="utf-8")
        if not MAYBE_BROAD.search(text):  # no need to parse it
            continue
        lines = text.splitlines()
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ExceptHandler) or not _is_broad(node.type):
                continue
            if not _raises_again(node) and not REASON.search(lines[node.lineno - 1]):
                found.append(at(root, path, node.lineno, "catches everything without a reason"))
    return found


def unfinished_notes(root: Path) -> list[str]:
    """What is left to do is an issue, not a comment."""
    return [
        at(root, path, number, "unfinished")
        for folder in ("src", "tests", "docs", "benchmarks")
        for suffix in (".py", ".lua", ".sql", ".md")
        for path in files(root, folder, suffix)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]


def _calls(root: Path, name: str, outside: str | None = None) -> Iterator[str]:
    for path in files(root, "src", ".py"):
        if outside is not None and layer(root, path) == outside:
            continue
        if name not in path.read_text(encoding="utf-8"):  # no need to parse it
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and _is_name(node.func, name):
                yield at(root, path, node.lineno, f"calls {name}")


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(_is_broad(item) for item in caught.elts)
    return caught is None or (isinstance(caught, ast.Name) and caught.id in BROAD)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether the error goes on: bare, by its name, or as the cause of another."""
    return any(
        isinstance(node, ast.Raise)
        and (
            node.exc is None
            or _is_name(node.exc, handler.name)
            or _is_name(node.cause, handler.name)
        )
        for node in ast.walk(handler)
    )


def _is_name(node: ast.expr | None, name: str | None) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_no_format_that_runs_code_is_used() -> None:
    assert unsafe_formats(ROOT) == []


def test_no_string_is_run_as_code() -> None:
    assert run_strings(ROOT) == []


def test_only_the_command_line_prints() -> None:
    assert prints(ROOT) == []


def test_chance_has_a_generator_of_its_own() -> None:
    assert shared_randomness(ROOT) == []


def test_whoever_catches_everything_says_why() -> None:
    assert unreasoned_broad_handlers(ROOT) == []


def test_nothing_is_marked_unfinished() -> None:
    assert unfinished_notes(ROOT) == []


@pytest.mark.parametrize("text", ["import pickle", "from marshal import loads", "import dill as d"])
def test_an_unsafe_format_is_found(tmp_path: Path, text: str) -> None:
    plant(tmp_path, "src/fairlead/model/message.py", f"{text}\n")
    (found,) = unsafe_formats(tmp_path)
    assert found.startswith("src/fairlead/model/message.py:1: imports ")


def test_a_run_string_is_found_but_a_method_of_that_name_is_not(tmp_path: Path) -> None:
    plant(tmp_path, "src/fairlead/a.py", "eval('1')\nexec('1')\nredis.eval('return 1')\n")
    assert run_strings(tmp_path) == [
        "src/fairlead/a.py:1: calls eval",
        "src/fairlead/a.py:2: calls exec",
    ]


def test_a_use_of_the_shared_generator_is_found_but_not_in_a_program(tmp_path: Path) -> None:
    plant(tmp_path, "src/fairlead/ledger/pool.py", "\nfrom random import uniform\n")
    plant(tmp_path, "src/fairlead/runtime/randomness.py", "from random import Random\n")
    plant(tmp_path, "src/fairlead/cli/demo_tenants/tasks.py", "import random\n")
    (found,) = shared_randomness(tmp_path)
    assert found.startswith("src/fairlead/ledger/pool.py:2: imports random")


def test_a_print_is_found_outside_the_command_line(tmp_path: Path) -> None:
    plant(tmp_path, "src/fairlead/cli/main.py", "print('hello')\n")
    plant(tmp_path, "src/fairlead/worker/worker.py", "\nprint('hello')\n")
    assert prints(tmp_path) == ["src/fairlead/worker/worker.py:2: calls print"]


@pytest.mark.parametrize(
    "handler",
    [
        "except:\n    pass",
        "except Exception:\n    pass",
        "except (ValueError, BaseException) as error:\n    raise KeyError",
        "except Exception:  # noqa: BLE001\n    pass",
        "except Exception:  # noqa: BLE001 - because\n    pass",
    ],
)
def test_a_broad_handler_without_a_reason_is_found(tmp_path: Path, handler: str) -> None:
    plant(tmp_path, "src/fairlead/a.py", f"try:\n    f()\n{handler}\n")
    assert unreasoned_broad_handlers(tmp_path) == [
        "src/fairlead/a.py:3: catches everything without a reason"
    ]


@pytest.mark.parametrize(
    "handler",
    [
        "except ValueError:\n    pass",
        "except Exception:  # noqa: BLE001 - a handler may raise anything\n    pass",
        "except BaseException:\n    undo()\n    raise",
        "except Exception as error:\n    raise Refused from error",
    ],
)
def test_a_narrow_or_reasoned_or_passing_handler_is_accepted(tmp_path: Path, handler: str) -> None:
    plant(tmp_path, "src/fairlead/a.py", f"try:\n    f()\n{handler}\n")
    assert unreasoned_broad_handlers(tmp_path) == []


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME"])
def test_an_unfinished_note_is_found(tmp_path: Path, word: str) -> None:
    plant(tmp_path, "src/fairlead/a.py", f"x = 1\n# {word}: y\n")
    plant(tmp_path, "docs/how-to/b.md", f"{word}\n")
    plant(tmp_path, "tests/test_c.py", f"{word}ist = 'a word of its own'\n")
    assert unfinished_notes(tmp_path) == [
        "src/fairlead/a.py:2: unfinished",
        "docs/how-to/b.md:1: unfinished",
    ]
