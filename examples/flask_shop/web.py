"""The web server: flask --app flask_shop.web run"""

from __future__ import annotations

from flask import Flask

from fairlead.contrib.flask import get_app
from flask_shop.tasks import flask_queue, print_receipt


def create_app() -> Flask:
    """Make the program."""
    web = Flask(__name__)
    web.config["SHOP"] = "Ada's corner"
    flask_queue.init_app(web)

    @web.post("/orders/<int:order>")
    def post_order(order: int) -> tuple[dict[str, str], int]:
        handle = print_receipt.using(id=f"receipt-{order}").enqueue(order)
        return {"task": handle.id}, 202

    @web.get("/waiting")
    def get_waiting() -> dict[str, int]:
        return {"waiting": get_app().snapshot().depth}

    return web
