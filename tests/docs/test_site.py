"""What `make docs` hands to zensical: pages whose links stay inside, and a navigation by folder.

The site itself is built by `make docs` alone, whose tools the tests do not install.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.architecture.source import ROOT, plant
from tools.site import Site

SOURCE = "https://example.org/home"


def built(root: Path, target: Path) -> dict[str, str]:
    Site(root, SOURCE).write(target)
    return {path.relative_to(target).as_posix(): path.read_text() for path in target.rglob("*.md")}


def entries(navigation: str) -> Any:
    return tomllib.loads(f"nav = {navigation}")["nav"]


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in leaves(part)]


def small(root: Path) -> None:
    plant(root, "docs/README.md", "# Docs\n[b](how-to/b.md) [c](how-to/c.md)\n")
    plant(root, "docs/how-to/a.md", "# A\n[b](b.md#x) [src](../../src/m.py) [all](../../src)\n")
    plant(root, "docs/how-to/b.md", '# B, "said"\n[news](../../CHANGELOG.md#top) [web](http://x)\n')
    plant(
        root, "docs/how-to/c.md", "# C\nSome:\n- one\n- two\n\n```sh skip\n[no](../../src)\n```\n"
    )
    plant(root, "docs/later/d.md", "# D\n")
    plant(root, "CHANGELOG.md", "# Changes\n[a](docs/how-to/a.md)\n")
    plant(root, "src/m.py", "")


def test_links_lead_to_pages_of_the_site_or_to_the_source(tmp_path: Path) -> None:
    small(tmp_path / "in")
    pages = built(tmp_path / "in", tmp_path / "out")
    assert pages["how-to/a.md"] == (
        f"# A\n[b](b.md#x) [src]({SOURCE}/blob/main/src/m.py) [all]({SOURCE}/tree/main/src)\n"
    )
    assert "[news](../project/changelog.md#top) [web](http://x)" in pages["how-to/b.md"]
    assert "[a](../how-to/a.md)" in pages["project/changelog.md"]


def test_code_is_left_alone_and_lists_are_lists(tmp_path: Path) -> None:
    small(tmp_path / "in")
    page = built(tmp_path / "in", tmp_path / "out")["how-to/c.md"]
    assert page == "# C\nSome:\n\n- one\n- two\n\n```sh\n[no](../../src)\n```\n"


def test_pages_are_found_by_folder_in_the_order_of_the_index(tmp_path: Path) -> None:
    small(tmp_path)
    nav = entries(Site(tmp_path, SOURCE).navigation())
    assert nav == [
        {"Docs": "README.md"},
        {
            "How to": [
                {
                    "More": [
                        {'B, "said"': "how-to/b.md"},
                        {"C": "how-to/c.md"},
                        {"A": "how-to/a.md"},
                    ]
                }
            ]
        },
        {"Project": [{"Changes": "project/changelog.md"}]},
        {"Later": [{"D": "later/d.md"}]},
    ]


def test_the_navigation_has_every_page_once() -> None:
    shown = leaves(entries(Site(ROOT, SOURCE).navigation()))
    docs = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(page for page in shown if not page.startswith("project/")) == sorted(docs)
    assert len(shown) == len(set(shown))


def test_the_tools_of_the_site_are_pinned_and_agree_with_those_of_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {}
    for line in project["optional-dependencies"]["docs"]:
        found = Requirement(line)
        assert [each.operator for each in found.specifier] == ["=="], line
        pins[found.name.lower()] = str(found.specifier)
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            other = Requirement(line)
            assert pins.get(other.name.lower(), str(other.specifier)) == str(other.specifier)
