"""An error as bounded text: type, message and traceback, without the values of variables."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from fairlead.model.errors import FairleadError
from fairlead.model.message import ErrorInfo
from fairlead.model.signals import Signal

_MAX_TYPE = 256  # bytes
_MAX_MESSAGE = 2 * 1024  # bytes
_MAX_TRACEBACK = 16 * 1024  # bytes
_MAX_FRAMES = 100  # of each error in a chain, the innermost ones
_CUT = "\n[...]\n"
_OURS = frozenset(  # what calls handlers
    str(Path(__file__).with_name(name))
    for name in ("executors.py", "attempt_middleware.py", "light_attempt.py")
)
#: Modules whose errors are known by their bare names.
_PLAIN = ("builtins", FairleadError.__module__, Signal.__module__)


def describe(error: BaseException, stack: str = "") -> ErrorInfo:
    """The error as it is stored. ``stack`` stands in where the error has no traceback itself."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in _PLAIN:
        name = f"{kind.__module__}.{name}"
    return ErrorInfo(
        _head(name, _MAX_TYPE),
        _head(_message(error), _MAX_MESSAGE),
        _both_ends(_traceback(error) or stack, _MAX_TRACEBACK),
    )


def without_traceback(error: BaseException) -> BaseException:
    """The error itself, fit for keeping: its frames, and with them all variables, are let go.

    Not ``traceback.clear_frames``: a frame may belong to a coroutine that waits somewhere else,
    such as one that had caught the error and passed it on, and clearing it would close that.
    """
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        rest += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            rest += one.exceptions
    return error


def stack_of_thread(ident: int | None) -> str:
    """Where a thread is right now, as text; empty if it is gone."""
    frame: FrameType | None = sys._current_frames().get(ident or 0)
    if frame is None:
        return ""
    return "".join(traceback.format_stack(frame, limit=-_MAX_FRAMES))


def stack_of_coroutine(waits: Any) -> str:
    """Where a coroutine waits right now, as text, down to the innermost one."""
    frames: list[FrameType] = []
    while (frame := getattr(waits, "cr_frame", None)) is not None and len(frames) < _MAX_FRAMES:
        frames.append(frame)
        waits = waits.cr_await
    lines = [(frame, frame.f_lineno) for frame in frames if frame.f_code.co_filename not in _OURS]
    return "".join(traceback.StackSummary.extract(iter(lines)).format())


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the handler's own error class may do anything here
        return "(the error cannot be shown: its __str__ failed)"


def _traceback(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None and error.__cause__ is None:
        return ""
    while trace is not None and trace.tb_next is not None:
        if trace.tb_frame.f_code.co_filename not in _OURS:
            break
        trace = trace.tb_next  # the same for every error
    try:
        report = traceback.TracebackException(type(error), error, trace, limit=-_MAX_FRAMES)
        return "".join(report.format())
    except Exception:  # noqa: BLE001 - it calls code of the handler's error classes
        return ""


def _head(text: str, limit: int) -> str:
    data = _utf8(text)
    if len(data) <= limit:
        return data.decode()
    return data[:limit].decode(errors="ignore")


def _both_ends(text: str, limit: int) -> str:
    """The start says where it came from and the end what it was: cut in between."""
    data = _utf8(text)
    if len(data) <= limit:
        return data.decode()
    start = limit // 4
    end = limit - start - len(_CUT)
    return data[:start].decode(errors="ignore") + _CUT + data[-end:].decode(errors="ignore")


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")  # lone surrogates have no place in a stored text
