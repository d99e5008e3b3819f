"""Every code block of the pages is what it claims to be.

Python programs run and print what the page says, commands of `fairlead` are ones that it has, and
TOML and JSON can be read.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from fairlead.cli.main import cli
from tests.architecture.source import ROOT
from tests.docs.pages import Block, blocks, pages, run

#: Pages whose programs need more than a process of their own, and the tests that run them.
ELSEWHERE = {
    "docs/how-to/transactional-enqueue.md": "tests/client/test_transactional_page.py",
    "docs/how-to/testing.md": "tests/testing/test_plugin.py",
    "docs/quickstart.md": "tests/docs/test_quickstart.py",
    "README.md": "tests/test_readme.py",
}

BLOCKS = [block for page in pages() for block in blocks(page)]
PROGRAMS = [
    each
    for each in BLOCKS
    if each.language == "python"
    and each.page not in ELSEWHERE
    and each.source is None
    and not (each.page.startswith("docs/moving/") and each.output is None)  # test_moving runs them
]
SHELL = {"", "bash", "console", "sh", "shell"}
PORTIONS = 4  # programs share a process that has everything imported; tests may run side by side


def commands(block: Block) -> list[list[str]]:
    """The `fairlead` commands of a block, as their arguments; usage with [OPTIONS] is not meant."""
    found = []
    for line in block.code.replace("\\\n", " ").splitlines():
        text = line.strip().removeprefix("$ ")
        if text.startswith("fairlead ") and "[" not in text and "..." not in text:
            words = shlex.split(text, comments=True)
            ends = (n for n, word in enumerate(words) if word in {"|", ">", "&&", "&", "<", ";"})
            found.append(words[1 : next(ends, None)])
    return found


def test_there_are_programs_and_commands() -> None:
    assert len(PROGRAMS) > 60
    assert sum(len(commands(block)) for block in BLOCKS if block.language in SHELL) > 30


@pytest.mark.parametrize("page", ELSEWHERE)
def test_what_runs_elsewhere_has_a_test_there(page: str) -> None:
    assert Path(page).name in (ROOT / ELSEWHERE[page]).read_text()


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.source], ids=str)
def test_an_excerpt_is_what_its_file_says(block: Block) -> None:
    assert block.source is not None
    text = block.source.read_text(encoding="utf-8")
    excerpt = block.code.partition("\n")[2]
    parts = [part.strip("\n") for part in excerpt.split("\n\n\n")]
    assert [part for part in parts if part not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_programs_run_and_print_what_the_page_says(portion: int, tmp_path: Path) -> None:
    programs = PROGRAMS[portion::PORTIONS]
    wrong = []
    for block, ran in zip(programs, run(programs, tmp_path), strict=True):
        if ran.code:
            wrong.append(f"{block} ended with {ran.code}:\n{ran.errors}")
        elif block.output is not None and ran.output != block.output:
            wrong.append(f"{block} printed:\n{ran.output}")
    assert not wrong, "\n".join(wrong)


def test_commands_are_ones_that_there_are() -> None:
    wrong = []
    for block in BLOCKS:
        for arguments in commands(block) if block.language in SHELL else ():
            try:
                _read(arguments)
            except click.UsageError as error:
                wrong.append(f"{block}: fairlead {shlex.join(arguments)}: {error.message}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "toml"], ids=str)
def test_toml_can_be_read(block: Block) -> None:
    assert tomllib.loads(block.code)


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "json"], ids=str)
def test_json_can_be_read(block: Block) -> None:
    text = block.code.replace("...", "").replace("…", "")
    try:
        json.loads(text)
    except ValueError:  # several documents, one in each line, or answers with a part left out
        assert [json.loads(line) for line in text.splitlines() if line.strip()]


def _read(arguments: list[str]) -> None:
    """Parse a command down to its last verb, and run nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="fairlead")
    left = arguments
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        name = left[0]
        if ":" in name:  # an app, not a verb
            break
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"there is no {name!r}")
        command, left = found, left[1:]
        context = click.Context(command, info_name=name, parent=context)
    if not isinstance(command, click.Group):
        command.make_context(context.info_name, left, parent=context.parent)
