"""Getting functions onto the server, and doing without them where it takes none in.

A call of a function that the server does not know is answered by sending its library. A server may
refuse that: it is full (``FUNCTION LOAD`` counts as a write that needs memory), its disk or its
replicas fail, or our user may not load functions. Then the verb is sent by itself as a script for
``EVAL``, with the same flags. That costs about three times as much on the server (decision 0011),
and works whenever the verb itself may run: so a full server can be drained, looked at and steered
by a release that it has never seen.

A fault of ours in a library, such as a part that needs more than a library may use while it loads,
ends the same way. So each reason is told once, with file and line.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

from fairlead.broker.records import Library
from fairlead.broker.redis.discovery import Ask
from fairlead.broker.redis.scripts import Script, evaluated, libraries, located
from fairlead.broker.redis.server_errors import understand
from fairlead.broker.redis.wire import ReplyError, Value, pack
from fairlead.model.errors import Ambiguous, Refused, Unreachable

_PREFIX = "fairlead_"
_AGAIN = 5.0  # seconds until a library that was refused is offered again

_log = logging.getLogger(__name__)

Send = Callable[[bytes], Awaitable[Any]]


class Functions:
    """Which libraries one server refused lately."""

    def __init__(self) -> None:
        # By library: when it may be offered again, and why it was refused.
        self._refused: dict[str, tuple[float, str]] = {}

    async def call_unknown(self, send: Send, packed: bytes, script: Script, now: float) -> Any:
        """Return the reply to a call whose function the server did not know.

        ``send`` gives a reply or a ``ReplyError``, as this does.
        """
        if self._refused.get(script.library, (0.0, ""))[0] <= now:
            try:
                loaded = await send(pack(("FUNCTION", "LOAD", "REPLACE", script.source)))
            except Ambiguous as error:  # about the loading, not about the caller's call
                raise Unreachable(str(error)) from error
            if loaded.__class__ is not ReplyError:
                self._refused.pop(script.library, None)
                return await send(packed)
            if str(loaded).startswith("READONLY"):
                return loaded  # a replica, which is not who should be asked
            why = str(understand(located(script, str(loaded))).error)
            if why not in (known for _, known in self._refused.values()):
                _warn(why)
            self._refused[script.library] = (now + _AGAIN, why)
        form = evaluated(script)
        reply = await send(_instead(packed, script, "EVALSHA", form.sha))
        if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
            reply = await send(_instead(packed, script, "EVAL", form.source))
        return reply


async def run_on(ask: Ask, script: Script, key: str, args: Sequence[Value]) -> Any:
    """Run a small script on a connection that is not in use yet."""
    call = ("FCALL", script.function, 1, key, *args)
    try:
        return await ask(*call)
    except Refused as refused:
        if refused.cause != "forgetful":
            raise
    try:
        await ask("FUNCTION", "LOAD", "REPLACE", script.source)
    except Refused as refused:  # what the server lacks is told by the verb itself, if it needs that
        if refused.cause == "server":
            _warn_once(located(script, str(refused)))
        form = evaluated(script)
        return await ask("EVAL", form.source, 1, key, *args)
    return await ask(*call)


async def installed(command: Ask) -> list[Library]:
    """List our libraries by name: those on the server, and those of this release that are not."""
    found = dict.fromkeys((script.library for script in libraries()), 0)
    ours = set(found)
    for each in await command("FUNCTION", "LIST", "LIBRARYNAME", f"{_PREFIX}*"):
        fields = _fields(each)
        found[fields["library_name"].decode()] = len(fields["functions"])
    return [
        Library(name=name, functions=found[name], current=name in ours) for name in sorted(found)
    ]


async def load_all(command: Ask) -> list[str]:
    """Load all libraries of this release; return the names of those that were not there."""
    missing = {library.name for library in await installed(command) if not library.functions}
    for script in libraries():
        if script.library in missing:
            await command("FUNCTION", "LOAD", "REPLACE", script.source)
    return sorted(missing)


async def delete(command: Ask, name: str) -> None:
    """Delete a library; one that is not there is no error."""
    try:
        await command("FUNCTION", "DELETE", name)
    except Refused:
        there = {library.name for library in await installed(command) if library.functions}
        if name in there:
            raise


def _fields(each: Any) -> dict[str, Any]:
    """A reply of pairs as a mapping; the newer protocol gives one."""
    pairs = each.items() if isinstance(each, dict) else zip(each[::2], each[1::2], strict=True)
    return {key.decode(): value for key, value in pairs}


def _instead(packed: bytes, script: Script, command: str, what: Value) -> bytes:
    """The same call with another command than ``FCALL`` and something else than the function."""
    count, _, rest = packed.partition(b"\r\n")
    head = _bulk("FCALL") + _bulk(script.function)
    if not rest.startswith(head):
        raise ValueError("only a call of the script's own function can be sent otherwise")
    return count + b"\r\n" + _bulk(command) + _bulk(what) + rest[len(head) :]


def _bulk(value: Value) -> bytes:
    return pack((value,)).partition(b"\r\n")[2]


def _warn(why: str) -> None:
    _log.warning(
        "the server takes no function library in, so verbs are sent to it as scripts, which is "
        "slower: %s. It is tried again every few seconds; `fairlead functions load` "
        "before a deployment does it ahead",
        why,
    )


_warn_once = cache(_warn)  # where each connection would meet the same fault
