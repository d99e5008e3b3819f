"""Get the peers: into a folder of their own, each from what its pins say, or say why not.

Each Python peer has its own environment. In one for all they could not be had as their authors
say: arq wants a redis-py before 6, and taskiq-redis one from 8 on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.catalog import Peer
from benchmarks.peers.processes import Failure, Processes

__all__ = ("ROOT", "Installed", "Installer", "Missing", "surroundings")

ROOT = Path(__file__).parents[2]

_ADAPTERS = Path(__file__).with_name("adapters")
_DONE = "installed"  # the file that says what a folder has
_WITHIN = 300.0  # seconds for an installer
_ASK_IN = 30.0  # seconds to say a version


@dataclass(frozen=True)
class Installed:
    """A peer that can be measured: the beginning of its adapter's command line."""

    peer: Peer
    command: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Missing:
    """A peer that cannot."""

    peer: Peer
    why: str


class Installer:
    """Installs below ``folder`` what is not there already."""

    def __init__(self, folder: Path, processes: Processes, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._processes = processes
        self._say = say

    def install(self, peer: Peer) -> Installed | Missing:
        """Make a peer ready, and ask it for its version."""
        makers = {
            "fairlead": self._fairlead,
            "python": self._python,
            "node": self._node,
            "ruby": self._ruby,
        }
        try:
            command = makers[peer.language](peer)
            return Installed(peer, command, self._version(command))
        except Failure as failure:
            return Missing(peer, str(failure))

    def _version(self, command: tuple[str, ...]) -> str:
        said = self._processes.run([*command, "version"], surroundings(), within=_ASK_IN)
        try:
            return str(json.loads(said)["version"])
        except (ValueError, KeyError) as error:
            raise Failure(f"asked for its version, it said {said[:100]!r}") from error

    def _fairlead(self, peer: Peer) -> tuple[str, ...]:
        return (sys.executable, "-m", "benchmarks.peers.driver", peer.name)

    def _python(self, peer: Peer) -> tuple[str, ...]:
        folder = self._folder / peer.name
        python = str(folder / "bin" / "python")
        if not _is_done(folder, peer):
            self._say(f"installing {peer.title}")
            try:
                self._environment(folder, python, peer.packages)
            except Failure as failure:
                wanted = " ".join(peer.packages)
                raise Failure(f"pip could not install {wanted}: {failure}") from failure
            _mark_done(folder, peer)
        return (python, "-m", "benchmarks.peers.driver", peer.name)

    def _environment(self, folder: Path, python: str, packages: tuple[str, ...]) -> None:
        base = getattr(sys, "_base_executable", "") or sys.executable
        make = [base, "-m", "venv", "--clear", str(folder)]
        pip = [python, "-m", "pip"]
        if self._works(base, "-m", "pip", "--version"):
            # The pip of the interpreter outside: a copy takes long to make.
            make, pip = [*make, "--without-pip"], [base, "-m", "pip", "--python", python]
        flags = ("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "1")
        self._processes.run(make, within=_WITHIN)
        self._processes.run([*pip, "install", *flags, *packages], within=_WITHIN)

    def _node(self, peer: Peer) -> tuple[str, ...]:
        folder = self._folder / peer.name
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            raise Failure("it needs Node.js and npm (Debian and Ubuntu: apt install nodejs npm)")
        if not _is_done(folder, peer):
            self._say(f"installing {peer.title}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
            flags = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
            try:
                command = [npm, "install", *flags, *peer.packages]
                self._processes.run(command, within=_WITHIN, folder=folder)
            except Failure as failure:
                wanted = " ".join(peer.packages)
                raise Failure(f"npm could not install {wanted}: {failure}") from failure
            _mark_done(folder, peer)
        return (node, str(_ADAPTERS / f"{peer.name}.cjs"), str(folder))

    def _ruby(self, peer: Peer) -> tuple[str, ...]:
        # Installing for the whole system is nothing that a bench does by itself.
        ruby = shutil.which("ruby")
        if ruby is None or not self._works(ruby, "-e", f"require '{peer.name}'"):
            raise Failure(f"it is not installed (Debian and Ubuntu: apt install ruby-{peer.name})")
        return (ruby, str(_ADAPTERS / f"{peer.name}.rb"))

    def _works(self, *command: str) -> bool:
        try:
            self._processes.run(command, within=_ASK_IN)
        except Failure:
            return False
        return True


def surroundings(**more: str) -> dict[str, str]:
    """Return the environment of an adapter: it finds this package, and no settings of ours."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD")},
        "PYTHONPATH": str(ROOT),
        "PEERS_URL": "redis://127.0.0.1:1/0",  # adapters want one when they are imported
        **more,
    }


def _is_done(folder: Path, peer: Peer) -> bool:
    """Whether exactly this was installed here, by this interpreter."""
    try:
        return (folder / _DONE).read_text(encoding="utf-8") == _content(folder, peer)
    except OSError:
        return False


def _mark_done(folder: Path, peer: Peer) -> None:
    (folder / _DONE).write_text(_content(folder, peer), encoding="utf-8")


def _content(folder: Path, peer: Peer) -> str:
    # With the place: programs of an environment name their interpreter by its whole path.
    return "\n".join((str(folder), sys.version, *peer.packages, ""))
