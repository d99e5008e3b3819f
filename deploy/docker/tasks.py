"""A small app, to try the image with; put your own in its place."""

from __future__ import annotations

from fairlead import Context, Fairlead

__all__ = ("app",)

app = Fairlead()  # FAIRLEAD_URL says which broker


@app.task(name="greet")
async def greet(ctx: Context, name: str) -> str:
    """Say hello."""
    ctx.log.info("greeting")
    return f"Hello, {name}!"
