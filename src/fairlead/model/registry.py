"""Task name -> handler and options: the one thing that client and worker share."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol, get_origin, get_type_hints

from fairlead.model.annotations import Annotation
from fairlead.model.argument_packing import convert
from fairlead.model.backoff import RetryPolicy
from fairlead.model.errors import InvalidArgument, InvalidInput, NotSerializable, UnknownTask
from fairlead.model.names import check_task_name
from fairlead.model.options import Options
from fairlead.model.result_refs import outputs_in
from fairlead.model.safe_repr import safe_repr

MAX_VERSION = 1_000_000

_SCALARS = frozenset({str, int, float, bool, bytes})  # nothing to convert inside of them
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class TaskBreaker(Protocol):
    """Whether attempts of a task may run now; told how each that ran has ended."""

    def admit(self) -> float:
        """0 if an attempt may run now, else the seconds after which to ask again."""
        ...

    def succeeded(self) -> None: ...

    def failed(self) -> None: ...

    def released(self) -> None: ...


class TaskSpec:
    """A registered handler: its name, its options, and how to call it."""

    def __init__(
        self,
        name: str,
        handler: Callable[..., Any],
        *,
        options: Options | None = None,
        policy: RetryPolicy | None = None,
        version: int = 1,
        context_type: type | None = None,
        isolation: Literal["", "process"] = "",
        max_memory: int | None = None,
        max_crashes: int | None = None,
        breaker: TaskBreaker | None = None,
    ) -> None:
        self.name = check_task_name(name)
        self.handler = handler
        self.options = options or Options()
        self.policy = policy or RetryPolicy()
        self.version = version
        self.isolation = isolation
        self.max_memory = max_memory  # bytes, of the process it runs in
        self.max_crashes = max_crashes  # in a row; None: they use up attempts
        self.breaker = breaker
        self.is_async = any(map(inspect.iscoroutinefunction, (handler, _function(handler))))
        self._signature = _signature(handler)
        self._context_type = context_type

    @property
    def takes_context(self) -> bool:
        """Whether the handler's first parameter is annotated with the context type."""
        return self._shape.takes_context

    @property
    def scalars(self) -> list[type]:
        """The types of its first parameters, as long as they are plain values.

        Arguments of exactly these types, by position, need not be converted.
        """
        return self._shape.scalars

    @property
    def takes_only_scalars(self) -> bool:
        """Whether these are all that it takes, and none may be left out."""
        shape = self._shape
        return shape.least == shape.most == len(shape.scalars) and not (shape.rest or shape.extra)

    @property
    def parameters(self) -> list[tuple[inspect.Parameter, Any]]:
        """What callers may give, without the context, each with its type: None if it says none."""
        return self._shape.parameters

    @property
    def positions(self) -> tuple[int, int]:
        """How many arguments by position are plainly right, at least and at most."""
        return self._shape.least, self._shape.most

    def fits_plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether each value is of a type that fits as it is; else ask ``misfits``."""
        for slot, value in self._shape.placed(args, kwargs):
            if slot is not None and slot.check and type(value) not in slot.check.kinds:
                return False
        return True

    def misfits(self, args: list[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments, as plain data, that the worker would refuse, with their names.

        What another task returns is not known yet.
        """
        return [
            (slot.name, value)
            for slot, value in self._shape.placed(args, kwargs)
            if slot is not None
            and slot.check
            and not slot.check.fits(value)
            and not outputs_in(value)
        ]

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse arguments that the handler would not take, before anything is written."""
        shape = self._shape
        if not kwargs and shape.least <= len(args) <= shape.most:
            return  # plainly right
        given = (None, *args) if self.takes_context else args
        try:
            self._signature.bind(*given, **kwargs)
        except TypeError as error:
            known = set(Options.__struct_fields__).difference(self._signature.parameters)
            option = next((name for name in kwargs if name in known), None)
            hint = "" if option is None else f"; for the option use task.using({option}=...)"
            raise InvalidInput(
                f"task {self.name!r} cannot be called like this: {error}{hint}"
            ) from None

    def check_direct_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise a TypeError that speaks of the context, where it is what is missing."""
        if not self.takes_context:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"task {self.name!r} cannot be called like this: {error}; the first parameter is "
                "its Context: workers put one there, and Kit.context() of fairlead.testing makes "
                "one for tests"
            ) from None

    def convert(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Turn stored plain data back into what the handler's annotations ask for.

        Raises InvalidArgument, without the value itself, for what does not fit.
        """
        shape = self._shape
        if not shape.converts:
            return args, kwargs
        if not kwargs:
            kinds = list(map(type, args))
            if kinds == shape.scalars or kinds == shape.scalars[: len(kinds)]:
                return args, kwargs  # mostly: they are as they should be
        count = len(shape.positional)
        return (
            [
                self._converted(shape.positional[i] if i < count else shape.rest, value)
                for i, value in enumerate(args)
            ],
            {
                name: self._converted(shape.named.get(name, shape.extra), value)
                for name, value in kwargs.items()
            },
        )

    def _converted(self, slot: _SlotProcess | None, value: Any) -> Any:
        if slot is None or slot.type is None:
            return value
        try:
            return convert(value, slot.type, slot.name)
        except NotSerializable as error:
            rule = error.why.removeprefix("it does not fit ")
            raise InvalidArgument(self.name, slot.name, value, rule, stored=True) from None

    @functools.cached_property
    def _shape(self) -> _Shape:
        # At the first use, not at registration: annotations may name things that the module
        # defines further down.
        return _Shape(self.handler, self._signature, self._context_type)


class _SlotProcess(NamedTuple):
    """A parameter, and the type it asks for: None if it does not say, or says Any."""

    name: str
    type: Any
    check: Annotation | None  # None: whatever it is, it fits


class _Shape:
    """What a handler takes, worked out once: every call is checked and converted by it."""

    def __init__(
        self,
        handler: Callable[..., Any],
        signature: inspect.Signature,
        context_type: type | None,
    ) -> None:
        types = _types(handler)
        parameters = list(signature.parameters.values())
        first = parameters[0] if parameters else None
        self.takes_context = (
            first is not None
            and first.kind in _POSITIONAL
            and context_type is not None
            and _is_context(types.get(first.name, first.annotation), context_type)
        )
        if self.takes_context:
            parameters = parameters[1:]
        slots = {p.name: _slot(p.name, types.get(p.name)) for p in parameters}
        self.parameters = [(p, slots[p.name].type) for p in parameters]
        self.positional = [slots[p.name] for p in parameters if p.kind in _POSITIONAL]
        self.named = {p.name: slots[p.name] for p in parameters if p.kind in _KEYWORD}
        self.rest = next((slots[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        self.extra = next((slots[p.name] for p in parameters if p.kind is p.VAR_KEYWORD), None)
        self.converts = any(slot.type is not None for slot in slots.values())
        # What the first parameters ask for, as long as they are plain values.
        self.scalars: list[type] = []
        for slot in self.positional:
            if slot.type not in _SCALARS:
                break
            self.scalars.append(slot.type)
        # For the quick check: calls by position only, of handlers without required keywords.
        required = [p for p in parameters if p.default is p.empty]
        self.least = sum(p.kind in _POSITIONAL for p in required)
        any_more = self.rest is not None and self.rest.check is None
        self.most = sys.maxsize if any_more else len(self.positional)
        if any(p.kind is p.KEYWORD_ONLY for p in required):
            self.most = -1  # no number of positions makes up for a keyword

    def placed(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[_SlotProcess | None, Any]]:
        """Each argument with the parameter that takes it."""
        yield from zip(self.positional, args, strict=False)
        for value in args[len(self.positional) :]:
            yield self.rest, value
        for name, value in kwargs.items():
            yield self.named.get(name, self.extra), value


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(handler)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{safe_repr(handler)} cannot be a task: it cannot be called, or hides its parameters"
        ) from None


def _function(handler: Any) -> Any:
    """Where the annotations of a handler stand: behind a partial, or in a method of its class."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.isclass(handler):
        return handler.__init__
    return handler if inspect.isroutine(handler) else type(handler).__call__


def _types(handler: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(_function(handler), include_extras=True)
    except Exception:  # noqa: BLE001 - annotations are code: what runs may raise anything
        # Mostly names under TYPE_CHECKING only. No conversion then: plain data as it is.
        return {}


def _slot(name: str, annotation: Any) -> _SlotProcess:
    if annotation is None or annotation is Any:
        return _SlotProcess(name, None, None)
    return _SlotProcess(name, annotation, Annotation(annotation))


def _is_context(annotation: Any, context_type: type) -> bool:
    if isinstance(annotation, str):  # could not be resolved, because of another one perhaps
        return annotation.rpartition(".")[2] == context_type.__name__
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    return annotation is context_type


class Registry:
    """The tasks of one app. Names are resolved here only; nothing is ever imported by name."""

    def __init__(self) -> None:
        self._specs: dict[str, TaskSpec] = {}

    def add(self, spec: TaskSpec) -> None:
        """Register a task; the same name again is a mistake unless it is the same function."""
        known = self._specs.get(spec.name)
        if known is not None and not _same_function(known.handler, spec.handler):
            raise InvalidInput(
                f"task {spec.name!r} is registered already, by {_place(known.handler)}; "
                "give one of the two another name: @app.task(name=...)"
            )
        self._specs[spec.name] = spec

    @property
    def specs(self) -> Mapping[str, TaskSpec]:
        """The tasks by name, as they are at any time."""
        return self._specs

    def get(self, name: str) -> TaskSpec:
        """The task of this name, or UnknownTask with the closest names."""
        spec = self._specs.get(name)
        if spec is None:
            raise UnknownTask(name, difflib.get_close_matches(name, self._specs, n=2))
        return spec

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[TaskSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether it is one function; a module that is loaded again defines it anew."""
    if one is other:
        return True
    code, again = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if code is None or again is None or one.__name__ == "<lambda>":
        return False
    closed = getattr(one, "__closure__", None) or getattr(other, "__closure__", None)
    return closed is None and _place(one) == _place(other)


def _place(handler: Callable[..., Any]) -> str:
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    return f"{getattr(handler, '__module__', '?')}.{name}"
