"""The first lines of ``fairlead up``: what to open, and what to type next."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def command_name() -> str:
    """Return what to type for ``fairlead`` in another terminal of this folder."""
    called = Path(sys.argv[0])
    if called.name != "fairlead":
        return f"{Path(sys.executable).name} -m fairlead"
    found = shutil.which("fairlead")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "fairlead"
    path = called.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def banner(
    link: str,
    *,
    seconds: float,
    command: str,
    broker: str,
    where: str,
    has_worker: bool,
    has_demo: bool,
    has_ledger: bool,
) -> str:
    """Return the lines. ``where`` is what commands need to find the broker, such as --url."""
    more = f" {where}" if where else ""
    rows = [
        ("top", "all of it, live"),
        ("task list", "tasks, and where they are"),
    ]
    if has_demo:
        rows += [
            ("dlq list", "what failed for good"),
            ("tenant list", "who waits, and for what"),
        ]
    if has_ledger:
        rows.append(("history --ledger embedded://", "what became of tasks"))
    typed = [(f"{command} {name}{more}", text) for name, text in rows]
    if not has_worker:
        typed.append((f"{command} init", "write a small app"))
    width = max(len(each) for each, _ in typed)
    lines = [
        f"Fairlead is up after {seconds:.1f} s, on {broker}.",
        "",
        f"  Open  {link}",
        "        It signs in once. Another link:",
        f"        {command} token link --at {link.partition('/#')[0]}{more}",
        "",
        "  Type, in another terminal of this folder:",
        *(f"    {each:<{width}}   {text}" for each, text in typed),
        "",
        "  Ctrl-C ends all of it; what is stored stays.",
        "",
    ]
    return "\n".join(lines)
