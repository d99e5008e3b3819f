"""Task name -> handler and options: the one thing that client and worker share."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import msgspec

from fairlead.model.backoff import RetryPolicy
from fairlead.model.errors import InvalidInput, NotSerializable, UnknownTask
from fairlead.model.names import check_task_name
from fairlead.model.options import Options

__all__ = ("Registry", "TaskSpec")


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
    ) -> None:
        self.name = check_task_name(name)
        self.handler = handler
        self.options = options or Options()
        self.policy = policy or RetryPolicy()
        self.version = version
        self.is_async = inspect.iscoroutinefunction(handler)
        self._signature = inspect.signature(handler)
        self._context_type = context_type
        self._hints: dict[str, Any] | None = None

    @property
    def takes_context(self) -> bool:
        """Whether the handler's first parameter is annotated with the context type."""
        first = next(iter(self._signature.parameters.values()), None)
        if first is None or first.kind not in _POSITIONAL or self._context_type is None:
            return False
        return self._types().get(first.name) is self._context_type

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse arguments that the handler would not take, before anything is written."""
        given = (None, *args) if self.takes_context else args
        try:
            self._signature.bind(*given, **kwargs)
        except TypeError as error:
            raise InvalidInput(f"task {self.name!r} cannot be called like this: {error}") from None

    def convert(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Turn stored plain data back into what the handler's annotations ask for."""
        types = self._types()
        parameters = list(self._signature.parameters.values())
        if self.takes_context:
            parameters = parameters[1:]
        positional = [p for p in parameters if p.kind in _POSITIONAL]
        rest = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        extra = next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)
        named = {p.name for p in parameters}
        converted_args = [
            self._converted(positional[i] if i < len(positional) else rest, value, types)
            for i, value in enumerate(args)
        ]
        converted_kwargs = {
            name: self._converted(
                self._signature.parameters[name] if name in named else extra, value, types
            )
            for name, value in kwargs.items()
        }
        return converted_args, converted_kwargs

    def _converted(
        self, parameter: inspect.Parameter | None, value: Any, types: dict[str, Any]
    ) -> Any:
        if parameter is None or parameter.name not in types:
            return value
        try:
            return msgspec.convert(value, types[parameter.name], builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            raise NotSerializable(f"argument {parameter.name!r}", value, str(error)) from None
        except TypeError:  # an annotation that msgspec has no conversion for: leave the plain data
            return value

    def _types(self) -> dict[str, Any]:
        # Resolved at the first use, not at registration: annotations may name things that the
        # module defines further down.
        if self._hints is None:
            try:
                self._hints = get_type_hints(self.handler)
            except NameError:  # names under TYPE_CHECKING only: no conversion, plain data as it is
                self._hints = {}
        return self._hints


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

    def get(self, name: str) -> TaskSpec:
        """The task of this name, or UnknownTask with the closest names."""
        spec = self._specs.get(name)
        if spec is None:
            raise UnknownTask(name, difflib.get_close_matches(name, self._specs, n=2))
        return spec

    def find(self, name: str) -> TaskSpec | None:
        """The task of this name, or None."""
        return self._specs.get(name)

    def __iter__(self) -> Iterator[TaskSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    return _place(one) == _place(other)  # a reloaded module defines the same function anew


def _place(handler: Callable[..., Any]) -> str:
    module, name = getattr(handler, "__module__", "?"), getattr(handler, "__qualname__", "?")
    return f"{module}.{name}"
