"""The web server: uvicorn fastapi_shop.web:web"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel

from fairlead import Fairlead, QueueFull, ResultGone
from fairlead.contrib.starlette import get_app, lifespan
from fastapi_shop.tasks import queue, send_mail

api = queue.asgi()
web = FastAPI(lifespan=lifespan(queue, api=api))
web.mount("/queue", api)  # /queue is the status page, /queue/api/v1 the HTTP API


class Mail(BaseModel):
    """What a customer asks for."""

    to: str
    text: str


@web.post("/mails", status_code=202)
async def post_mail(mail: Mail, company: str = "default") -> dict[str, str]:
    """Accept a mail: the answer comes once the broker has it."""
    try:
        handle = await send_mail.using(tenant=company).aenqueue(mail.to, mail.text)
    except QueueFull as error:
        raise HTTPException(429, "too much mail waits already") from error
    return {"id": handle.id}


@web.get("/mails/{id}")
async def get_mail(
    id: str, app: Annotated[Fairlead, Depends(get_app)], company: str = "default"
) -> dict[str, object]:
    """Say how far a mail is."""
    try:
        info = await app.handle(id, company).ainfo()
    except ResultGone as error:
        raise HTTPException(404, "no such mail") from error
    return {"state": info.state, "progress": info.progress, "attempts": info.attempts}
