"""Build the documentation site in build/site: `make docs`.

The pages of the repository are written for people who read them as files. This program copies them
to build/pages, turns links that leave docs/ into links that work on the site, works out the
navigation from the folders, and lets zensical build the result. Nothing is fetched.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

__all__ = ("Site", "main")

ROOT = Path(__file__).parents[1]

#: Pages that live outside docs/ and are part of the site all the same.
OUTSIDE = {
    "benchmarks/README.md": "project/benchmarks.md",
    "deploy/README.md": "project/deploy-files.md",
    "examples/README.md": "project/examples.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}

#: Folders of docs/ in the order in which the navigation shows them. A folder that is not named here
#: comes after these, and pages of a folder follow the order of docs/README.md.
SECTIONS = {
    "": "Start",
    "how-to": "How to",
    "frameworks": "Frameworks",
    "moving": "Moving from other queues",
    "reference": "Reference",
    "internals": "Internals",
    "decisions": "Decisions",
    "project": "Project",
}

#: The how-to section is long. A page that no group names is listed under "More".
GROUPS = {
    "Write tasks": (
        "retries", "results", "cancel", "unique-tasks", "schedules", "dependencies", "flows",
        "middleware", "lifespan", "sync-and-async", "send-by-name", "testing",
    ),
    "Frameworks": ("django", "fastapi", "flask"),
    "Share workers": ("tenants-and-fairness", "limits-and-breakers"),
    "Run it": (
        "up", "connect", "create-queue", "several-servers", "run-workers",
        "checklist", "deploy", "deploy-systemd", "deploy-docker", "deploy-kubernetes",
        "upgrade", "outages", "outages-workers",
    ),
    "Look at it": (
        "operate", "inspect", "why-is-it-not-running", "status-page", "logging", "metrics",
        "tracing", "events", "http-api",
    ),
    "PostgreSQL": ("ledger", "transactional-enqueue", "manager", "history"),
}  # fmt: skip

FENCE = re.compile(r"^( *)(```+|~~~+)(.*)$")
LINK = re.compile(r"(\]\(\s*<?)([^)\s>]+)")
LIST_ITEM = re.compile(r"^(?:[-*+]|\d+\.) ")


class Site:
    """The pages of one checkout, and where they go."""

    def __init__(self, root: Path, source: str) -> None:
        self._root = root
        self._source = source  # where files that are no page can be read
        docs = root / "docs"
        inside = {
            path.relative_to(root).as_posix(): path.relative_to(docs).as_posix()
            for path in sorted(docs.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }
        self._places = inside | {k: v for k, v in OUTSIDE.items() if (root / k).is_file()}

    def write(self, target: Path) -> None:
        """Write every page and picture below `target`."""
        for origin, place in self._places.items():
            goal = target / place
            goal.parent.mkdir(parents=True, exist_ok=True)
            if place.endswith(".md"):
                text = (self._root / origin).read_text(encoding="utf-8")
                goal.write_text(self._page(origin, text), encoding="utf-8")
            else:
                shutil.copyfile(self._root / origin, goal)

    def navigation(self) -> str:
        """The navigation, as the value of `nav` in TOML."""
        folders: dict[str, list[str]] = {name: [] for name in SECTIONS}
        for place in self._ordered():
            folders.setdefault(place.rpartition("/")[0], []).append(place)
        lines = []
        for folder, pages in folders.items():
            if not pages:
                continue
            title = SECTIONS.get(folder, folder.rpartition("/")[2].replace("-", " ").capitalize())
            if folder == "":
                lines += [f"  {self._entry(page)}," for page in pages]
            elif folder == "how-to":
                groups = ",\n    ".join(
                    f'{{"{name}" = [{", ".join(map(self._entry, members))}]}}'
                    for name, members in _grouped(pages)
                )
                lines.append(f'  {{"{title}" = [\n    {groups}\n  ]}},')
            else:
                entries = ", ".join(map(self._entry, pages))
                lines.append(f'  {{"{title}" = [{entries}]}},')
        return "[\n" + "\n".join(lines) + "\n]"

    def _ordered(self) -> list[str]:
        """The pages: those that docs/README.md names in its order, then the others by name."""
        pages = [place for place in self._places.values() if place.endswith(".md")]
        index = (self._root / "docs/README.md").read_text(encoding="utf-8")
        named = [match[2].partition("#")[0] for match in LINK.finditer(index)]
        rank = {page: number for number, page in reversed(list(enumerate(named)))}
        rank["README.md"] = -1
        rank.update({f"{folder}/README.md": -1 for folder in SECTIONS})  # a folder's own first page
        return sorted(pages, key=lambda page: (rank.get(page, len(named)), page))

    def _entry(self, place: str) -> str:
        origin = next(origin for origin, goal in self._places.items() if goal == place)
        title = _title((self._root / origin).read_text(encoding="utf-8"))
        return f'{{"{title}" = "{place}"}}'

    def _page(self, origin: str, text: str) -> str:
        lines = []
        for written, code in _lines(text):
            line = written
            if fence := FENCE.match(line):  # "sh skip": the second word is for our tests
                words = fence[3].split()
                lines.append(f"{fence[1]}{fence[2]}{words[0] if words else ''}")
                continue
            if not code:
                line = LINK.sub(lambda match: match[1] + self._target(origin, match[2]), line)
                if LIST_ITEM.match(line) and lines and _is_paragraph(lines[-1]):
                    lines.append("")  # GitHub needs no blank line before a list, Markdown does
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _target(self, origin: str, link: str) -> str:
        """Where a link of the page `origin` leads on the site."""
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
            return link
        goal = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        folder = (self._root / goal).is_dir()
        goal = f"{goal}/README.md" if f"{goal}/README.md" in self._places else goal
        if goal in self._places:
            here = PurePosixPath(self._places[origin]).parent
            return posixpath.relpath(self._places[goal], here.as_posix()) + mark + anchor
        return f"{self._source}/{'tree' if folder else 'blob'}/main/{goal}{mark}{anchor}"


def main() -> int:
    """Build the site, and return what zensical returns: not 0 if there was a warning."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    build = ROOT / "build"
    site = Site(ROOT, project["urls"]["Source"])
    shutil.rmtree(build / "pages", ignore_errors=True)
    site.write(build / "pages")
    settings = (ROOT / "tools/site.toml").read_text(encoding="utf-8")
    build.joinpath("zensical.toml").write_text(
        settings.replace('nav = "FOLDERS"', f"nav = {site.navigation()}"), encoding="utf-8"
    )
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [zensical, "build", "--clean", "--strict"],
        cwd=build,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    else:
        pages = len(list((build / "site").rglob("index.html")))
        print(f"docs: {pages} pages in build/site; read them: make docs ARGS=serve")
    return done.returncode


