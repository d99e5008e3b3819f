"""What an attempt saves for the next one."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Context, Fairlead, InvalidInput, Retry, TooLarge


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_attempt_goes_on_where_the_last_one_failed(app: Fairlead, is_async: bool) -> None:
    seen: list[Any] = []

    async def on_the_loop(ctx: Context) -> int:
        done = await ctx.alast_checkpoint(0)
        seen.append((ctx.attempt, done))
        await ctx.acheckpoint(done + 1)
        assert await ctx.alast_checkpoint() == done + 1
        if done < 2:
            raise Retry(0)
        return int(done)

    def in_a_thread(ctx: Context) -> int:
        done = ctx.last_checkpoint(0)
        seen.append((ctx.attempt, done))
        ctx.checkpoint(done + 1)
        assert ctx.last_checkpoint() == done + 1
        if done < 2:
            raise Retry(0)
        return int(done)

    task: Any = app.task(name="work")(on_the_loop if is_async else in_a_thread)
    handle = await task.aenqueue()
    other = await task.aenqueue()
    await app.drain()
    assert [await each.aresult(timeout=10) for each in (handle, other)] == [2, 2]
    assert sorted(seen) == [(1, 0), (1, 0), (2, 1), (2, 1), (3, 2), (3, 2)]


async def test_a_checkpoint_is_small_and_saved_from_the_right_side(app: Fairlead) -> None:
    seen: list[str] = []

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        with pytest.raises(TooLarge, match=r"^checkpoint"):
            await ctx.acheckpoint("x" * 70_000)
        with pytest.raises(InvalidInput, match=r"use: await ctx.acheckpoint\(\)"):
            ctx.checkpoint(1)
        seen.append("ran")

    await work.aenqueue()
    await app.drain()
    assert seen == ["ran"]
