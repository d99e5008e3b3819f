"""What the server's error replies mean for the caller, and what to do about them."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from fairlead.model.errors import BrokerError, FairleadError, Refused, Unreachable
from fairlead.model.safe_repr import one_line

_LONGEST = 200  # characters of a server's text that an error repeats

# What the server adds to an error that left a script: which script, and where.
_ORIGIN = re.compile(r"\s*script: (?:[0-9a-f]{40}, )?on @\S+\s*\Z")
# The server repeats the arguments of a command it does not know; they may be somebody's data.
_ARGUMENTS = re.compile(r",? with args beginning with.*\Z", re.DOTALL)

_NO_FUNCTIONS = re.compile(r"(?i)ERR unknown command .?(fcall|function)\b")
_NEEDS_FUNCTIONS = (
    "the server has no functions (FCALL), whatever it calls itself; "
    "Fairlead needs Valkey, or Redis 7.0 or later"
)

Remedy = Literal[
    "raise",  # refused for good: another try would end the same way
    "repeat",  # not executed, and likely to pass: ask the same connection again later
    "relocate",  # not executed: this is not, or no longer, the server that takes writes
    "reload",  # the server does not know the script
]

_RAISE = {
    "OOM": (
        "oom",
        "the server is out of memory (maxmemory) and takes no new tasks; "
        "give it more memory or let the workers catch up",
    ),
    "NOAUTH": ("auth", "the server asks for a password; put it into the URL"),
    "WRONGPASS": ("auth", "the server did not accept the user name or password of the URL"),
    "NOPERM": (
        "auth",
        "the user of the URL may not run a command that Fairlead needs; widen its ACL",
    ),
    "DENIED": (
        "auth",
        "the server is in protected mode and takes local clients only; set a password on it",
    ),
    "WRONGTYPE": (
        "corrupt",
        "a key holds another type than Fairlead writes; run `fairlead doctor --audit`",
    ),
}

# What passes by itself, says ``Refused.passes`` of their causes.
_REPEAT = {
    "MISCONF": (
        "misconf",
        "the server cannot write to its disk and refuses all writes; "
        "free disk space, or see its log for the failing AOF or snapshot",
    ),
    "LOADING": ("loading", "the server is still loading its data"),
    "BUSY": ("busy", "the server is busy running somebody's script or function"),
    "NOREPLICAS": (
        "noreplicas",
        "the server has fewer connected replicas than its min-replicas-to-write",
    ),
    "CLUSTERDOWN": ("clusterdown", "the cluster is down; look at `CLUSTER INFO`"),
    "TRYAGAIN": ("moving", "the hash slot of this shard is being moved to another node"),
    # Not followed: the script would see a half-moved shard at either end. The old node answers
    # ASK until the move is over, and MOVED from then on.
    "ASK": ("moving", "the hash slot of this shard is being moved to another node"),
}

_RELOCATE = {
    "READONLY": "the server is a replica and takes no writes",
    "MASTERDOWN": "the server is a replica that lost its primary",
    "UNBLOCKED": "the server became a replica while it was asked to wait",
    "MOVED": "another node of the cluster serves this shard; "
    "the URL of a cluster begins with redis+cluster://",
}


class ScriptError(FairleadError):
    """One of our own scripts refused: ``FAIRLEAD <code> <field> …``. The broker says what it means.

    Never reaches a user.
    """

    def __init__(self, code: str, fields: tuple[str, ...]) -> None:
        super().__init__(f"a script refused: {code}")
        self.code, self.fields = code, fields


class Verdict(msgspec.Struct, frozen=True):
    """What an error reply means: what to raise, and what to try first."""

    remedy: Remedy
    error: BrokerError | ScriptError
    node: str = ""  # "host:port" of the node that MOVED names


def understand(text: str) -> Verdict:
    """The meaning of an error reply. Its text is repeated only where nothing better is known."""
    code, _, rest = _ORIGIN.sub("", text).partition(" ")
    if code == "FAIRLEAD":
        name, *fields = rest.split() or ["unknown"]
        return Verdict("raise", ScriptError(name, tuple(fields)))
    if code == "ERR" and rest.startswith("Function not found"):
        return Verdict("reload", Refused("forgetful", "the server keeps forgetting its scripts"))
    if code in _RELOCATE:
        node = rest.split()[-1] if code == "MOVED" and rest else ""
        return Verdict("relocate", Unreachable(_RELOCATE[code]), node)
    if code in _REPEAT:
        return Verdict("repeat", Refused(*_REPEAT[code]))
    said = one_line(_ARGUMENTS.sub("", text), _LONGEST)
    if code == "NOPERM":  # the server names the command, and no argument of it
        cause, means = _RAISE[code]
        return Verdict("raise", Refused(cause, f"{means}; it said: {said}"))
    if code in _RAISE:
        return Verdict("raise", Refused(*_RAISE[code]))
    if _NO_FUNCTIONS.match(text):
        return Verdict("raise", Refused("version", _NEEDS_FUNCTIONS))
    return Verdict("raise", Refused("server", f"the server answered with an error: {said}"))
