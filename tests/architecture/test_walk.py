"""One task's way through the source stays short enough to be read."""

import asyncio

from tests.support.servers import shared
from tools.walk import whole_walk

MOST_HOPS = 60


def test_the_walk_of_one_task_is_short() -> None:
    with shared() as server:
        walk = asyncio.run(whole_walk(server.url))
    assert len(walk.hops) <= MOST_HOPS, "\n".join(map(str, walk.hops))
    # What it sees of the way is whole: from the first call to the handler, and to the result.
    functions = [hop.function for hop in walk.hops]
    assert functions[0] == "Sender.aenqueue"
    assert {"Runner.start", "RedisBroker.exchange", "decode_record"} <= set(functions)
