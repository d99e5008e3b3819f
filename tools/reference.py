"""Write the Python reference, docs/reference/api*.md, from the source: `make reference`.

What is written comes from the syntax tree and not from the running objects, so that every version
of Python makes the same text: signatures as they stand in the source and docstrings, also those
below fields and attributes.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import fairlead
from fairlead.worker.run.xcom import XCom
from tools.docstrings import below, prose
from tools.option_sets import options

__all__ = ("PAGES", "main", "pages")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"


class Page(NamedTuple):
    """One page of the reference: its title, what it is about, and the names on it."""

    title: str
    about: str
    names: tuple[str, ...]


#: The order of names; one that is not exported is passed over. A name that no page lists goes to
#: the errors if it is one, to the records if it is a struct, and to the app otherwise.
PAGES = {
    "api-app": Page(
        "API: app and worker",
        "The app, what it is configured with, and the worker inside your own process. "
        "[Options](options.md) explains what the decorators and `using` accept.",
        (
            "Fairlead", "create_queue", "Worker", "Backoff", "Breaker", "correlation", "Codec",
            "ZlibCodec", "register_type",
        ),
    ),
    "api-tasks": Page(
        "API: tasks, handles, flows, schedules",
        "What you enqueue with, and what you get back.",
        (
            "Task", "TaskCall", "Enqueuing", "Handle", "Flow", "FlowHandle", "Output", "Schedules",
            "Timing",
        ),
    ),
    "api-context": Page(
        "API: inside a handler",
        "What a handler sees of its own attempt, and what it may raise.",
        ("Context", "current_context", "Results", "Signal", "Retry", "Snooze", "Reject"),
    ),
    "api-records": Page(
        "API: states and records",
        "What Fairlead tells of tasks, queues, tenants and workers. Times are unix seconds.",
        (
            "State", "OutboxState", "TaskInfo", "TaskPage", "FlowInfo", "Snapshot",
            "WorkerRecord", "KnownTask", "ScheduleInfo", "Explanation", "Reason", "Stats",
            "QueueStats", "TenantStats", "Histogram", "EventInfo", "EventStream", "Raised",
        ),
    ),
    "api-errors": Page(
        "API: errors",
        "Every error that Fairlead raises. [Errors](errors.md) says what to do about each.",
        ("FairleadError",),
    ),
}  # fmt: skip

#: Classes that programs construct. Others come from Fairlead, and how is no concern of a caller.
CONSTRUCTED = {"Fairlead", "Flow", "Breaker", "Backoff", "ZlibCodec", "Retry", "Snooze", "Reject"}

#: Operators and protocols that a class offers, and how they are written.
OPERATORS = {
    "__aiter__": "async for ... in {0}", "__call__": "{0}(...)", "__getitem__": "{0}[...]",
    "__iter__": "for ... in {0}", "__len__": "len({0})", "__lshift__": "{0} << other",
    "__or__": "{0} | other", "__rshift__": "{0} >> other",
}  # fmt: skip

#: What other parts of Fairlead call and programs do not.
INTERNAL = {
    "TaskCall": ("spec", "check_registered", "plain", "submission", "accepted"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Member(NamedTuple):
    """A method or a property of a class."""

    name: str
    node: Function
    doc: str

    @property
    def is_property(self) -> bool:
        return bool({"property", "cached_property"} & set(map(_name_of, self.node.decorator_list)))


@cache
def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    listed = {name for page in PAGES.values() for name in page.names}
    texts = {}
    for stem, page in PAGES.items():
        names = [
            *(n for n in page.names if n in fairlead.__all__),
            *(n for n in fairlead.__all__ if n not in listed and _home(n) == stem),
        ]
        found = [(name, getattr(fairlead, name)) for name in names]
        if stem == "api-context":
            found.append(("XCom", XCom))
        if stem == "api-records":
            found += _parts([thing for _, thing in found])
        sections = [_section(name, thing) for name, thing in found]
        texts[f"{stem}.md"] = _text(f"# {page.title}", page.about, *sections)
    return texts


def main() -> int:
    """Write the pages; with `--check`, only say which of them are not up to date."""
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    print(*(stale or ["the reference is up to date"]), sep="\n")
    return int("--check" in sys.argv and bool(stale))


def _home(name: str) -> str:
    thing = getattr(fairlead, name)
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return "api-errors"
    if isinstance(thing, type) and issubclass(thing, msgspec.Struct):
        return "api-records"
    return "api-app"


def _parts(things: list[Any]) -> list[tuple[str, Any]]:
    """Structs that others have in their fields and that are not exported themselves."""
    seen = {id(thing) for thing in things}
    found = []
    for thing in things:  # it grows as it is read: parts have parts
        if not (isinstance(thing, type) and issubclass(thing, msgspec.Struct)):
            continue
        for hint in typing.get_type_hints(thing).values():
            for part in _inside(hint):
                if id(part) not in seen and part.__name__ not in fairlead.__all__:
                    seen.add(id(part))
                    things.append(part)
                    found.append((part.__name__, part))
    return found


def _inside(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and not typing.get_args(hint) and issubclass(hint, msgspec.Struct):
        yield hint
    for each in typing.get_args(hint):
        yield from _inside(each)


def _section(name: str, thing: Any) -> str:
    if not isinstance(thing, type):
        node = _defined(thing.__module__, name)
        assert isinstance(node, Function)
        return _text(f"## `{name}`", _signature(node, name), prose(ast.get_docstring(node)))
    kin, parts = _kin(thing), [f"## `{name}`"]
    if name not in fairlead.__all__:
        parts.append("Not exported: you meet it as a part of what stands above.")
    bases = [each.__name__ for each in thing.__mro__[1:] if each.__name__ in fairlead.__all__]
    if bases:
        parts.append(
            "A " + ", which is a ".join(f"[`{each}`](#{each.lower()})" for each in bases) + "."
        )
    signature, *arguments = _constructor(name, kin) if name in CONSTRUCTED else [""]
    parts += [signature, prose(ast.get_docstring(kin[0])), *arguments]
    members = _members(thing, kin)
    properties = (m for m in members.values() if m.is_property)
    attributes = [*_fields(kin), *_set_by_constructor(kin)]
    attributes += (_bullet(m.name, _kind(m.node.returns), m.doc) for m in properties)
    if attributes:
        parts.append("\n".join(dict.fromkeys(attributes)))
    if name in fairlead.__all__ or not issubclass(thing, msgspec.Struct):
        parts += _methods(name, {k: m for k, m in members.items() if not m.is_property})
    return _text(*parts)


def _kin(thing: type) -> list[ast.ClassDef]:
    """The class and those of its bases that have no section of their own, nearest first."""
    found = []
    for each in thing.__mro__:
        if each is not thing and each.__name__ in fairlead.__all__:
            break
        if each.__module__.startswith("fairlead"):
            node = _defined(each.__module__, each.__name__)
            if isinstance(node, ast.ClassDef):
                found.append(node)
    return found


@cache
def _read(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(module)))


def _defined(module: str, name: str) -> ast.AST | None:
    for node in _read(module).body:
        if not (isinstance(node, ast.ClassDef | Function) and node.name == name):
            continue
        if "overload" not in map(_name_of, node.decorator_list):
            return node
    return None


def _constructor(name: str, kin: list[ast.ClassDef]) -> list[str]:
    for node in kin:
        for each in node.body:
            if isinstance(each, Function) and each.name == "__init__":
                return [_signature(each, name), prose(ast.get_docstring(each))]
    return [""]


def _fields(kin: list[ast.ClassDef]) -> Iterator[str]:
    for node in kin:
        for each in node.body:
            match each:
                case ast.AnnAssign(target=ast.Name(id=field)) if not field.startswith("_"):
                    if "ClassVar" not in ast.unparse(each.annotation):
                        default = f" = {ast.unparse(each.value)}" if each.value else ""
                        kind = _kind(each.annotation) + default
                        yield _bullet(field, kind, below(node.body, each))
                case ast.Assign(targets=[ast.Name(id=field)]) if field.isupper():
                    yield _bullet(field, ast.unparse(each.value), below(node.body, each))


def _set_by_constructor(kin: list[ast.ClassDef]) -> Iterator[str]:
    """Attributes with a text: others are the concern of the class alone."""
    for node in kin:
        maker = next(
            (e for e in node.body if isinstance(e, Function) and e.name == "__init__"), None
        )
        if maker is None:
            continue
        kinds = {a.arg: a.annotation for a in [*maker.args.args, *maker.args.kwonlyargs]}
        for each in maker.body:
            match each:
                case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=attr)):
                    kind: ast.expr | None = each.annotation
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)], value=value
                ):
                    kind = kinds.get(value.id) if isinstance(value, ast.Name) else None
                case _:
                    continue
            if text := below(maker.body, each):
                yield _bullet(attr, _kind(kind), text)


def _members(thing: type, kin: list[ast.ClassDef]) -> dict[str, Member]:
    found: dict[str, Member] = {}
    for node in kin:
        for statement in node.body:
            each = _method(thing, statement)
            if each is None:
                continue
            names = set(map(_name_of, each.decorator_list))
            if names & {"overload", "setter"} or each.name in found:
                continue
            if each.name.startswith("_") and each.name not in OPERATORS:
                continue
            if each.name in INTERNAL.get(node.name, ()):
                continue
            found[each.name] = Member(each.name, each, prose(ast.get_docstring(each)))
    return found


def _method(thing: type, statement: ast.stmt) -> Function | None:
    """The method that a statement defines, or makes of a function: ``name = function``."""
    if isinstance(statement, Function):
        return statement
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) if inspect.isfunction(vars(thing).get(name)):
            node = _defined(vars(thing)[name].__module__, vars(thing)[name].__name__)
            assert isinstance(node, Function)
            made = copy.deepcopy(node)
            made.name = name
            (made.args.posonlyargs or made.args.args).pop(0)  # the object itself
            return made
    return None


def _methods(owner: str, members: dict[str, Member]) -> Iterator[str]:
    """A section for each method; a method and its async form share one."""
    variable = owner.lower()
    for name, member in members.items():
        sync = name[1:] if name.startswith("a") and name[1:] in members else None
        if sync is not None:
            continue
        twin = members.get(f"a{name}")
        if name in OPERATORS:
            written = OPERATORS[name].format(variable)
            if member.doc:
                yield _text(f"### `{written}`", member.doc)
            continue
        signatures = [_signature(each.node, each.name) for each in (member, twin) if each]
        given = (_bullet(option, _kind(kind), text) for option, kind, text in options(member.node))
        yield _text(f"### `{owner}.{name}`", *signatures, _told(member, twin), "\n".join(given))


def _told(member: Member, twin: Member | None) -> str:
    """The docstring of a pair: one of the two usually points to the other."""
    return member.doc if twin is None else max(member.doc, twin.doc, key=len)


def _signature(node: Function, name: str) -> str:
    parts = list(_parameters(node.args))
    start = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    end = f" -> {ast.unparse(node.returns)}" if node.returns and name[0].islower() else ""
    line = f"{start}{name}({', '.join(parts)}){end}"
    if len(line) > 90:
        line = f"{start}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return f"```py\n{line}\n```"


def _parameters(given: ast.arguments) -> Iterator[str]:
    """The parameters of a function as its caller sees them, each as it is written."""
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    for number, (each, default) in enumerate(zip(plain, defaults, strict=True), 1):
        if each.arg not in ("self", "cls"):
            yield _parameter(each, default)
        if number == len(given.posonlyargs) and each.arg not in ("self", "cls"):
            yield "/"
    if given.vararg:
        yield f"*{_parameter(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _parameter(each, default)
    if given.kwarg and not _parameter(given.kwarg, None).endswith(": Never"):  # nothing to give
        yield f"**{_parameter(given.kwarg, None)}"


def _parameter(each: ast.arg, default: ast.expr | None) -> str:
    text = each.arg if each.annotation is None else f"{each.arg}: {ast.unparse(each.annotation)}"
    if default is None:
        return text
    return f"{text}{' = ' if each.annotation else '='}{ast.unparse(default)}"


def _bullet(name: str, kind: str, told: str) -> str:
    shown = f" (`{kind}`)" if kind else ""
    told = " ".join(told.split())
    return f"- **`{name}`**{shown}" + (f": {told}" if told else "")


def _kind(annotation: ast.expr | None) -> str:
    """A type as it is written, without the bounds that hold for what is stored."""
    match annotation:
        case None:
            return ""
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[plain, *_])):
            return _kind(plain)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{_kind(left)} | {_kind(right)}"
    return ast.unparse(annotation)


def _name_of(decorator: ast.expr) -> str:
    match decorator:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Call(func=function):
            return _name_of(function)
    return ""


def _text(*parts: str) -> str:
    return "\n\n".join(part.rstrip() for part in parts if part and part.strip()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
