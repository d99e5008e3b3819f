"""Names and ids: what they may look like. One rule per kind, one error for all of them.

Every check returns a plain ``str``: a member of ``class Customer(str, Enum)`` is taken by its
value, because it would format as something else.
"""

from __future__ import annotations

import re

from fairlead.model.errors import InvalidName

DEFAULT_QUEUE = "default"
DEFAULT_TENANT = "default"

_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_QUEUE_RULE = "1 to 64 characters out of A-Z a-z 0-9 _ . -"
_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z")
NAMESPACE_RULE = "1 to 32 characters out of A-Z a-z 0-9 _ . -"
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_ID_RULE = "1 to 128 characters out of A-Z a-z 0-9 _ . -"
_SCHEDULE = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")  # with a slot behind it, it is a task id
_SCHEDULE_RULE = "1 to 100 characters out of A-Z a-z 0-9 _ . -"
_MADE = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}\Z")  # a UUIDv7 in hex
_TASK = re.compile(r"[A-Za-z_][A-Za-z0-9_.:<>-]{0,199}\Z")
_TASK_RULE = "1 to 200 characters out of A-Z a-z 0-9 _ . : < > -, starting with a letter or _"
# Unicode's control characters (category Cc, which is closed for good), its two line separators, and
# what turns the direction of the text behind it: a name could look like another one, or hide what
# follows it in a log. Joiners, marks and letters that this Python has no name for yet are text like
# any other.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_TENANT_BYTES = 128
_KEY_BYTES = 256


def check_queue(value: object) -> str:
    """The queue name itself, or InvalidName."""
    return _match("queue", value, _QUEUE, _QUEUE_RULE)


def check_limiter(value: object) -> str:
    """The limiter name itself, or InvalidName."""
    return _match("limiter", value, _QUEUE, _QUEUE_RULE)


def check_namespace(value: object) -> str:
    """The name of a namespace itself, or InvalidName."""
    return _match("namespace", value, _NAMESPACE, NAMESPACE_RULE)


def check_schedule(value: object) -> str:
    """The name of a schedule itself, or InvalidName."""
    return _match("schedule", value, _SCHEDULE, _SCHEDULE_RULE)


def check_id(value: object) -> str:
    """A caller-chosen id, before it is scoped to its tenant, or InvalidName."""
    return _match("task id", value, _ID, _ID_RULE)


def check_task_name(value: object) -> str:
    """The name under which a task is registered, or InvalidName."""
    return _match("task name", value, _TASK, _TASK_RULE)


def check_tenant(value: object) -> str:
    """The tenant itself, or InvalidName. Any text will do that a log line can carry."""
    return _text("tenant", value, _TENANT_BYTES)


def check_key(kind: str, value: object) -> str:
    """A unique key or an XCom key, or InvalidName."""
    return _text(kind, value, _KEY_BYTES)


def scoped_id(tenant: str, chosen: object) -> str:
    """The stored id of a task whose caller chose ``chosen``: no other tenant can mean it.

    Ids that Fairlead makes have no colon and chosen ids may not hold one, so the three kinds of
    string (made, chosen, scoped) can be told apart, and scoping twice changes nothing.
    """
    prefix = f"{tenant}:"
    if isinstance(chosen, str) and chosen.startswith(prefix):
        chosen = chosen[len(prefix) :]
    id = check_id(chosen)
    if _MADE.match(id):
        raise InvalidName("task id", id, "unlike the ids that Fairlead makes (UUIDv7 in hex)")
    return prefix + id


def full_id(tenant: str, id: object) -> str:
    """The stored id that ``id`` stands for: as it is if Fairlead made it, else of this tenant."""
    if isinstance(id, str) and _MADE.match(id):
        return str.__str__(id)
    return scoped_id(tenant, id)


def is_made(id: str) -> bool:
    """Whether brokers take an id for one that Fairlead made: never used twice, and in order."""
    return len(id) == 32 and ":" not in id


def id_and_tenant(id: object, tenant: object = None) -> tuple[str, str]:
    """Return the stored id that ``id`` stands for, and the tenant it belongs to.

    Without a ``tenant``: the one in front of a stored id; empty for an id that Fairlead made, which
    does not tell; else the default tenant.
    """
    if tenant is None and isinstance(id, str):
        if _MADE.match(id):
            return str.__str__(id), ""
        tenant = id.rpartition(":")[0] or None
    tenant = DEFAULT_TENANT if tenant is None else check_tenant(tenant)
    return full_id(tenant, id), tenant


def _match(kind: str, value: object, pattern: re.Pattern[str], rule: str) -> str:
    if not isinstance(value, str) or not pattern.match(value):
        raise InvalidName(kind, value, rule)
    return str.__str__(value)


def _text(kind: str, value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise InvalidName(kind, value, _text_rule(limit))
    text = str.__str__(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # lone surrogates
        raise InvalidName(kind, value, _text_rule(limit)) from None
    if not 1 <= size <= limit or _CONTROL.search(text) or text.isspace():
        raise InvalidName(kind, value, _text_rule(limit))
    return text


def _text_rule(limit: int) -> str:
    return (
        f"1 to {limit} bytes of UTF-8, not only spaces, without control characters, line breaks or "
        "changes of direction"
    )
