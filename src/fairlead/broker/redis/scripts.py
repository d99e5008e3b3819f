"""The Lua scripts: files named for their verb, put together from shared parts.

A verb is ``lua/<verb>.lua``, a shared part ``lua/lib/<name>.lua``. Verbs become function libraries,
named for their digest, so that releases can work side by side on one server. The server compiles a
library once and keeps what it compiled, which for scripts of this size is most of the time that a
call of ``EVALSHA`` takes.

* ``-- @library name`` of a verb puts all verbs that name it into one library, with one copy of the
  parts: what is compiled is looked through whenever garbage is collected. A verb without it has a
  library of its own.
* ``-- @include name`` stands for a part; each comes once, where it is first named.
* A part is a function of its own, run once: Lua allows a function 200 names. Others may use what it
  defines as ``function name`` and the names on its lines ``-- @share a b``. Where parts share too
  many names, the functions that are named least are fields of a table.
* What has to be done at the beginning of each call stands between ``-- @each`` and ``-- @end``; a
  value that it returns is the reply. ``VERB`` is the name of the verb that is called.
* Numbers with a name, ``-- @const A=1 B=2``, are put in where the name stands.
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
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

__all__ = ("Evaluated", "Script", "evaluated", "libraries", "load")

_INCLUDE = re.compile(r"--\s*@include\s+(\S+)\s*$")
_SHARE = re.compile(r"--\s*@share\s+(.+?)\s*$")
_FUNCTION = re.compile(r"function (\w+)\(")
_EACH, _END = re.compile(r"--\s*@each\s*$"), re.compile(r"--\s*@end\s*$")
_CONST = re.compile(r"--\s*@const\s+(.+?)\s*$")
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\w+")  # a text in quotes, or a word
_BOUND = re.compile(  # names that mean something else where they stand
    r"\blocal (?:function )?([\w, ]+)|function\s*[\w.]*\(([\w, .]*)\)|\bfor ([\w, ]+?) (?:in|=)"
    r"|(\w+)\s*=(?!=)"
)
_FREE = re.compile(r"'(?:[^'\\]|\\.)*'|(?<![\w.:])[A-Za-z_]\w*")  # the same, but no field
_FLAGS = re.compile(r"--\s*@flags\s+(.+?)\s*$")
_READS = re.compile(r"^--\s*@reads\s*$", re.MULTILINE)
_LIBRARY = re.compile(r"^--\s*@library\s+(\w+)\s*$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A verb: the library it is in, and the name by which the server knows its function."""

    name: str
    library: str  # its name on the server
    source: bytes  # of the library
    function: str
    root: Traversable | None = None
    reads: bool = False  # by the form that the server knows to be a read
    writes_time: bool = False  # whenever it answers: it is a witness of the time, see ``hello``


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """A verb as a script for ``EVAL``, and the digest that ``EVALSHA`` knows it by."""

    source: bytes
    sha: str


_CONCLUDES = "conclude"  # the part that ends verbs which write: among other things the time
_SHARED = 192  # names at most; the limit is 200, and the opening takes some

_libraries: dict[tuple[str, str], tuple[bytes, str]] = {}  # by folder and name


@cache
def load(name: str, root: Traversable | None = None, *, reads: bool = False) -> Script:
    """Return the script of a verb; ``reads`` asks for the form that only reads, if it has one.

    Raises ``LookupError`` where a file or a part cannot be had.
    """
    folder = _folder(root)
    library, verbs = _library(name, folder)
    source, digest = _assembled(library, verbs, folder)
    twice = _READS.search(_read(folder, f"{name}.lua", ())) is not None
    concludes = f"lib/{_CONCLUDES}.lua" in _parts(f"{name}.lua", folder)
    form = f"{name}_timed" if twice and not reads else name
    return Script(
        name=name,
        library=f"fairlead_{library}_{digest}",
        source=source,
        function=f"fairlead_{form}_{digest}",
        root=root,
        reads=twice and reads,
        writes_time=concludes and not twice,
    )


@cache
def evaluated(script: Script) -> Evaluated:
    """Return a verb by itself, for servers that take no library in."""
    folder = _folder(script.root)
    assembly = _Assembly(folder, standalone=True)
    file = f"{script.name}.lua"
    assembly.add(file, ())
    flags = "no-writes" if script.reads else ",".join(assembly.flags_of(script.name)[-1][1])
    lines = [
        f"#!lua flags={flags}" if flags else "#!lua",
        *assembly.lines(),
        f"return verbs.run('{script.name}')",
    ]
    source = ("\n".join(lines) + "\n").encode()
    return Evaluated(source=source, sha=hashlib.sha1(source, usedforsecurity=False).hexdigest())


