"""A task that reads results of one which turned out to be another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.model.argument_packing import pack_arguments, unpack_arguments
from fairlead.model.codecs import codec_of
from fairlead.model.message import Body
from fairlead.model.result_refs import Output, with_results


def redirected(body: bytes, new: Mapping[str, str]) -> bytes:
    """The body with other ids of those whose results it reads: in its arguments, and by name.

    Arguments that are encoded stay as they are. The worker, which can read them, finds behind the
    name under which id they have it.
    """

    def output(old: Output) -> Any:
        return Output(new.get(old.id, old.id), task=old.task, tenant=old.tenant, known=old.known)

    found = Body.decode(body)
    if codec_of(found.arguments) is not None:
        moved = tuple(_moved(each, new) for each in found.depends_on)
        return msgspec.structs.replace(found, depends_on=moved).encode()
    args, kwargs = with_results(list(unpack_arguments(found.arguments)), output)
    return msgspec.structs.replace(
        found,
        arguments=pack_arguments(args, kwargs, {}),
        depends_on=tuple((new.get(id, id), *rest) for id, *rest in found.depends_on),
    ).encode()


def _moved(parent: tuple[str, ...], new: Mapping[str, str]) -> tuple[str, ...]:
    id, name, *before = parent
    if id not in new:
        return parent
    return new[id], name, before[0] if before else id
