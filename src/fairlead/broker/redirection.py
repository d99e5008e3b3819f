"""A task that reads results of one which turned out to be another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.model.message import Body
from fairlead.model.outputs import Output, with_results
from fairlead.model.values import pack_arguments, unpack_arguments

__all__ = ("redirected",)


def redirected(body: bytes, new: Mapping[str, str]) -> bytes:
    """The body with other ids of those whose results it reads: in its arguments, and by name."""

    def output(old: Output) -> Any:
        return Output(new.get(old.id, old.id), task=old.task, tenant=old.tenant, known=old.known)

    found = Body.decode(body)
    args, kwargs = with_results(list(unpack_arguments(found.arguments)), output)
    return msgspec.structs.replace(
        found,
        arguments=pack_arguments(args, kwargs, {}),
        depends_on=tuple((new.get(id, id), name) for id, name in found.depends_on),
    ).encode()
