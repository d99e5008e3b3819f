"""What every command owes its user: help with examples, an error in one line, an exit code."""

import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import click
import pytest

from fairlead import cli as package
from fairlead.cli.common.commands import Command, Group
from fairlead.cli.common.exit_codes import exit_code
from fairlead.cli.main import SECTIONS, cli, run
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
    assert all(f"\n{heading}:\n" in answer.stdout for heading in SECTIONS)
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


def test_the_table_of_commands_says_what_each_says_of_itself() -> None:
    for rows in SECTIONS.values():
        for name, about in rows.items():
            command = cli.get_command(click.Context(cli), name)
            assert command is not None
            assert command.help is not None
            assert " ".join(command.help.split()).startswith(about.removesuffix(".")), name


# What help may load beside click, what click itself needs, and the files of its command.
LIGHT = {
    "math",  # click loads it before Python 3.13
    "fairlead", "fairlead.model", "fairlead.model.durations", "fairlead.model.errors",
    "fairlead.model.exception_copies", "fairlead.model.fairness_stats",
    "fairlead.model.ledger_errors", "fairlead.model.names",
    "fairlead.model.rates", "fairlead.model.setting_names", "fairlead.model.safe_repr",
    "fairlead.model.sizes", "fairlead.model.states",
    "atexit", "signal",
    "fairlead.runtime", "fairlead.runtime.process_hooks", "fairlead.runtime.terminals",
}  # fmt: skip
NOUNS = sorted(name for rows in SECTIONS.values() for name in rows)

# Prints what each help loads that help of a command without any code does not: one line for each.
LOADED_BY_HELP = """
import os, sys, click
click.Command("x", params=[click.Option(["--y"], help="z")]).main(["--help"], standalone_mode=False)
before = set(sys.modules)
from fairlead.cli.main import cli, run
for path in PATHS:
    sys.stdout.flush()
    child = os.fork()  # each begins with the entry point alone
    if not child:
        code = run(cli, [*path, "--help"])
        print(code, *sorted(set(sys.modules) - before), file=sys.stderr, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_help_loads_neither_other_commands_nor_what_they_work_with() -> None:
    every = [(), *PATHS]
    program = LOADED_BY_HELP.replace("PATHS", repr(every))
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = answer.stderr.splitlines()
    assert len(lines) == len(every), answer.stderr
    for path, line in zip(every, lines, strict=True):
        code, *modules = line.split()
        assert code == "0", path
        heavy = {name for name in modules if not name.startswith("fairlead.cli")} - LIGHT
        assert not heavy, path
        others = {f"fairlead.cli.{name}" for name in NOUNS if name != "".join(path[:1])}
        assert others.isdisjoint(modules), path


@pytest.mark.parametrize("path", [(), ("task",), ("task", "list"), ("queue",), ("worker",)])
def test_help_takes_little_processor_time(path: tuple[str, ...]) -> None:
    """It takes about 80 ms; there is room for a machine that is busy, not for a slow import."""
    args = [sys.executable, "-m", "fairlead", *path, "--help"]
    subprocess.run(args, capture_output=True)  # bytecode is written
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(args, capture_output=True).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < 0.3


def test_the_version_is_data() -> None:
    answer = answered("--version")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("fairlead 0.")


def test_an_unknown_option_is_answered_with_the_closest_one() -> None:
    answer = answered("task", "list", "--stat", "dead", "--quue", "mail")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--quue" in answer.stderr or "--stat" in answer.stderr
    assert "Did you mean" in answer.stderr


@pytest.mark.parametrize(
    ("former", "now"),
    [(("tasks",), ("task", "types")), (("workers", "pause"), ("workers", "quiet"))],
)
def test_a_name_that_a_command_had_is_understood_but_not_listed(
    former: tuple[str, ...], now: tuple[str, ...]
) -> None:
    assert (
        answered(*former, "--help").stdout.partition("Options:")[2]
        == (answered(*now, "--help").stdout.partition("Options:")[2])
    )
    assert f"\n  {former[-1]} " not in answered(*former[:-1], "--help").stdout


def test_an_app_in_place_of_a_command_is_no_module_to_import() -> None:
    answer = answered("json:dumps", "--help")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        "error: there is no command 'json:dumps'; did you mean fairlead worker json:dumps? "
        "(next: fairlead --help)\n"
    )


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
