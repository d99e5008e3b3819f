"""The Python reference: complete, and what the source says today."""

from __future__ import annotations

import re

import msgspec
import pytest

import fairlead
from tools.reference import FOLDER, pages

SECTION = re.compile(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, str]:
    texts = (FOLDER / name for name in pages())
    found = (match for text in texts for match in SECTION.finditer(text.read_text()))
    return {match[1]: match[2] for match in found}


def test_the_committed_reference_is_that_of_the_source() -> None:
    for name, text in pages().items():
        assert (FOLDER / name).read_text() == text, "run: make reference"


def test_every_public_name_has_a_section() -> None:
    assert set(fairlead.__all__) <= set(sections())


@pytest.mark.parametrize(
    "name", ["TaskInfo", "Snapshot", "FlowInfo", "WorkerRecord", "ScheduleInfo"]
)
def test_every_field_of_a_record_is_listed(name: str) -> None:
    fields = [field.name for field in msgspec.structs.fields(getattr(fairlead, name))]
    assert [field for field in fields if f"- **`{field}`**" not in sections()[name]] == []


@pytest.mark.parametrize("name", ["Context", "Handle", "FlowHandle", "Task", "Fairlead"])
def test_every_public_attribute_of_a_class_is_listed(name: str) -> None:
    text = sections()[name]
    shown = set(re.findall(r"^- \*\*`(\w+)`\*\*", text, re.MULTILINE))
    shown |= set(re.findall(r"^(?:await )?(\w+)\(", text, re.MULTILINE))
    kind = getattr(fairlead, name)
    # Some names only say what to use instead: those are no attributes.
    public = {each for each in dir(kind) if not each.startswith("_") and hasattr(kind, each)}
    assert public - shown == set()
