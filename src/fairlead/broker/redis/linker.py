"""Put a library of Lua functions together; ``scripts.py`` says what its files may contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

_KINDS = ("include", "share", "const", "flags", "reads", "library")
_WORD = re.compile(r"\w+")
_FUNCTION = re.compile(r"function (\w+)\(")
_TOKEN = re.compile(r"'(?:[^'\\\n]|\\.)*'|\b[A-Z]\w*")  # a text in quotes, or a word

_OPENING = ["local KEYS, ARGV, VERB", "local begins, after, verbs = {}, {}, {}"]
# A call keeps Lua's collector from its work, and does some of it in the end (decision 0070): left
# to itself it frees in one call what many of them left behind. It takes as many steps as it would,
# one for each KB, but an eighth of these once it frees; above 16 MB all of them, so that no kind of
# garbage outruns it. What an error ended is caught up on by the next call of the library, with at
# most 1 MB of steps: functions of others may have left far more meanwhile.
# ``collectgarbage`` is not there while a library is loaded.
_CLOSING = """\
function verbs.answer(name, keys, args)
  KEYS, ARGV, VERB = keys, args, name
  for i = 1, #begins do
    local reply = begins[i]()
    if reply then
      KEYS, ARGV = nil, nil
      return reply
    end
  end
  local reply = verbs[name]()
  for i = 1, #after do after[i]() end
  KEYS, ARGV = nil, nil
  return reply
end
;(function()
  local collect, before
  local function free(most)
    local full = collect('count')
    local left = full - before
    before = nil
    if left < 0 then left = 0 elseif most and left > most then left = most end
    local share = full < 16384 and left / 8 or left
    repeat
      collect('step', share)
      left = left - share
    until left < 8 or collect('count') < full
  end
  function verbs.run(name)
    return function(keys, args)
      if collect == nil then
        local found, its = pcall(function() return collectgarbage end)
        collect = found and its or false
      end
      if not collect then return verbs.answer(name, keys, args) end
      if before then free(1024) end
      collect('stop')
      before = collect('count')
      local reply = verbs.answer(name, keys, args)
      free()
      return reply
    end
  end
end)()"""


class Part(msgspec.Struct):
    """A part of a file: its lines of code, where they stand, and what its directives say."""

    file: str
    verb: str = ""  # if it is the file of one
    lines: list[str] = []
    numbers: list[int] = []
    said: dict[str, list[str]] = {}

    def words(self, kind: str) -> list[str]:
        """Return the words behind the directives of a kind."""
        return self.said.get(kind, [])

    def names(self) -> dict[str, None]:
        """Return what others may use of it."""
        functions = (found[1] for line in self.lines if (found := _FUNCTION.match(line)))
        return dict.fromkeys((*self.words("share"), *functions))

    def placed(self) -> Iterator[tuple[str, str]]:
        """Yield its lines, and where each stands."""
        return zip(self.lines, (f"{self.file}:{n}" for n in self.numbers), strict=True)


class Linked(msgspec.Struct, frozen=True):
    """A text for the server, and for each of its lines where that comes from."""

    source: bytes
    places: list[str]


def parse(file: str, text: str, verb: str = "") -> dict[str, Part]:
    """Take a file apart; one without parts is a part without a name."""
    part = Part(file, verb)
    parts = {"": part}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("-- @"):
            kind, *words = line[4:].split()
            if kind == "part":
                if words[0] in parts or (part is parts[""] and (part.lines or part.said)):
                    raise LookupError(
                        f"{file}:{number}: what is before it, or another one, is lost"
                    )
                part = parts[words[0]] = Part(file)
            elif kind in _KINDS:
                part.said.setdefault(kind, []).extend(words)
            else:
                raise LookupError(f"{file}:{number}: there is no directive @{kind}")
        elif (code := line.strip()) and not code.startswith("--"):  # servers are not sent remarks
            part.lines.append(line.rstrip())
            part.numbers.append(number)
    if len(parts) > 1:
        del parts[""]
    return parts


def link(first: list[str], parts: list[Part], last: list[str]) -> Linked:
    """Link parts, between these lines: the names that they share, then they, then the verbs.

    A name that no other part uses stays inside its own.
    """
    words = [set(_WORD.findall("\n".join(part.lines))) for part in parts]
    uses = Counter(word for each in words for word in each)
    rows: list[tuple[str, str]] = []
    verbs: list[tuple[str, str]] = []
    shared: set[str] = set()
    for part, own in zip(parts, words, strict=True):
        if part.verb:
            verbs += [(f"function verbs.{part.verb}()", ""), *part.placed(), ("end", "")]
            continue
        new = [name for name in part.names() if name not in shared]
        inner = [name for name in new if uses[name] == (name in own)]
        shared.update(name for name in new if name not in inner)
        names = [(f"local {', '.join(inner)}", "")] if inner else []
        rows += [(";(function()", ""), *names, *part.placed(), ("end)()", "")]
    opening = [*first, *_OPENING, *([f"local {', '.join(sorted(shared))}"] if shared else [])]
    rows = [*((line, "") for line in opening), *rows, *verbs]
    constants = _constants(parts)
    whole = "\n".join([*(line for line, _ in rows), _CLOSING, *last, ""])
    source = _TOKEN.sub(lambda word: constants.get(word[0], word[0]), whole).encode()
    return Linked(source, [place for _, place in rows])


def _constants(parts: list[Part]) -> dict[str, str]:
    """Return the numbers that have a name; it stands for one number in all of a script."""
    found: dict[str, str] = {}
    for part in parts:
        for pair in part.words("const"):
            name, _, value = pair.partition("=")
            if not _TOKEN.fullmatch(name):
                raise LookupError(f"{part.file} names a constant {name}, which is not upper case")
            if found.setdefault(name, value) != value:
                raise LookupError(f"{part.file} calls {value} {name}, which is {found[name]}")
    return found
