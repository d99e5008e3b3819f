"""What every command owes its user: help with examples, an error in one line, an exit code."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import click
import pytest

from fairlead import cli as package
from fairlead.cli.commands import Command, Group
from fairlead.cli.main import cli, exit_code, run
from fairlead.model.errors import (
    Ambiguous,
    FairleadError,
    InvalidOption,
    QueueFull,
    ResultTimeout,
    Unreachable,
)
from tests.cli.running import answered, fairlead

# Each command is in the file of its name.
COMMANDS = [
    name
    for _, name, _ in iter_modules(package.__path__)
    if isinstance(getattr(import_module(f"fairlead.cli.{name}"), name, None), click.Command)
]


def failing(error: BaseException) -> Group:
    """A command line like ours whose only command fails."""

    @click.command(cls=Command, name="fail")
    def fail() -> None:
        raise error

    group = Group(name="fairlead", params=[click.Option(["--debug"], is_flag=True)])
    group.callback = lambda debug: None
    group.add_command(fail)
    return group


@pytest.mark.parametrize("args", [["--help"], ["-h"], []])
def test_the_help_groups_the_commands_and_ends_with_examples(args: list[str]) -> None:
    answer = fairlead(*args) if args == ["--help"] else answered(*args)
    assert answer.returncode == 0
    assert answer.stderr == ""
    assert "Try it:" in answer.stdout
    assert "Examples:" in answer.stdout
    assert all(f"\n  {name} " in answer.stdout for name in COMMANDS)


def paths(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command and every group, as it is typed."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from paths(command, *path, name)


PATHS = list(paths(cli))


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_the_help_of_each_command_has_examples_to_copy(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, [*path, "--help"]) == 0
    answer = capsys.readouterr().out
    examples = answer.partition("Examples:")[2]
    grouped = len(path) > 1 or any(other[:-1] == path for other in PATHS)
    assert examples.count(f"  fairlead {' '.join(path)}") >= (1 if grouped else 3)
    assert "--scale" not in answer  # for tests only


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_the_examples_are_commands_that_exist(path: tuple[str, ...]) -> None:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert isinstance(command, Command | Group)
    for line, _ in command.examples:
        words = shlex.split(line.partition(" > ")[0])
        assert tuple(words[1 : len(path) + 1]) == path
        with command.make_context(path[-1], words[len(path) + 1 :]) as context:
            if isinstance(command, Group):  # would raise for a command that there is not
                command.resolve_command(context, words[len(path) + 1 :])


def test_help_waits_neither_for_the_tables_nor_for_other_commands() -> None:
    """rich takes longer to import than everything else; whoever asks for help needs none of it."""
    program = (
        "import sys; from fairlead.cli.main import cli, run; code = run(cli, ['demo', '--help']); "
        "sys.exit(code or not {'rich', 'fairlead.cli.bench'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_the_version_is_data() -> None:
    answer = answered("--version")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("fairlead 0.")


def test_an_unknown_command_is_answered_with_the_closest_one() -> None:
    answer = answered("dmeo")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == (
        "error: there is no command 'dmeo'; did you mean demo? (next: fairlead --help)\n"
    )


@pytest.mark.parametrize(
    ("args", "value"),
    [
        (["demo", "--concurrency", "0"], "0"),
        (["demo", "--tasks-scale", "many"], "many"),
        (["demo", "--task-ms", "nan"], "nan"),
        (["bench", "sqlite"], "sqlite"),
        (["bench", "--fast"], "--fast"),
        (["nothing-like-it"], "nothing-like-it"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_value(
    args: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert value in err
    assert "--help)" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FairleadError("something"), 1),
        (QueueFull("mail", 10), 1),
        (InvalidOption("delay", -1, "zero or more"), 2),
        (Unreachable("no server at localhost:6379"), 3),
        (Ambiguous("no reply from localhost:6379"), 3),
        (ResultTimeout("42", 5.0), 4),
        (KeyError("a mistake of ours"), 1),
    ],
)
def test_an_error_is_one_line_with_a_next_step_and_a_code_of_its_own(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLEAD_DEBUG", raising=False)
    assert run(failing(error), ["fail"]) == code == exit_code(error)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert " (next: " in err
    assert str(error) in err
    assert "Traceback" not in err


def test_what_may_have_been_done_is_not_to_be_tried_again_blindly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(failing(Ambiguous("no reply")), ["fail"])
    assert "(next: look whether it was done before" in capsys.readouterr().err


def test_an_error_of_several_lines_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(FairleadError("first\nsecond")), ["fail"]) == 1
    assert capsys.readouterr().err.startswith("error: first second (next: ")


def test_debug_shows_where_it_happened(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = failing(Unreachable("no server"))
    assert run(group, ["--debug", "fail"]) == 3
    assert "Traceback" in capsys.readouterr().err

    monkeypatch.setenv("FAIRLEAD_DEBUG", "1")
    assert run(group, ["fail"]) == 3
    assert "Traceback" in capsys.readouterr().err

    monkeypatch.setenv("FAIRLEAD_DEBUG", "0")
    assert run(group, ["fail"]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupted_command_says_so_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(KeyboardInterrupt()), ["fail"]) == 130
    assert capsys.readouterr().err.split() == ["interrupted"]
