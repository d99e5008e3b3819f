"""Large arguments on a slow link: tasks begin as they arrive, and hold up nobody."""

from __future__ import annotations

import pytest

from fairlead import Fairlead
from tests.support.proxy import proxy
from tests.support.servers import server
from tests.worker.harness import until

MB = 1_000_000
LARGE = 14
RATE = 20 * MB  # bytes a second


@pytest.mark.slow
async def test_a_worker_runs_large_tasks_on_a_slow_link_and_a_small_one_between_them() -> None:
    with server() as running:
        async with proxy(path=running.path) as link:
            app = Fairlead(link.url)
            begun: dict[str, list[int]] = {"large": [], "small": []}

            @app.task
            async def take(data: bytes) -> None:
                begun["large" if data else "small"].append(link.replied)

            noisy, quiet = take.using(tenant="noisy"), take.using(tenant="quiet")
            await app.aenqueue_many(noisy.call(b"x" * MB) for _ in range(LARGE))
            link.rate = float(RATE)
            async with app.worker(concurrency=100):
                handle = await quiet.aenqueue(b"")
                await handle.aresult(timeout=60)
                await until(lambda: len(begun["large"]) == LARGE, timeout=60)
            await app.aclose()

    assert begun["large"][0] < 6 * MB, "the first began with the first reply"
    assert begun["small"][0] < 11 * MB, "the other tenant did not wait for all of them"
    assert link.replied < (LARGE + 10) * MB, "nothing was asked for twice"
