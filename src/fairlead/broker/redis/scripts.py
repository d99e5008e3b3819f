"""The Lua scripts: files named for their verb, put together from shared parts.

A verb is ``lua/<verb>.lua``; what verbs share is in ``lua/lib``, files by role, each of which may
have several parts. Verbs become function libraries, named for a digest, so that releases can work
side by side on one server. It is the digest of the parts: where the server knows the library, a
process need not put it together (``linker.py``), which takes longer than to import all of Fairlead.
The server compiles a library once and keeps what it compiled, which for scripts of this size is
most of the time that a call of ``EVALSHA`` takes.

* ``-- @part name`` begins a part of a file, ``-- @include file.name`` stands for one, or for a file
  without parts; each comes once, where it is first named.
* A part is a function of its own, run once: Lua allows a function 200 names. Others may use what it
  defines as ``function name`` and the names on its lines ``-- @share a b``. All parts of a library
  have 190 of these at most, so many of them share one table of functions: ``leases``, ``fair``.
* What is in the lists ``begins`` and ``after`` is called at the beginning and at the end of each
  call; a value that a beginning returns is the reply. ``VERB`` is the name of the verb that is
  called.
* Numbers with a name, ``-- @const A=1 B=2``, are put in where the name stands.
* ``-- @library name`` of a verb puts all verbs that name it into one library, with one copy of the
  parts: what is compiled is looked through whenever garbage is collected. A verb without it has a
  library of its own.
* ``-- @flags allow-oom`` of a verb tells the server when it may be run.
* ``-- @reads`` of a verb says that it changes nothing but a test's clock. It is registered twice:
  as a function that the server knows to be a read, which also works where writes are refused, and
  as one that may move the clock of a test.

A server that cannot take a library in (``functions.py`` says when) is sent the verb alone, as a
script for ``EVAL``.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

from fairlead.broker.redis.linker import Linked, Part, link, parse

_CONCLUDES = "call.conclude"  # the part that ends verbs which write: among other things the time
_INCLUDE = re.compile(r"([a-z_]+(?:/[a-z_]+)?)(?:\.([a-z_]+))?")
_PLACE = re.compile(r"\buser_(?:function|script):(\d+)")


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A verb: the library it is in, and the name by which the server knows its function."""

    name: str
    library: str  # its name on the server
    function: str
    root: Traversable | None = None
    reads: bool = False  # by the form that the server knows to be a read
    writes_time: bool = False  # whenever it answers: it is a witness of the time, see ``hello``

    @property
    def source(self) -> bytes:
        """The text of the library. Raises ``LookupError`` where its files do not fit together."""
        return _sources(self.root).library(self.name).source


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """A verb as a script for ``EVAL``, and the digest that ``EVALSHA`` knows it by."""

    source: bytes
    sha: str


@cache
def load(name: str, root: Traversable | None = None, *, reads: bool = False) -> Script:
    """Return the script of a verb; ``reads`` asks for the form that only reads, if it has one.

    Raises ``LookupError`` where a file or a part cannot be had.
    """
    sources = _sources(root)
    library, verbs = sources.verbs_beside(name)
    digest = sources.digest(verbs)
    twice = "reads" in sources.verb(name).said
    form = f"{name}_timed" if twice and not reads else name
    return Script(
        name=name,
        library=f"fairlead_{library}_{digest}",
        function=f"fairlead_{form}_{digest}",
        root=root,
        reads=twice and reads,
        writes_time=_CONCLUDES in sources.parts((name,)) and not twice,
    )


@cache
def evaluated(script: Script) -> Evaluated:
    """Return a verb by itself, for servers that take no library in."""
    source = _sources(script.root).alone(script).source
    return Evaluated(source=source, sha=hashlib.sha1(source, usedforsecurity=False).hexdigest())


def libraries() -> list[Script]:
    """Return one script of each library of this release."""
    found = {script.library: script for script in map(load, _sources(None).verbs())}
    return list(found.values())


def located(script: Script, text: str) -> str:
    """Return the text of a server's error with the lines of files for those of what it was sent."""
    sources = _sources(script.root)

    def place(found: re.Match[str]) -> str:
        made = sources.alone(script) if "script" in found[0] else sources.library(script.name)
        line = int(found[1]) - 1
        return (made.places[line] if line < len(made.places) else "") or found[0]

    return _PLACE.sub(place, text)