def libraries(root: Traversable | None = None) -> list[Script]:
    """Return one script of each library of this release."""
    names = sorted(f.name for f in _folder(root).iterdir() if f.name.endswith(".lua"))
    found = {script.library: script for script in (load(n.removesuffix(".lua")) for n in names)}
    return list(found.values())


def _folder(root: Traversable | None) -> Traversable:
    return resources.files(__package__) / "lua" if root is None else root


def _library(verb: str, folder: Traversable) -> tuple[str, tuple[str, ...]]:
    """The name of a verb's library, and the verbs in it."""
    found = _LIBRARY.search(_read(folder, f"{verb}.lua", ()))
    if found is None:
        return verb, (verb,)
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".lua"))
    members = []
    for file in files:
        its = _LIBRARY.search(_read(folder, file, ()))
        if its is not None and its.group(1) == found.group(1):
            members.append(file.removesuffix(".lua"))
    return found.group(1), tuple(members)


def _assembled(library: str, verbs: tuple[str, ...], folder: Traversable) -> tuple[bytes, str]:
    """A library's source, and the digest that its names end with."""
    known = _libraries.get((str(folder), library))
    if known is not None:
        return known
    assembly = _Assembly(folder)
    for verb in verbs:
        assembly.add(f"{verb}.lua", ())
    body = "\n".join(assembly.lines())
    forms = [(form, verb, flags) for verb in verbs for form, flags in assembly.flags_of(verb)]
    digest = hashlib.sha256(f"{body}\n{forms}".encode()).hexdigest()[:16]
    lines = [f"#!lua name=fairlead_{library}_{digest}", body]
    for form, verb, flags in forms:
        told = ", ".join(f"'{flag}'" for flag in flags)
        run = f"callback = verbs.run('{verb}'), flags = {{ {told} }}"
        lines.append(
            f"redis.register_function{{ function_name = 'fairlead_{form}_{digest}', {run} }}"
        )
    made = ("\n".join(lines) + "\n").encode(), digest
    _libraries[str(folder), library] = made
    return made


def _parts(file: str, folder: Traversable) -> set[str]:
    """All parts that a verb is made of. To be called when it has been assembled: without cycles."""
    found: set[str] = set()
    for line in _read(folder, file, ()).splitlines():
        if (included := _INCLUDE.match(line)) is not None:
            part = f"lib/{included.group(1)}.lua"
            found |= {part, *_parts(part, folder)}
    return found


def _read(folder: Traversable, file: str, within: tuple[str, ...]) -> str:
    try:
        return folder.joinpath(*file.split("/")).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if not within:
            raise LookupError(f"there is no script {file}") from None
        raise LookupError(f"{within[-1]} includes {file}, which does not exist") from None


_OPENING = ["local KEYS, ARGV, VERB", "local begins, after, verbs = {}, {}, {}"]
# A script for EVAL finds KEYS and ARGV as globals, and must not set them.
_STANDALONE = ["local VERB", "local begins, after, verbs = {}, {}, {}"]
_ONCE = """\
function verbs.run(name)
  VERB = name
  for i = 1, #begins do
    local reply = begins[i]()
    if reply then return reply end
  end
  return verbs[name]()
end"""
_CLOSING = """\
function verbs.run(name)
  local verb = verbs[name]
  return function(keys, args)
    KEYS, ARGV, VERB = keys, args, name
    for i = 1, #begins do
      local reply = begins[i]()
      if reply then
        KEYS, ARGV = nil, nil
        return reply
      end
    end
    local reply = verb()
    for i = 1, #after do after[i]() end
    KEYS, ARGV = nil, nil
    return reply
  end
end"""


class _Block(msgspec.Struct):
    """Lines of one file that stand together."""

    verb: str = ""  # whose own lines they are; empty for a part
    lines: list[str] = []
    shared: list[str] = []  # of a part: what others may use


