"""The diagrams: well-formed, described for those who cannot see them, true, and used."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from fairlead import State
from tests.architecture.source import ROOT

PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def words(path: Path) -> set[str]:
    return {text.text or "" for text in ElementTree.parse(path).iter(f"{SVG}text")}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_described_and_used(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"pictures/{path.name})" in page.read_text() for page in pages)


def test_the_picture_of_states_has_all_of_them() -> None:
    assert {str(state) for state in State} <= words(ROOT / "docs/pictures/states.svg")


def test_the_picture_of_fairness_shows_what_the_readme_prints() -> None:
    readme = (ROOT / "README.md").read_text()
    turns = [line.split()[-1] for line in readme.splitlines() if " gets a turn: " in line][1:]
    picture = [
        text.text
        for text in ElementTree.parse(ROOT / "docs/pictures/fairness.svg").iter(f"{SVG}text")
        if text.text and text.text[0] in "bs" and text.text[1:].isdigit()
    ]
    assert [turn.removesuffix(".png") for turn in turns] == picture[8:]