def serve() -> int:
    """Show what was built on a port of this machine until Ctrl-C."""
    return subprocess.run(
        [sys.executable, "-m", "http.server", "-b", "127.0.0.1", "-d", ROOT / "build/site", "8000"],
        check=False,
    ).returncode


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page, and whether each is part of a code block."""
    closing = ""
    for line in text.splitlines():
        fence = FENCE.match(line)
        if closing:
            yield line, not (fence and fence[2].startswith(closing) and not fence[3].strip())
            if fence and fence[2].startswith(closing) and not fence[3].strip():
                closing = ""
        else:
            yield line, False
            if fence:
                closing = fence[2]


def _grouped(pages: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    left = {PurePosixPath(page).stem: page for page in pages}
    for title, names in GROUPS.items():
        if members := [left.pop(name) for name in names if name in left]:
            yield title, members
    if left:
        yield "More", list(left.values())


def _is_paragraph(line: str) -> bool:
    return (
        bool(line)
        and not line.startswith((" ", "#", "|", "```", "- ", "* ", "+ ", "<"))
        and (not LIST_ITEM.match(line))
    )


def _title(text: str) -> str:
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    if heading is None:
        raise ValueError("a page has no heading of the first level")
    return heading[1].replace("`", "").replace('"', '\\"')


if __name__ == "__main__":
    failed = main()
    if not failed and sys.argv[1:] == ["serve"]:
        failed = serve()
    sys.exit(failed)
