"""Log lines of a process: JSON for machines, or aligned text for people.

Everything goes through the standard library's ``logging``, so that lines of the program and of
other libraries look the same. Lines that are made while an attempt runs say which one it is.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import msgspec

from fairlead.model.errors import InvalidOption
from fairlead.telemetry.fields import running
from fairlead.telemetry.safe import plain, printable, sound, trace_of

_FORMATS = ("json", "console", "auto")
_LEVELS = ("debug", "info", "warning", "error", "critical")
_MAX_LINE = 64 * 1024  # bytes
_MAX_EVENT = 16 * 1024  # characters
_MAX_TRACE = 32 * 1024  # characters
_CUT = "…"
_OWN = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}
)
# They warn of each of several tries a second; whoever asked for them says why it failed, once.
_CHATTY = ("psycopg.pool",)
_BLOCKS = frozenset({"stack", "traceback"})  # several lines, where people read them
_FINE = 0.001  # smaller numbers than this are shown with all their digits
_REPEATED = frozenset({"error", "state", "task", "task_id"})  # what texts of ours may say as well
_FIRST = ("ts", "level", "logger", "event")
_COLORS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "1;31", "DEBUG": "2"}
# JSON lets these stand as they are, but terminals obey some and readers of lines split at others.
_ODD = re.compile("[\x7f-\x9f\u2028\u2029]")
_encode_bytes = msgspec.json.Encoder().encode


def configure(
    format: str = "auto", level: str = "info", stream: TextIO | None = None
) -> logging.Handler:
    """Have all loggers write to one stream (default: stderr); returns the handler.

    ``auto`` is ``console`` on a terminal and ``json`` elsewhere. Whatever the root logger wrote to
    before, it no longer does. ``level`` is one of debug, info, warning, error and critical.
    """
    if format not in _FORMATS:
        raise InvalidOption("format", format, f"one of {', '.join(_FORMATS)}")
    if str(level).lower() not in _LEVELS:
        raise InvalidOption("level", level, f"one of {', '.join(_LEVELS)}")
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    if is_console(format, stream):
        colors = _is_terminal(stream) and not os.environ.get("NO_COLOR")
        handler.setFormatter(_Console(colors=colors))
    else:
        handler.setFormatter(_Json())
    handler.addFilter(_attempt)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(
            logging.DEBUG if level.lower() == "debug" else logging.ERROR
        )
    return handler


def is_console(format: str, stream: TextIO) -> bool:
    """Return whether lines of this format are for people, on this stream."""
    return format == "console" or (format == "auto" and _is_terminal(stream))


def _attempt(record: logging.LogRecord) -> bool:
    """Add what runs to a line, where the line does not say it itself."""
    told = running.get()
    if told is not None:
        for name, value in told.fields().items():
            record.__dict__.setdefault(name, value)
    return True


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """What a line carries beside its text, as plain data."""
    for name, value in record.__dict__.items():
        if name not in _OWN and not name.startswith("_"):
            yield sound(f"{name}_" if name in _FIRST else name), plain(value)


def _event(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001 - a bad line is still a line, and must not raise
        text = str(record.msg) if isinstance(record.msg, str) else type(record.msg).__name__
    return sound(text if len(text) <= _MAX_EVENT else text[:_MAX_EVENT] + _CUT)


def _trace(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    text = trace_of(error) if error is not None else ""
    return _both_ends(sound(text), _MAX_TRACE)


class _Json(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": sound(record.name),
            "event": _event(record),
        }
        fields = dict(_fields(record))
        trace = _trace(record)
        if trace:
            fields["traceback"] = trace
        return _bounded(head, fields)


def _bounded(head: dict[str, str], fields: Mapping[str, Any]) -> str:
    """The line, without those of its largest fields that would make it too long."""
    try:
        line = _encode({**head, **fields})
        if len(line.encode()) <= _MAX_LINE:
            return line
    except (ValueError, TypeError):  # nothing that is known of, but a line must not raise
        pass
    parts: dict[str, Any] = {}
    left = _MAX_LINE - 1024  # for the commas, and the names of those that are left out
    for name, value in head.items():
        left -= _put(parts, name, value, left)
    dropped = []
    for name, size in sorted(((n, _size(v)) for n, v in fields.items()), key=lambda item: item[1]):
        if size + len(name) * 6 + 8 > left:
            dropped.append(name)
        else:
            left -= _put(parts, name, fields[name], left)
    if dropped:
        parts["left_out"] = [name[:40].encode(errors="replace").decode() for name in dropped[:10]]
    return _encode(parts)


def _encode(value: Any) -> str:
    text = _encode_bytes(value).decode()
    if _ODD.search(text):
        return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text


def _put(parts: dict[str, Any], name: str, value: Any, left: int) -> int:
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()
        size = _size(value)
        if size > left:
            value = value[: max(left // 6, 0)] + _CUT
    parts[name.encode(errors="replace").decode()] = value
    return _size(value) + len(name) + 8


def _size(value: Any) -> int:
    try:
        return len(_encode(value).encode())
    except (ValueError, TypeError, RecursionError):
        return len(value) * 6 if isinstance(value, str) else _MAX_LINE


class _Console(logging.Formatter):
    """For people: time, level, text, then what else there is."""

    def __init__(self, *, colors: bool) -> None:
        super().__init__()
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():<8}"
        if self._colors and (color := _COLORS.get(record.levelname)):
            level = f"\x1b[{color}m{level}\x1b[0m"
        fields = dict(_fields(record))
        blocks = [fields.pop(name) for name in _BLOCKS & fields.keys() if _is_block(fields[name])]
        event = _event(record)
        rest = " ".join(
            f"{printable(name)}={_value(value)}"
            for name, value in fields.items()
            if value != "" and not (name in _REPEATED and _says(event, value))
        )
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        stamp = f"{clock}.{int(record.msecs):03d}"
        line = f"{stamp} {level} {printable(event)}"
        if rest:
            line = f"{line:<60} {rest}"
        if len(line) > _MAX_LINE // 4:
            line = line[: _MAX_LINE // 4] + _CUT
        for block in (*blocks, _trace(record)):
            shown = _both_ends(block, _MAX_TRACE).splitlines()
            line += "".join(f"\n    {printable(part)}" for part in shown)
        return line


def _is_block(value: Any) -> bool:
    return isinstance(value, str) and (not value or "\n" in value)


def _says(event: str, value: Any) -> bool:
    """Whether a text has this value in it, as a word of its own."""
    if not isinstance(value, str):
        return False
    return re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w.-])", event) is not None


def _value(value: Any) -> str:
    """A field for people: quoted where it would not be one word."""
    if isinstance(value, str):
        text = printable(value)
        return text if text and " " not in text and "=" not in text else f'"{text}"'
    if isinstance(value, float) and abs(value) >= _FINE:
        value = round(value, 3)
    return printable(_encode(value))


def _timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.created % 1 * 1000):03d}Z"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # no such method, or closed
        return False


def _both_ends(text: str, limit: int) -> str:
    """The start says where it came from and the end what it was: cut in between."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 4]}\n[...]\n{text[-limit // 2 :]}"
