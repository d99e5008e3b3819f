"""What the repository says to its readers: nothing about one machine, and no link into nowhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.model.durability import CLAIM
from tests.architecture.source import ROOT, at, files, plant

TOP_FILES = (
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "constraints.txt",
    "pyproject.toml", ".ci/run", ".editorconfig", ".gitignore",
)  # fmt: skip
FOLDERS = ("src", "tests", "docs", "benchmarks", "web", "examples", "deploy", "tools")
TEXT = {
    ".py",
    ".lua",
    ".sql",
    ".md",
    ".toml",
    ".txt",
    ".js",
    ".json",
    ".ts",
    ".tsx",
    ".css",
    ".html",
    ".yml",
    ".yaml",
    ".service",
    ".env",
    ".svg",
}

# Where somebody's checkout or home lies. A path inside an address (http://host/home/) is not meant.
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:work|root|home|Users)/\w")

# Installers know their index; a host named in a file outlives the mirror it was copied from.
REGISTRY = re.compile(r"\b(?:(?:pypi|pythonhosted|npmjs)\.(?:org|com)|yarnpkg\.com|crates\.io)\b")

LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def leaks(root: Path) -> list[str]:
    return [
        at(root, path, number, what)
        for path in _texts(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for pattern, what in (
            (MACHINE_PATH, "a path of one machine"),
            (REGISTRY, "a registry host"),
        )
        if pattern.search(line)
    ]


def dead_links(root: Path) -> list[str]:
    """Links between the pages of the repository lead to a file, and to a heading in it."""
    found = []
    for page in [*root.glob("*.md"), *files(root, "docs", ".md")]:
        text = _without_code(page.read_text(encoding="utf-8"))
        for match in LINK.finditer(text):
            target = match.group(1)
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            file, _, anchor = target.partition("#")
            goal = (page.parent / file).resolve() if file else page
            if not goal.exists():
                found.append(at(root, page, _line(text, match), f"{target} leads nowhere"))
            elif anchor and goal.suffix == ".md" and anchor not in _anchors(goal):
                found.append(at(root, page, _line(text, match), f"{target} names no heading"))
    return found


def glossary_words(root: Path) -> list[str]:
    """What the glossary of the source explains: the word of each row, and those in italics."""
    text = (root / "docs/internals/glossary.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| (?!word )", line)]
    return [*(row.split(" | ")[0][2:] for row in rows), *re.findall(r"\*([^*]+)\*", " ".join(rows))]


def _texts(root: Path) -> Iterator[Path]:
    yield from (root / name for name in TOP_FILES if (root / name).is_file())
    for folder in FOLDERS:
        yield from (path for path in files(root, folder, "") if path.suffix in TEXT)


def _without_code(text: str) -> str:
    """The text with code blanked out and every line still in its place."""
    text = FENCE.sub(lambda block: "\n" * block.group().count("\n"), text)
    return CODE_SPAN.sub("", text)


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _anchors(page: Path) -> set[str]:
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    assert leaks(ROOT) == []


def test_every_link_in_the_pages_leads_somewhere() -> None:
    assert dead_links(ROOT) == []


@pytest.mark.parametrize("folder", ["work", "root", "home", "Users"])
def test_a_machine_path_is_found(tmp_path: Path, folder: str) -> None:
    plant(
        tmp_path,
        "docs/a.md",
        f"see\n(/{folder}/me/notes)\nhttp://host/{folder}/me\n./{folder}/me\n",
    )
    assert leaks(tmp_path) == ["docs/a.md:2: a path of one machine"]


@pytest.mark.parametrize(
    "host", ["pypi." + "org", "files.pythonhosted." + "org", "registry.npm" + "js.org"]
)
def test_a_registry_host_is_found(tmp_path: Path, host: str) -> None:
    plant(tmp_path, "Makefile", f"install:\n\tpip install --index-url https://{host}/simple x\n")
    plant(tmp_path, "web/package-lock.json", f'"resolved": "https://{host}/x.tgz"\n')
    assert leaks(tmp_path) == [
        "Makefile:2: a registry host",
        "web/package-lock.json:1: a registry host",
    ]


def test_what_tools_made_is_not_read(tmp_path: Path) -> None:
    plant(tmp_path, "web/node_modules/x/readme.md", "https://npmjs." + "com/x\n")
    assert leaks(tmp_path) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "docs/b.md", "# What it is, in short\n")
    plant(
        tmp_path,
        "README.md",
        "[good](docs/b.md) [folder](docs) [heading](docs/b.md#what-it-is-in-short)\n"
        "[outside](https://example.org/x) `[code](gone.md)`\n"
        "```\n[block](gone.md)\n```\n"
        "[gone](docs/gone.md) [wrong](docs/b.md#elsewhere) [here](#nowhere)\n",
    )
    assert dead_links(tmp_path) == [
        "README.md:6: docs/gone.md leads nowhere",
        "README.md:6: docs/b.md#elsewhere names no heading",
        "README.md:6: #nowhere names no heading",
    ]


def test_the_claim_about_durability_is_the_same_everywhere() -> None:
    for name in ("README.md", "docs/README.md", "docs/how-to/connect.md", "pyproject.toml"):
        assert " ".join(CLAIM.split()) in " ".join((ROOT / name).read_text().split()), name


def test_the_source_needs_no_more_than_forty_words_of_its_own() -> None:
    words = glossary_words(ROOT)
    assert len(words) == len(set(words)) <= 40


def test_words_inside_of_a_row_count_as_well(tmp_path: Path) -> None:
    rows = "| word | meaning |\n|---|---|\n| loan | A task is *held*, then *started* |\n"
    plant(tmp_path, "docs/internals/glossary.md", rows)
    assert glossary_words(tmp_path) == ["loan", "held", "started"]
