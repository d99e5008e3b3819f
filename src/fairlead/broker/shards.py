"""Which queue lies in which shard, as a URL says it: ``redis://host?shards=reports=r,video=v``.

It stands in the URL because all processes of a deployment must say the same, and the URL is what
they hand to each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.model.errors import InvalidOption
from fairlead.model.names import check_queue

_SHARD = re.compile(r"[A-Za-z0-9_]{1,32}\Z")

_OPTION = "shards"
_RULE = "QUEUE=SHARD,QUEUE=SHARD"


def check_shard(name: object) -> str:
    """The name itself, or ``InvalidOption``: event ids are taken apart at a dash."""
    if not isinstance(name, str) or not _SHARD.match(name):
        raise InvalidOption("shard", name, "1 to 32 characters out of A-Z a-z 0-9 _")
    return name


def split_shards(url: str) -> tuple[str, dict[str, str]]:
    """The URL without its shards, and the shard of each queue that it names."""
    base, _, query = url.partition("?")
    options, said = [], []
    for option in query.split("&") if query else []:
        name, _, value = option.partition("=")
        if name == _OPTION:
            said.append(value)
        else:
            options.append(option)
    if not said:
        return url, {}
    if len(said) > 1:
        raise InvalidOption(_OPTION, "…", "given once in a URL")
    routes: dict[str, str] = {}
    for item in said[0].split(","):
        queue, equals, shard = item.partition("=")
        if not equals or queue in routes:
            raise InvalidOption(_OPTION, said[0], f"{_RULE}, each queue once")
        routes[check_queue(queue)] = check_shard(shard)
    return base + ("?" + "&".join(options) if options else ""), routes


def with_shards(url: str, shards: Mapping[str, str]) -> str:
    """The URL that says all of it."""
    if not isinstance(shards, Mapping):
        raise InvalidOption(_OPTION, shards, "the shard of each queue by its name")
    if not shards:
        return url
    if split_shards(url)[1]:
        raise InvalidOption(_OPTION, dict(shards), "left out, or left out of the URL")
    routes = ",".join(f"{check_queue(queue)}={check_shard(shards[queue])}" for queue in shards)
    return f"{url}{'&' if '?' in url else '?'}{_OPTION}={routes}"