class _Sources:
    """The files of a folder, each read once, and what is made of them."""

    def __init__(self, folder: Traversable) -> None:
        self._folder = folder
        self._files: dict[str, dict[str, Part]] = {}
        self._digests: dict[tuple[str, ...], str] = {}
        self._linked: dict[str, Linked] = {}

    def verbs(self) -> list[str]:
        """Return the names of all verbs."""
        names = sorted(file.name for file in self._folder.iterdir())
        return [name.removesuffix(".lua") for name in names if name.endswith(".lua")]

    def verb(self, name: str) -> Part:
        """Return the file of a verb."""
        if (parts := self._parsed(f"{name}.lua", name)) is None:
            raise LookupError(f"there is no script {name}.lua")
        return parts[""]

    def verbs_beside(self, verb: str) -> tuple[str, tuple[str, ...]]:
        """Return the name of a verb's library, and the verbs in it."""
        named = self.verb(verb).words("library")
        if not named:
            return verb, (verb,)
        its = (each for each in self.verbs() if self.verb(each).words("library") == named)
        return named[0], tuple(its)

    def parts(self, verbs: tuple[str, ...]) -> dict[str, Part]:
        """Return verbs and all that they include, each once, behind what it includes itself."""
        found: dict[str, Part] = {}
        for verb in verbs:
            self._gather(f"{verb}.lua", self.verb(verb), (), found)
        return found

    def digest(self, verbs: tuple[str, ...]) -> str:
        """Digest what a library is made of: the code of its parts, and what links them."""
        if verbs not in self._digests:
            digest = hashlib.sha256(_linker())
            for part in self.parts(verbs).values():
                said = sorted((kind, part.said[kind]) for kind in part.said if kind != "include")
                digest.update("\n".join([part.verb, repr(said), *part.lines, ""]).encode())
            self._digests[verbs] = digest.hexdigest()[:16]
        return self._digests[verbs]

    def library(self, verb: str) -> Linked:
        """Return the library of a verb."""
        library, verbs = self.verbs_beside(verb)
        if library not in self._linked:
            digest = self.digest(verbs)
            last = [
                f"redis.register_function{{ function_name = 'fairlead_{form}_{digest}', "
                f"callback = verbs.run('{each}'), flags = {{ {flags} }} }}"
                for each in verbs
                for form, flags in self._forms(each)
            ]
            first = [f"#!lua name=fairlead_{library}_{digest}"]
            self._linked[library] = link(first, list(self.parts(verbs).values()), last)
        return self._linked[library]

    def alone(self, script: Script) -> Linked:
        """Return a verb as a script, which finds its arguments as globals."""
        flags = re.sub(r"[' ]", "", self._forms(script.name)[0 if script.reads else -1][1])
        first = [f"#!lua flags={flags}" if flags else "#!lua", "local keys, args = KEYS, ARGV"]
        last = [f"return verbs.answer('{script.name}', keys, args)"]
        return link(first, list(self.parts((script.name,)).values()), last)

    def _forms(self, verb: str) -> list[tuple[str, str]]:
        """Return the forms in which a verb is registered, each with its flags."""
        said = self.verb(verb)
        if "reads" in said.said:
            return [(verb, "'no-writes'"), (f"{verb}_timed", "'allow-oom'")]
        return [(verb, ", ".join(f"'{flag}'" for flag in said.words("flags")))]

    def _gather(
        self, name: str, part: Part, within: tuple[str, ...], found: dict[str, Part]
    ) -> None:
        within = (*within, name)
        for each in part.words("include"):
            if each in within:
                raise LookupError(f"includes form a cycle: {' -> '.join((*within, each))}")
            if each not in found:
                self._gather(each, self._part(each, name), within, found)
        found[name] = part

    def _part(self, name: str, within: str) -> Part:
        if (named := _INCLUDE.fullmatch(name)) is None:
            raise LookupError(f"{within} includes {name!r}, which is no name of a part")
        part = (self._parsed(f"lib/{named[1]}.lua") or {}).get(named[2] or "")
        if part is None:
            raise LookupError(f"{within} includes {name}, which does not exist")
        if "flags" in part.said:
            raise LookupError(f"{name} sets @flags; only the verb's own file may do so")
        return part

    def _parsed(self, file: str, verb: str = "") -> dict[str, Part] | None:
        if file not in self._files:
            try:
                text = self._folder.joinpath(*file.split("/")).read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError):
                return None
            self._files[file] = parse(file, text, verb)
        return self._files[file]


_known: dict[str, _Sources] = {}  # by folder; empty for the product's own


def _sources(root: Traversable | None) -> _Sources:
    key = "" if root is None else str(root)
    if key not in _known:
        _known[key] = _Sources(resources.files(__package__) / "lua" if root is None else root)
    return _known[key]


@cache
def _linker() -> bytes:
    package = resources.files(__package__)
    return b"".join(package.joinpath(each).read_bytes() for each in ("linker.py", "scripts.py"))
