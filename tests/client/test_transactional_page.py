"""What docs/how-to/transactional-enqueue.md shows is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/how-to/transactional-enqueue.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # engines that the page does not dispose of
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_the_page_says(
    number: int,
    ledger_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAIRLEAD_LEDGER", ledger_dsn)
    program, printed = EXAMPLES[number]
    exec(compile(program, str(PAGE), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == printed
