"""Run the programs in the numbered folders below a folder, each in a fork of this process.

Prints a JSON list of exit code, output and errors of each. As a script: runner.py FOLDER.
"""

import asyncio  # noqa: F401 - loaded once, for all programs
import json
import os
import sys
import types
from pathlib import Path

import uvloop.loop  # noqa: F401

import fairlead
import fairlead.broker.memory.broker

for name in fairlead.__all__:
    getattr(fairlead, name)  # loaded here, and there in each fork


def main(root: Path) -> None:
    folders = sorted((each for each in root.iterdir() if each.is_dir()), key=lambda f: int(f.name))
    found = []
    for folder in folders:
        pid = os.fork()
        if not pid:
            become(folder)
            return
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        output, errors = (root / f"{folder.name}.{kind}" for kind in ("out", "err"))
        found.append((code, output.read_text(), errors.read_text()))
    json.dump(found, sys.stdout)


def become(folder: Path) -> None:
    """Run the program of a folder as if it had been started there."""
    (program,) = folder.iterdir()
    for number, kind in ((1, "out"), (2, "err")):
        path = folder.with_name(f"{folder.name}.{kind}")
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(folder)
    sys.argv, sys.path[0] = [str(program)], str(folder)
    module = types.ModuleType("__main__")
    module.__file__ = str(program)
    sys.modules["__main__"] = module
    exec(compile(program.read_text(encoding="utf-8"), program.name, "exec"), vars(module))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
