"""The tasks: imported by the web server and by the workers."""

from __future__ import annotations

from flask import current_app

from fairlead import Fairlead
from fairlead.contrib.flask import FlaskFairlead

queue = Fairlead()
flask_queue = FlaskFairlead(queue)
printed: list[str] = []  # stands for a printer


@queue.task
def print_receipt(order: int) -> str:
    """Print a receipt, with the name of the shop as the program is configured."""
    printed.append(f"{current_app.config['SHOP']}: order {order}")
    return printed[-1]
