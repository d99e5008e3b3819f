"""What is stored has one format: Python's ``layout`` and the scripts say the same."""

import re
from pathlib import Path
from struct import Struct

import pytest

import fairlead.broker.redis
from fairlead.broker.redis import layout

LUA = Path(fairlead.broker.redis.__file__).parent / "lua"

# Each as the scripts have it: names in layout, and texts (``c0``) with their lengths before them.
STORED = (
    ("STORED",),
    ("SIZES",),
    ("FATE",),
    ("HOLD", "Bc0Hc0Hc0Hc0"),
    ("SIZE",),
    ("ERROR_SIZE",),
    ("TOMB",),
    ("XCOM", "Hc0"),
    ("QUEUE",),
    ("COUNTERS", "Hc0Hc0Hc0"),
    ("TIMES",),
    ("CONF",),
    ("TENANT", "TENANT_HOUR", "TENANT_BYTES"),
    ("Bc0Bc0", "TENANT_RARE"),
    ("TENANT_LOWER",),
    ("TALLY",),
    ("GATE",),
    ("LIMITER",),
    ("BREAKER",),
    ("DOCUMENT",),
    ("FLOW", "Bc0Hc0Bc0Ic0"),
    ("MEMBER", "c0Hc0Ic0Ic0"),
    ("ROW", "c0Ic0"),
    ("_NUMBERS",),
)


def spread(form: str) -> str:
    """The format without counts: ``2I`` is ``II``."""
    return re.sub(r"(\d+)(\w)", lambda found: found[2] * int(found[1]), form.lstrip("<"))


FORMS = {
    name: spread(form.format) for name, form in vars(layout).items() if isinstance(form, Struct)
}


@pytest.fixture(scope="module")
def in_lua() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in LUA.rglob("*.lua"))
    repeated = re.findall(r"'<' \.\. \('(\w)'\):rep\((\d+)\)", text)
    return {*re.findall(r"'(<\w+)'", text), *(f"<{each * int(many)}" for each, many in repeated)}


@pytest.mark.parametrize("parts", STORED, ids="+".join)
def test_the_scripts_have_the_format(parts: tuple[str, ...], in_lua: set[str]) -> None:
    assert "<" + "".join(FORMS.get(part, part) for part in parts) in in_lua


def test_every_format_is_compared() -> None:
    assert FORMS.keys() == {part for parts in STORED for part in parts if part in FORMS}


def test_no_other_module_has_formats_of_its_own() -> None:
    root = Path(fairlead.broker.redis.__file__).parent
    for path in root.rglob("*.py"):
        own = re.findall(r"Struct\(f?\"(<[^\"]*)\"\)", path.read_text(encoding="utf-8"))
        lengths = {"<H", "<I"}  # of a text
        assert path.name == "layout.py" or set(own) <= lengths, path