class _Assembly:
    """The blocks of one library while they are being gathered."""

    def __init__(self, folder: Traversable, *, standalone: bool = False) -> None:
        self._flags: dict[str, list[str]] = {}  # by file
        self._frame = (_STANDALONE, _ONCE) if standalone else (_OPENING, _CLOSING)
        self._blocks: list[_Block] = []
        self._constants: dict[str, str] = {}
        self._folder = folder
        self._added: set[str] = set()

    def add(self, file: str, within: tuple[str, ...]) -> None:
        """Append a file; ``within`` are the files whose includes led to it."""
        verb = "" if within else file.removesuffix(".lua")
        block = _Block(verb)
        for line in _read(self._folder, file, within).splitlines():
            included, flags, share = _INCLUDE.match(line), _FLAGS.match(line), _SHARE.match(line)
            if included is not None:
                if not within:  # parts that a part includes stand before it, not inside it
                    self._blocks.append(block)
                    block = _Block(verb)
                self._include(included.group(1), (*within, file))
            elif flags is not None:
                if within:
                    raise LookupError(f"{file} sets @flags; only the verb's own file may do so")
                self._flags[file] = flags.group(1).replace(",", " ").split()
            elif (const := _CONST.match(line)) is not None:
                self._name(file, const.group(1))
            elif _EACH.match(line) is not None:
                block.lines.append("begins[#begins + 1] = function()")
            elif _END.match(line) is not None:
                block.lines.append("end")
            elif share is not None:
                block.shared += share.group(1).split()
            elif not _is_comment(line):
                block.lines.append(line.rstrip())
        if within:
            functions = [found.group(1) for line in block.lines if (found := _FUNCTION.match(line))]
            block.shared += functions
        self._blocks.append(block)

    def flags_of(self, verb: str) -> list[tuple[str, list[str]]]:
        """Return the forms in which a verb is registered, each with its flags."""
        file = f"{verb}.lua"
        if _READS.search(_read(self._folder, file, ())) is not None:
            return [(verb, ["no-writes"]), (f"{verb}_timed", ["allow-oom"])]
        return [(verb, self._flags.get(file, []))]

    def lines(self) -> list[str]:
        """The library: first the names that its parts share, then the parts, then the verbs.

        A name that no other part uses stays inside its block.
        """
        words = [_WORD.findall("\n".join(block.lines)) for block in self._blocks]
        lines: list[str] = []
        outer: set[str] = set()
        verbs: dict[str, list[str]] = {}
        for place, block in enumerate(self._blocks):
            if block.verb:
                verbs.setdefault(block.verb, []).extend(block.lines)
                continue
            elsewhere: set[str] = set().union(*words[:place], *words[place + 1 :])
            new = [name for name in dict.fromkeys(block.shared) if name not in outer]
            outer.update(name for name in new if name in elsewhere)
            inner = [name for name in new if name not in elsewhere]
            names = [f"local {', '.join(inner)}"] if inner else []
            lines += [";(function()", *names, *block.lines, "end)()"]
        for verb, own in verbs.items():
            lines += [f"function verbs.{verb}()", *own, "end"]
        far = _least_named(outer, lines)
        lines = [
            _FREE.sub(lambda w: f"far.{w[0]}" if w[0] in far else w[0], each) for each in lines
        ]
        shared = sorted(outer - far)
        names = [f"local {', '.join(shared)}"] if shared else []
        if far:
            names.append("local far = {}")
        opening, closing = self._frame
        return [_TOKEN.sub(self._constant, line) for line in [*opening, *names, *lines, closing]]

    def _name(self, file: str, text: str) -> None:
        """Take in the constants of a line; a name stands for one number in all of a script."""
        for name, value in _pairs(text):
            if self._constants.setdefault(name, value) != value:
                said = self._constants[name]
                raise LookupError(f"{file} calls {value} {name}, which is {said} elsewhere")

    def _constant(self, word: re.Match[str]) -> str:
        return self._constants.get(word.group(), word.group())

    def _include(self, name: str, within: tuple[str, ...]) -> None:
        file = f"lib/{name}.lua"
        if not _NAME.match(name):
            raise LookupError(f"{within[-1]} includes {name!r}, which is no name of a part")
        if file in within:
            raise LookupError(f"the includes of {within[0]} form a cycle: {_path(within, file)}")
        if file not in self._added:
            self._added.add(file)
            self.add(file, within)


def _least_named(shared: set[str], lines: list[str]) -> set[str]:
    """Functions that have to go into a table, because there are more names than Lua allows."""
    over = len(shared) - _SHARED
    if over <= 0:
        return set()
    functions = {found.group(1) for line in lines if (found := _FUNCTION.match(line))}
    text = "\n".join(lines)
    bound = {
        word
        for found in _BOUND.finditer(text)
        for word in _WORD.findall(" ".join(filter(None, found.groups())))
    }
    named = Counter(found[0] for found in _FREE.finditer(text))
    fit = sorted((shared & functions) - bound, key=lambda name: (named[name], name))
    return set(fit[:over])


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in text.split():
        name, _, value = pair.partition("=")
        yield name, value


def _is_comment(line: str) -> bool:
    """Whether a whole line says nothing to the server: it is left out, scripts are sent often."""
    text = line.strip()
    return not text or (text.startswith("--") and not text.startswith("--["))


def _path(within: tuple[str, ...], file: str) -> str:
    return " -> ".join((*within, file))
